//! Unfinished operations of a volume, as stored in every superblock: sides that are to leave, sides
//! that are to get another layout, sides that a command has added, sides that have left by a
//! command, and the progress of a scrub.
//!
//! The record belongs to the table of sides: its fields that refer to places in the table change
//! only with a new epoch, like the table itself. Zero bytes, which older programs wrote, mean that
//! no operation is remembered. The record must never name a leaving side that has no place in the
//! table.

use super::{Block, Fields, SIDES_MAX, SideKind, Table, Uuid};

/// Maximum number of sides that are remembered after a command has removed them; the oldest is
/// dropped first.
pub const LEFT_MAX: usize = 8;

/// Offset of the record in the superblock; the constants below are the offsets of its fields.
const AT: usize = 3928;
const LEAVING_AT: usize = AT + 8;
const ADDED_AT: usize = LEAVING_AT + SIDES_MAX;
const LEFT_AT: usize = ADDED_AT + 8;
const SCRUB_AT: usize = LEFT_AT + 8 * LEFT_MAX;
/// Code of a side that leaves without being replaced by another side.
const LEAVES_NOW: u8 = 255;
/// Codes of a side that stays, and whose device is to be formatted again for another layout.
const CONVERTED_TO_LOG: u8 = 254;
const CONVERTED_TO_HOME: u8 = 253;

/// The first half of the UUID of a side that has left. It stands for the whole UUID, for which the
/// record has no room.
type Half = [u8; 8];

/// Condition under which a side leaves the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The side leaves as soon as another side has all its content.
    Now,
    /// A replacement: the side leaves once the side that replaces it is healthy. The value is the
    /// place of the replacing side in the table.
    OnceComplete(usize),
}

/// Progress and findings of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubRecord {
    /// Time at which the scrub began, in seconds since 1970; never 0.
    pub started_s: u64,
    /// Position in bytes up to which the volume was scrubbed.
    pub position_bytes: u64,
    /// Number of bytes read from all sides together.
    pub read_bytes: u64,
    /// Number of bytes that could not be checked, because a side did not answer.
    pub skipped_bytes: u64,
    /// Number of blocks and metadata pages that were found corrupt on a side.
    pub found: u64,
    /// Number of corrupt blocks and pages that were repaired.
    pub repaired: u64,
    /// Number of corrupt blocks and pages that have no correct copy, or whose repair has failed.
    pub unrepairable: u64,
}

/// Unfinished operations of a volume; see the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Number of changes of this record. Of two superblocks with the same epoch, the one with the
    /// higher revision has the valid record.
    pub revision: u64,
    leaving: [Option<Leaving>; SIDES_MAX],
    converted_to: [Option<SideKind>; SIDES_MAX],
    added: u16,
    left: [Half; LEFT_MAX],
    /// The scrub that was started and has not ended; `None` when there is none.
    pub scrub: Option<ScrubRecord>,
}

impl Remembered {
    /// Returns the condition under which the side at a place leaves the volume; `None` when it
    /// stays.
    pub fn leaving(&self, place: usize) -> Option<Leaving> {
        self.leaving[place]
    }

    /// Sets the condition under which the side at a place leaves the volume; `None` makes it stay.
    /// A side that leaves is not converted.
    pub fn set_leaving(&mut self, place: usize, leaving: Option<Leaving>) {
        self.leaving[place] = leaving;
        if leaving.is_some() {
            self.converted_to[place] = None;
        }
    }

    /// Returns how the side at a place is to store the blocks of the volume, once its device has
    /// been formatted again; `None` when the device is not to be formatted.
    pub fn converted_to(&self, place: usize) -> Option<SideKind> {
        self.converted_to[place]
    }

    /// Sets whether the device of the side at a place is to be formatted again, and for which
    /// layout.
    ///
    /// # Panics
    /// When the side is to leave the volume.
    pub fn set_converted_to(&mut self, place: usize, kind: Option<SideKind>) {
        let stays = self.leaving[place].is_none();
        assert!(
            kind.is_none() || stays,
            "a side that leaves is not converted"
        );
        self.converted_to[place] = kind;
    }

    /// Returns the place of the side that the side at `place` is to replace; `None` when the side
    /// at `place` is not to replace another side.
    pub fn replaced_by(&self, place: usize) -> Option<usize> {
        let is = |leaving: &Option<Leaving>| *leaving == Some(Leaving::OnceComplete(place));
        self.leaving.iter().position(is)
    }

    /// Returns true when the side at a place was added by a command and no configuration has named
    /// it since.
    pub fn is_added(&self, place: usize) -> bool {
        self.added & 1 << place != 0
    }

    /// Sets whether the side at a place is recorded as added by a command.
    pub fn set_added(&mut self, place: usize, added: bool) {
        self.added &= !(1 << place);
        self.added |= u16::from(added) << place;
    }

    /// Returns true when a command told the side at a place to leave or to get another layout, or
    /// when a command added the side and no configuration has named it since.
    pub fn concerns(&self, place: usize) -> bool {
        let changes = self.leaving[place].is_some() || self.converted_to[place].is_some();
        self.is_added(place) || changes
    }

    /// Records that a side has left the volume by a command.
    pub fn note_left(&mut self, side: &Uuid) {
        if !self.has_left(side) {
            self.left.rotate_right(1);
            self.left[0] = half_of(side);
        }
    }

    /// Returns true when the side is remembered as having left by a command.
    pub fn has_left(&self, side: &Uuid) -> bool {
        self.left.contains(&half_of(side))
    }

    /// Returns the number of sides that left the volume because of a command, according to this
    /// record.
    pub fn left_count(&self) -> usize {
        self.left.iter().filter(|half| **half != [0; 8]).count()
    }

    /// Drops the record of the sides that have left, once no configuration names them any more.
    pub fn forget_left(&mut self) {
        self.left = Default::default();
    }

    /// Clears the operations of a place whose side has left or is replaced.
    pub fn clear_place(&mut self, place: usize) {
        self.set_added(place, false);
        self.leaving[place] = None;
        self.converted_to[place] = None;
        if let Some(replaced) = self.replaced_by(place) {
            self.leaving[replaced] = None;
        }
    }

    /// Returns the record without the operations that concern free places of the table.
    pub fn within(mut self, table: &Table) -> Remembered {
        for (place, listed) in table.iter().enumerate() {
            if listed.is_none() {
                self.clear_place(place);
            }
        }
        self
    }

    pub(super) fn encode(&self, block: &mut [u8]) {
        let mut fields = Fields::at(block, AT);
        fields.put_u64(self.revision);
        for (leaving, converted_to) in self.leaving.iter().zip(self.converted_to) {
            fields.put(&[match (leaving, converted_to) {
                (None, None) => 0,
                (Some(Leaving::OnceComplete(place)), _) => *place as u8 + 1,
                (Some(Leaving::Now), _) => LEAVES_NOW,
                (None, Some(SideKind::Log)) => CONVERTED_TO_LOG,
                (None, Some(SideKind::Home)) => CONVERTED_TO_HOME,
            }]);
        }
        fields.put_u64(u64::from(self.added));
        self.left.iter().for_each(|half| fields.put(half));
        let scrub = self.scrub.unwrap_or_default();
        let counts = [
            scrub.started_s,
            scrub.position_bytes,
            scrub.read_bytes,
            scrub.skipped_bytes,
            scrub.found,
            scrub.repaired,
            scrub.unrepairable,
        ];
        counts.into_iter().for_each(|count| fields.put_u64(count));
    }

    /// Decodes the record. Values that are undefined in this version of the format are ignored.
    pub(super) fn decode(block: &Block<'_>, table: &Table) -> Remembered {
        let leaving = |place: usize| match block.0[LEAVING_AT + place] {
            LEAVES_NOW => Some(Leaving::Now),
            by if (1..=SIDES_MAX).contains(&usize::from(by)) => {
                Some(Leaving::OnceComplete(usize::from(by) - 1))
                    .filter(|_| usize::from(by) - 1 != place)
            }
            _ => None,
        };
        let converted_to = |place: usize| match block.0[LEAVING_AT + place] {
            CONVERTED_TO_LOG => Some(SideKind::Log),
            CONVERTED_TO_HOME => Some(SideKind::Home),
            _ => None,
        };
        let left = |at: usize| std::array::from_fn(|byte| block.0[LEFT_AT + 8 * at + byte]);
        let count = |at: usize| block.u64_at(SCRUB_AT + 8 * at);
        let scrub = ScrubRecord {
            started_s: count(0),
            position_bytes: count(1),
            read_bytes: count(2),
            skipped_bytes: count(3),
            found: count(4),
            repaired: count(5),
            unrepairable: count(6),
        };
        let found = Remembered {
            revision: block.u64_at(AT),
            leaving: std::array::from_fn(leaving),
            converted_to: std::array::from_fn(converted_to),
            added: block.u64_at(ADDED_AT) as u16,
            left: std::array::from_fn(left),
            scrub: (scrub.started_s != 0).then_some(scrub),
        };
        found.within(table)
    }
}

fn half_of(side: &Uuid) -> Half {
    std::array::from_fn(|byte| side[byte])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_side_leaves_for_another_and_nothing_is_kept_of_a_place_that_is_free() {
        let mut remembered = Remembered::default();
        remembered.set_leaving(1, Some(Leaving::OnceComplete(2)));
        remembered.set_added(2, true);
        assert_eq!(remembered.replaced_by(2), Some(1));
        assert!([1, 2].into_iter().all(|place| remembered.concerns(place)));
        assert!(!remembered.concerns(0));
        remembered.clear_place(2);
        assert_eq!(remembered, Remembered::default());
        remembered.set_leaving(0, Some(Leaving::Now));
        assert_eq!(remembered.within(&[None; SIDES_MAX]), Remembered::default());
    }

    #[test]
    fn a_side_that_leaves_is_not_converted() {
        let mut remembered = Remembered::default();
        remembered.set_converted_to(1, Some(SideKind::Log));
        assert!(remembered.concerns(1));
        assert_eq!(remembered.within(&[None; SIDES_MAX]), Remembered::default());
        remembered.set_leaving(1, Some(Leaving::Now));
        assert_eq!(remembered.converted_to(1), None);
    }

    #[test]
    fn of_the_sides_that_have_left_the_oldest_is_forgotten_first() {
        let mut remembered = Remembered::default();
        assert_eq!(remembered.left_count(), 0);
        let side = |number: usize| [number as u8 + 1; 16];
        (0..=LEFT_MAX).for_each(|number| remembered.note_left(&side(number)));
        assert_eq!(remembered.left_count(), LEFT_MAX);
        assert!(!remembered.has_left(&side(0)));
        assert!((1..=LEFT_MAX).all(|number| remembered.has_left(&side(number))));
    }
}
