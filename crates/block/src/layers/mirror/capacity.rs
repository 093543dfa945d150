//! Room for the content of a volume that is larger than what its sides have room for. Blocks that
//! were never written, or that were discarded, need no room.
//!
//! A change must never be admitted if its content may find no room on a side. A change that frees
//! room must always be admitted.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::planted::{Bug, is_planted};
use super::written_blocks::WrittenBlocks;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::Op;

/// The room for content, and the blocks that take it; see the module. A block takes room from the
/// admission of a write on, and until a side has stored that it was discarded: if that fails on all
/// sides, the old content stays. Sides store changes in the order of their admission, so what a
/// change needs is free on a side once the changes before it are stored there.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    /// Number of blocks for which every side has room; `None` if all of the volume has room.
    room_blocks: Option<u64>,
    written: RefCell<WrittenBlocks>,
    refused: Cell<u64>,
}

/// The use of the room of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Room {
    /// Number of bytes of the volume that have content.
    pub content_bytes: u64,
    /// Number of bytes of the volume that may have content.
    pub room_bytes: u64,
    /// Number of writes that were refused since the volume was opened, because they had no room.
    pub refused_writes: u64,
}

impl Capacity {
    /// Creates the room of a volume that may have content of `room_bytes`, and in which the given
    /// blocks have content.
    pub(super) fn limited(room_bytes: u64, written: WrittenBlocks) -> Capacity {
        Capacity {
            room_blocks: Some(room_bytes / BLOCK_BYTES),
            written: RefCell::new(written),
            refused: Cell::default(),
        }
    }

    /// Returns the use of the room; `None` if all of the volume has room.
    pub(super) fn room(&self) -> Option<Room> {
        self.room_blocks.map(|room_blocks| Room {
            content_bytes: self.written.borrow().count() * BLOCK_BYTES,
            room_bytes: room_blocks * BLOCK_BYTES,
            refused_writes: self.refused.get(),
        })
    }

    /// Returns true when the block at `offset` counts as content.
    pub(super) fn counts(&self, offset: u64) -> bool {
        let block = offset..offset + BLOCK_BYTES;
        self.written.borrow().missing_in(&block) == 0
    }

    /// Checks that a change has room. The range of the change must be locked, and must stay so
    /// until [`admitted`](Self::admitted) is called, without an await between.
    ///
    /// # Errors
    /// `NoSpace` if it has none.
    pub(super) fn check(&self, op: Op, range: &Range<u64>) -> Result<(), IoError> {
        let Some(room_blocks) = self.room_blocks.filter(|_| op == Op::Write) else {
            return Ok(());
        };
        let written = self.written.borrow();
        let needed = written.count() + written.missing_in(range);
        if needed <= room_blocks || is_planted(Bug::AdmitsWithoutRoom) {
            return Ok(());
        }
        self.refused.set(self.refused.get() + 1);
        Err(IoError::NoSpace)
    }

    /// Records a change that was admitted.
    pub(super) fn admitted(&self, op: Op, range: &Range<u64>) {
        if self.room_blocks.is_some() && op == Op::Write {
            self.written.borrow_mut().insert(range);
        }
    }

    /// Records a change that a side has stored. Its range must have been locked since it was
    /// admitted.
    pub(super) fn stored(&self, op: Op, range: &Range<u64>) {
        let frees = matches!(op, Op::Discard | Op::WriteZeroes) && !is_planted(Bug::KeepsRoom);
        if self.room_blocks.is_some() && frees {
            self.written.borrow_mut().remove(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_room_is_refused_until_room_is_freed() {
        let blocks = |start: u64, end: u64| start * BLOCK_BYTES..end * BLOCK_BYTES;
        let mut written = WrittenBlocks::default();
        written.insert(&blocks(0, 2));
        let capacity = Capacity::limited(4 * BLOCK_BYTES, written);
        let write = |range: Range<u64>| {
            capacity.check(Op::Write, &range)?;
            capacity.admitted(Op::Write, &range);
            Ok::<(), IoError>(())
        };
        assert_eq!(write(blocks(100, 103)), Err(IoError::NoSpace));
        assert_eq!(write(blocks(1, 4)), Ok(()));
        // What has content is written again in any case.
        assert_eq!(write(blocks(0, 4)), Ok(()));
        assert_eq!(write(blocks(4, 5)), Err(IoError::NoSpace));
        for (op, range, other) in [
            (Op::Discard, blocks(2, 3), blocks(60, 61)),
            (Op::WriteZeroes, blocks(3, 9), blocks(61, 62)),
        ] {
            assert_eq!(capacity.check(op, &range), Ok(()));
            capacity.admitted(op, &range);
            assert_eq!(write(other.clone()), Err(IoError::NoSpace));
            capacity.stored(op, &range);
            assert_eq!(write(other), Ok(()));
        }
        capacity.stored(Op::Discard, &blocks(60, 62));
        let room = capacity.room().unwrap();
        assert_eq!(
            (room.content_bytes, room.room_bytes),
            (2 * BLOCK_BYTES, 4 * BLOCK_BYTES)
        );
        assert_eq!(room.refused_writes, 4);
        assert_eq!(write(blocks(50, 52)), Ok(()));
        assert_eq!(write(blocks(52, 53)), Err(IoError::NoSpace));
    }

    #[test]
    fn without_a_limit_nothing_is_refused_or_recorded() {
        let capacity = Capacity::default();
        assert_eq!(capacity.check(Op::Write, &(0..1 << 60)), Ok(()));
        capacity.admitted(Op::Write, &(0..1 << 60));
        capacity.stored(Op::Discard, &(0..1 << 60));
        assert_eq!(capacity.room(), None);
    }
}
