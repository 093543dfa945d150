//! What a volume has been told to do and has not finished, as every superblock says it: which sides
//! are to leave, which have come by a command, which have left by one, and how far a scrub is.
//!
//! It goes with the table of sides: what concerns places changes with an epoch, as the table does.
//! Bytes of zero, as all programs before have written them, say that nothing is remembered. It must
//! never say that a side leaves which has no place in the table.

use super::{Block, Fields, SIDES_MAX, Table, Uuid};

/// Sides that have left by a command and are remembered, at most; the oldest is forgotten first.
pub const LEFT_MAX: usize = 8;

/// Where it lies in the superblock, and within it.
const AT: usize = 3928;
const LEAVING_AT: usize = AT + 8;
const ADDED_AT: usize = LEAVING_AT + SIDES_MAX;
const LEFT_AT: usize = ADDED_AT + 8;
const SCRUB_AT: usize = LEFT_AT + 8 * LEFT_MAX;
/// The byte of a side that leaves without another one in its place.
const LEAVES_NOW: u8 = 255;

/// The first half of a UUID: what there is room for of a side that has left.
type Half = [u8; 8];

/// When a side leaves the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// As soon as another side has everything that is on it.
    Now,
    /// Once the side at this place of the table is whole.
    OnceWhole(usize),
}

/// How far a scrub is, and what it has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubRecord {
    /// When it began, in seconds since 1970; never 0.
    pub started_s: u64,
    /// Everything before this offset of the volume was scrubbed, in bytes.
    pub position_bytes: u64,
    /// Bytes read from all sides together.
    pub read_bytes: u64,
    /// Bytes that could not be read, because a side did not answer.
    pub skipped_bytes: u64,
    /// Blocks and pages that were wrong on a side.
    pub found: u64,
    /// Those of them that were repaired.
    pub repaired: u64,
    /// Those that were wrong on every side.
    pub unrepairable: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Counts the changes; of two superblocks with the same epoch the higher one counts.
    pub revision: u64,
    leaving: [Option<Leaving>; SIDES_MAX],
    added: u16,
    left: [Half; LEFT_MAX],
    /// The scrub that has begun and has not ended.
    pub scrub: Option<ScrubRecord>,
}

impl Remembered {
    /// When the side at a place leaves; `None` when it stays.
    pub fn leaving(&self, place: usize) -> Option<Leaving> {
        self.leaving[place]
    }

    /// The side at a place is to leave, or to stay.
    pub fn set_leaving(&mut self, place: usize, leaving: Option<Leaving>) {
        self.leaving[place] = leaving;
    }

    /// The place of the side that leaves once the side at this place is whole.
    pub fn replaced_by(&self, place: usize) -> Option<usize> {
        let is = |leaving: &Option<Leaving>| *leaving == Some(Leaving::OnceWhole(place));
        self.leaving.iter().position(is)
    }

    /// True of a side that has come by a command, and that no configuration has named since.
    pub fn is_added(&self, place: usize) -> bool {
        self.added & 1 << place != 0
    }

    /// Notes whether the side at a place has come by a command.
    pub fn set_added(&mut self, place: usize, added: bool) {
        self.added &= !(1 << place);
        self.added |= u16::from(added) << place;
    }

    /// True when an operation concerns the side at a place, whatever the configuration names.
    pub fn concerns(&self, place: usize) -> bool {
        self.is_added(place) || self.leaving[place].is_some()
    }

    /// A side has left the volume by a command.
    pub fn note_left(&mut self, side: &Uuid) {
        if !self.has_left(side) {
            self.left.rotate_right(1);
            self.left[0] = half_of(side);
        }
    }

    /// True when this side is remembered to have left by a command.
    pub fn has_left(&self, side: &Uuid) -> bool {
        self.left.contains(&half_of(side))
    }

    /// How many sides are remembered to have left by a command.
    pub fn left_count(&self) -> usize {
        self.left.iter().filter(|half| **half != [0; 8]).count()
    }

    /// No configuration names the sides that have left any more.
    pub fn forget_left(&mut self) {
        self.left = Default::default();
    }

    /// Nothing is remembered of a place that is given to another side or to none.
    pub fn clear_place(&mut self, place: usize) {
        self.set_added(place, false);
        self.leaving[place] = None;
        if let Some(replaced) = self.replaced_by(place) {
            self.leaving[replaced] = None;
        }
    }

    /// The same without what concerns places that are free in the table.
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
        for leaving in self.leaving {
            fields.put(&[match leaving {
                None => 0,
                Some(Leaving::OnceWhole(place)) => place as u8 + 1,
                Some(Leaving::Now) => LEAVES_NOW,
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

    /// Reads it. What a later program may mean by other values is nothing to this one.
    pub(super) fn decode(block: &Block<'_>, table: &Table) -> Remembered {
        let leaving = |place: usize| match block.0[LEAVING_AT + place] {
            LEAVES_NOW => Some(Leaving::Now),
            by if (1..=SIDES_MAX).contains(&usize::from(by)) => {
                Some(Leaving::OnceWhole(usize::from(by) - 1))
                    .filter(|_| usize::from(by) - 1 != place)
            }
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
        remembered.set_leaving(1, Some(Leaving::OnceWhole(2)));
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
