//! The rule that limits corruption: it decides which copies of a block can be corrupted by bit rot,
//! lost writes and misdirected writes.
//!
//! A volume must repair a block as long as one copy is intact. So for the classes of faults that
//! the volume must repair, at most one copy of a block is corrupt at a time. This limit includes
//! older versions of the block that a power cut can restore. The copy on the side without faults is
//! never corrupt. The rule knows the correct content from the platters and the model; the code
//! under test never sees it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bimetal_block::BLOCK_BYTES;
use bimetal_block::layers::stripe::StripeLayout;

use super::platter::Platter;
use super::stack::{Platters, ends_of};
use super::volume::{Volume, ZEROES};

/// Layout of a side on its disks.
#[derive(Clone)]
pub struct SideMap {
    /// Disks of the side.
    pub platters: Platters,
    /// Stripe over the disks, if there is one.
    pub stripe: Option<StripeLayout>,
    /// Offset on the side at which the volume starts, in bytes; `None` when the side is a log and
    /// nothing else.
    pub home: Option<u64>,
    /// Blocks of a copy that is never corrupted, as offsets in bytes: the second copy of the
    /// segment record of a logged side. While the first copy is written, a power cut can tear it,
    /// so the second one must be intact.
    pub kept: Range<u64>,
    /// Offsets in bytes at which the copies of the segment record of a logged side begin; `None`
    /// when the side has homes.
    pub records: Option<[u64; 2]>,
}

impl SideMap {
    /// Returns the size of the side in bytes.
    pub fn size_bytes(&self) -> u64 {
        let disk_bytes = self.platters[0].borrow().size_bytes();
        self.stripe
            .map_or(disk_bytes, |stripe| stripe.size_bytes(disk_bytes))
    }

    /// Translates an offset on the side to a disk and the offset on that disk.
    pub fn on_disk(&self, offset: u64) -> (usize, u64) {
        match self.stripe {
            None => (0, offset),
            Some(stripe) => {
                let piece = stripe.pieces(offset..offset + 1).next();
                let piece = piece.expect("a byte is a piece");
                (piece.child, piece.child_offset)
            }
        }
    }

    /// Translates an offset on a disk to the offset on the side. Tries each stripe unit of the
    /// stripe row until one translates back to this disk and offset.
    fn on_side(&self, disk: usize, offset: u64) -> u64 {
        let Some(stripe) = self.stripe else {
            return offset;
        };
        let units = (0..self.platters.len() as u64).map(|part| {
            let unit = stripe.pieces(0..u64::MAX).next();
            let unit_bytes = unit.expect("a stripe is not empty").range.end;
            let row = offset / unit_bytes * self.platters.len() as u64;
            (row + part) * unit_bytes + offset % unit_bytes
        });
        let mut places = units.filter(|place| self.on_disk(*place) == (disk, offset));
        places.next().expect("every block of a disk is in a row")
    }

    /// Returns the first and the last eight bytes of the unit at an offset on the side.
    pub fn unit_ends_at(&self, place: u64, len: usize) -> (u64, u64) {
        let (disk, at) = self.on_disk(place);
        let platter = self.platters[disk].borrow();
        ends_of(platter.block_at(at), (at % BLOCK_BYTES) as usize, len)
    }

    /// Returns true if any block of the side is corrupt.
    fn has_corrupt_blocks(&self) -> bool {
        let mut disks = self.platters.iter();
        disks.any(|platter| platter.borrow().corrupt_blocks().next().is_some())
    }

    /// Calls `question` for an offset on the side, with the platter that holds the offset and the
    /// number of the block on that platter.
    fn ask_at<T>(&self, place: u64, question: impl Fn(&Platter, usize) -> T) -> T {
        let (disk, at) = self.on_disk(place);
        question(&self.platters[disk].borrow(), (at / BLOCK_BYTES) as usize)
    }
}

/// The rule that decides which copies can be corrupted; see the module.
pub struct Rule {
    sides: RefCell<Vec<SideMap>>,
    spared: Option<usize>,
    span_bytes: u64,
    unit_bytes: u64,
    volume: Rc<RefCell<Volume>>,
    hopeless: Cell<u64>,
    /// Function that returns the location, on a given side, of the newest content of a block of the
    /// volume; `None` while no program runs.
    place_on: RefCell<Option<Rc<PlaceOn>>>,
}

/// Function that takes a side and the offset of a block in the volume, and returns the offset of
/// the newest content of the block on the side. `None` means zeroes that are not stored.
pub type PlaceOn = dyn Fn(usize, u64) -> Option<u64>;

impl Rule {
    /// Creates the rule for a volume. The first `span_bytes` bytes of the volume are in use.
    /// `spared` is the side without faults; without such a side, no block is ever corrupted.
    pub fn new(
        volume: Rc<RefCell<Volume>>,
        spared: Option<usize>,
        span_bytes: u64,
        unit_bytes: u64,
    ) -> Rule {
        Rule {
            sides: RefCell::default(),
            spared,
            span_bytes,
            unit_bytes,
            volume,
            hopeless: Cell::new(0),
            place_on: RefCell::default(),
        }
    }

    /// Sets the layouts of the sides, which are not known yet when the rule is created.
    pub fn set_sides(&self, sides: Vec<SideMap>) {
        *self.sides.borrow_mut() = sides;
    }

    /// Sets the function that returns the location of the newest content of a block on a given
    /// side. Without this function, the home location of the block is used.
    pub fn set_place_on(&self, place_on: Option<Rc<PlaceOn>>) {
        *self.place_on.borrow_mut() = place_on;
    }

    fn place_on(&self, side: usize, offset: u64) -> Option<u64> {
        let place_on = self.place_on.borrow().clone();
        match place_on {
            Some(place_on) => place_on(side, offset),
            None => Some(self.sides.borrow()[side].home? + offset),
        }
    }

    /// Returns where a side durably keeps a block of the volume when its log is empty: at its home
    /// location, or at its present place on a side that is a log and nothing else. `None` when it
    /// is not stored, or when the place is unknown because no program runs.
    pub fn place_at_rest(&self, side: usize, offset: u64) -> Option<u64> {
        let home = self.sides.borrow()[side].home;
        match home {
            Some(home) => Some(home + offset),
            None => self.place_on(side, offset),
        }
    }

    /// Returns true when the first side stores a block of the volume.
    pub fn is_stored(&self, offset: u64) -> bool {
        let place = self.place_at_rest(0, offset);
        place.is_some_and(|place| {
            self.sides.borrow()[0].ask_at(place, |platter, index| {
                platter.block(index as u64).is_some()
            })
        })
    }

    /// Returns true if a block of a side must not be corrupted. A copy of the superblock must not
    /// be corrupted if the other copy is missing, is corrupt or can become corrupt, because it may
    /// then be the last good copy. The second checkpoint slot must never be corrupted.
    fn is_last_copy(&self, side: &SideMap, place: u64) -> bool {
        let last = side.size_bytes() - BLOCK_BYTES;
        let is_gone = |place| {
            side.ask_at(place, |platter, index| {
                let block = platter.block(index as u64);
                let magic = block.map(|block| block.slice(0..7).to_vec());
                platter.may_become_corrupt(index) || magic.as_deref() != Some(b"BIMETAL")
            })
        };
        let block = place - place % BLOCK_BYTES;
        match block {
            0 => is_gone(last),
            block if block == last => is_gone(0),
            // The rule allows corruption of the first checkpoint slot, but never of the second
            // slot. The same holds for the copies of the segment record.
            block => block == 2 * BLOCK_BYTES || side.kept.contains(&block),
        }
    }

    /// Returns true when a copy of the segment record of a side begins at an offset on a disk.
    pub fn is_record(&self, side: usize, disk: usize, offset: u64) -> bool {
        let sides = self.sides.borrow();
        let side = sides.get(side);
        side.is_some_and(|side| {
            let records = side.records;
            records.is_some_and(|records| records.contains(&side.on_side(disk, offset)))
        })
    }

    /// Returns the layout of a side.
    pub fn side(&self, index: usize) -> SideMap {
        self.sides.borrow()[index].clone()
    }

    /// Converts an offset on a side to an offset of the volume. If the home location of a block of
    /// the volume contains the offset on the side, returns the start of this block in the volume.
    /// Returns `None` if the offset is outside the used part of the volume.
    fn in_volume(&self, side: &SideMap, offset: u64) -> Option<u64> {
        let offset = offset.checked_sub(side.home?)?;
        (offset < self.span_bytes).then(|| offset - offset % BLOCK_BYTES)
    }

    /// Returns true if a block on a disk may be corrupted now: the volume can still repair the
    /// block afterwards.
    pub fn may_corrupt(&self, side: usize, disk: usize, index: usize) -> bool {
        if self.spared.is_none_or(|spared| spared == side) {
            return false;
        }
        let sides = self.sides.borrow();
        let place = sides[side].on_side(disk, index as u64 * BLOCK_BYTES);
        if self.is_last_copy(&sides[side], place) {
            return false;
        }
        let mut others = sides.iter().enumerate().filter(|(other, _)| *other != side);
        match self.in_volume(&sides[side], place) {
            Some(offset) => {
                !others.any(|(_, other)| match other.home {
                    Some(home) => other.ask_at(home + offset, Platter::may_become_corrupt),
                    // Any block of the other side may be the other copy.
                    None => self.has_corrupt_areas(other),
                })
            }
            // Only one side at a time is allowed to have corrupt blocks in its metadata areas. The
            // segments of a side without home locations count as such an area, and any of its
            // blocks may be the other copy of a block elsewhere.
            None if sides[side].home.is_none() => {
                !others.any(|(_, other)| other.has_corrupt_blocks())
            }
            None => !others.any(|(_, other)| self.has_corrupt_areas(other)),
        }
    }

    /// Returns true if a side has a corrupt block outside the used part of the volume: in its log,
    /// its dirty-region bitmap or another metadata area.
    pub fn has_corrupt_areas(&self, side: &SideMap) -> bool {
        let disks = side.platters.iter().enumerate();
        let mut corrupt = disks.flat_map(|(disk, platter)| {
            let blocks: Vec<usize> = platter.borrow().corrupt_blocks().collect();
            blocks.into_iter().map(move |block| (disk, block))
        });
        corrupt.any(|(disk, block)| {
            let place = side.on_side(disk, block as u64 * BLOCK_BYTES);
            self.in_volume(side, place).is_none()
        })
    }

    /// Returns true if the rule allows a read of a block on a disk to be misdirected now. The block
    /// must belong to the volume, and the side without faults must hold the correct content of the
    /// block.
    pub fn may_misread(&self, side: usize, disk: usize, index: usize) -> bool {
        let sides = self.sides.borrow();
        let place = sides[side].on_side(disk, index as u64 * BLOCK_BYTES);
        let offset = self.in_volume(&sides[side], place);
        self.spared.is_some_and(|spared| {
            spared != side && offset.is_some_and(|offset| self.is_whole(spared, offset))
        })
    }

    /// Returns true if a side holds the correct content of the block at an offset of the volume.
    pub fn is_whole(&self, side: usize, offset: u64) -> bool {
        let place = self.place_on(side, offset);
        let sides = self.sides.borrow();
        let volume = self.volume.borrow();
        let units = offset / self.unit_bytes..(offset + BLOCK_BYTES) / self.unit_bytes;
        let mut units = units.filter(|unit| (*unit as usize) < volume.unit_count());
        let held = |unit: u64| {
            let inside = unit * self.unit_bytes - offset;
            let len = self.unit_bytes as usize;
            place.map_or(ZEROES, |place| {
                sides[side].unit_ends_at(place + inside, len).0
            })
        };
        let is_corrupt = |place| sides[side].ask_at(place, Platter::is_corrupt);
        !place.is_some_and(is_corrupt)
            && units.all(|unit| volume.settled(unit as usize) == Some(held(unit)))
    }

    /// Returns true if the volume is allowed to answer an operation on these bytes with an error.
    /// This is allowed if some copy is corrupt and the one side that gets no faults lacks the
    /// correct content of one of the blocks, for example because this side is not in sync yet.
    pub fn may_fail(&self, start: u64, end: u64) -> bool {
        let mut blocks = (start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(|b| b * BLOCK_BYTES);
        let whole = |offset| {
            self.spared
                .is_some_and(|spared| self.is_whole(spared, offset))
        };
        self.any_corrupt() && blocks.any(|offset| !whole(offset))
    }

    /// Returns true if any side has a corrupt copy of a block in this byte range. While the side
    /// without faults is being rebuilt, one such copy is a sufficient reason for an operation to
    /// fail.
    pub fn is_corrupt_within(&self, start: u64, end: u64) -> bool {
        let count = self.sides.borrow().len();
        let is_corrupt = |side: usize, offset: u64| {
            let place = self.place_on(side, offset);
            let sides = self.sides.borrow();
            place.is_some_and(|place| sides[side].ask_at(place, Platter::is_corrupt))
        };
        let mut blocks = (start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(|b| b * BLOCK_BYTES);
        blocks.any(|offset| (0..count).any(|side| is_corrupt(side, offset)))
    }

    /// Returns true if every side holds the newest content of a block durably at its home location.
    /// If all these copies become corrupt, an error is the only correct answer to a read.
    pub fn is_everywhere(&self, offset: u64) -> bool {
        let count = self.sides.borrow().len();
        let durable = |side: usize| {
            let place = self.place_at_rest(side, offset);
            place.is_some_and(|place| self.sides.borrow()[side].ask_at(place, Platter::is_durable))
        };
        (0..count).all(|side| durable(side) && self.is_whole(side, offset))
    }

    /// Returns true if any block of any side is corrupt.
    pub fn any_corrupt(&self) -> bool {
        let sides = self.sides.borrow();
        let mut platters = sides.iter().flat_map(|side| &side.platters);
        platters.any(|platter| platter.borrow().corrupt_blocks().next().is_some())
    }

    /// Records that all copies of one more block have been corrupted.
    pub fn add_hopeless(&self) {
        self.hopeless.set(self.hopeless.get() + 1);
    }

    /// Returns true if there is a block of which all copies have been corrupted.
    pub fn any_hopeless(&self) -> bool {
        self.hopeless.get() > 0
    }
}
