//! The checkpoint in progress, and the state since the last checkpoint: the number of changes, and,
//! for each leaf written since then, the images from which the leaf was made.
//!
//! A checkpoint is taken at one point in time and written in pieces between commits. It must never
//! be completed before all its pieces are written. An image written after a checkpoint was taken
//! must never be treated as part of that checkpoint.

use super::unsettled::{LeafSources, Unsettled};
use crate::error::{At, Error};
use crate::footer::Base;
use crate::layout::Geometry;
use crate::node::{NodeId, Seq};
use crate::storage::{Aligned, Storage};

/// Number of changes after which a checkpoint is taken. An opening has to replay at least the
/// changes since the last checkpoint, so this number limits the time of an opening.
const CHANGES_MAX: u64 = 1 << 20;
/// Maximum number of bytes of a checkpoint that are written in one step.
const PIECE_BYTES: usize = 512 << 10;

/// A checkpoint that was taken and is not written yet.
#[derive(Debug)]
pub(super) struct TakenCheckpoint {
    /// Content, padded to whole blocks.
    pub bytes: Aligned,
    /// Number of bytes of the content without padding.
    pub used: usize,
    /// Segments that the checkpoint is written to; they have room for all its bytes.
    pub segments: Vec<u32>,
    /// Log position from which the log is still needed in addition to this checkpoint.
    pub tail: u64,
    /// Sequence number of the last batch accepted before the checkpoint was taken.
    pub seq: Seq,
    /// Segments that had no live content when the checkpoint was taken.
    pub emptied: Vec<u32>,
}

/// Data about a written checkpoint that its superblock needs, and the segments that become free
/// when the checkpoint takes effect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrittenCheckpoint {
    pub segments: Vec<u32>,
    pub used_bytes: u64,
    pub crc: u32,
    pub tail: u64,
    pub seq: Seq,
    pub emptied: Vec<u32>,
    /// Number of leaf writes that had been counted when the checkpoint was taken.
    pub leaves_written: u64,
}

/// A checkpoint in progress.
#[derive(Debug)]
struct UnderWay {
    bytes: Aligned,
    written: usize,
    /// Data about the checkpoint, valid once all bytes are written.
    then: WrittenCheckpoint,
}

/// The checkpoint in progress, and the state since the last checkpoint.
#[derive(Debug, Default)]
pub(super) struct Checkpointer {
    under_way: Option<UnderWay>,
    /// Number of changes of leaves since the last checkpoint was taken.
    changes: u64,
    unsettled: Unsettled,
}

impl Checkpointer {
    /// Returns true while a checkpoint is in progress.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Notes that `count` changes of leaves were made.
    pub(super) fn note_changes(&mut self, count: u64) {
        self.changes += count;
    }

    /// Returns true if a checkpoint is due, because opening would have to replay too many changes.
    pub(super) fn is_due(&self) -> bool {
        self.changes >= CHANGES_MAX
    }

    /// Begins to write a taken checkpoint. Every image that the checkpoint names must have been
    /// written to the storage, but need not be durable.
    pub(super) fn begin(&mut self, taken: TakenCheckpoint, geometry: &Geometry) {
        assert!(!self.is_under_way(), "one checkpoint at a time");
        let room = taken.segments.len() * geometry.segment_bytes as usize;
        assert!(
            taken.used <= taken.bytes.len() && taken.bytes.len() <= room,
            "it has room in its segments"
        );
        self.changes = 0;
        self.under_way = Some(UnderWay {
            written: 0,
            then: WrittenCheckpoint {
                segments: taken.segments,
                used_bytes: taken.used as u64,
                crc: crc32c::crc32c(&taken.bytes[..taken.used]),
                tail: taken.tail,
                seq: taken.seq,
                emptied: taken.emptied,
                leaves_written: self.unsettled.written(),
            },
            bytes: taken.bytes,
        });
    }

    /// Writes the next piece of the checkpoint in progress. Returns false if all pieces are
    /// written, or if there is no checkpoint in progress.
    ///
    /// # Errors
    ///
    /// Errors of the storage; the checkpoint is abandoned then.
    pub(super) fn write_piece(
        &mut self,
        storage: &dyn Storage,
        geometry: &Geometry,
    ) -> Result<bool, Error> {
        let Some(mut checkpoint) = self.under_way.take() else {
            return Ok(false);
        };
        let (bytes, written) = (&checkpoint.bytes, checkpoint.written);
        let is_left = written < bytes.len();
        if is_left {
            let segment_bytes = geometry.segment_bytes as usize;
            let at = written % segment_bytes;
            let segment = checkpoint.then.segments[written / segment_bytes];
            let rest = bytes.len() - written;
            let len = PIECE_BYTES.min(segment_bytes - at).min(rest);
            let offset = geometry.segment_offset(segment) + at as u64;
            let piece = &bytes[written..written + len];
            storage
                .write(offset, piece)
                .at("writing a checkpoint", offset)?;
            checkpoint.written += len;
        }
        self.under_way = Some(checkpoint);
        Ok(is_left)
    }

    /// Takes the checkpoint in progress, which must have been written in full. The caller makes the
    /// checkpoint durable and names it in a superblock.
    pub(super) fn take_written(&mut self) -> Option<WrittenCheckpoint> {
        let checkpoint = self.under_way.take()?;
        assert!(
            checkpoint.written == checkpoint.bytes.len(),
            "all of it is written"
        );
        Some(checkpoint.then)
    }

    /// Notes that a checkpoint is durably in effect. `leaves_written` is the number of leaves that
    /// had been written when that checkpoint was taken.
    pub(super) fn settle(&mut self, leaves_written: u64) {
        self.unsettled.settle(leaves_written);
    }

    /// Returns the sources of a new image that is made from the images `bases`. The sources are
    /// these images and, as far as they are recorded, the images from which these images were made.
    pub(super) fn trace(&self, bases: &[Base], logged_from: u64) -> LeafSources {
        self.unsettled.trace(bases, logged_from)
    }

    /// Notes that `leaf` was written, and the images that it was made from (`origin`).
    pub(super) fn note_leaf(&mut self, leaf: NodeId, origin: LeafSources) {
        self.unsettled.note(leaf, origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryStorage;

    /// Segments of 1 MiB, the first of which begins at 1 MiB.
    fn geometry() -> Geometry {
        let geometry = Geometry::new(1, 1 << 12, 1 << 20);
        assert_eq!(geometry.segment_offset(0), 1 << 20);
        geometry
    }

    /// A checkpoint in a buffer of `kib` KiB. Each KiB is filled with its number modulo 251. Of the
    /// last KiB, only the first byte belongs to the checkpoint.
    fn checkpoint(kib: usize, segments: Vec<u32>) -> TakenCheckpoint {
        let mut bytes = Aligned::zeroed(kib << 10);
        for (number, part) in bytes.chunks_mut(1 << 10).enumerate() {
            part.fill((number % 251) as u8);
        }
        TakenCheckpoint {
            bytes,
            used: ((kib - 1) << 10) + 1,
            segments,
            tail: 30,
            seq: 40,
            emptied: vec![6],
        }
    }

    fn begin(checkpointer: &mut Checkpointer, kib: usize, segments: Vec<u32>) {
        checkpointer.begin(checkpoint(kib, segments), &geometry());
    }

    #[test]
    fn a_checkpoint_is_written_in_pieces_that_end_where_segments_do() {
        let storage = MemoryStorage::with_content(vec![0xFF; 5 << 20]);
        let mut checkpointer = Checkpointer::default();
        // A checkpoint of 1 MiB and 100 KiB in segments 3 and 1 is written in three pieces: two of
        // 512 KiB and one of 100 KiB.
        begin(&mut checkpointer, 1124, vec![3, 1]);
        let ends = [(4 << 20) + (512 << 10), 5 << 20, (2 << 20) + (100 << 10)];
        for end in ends {
            assert_eq!(storage.content()[end - 1], 0xFF);
            let written = checkpointer.write_piece(&storage, &geometry());
            assert_eq!(written, Ok(true));
            let content = storage.content();
            assert_ne!(content[end - 1], 0xFF);
            assert!(content.get(end).is_none_or(|byte| *byte == 0xFF));
        }
        assert_eq!(checkpointer.write_piece(&storage, &geometry()), Ok(false));
        let content = storage.content();
        // Each KiB of the checkpoint is filled with its number modulo 251. KiB 1023, the last KiB
        // of segment 3, is filled with 1023 - 4 * 251 = 19. KiB 1024, the first KiB of segment 1,
        // is filled with 20.
        assert_eq!(content[(5 << 20) - 1], 19);
        assert_eq!(content[2 << 20], 20);
        assert_eq!(content[(2 << 20) + (100 << 10)], 0xFF, "and no more");
        let written = checkpointer.take_written().expect("it is on its way");
        assert_eq!((written.tail, written.seq), (30, 40));
        assert_eq!(written.used_bytes, 1123 * 1024 + 1);
        assert_eq!(written.segments, [3, 1]);
        assert!(!checkpointer.is_under_way());
    }

    #[test]
    #[should_panic(expected = "all of it is written")]
    fn no_checkpoint_counts_before_it_is_written() {
        let storage = MemoryStorage::with_content(vec![0; 5 << 20]);
        let mut checkpointer = Checkpointer::default();
        begin(&mut checkpointer, 600, vec![0]);
        let written = checkpointer.write_piece(&storage, &geometry());
        assert_eq!(written, Ok(true));
        checkpointer.take_written();
    }

    #[test]
    #[should_panic(expected = "one checkpoint at a time")]
    fn no_checkpoint_is_forgotten_for_another() {
        let mut checkpointer = Checkpointer::default();
        begin(&mut checkpointer, 4, vec![0]);
        begin(&mut checkpointer, 4, vec![1]);
    }

    #[test]
    #[should_panic(expected = "room in its segments")]
    fn no_checkpoint_is_longer_than_its_segments() {
        begin(&mut Checkpointer::default(), 1028, vec![0]);
    }

    #[test]
    fn changes_count_from_when_a_checkpoint_was_taken() {
        let mut checkpointer = Checkpointer::default();
        checkpointer.note_changes((1 << 20) - 1);
        assert!(!checkpointer.is_due());
        checkpointer.note_changes(1);
        assert!(checkpointer.is_due());
        begin(&mut checkpointer, 4, vec![0]);
        assert!(!checkpointer.is_due());
    }

    #[test]
    fn a_leaf_that_was_written_after_a_checkpoint_was_taken_is_not_in_it() {
        let storage = MemoryStorage::with_content(vec![0; 5 << 20]);
        let base = |lsn| Base {
            node: 1,
            lsn,
            patches: 0,
        };
        let mut checkpointer = Checkpointer::default();
        let origin = checkpointer.trace(&[base(10)], 5);
        checkpointer.note_leaf(1, origin);
        begin(&mut checkpointer, 4, vec![0]);
        let origin = checkpointer.trace(&[base(20)], 8);
        assert_eq!(origin.bases, [base(20), base(10)]);
        checkpointer.note_leaf(1, origin);
        while checkpointer.write_piece(&storage, &geometry()) == Ok(true) {}
        let written = checkpointer.take_written().expect("it is on its way");
        checkpointer.settle(written.leaves_written);
        let origin = checkpointer.trace(&[base(30)], 9);
        assert_eq!(origin.bases, [base(30), base(20), base(10)]);
        assert_eq!(origin.logged_from, 5);
    }
}
