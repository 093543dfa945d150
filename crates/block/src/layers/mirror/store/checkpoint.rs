//! The checkpoint of a side: it records where the log begins, and the discontinuity records between
//! the incarnations of the log. The checkpoint is written to two slots, one after the other, so
//! that one slot is intact at any time, and either suffices once both are written; see
//! `docs/format/mirror-side.md`.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::entry::{put_u32, put_u64, u32_at, u64_at};
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::superblock::Uuid;
use crate::request::{Flags, Request};

/// Offsets in bytes of the two slots on the device.
const SLOTS: [u64; 2] = [4 << 10, 8 << 10];
const MAGIC: [u8; 8] = *b"BMCHECK\0";
/// Maximum number of discontinuity records in a checkpoint.
pub(super) const DISCONTINUITIES_MAX: usize = 128;
const DISCONTINUITIES_AT: usize = 72;
const DISCONTINUITY_BYTES: usize = 24;
const KEPT_FROM_AT: usize = DISCONTINUITIES_AT + DISCONTINUITIES_MAX * DISCONTINUITY_BYTES;
const DURABLE_AT: usize = KEPT_FROM_AT + 8;
const CHECKSUM_AT: usize = BLOCK_BYTES as usize - 4;

/// A discontinuity record: the positions at which one incarnation of the log ended and the next one
/// began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Discontinuity {
    /// Number of the incarnation that began.
    pub(super) run: u64,
    /// Position at which the previous incarnation ended.
    pub(super) end: u64,
    /// Position at which the new incarnation began.
    pub(super) start: u64,
}

/// Content of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checkpoint {
    /// Sequence number of the checkpoint; of two checkpoints, the one with the higher number is
    /// newer.
    pub(super) sequence: u64,
    /// Position of the first log entry that is needed.
    pub(super) tail: u64,
    /// Sequence number below which the side has every change, even if all log entries from the tail
    /// on are lost.
    pub(super) complete_below: u64,
    /// Number of the current incarnation of the log.
    pub(super) run: u64,
    /// Sequence number below which every change was durable on every member of the epoch. If a
    /// change with this number or a higher one was dropped, its region is marked in the
    /// dirty-region bitmap.
    pub(super) shared_below: u64,
    /// From this sequence number on, the log has kept every change that any member of the epoch
    /// lacked; 0 when unknown.
    pub(super) kept_from: u64,
    /// Position before which every log entry was durable when the checkpoint was written; 0 when
    /// unknown.
    pub(super) durable_to: u64,
    /// The discontinuity records between the tail and the head.
    pub(super) discontinuities: Vec<Discontinuity>,
}

impl Checkpoint {
    /// Encodes the checkpoint as a block for the device.
    fn encode(&self, side: &Uuid) -> Vec<u8> {
        assert!(
            self.discontinuities.len() <= DISCONTINUITIES_MAX,
            "the jumps fit"
        );
        let mut block = vec![0; BLOCK_BYTES as usize];
        block[..8].copy_from_slice(&MAGIC);
        block[8..24].copy_from_slice(side);
        let words = [self.sequence, self.tail, self.complete_below, self.run];
        for (index, word) in words.into_iter().enumerate() {
            put_u64(&mut block, 24 + index * 8, word);
        }
        put_u32(&mut block, 56, self.discontinuities.len() as u32);
        put_u64(&mut block, 64, self.shared_below);
        put_u64(&mut block, KEPT_FROM_AT, self.kept_from);
        put_u64(&mut block, DURABLE_AT, self.durable_to);
        for (index, discontinuity) in self.discontinuities.iter().enumerate() {
            let at = DISCONTINUITIES_AT + index * DISCONTINUITY_BYTES;
            put_u64(&mut block, at, discontinuity.run);
            put_u64(&mut block, at + 8, discontinuity.end);
            put_u64(&mut block, at + 16, discontinuity.start);
        }
        let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
        put_u32(&mut block, CHECKSUM_AT, checksum);
        block
    }

    /// Decodes a block; `None` when it does not hold a valid checkpoint of this side.
    fn decode(block: &[u8], side: &Uuid) -> Option<Checkpoint> {
        let known = block.len() == BLOCK_BYTES as usize && block[..8] == MAGIC;
        if !known || u32_at(block, CHECKSUM_AT) != crc32c::crc32c(&block[..CHECKSUM_AT]) {
            return None;
        }
        let count = u32_at(block, 56) as usize;
        if block[8..24] != side[..] || count > DISCONTINUITIES_MAX {
            return None;
        }
        let discontinuity = |index: usize| {
            let at = DISCONTINUITIES_AT + index * DISCONTINUITY_BYTES;
            Discontinuity {
                run: u64_at(block, at),
                end: u64_at(block, at + 8),
                start: u64_at(block, at + 16),
            }
        };
        let checkpoint = Checkpoint {
            sequence: u64_at(block, 24),
            tail: u64_at(block, 32),
            complete_below: u64_at(block, 40),
            run: u64_at(block, 48),
            shared_below: u64_at(block, 64),
            kept_from: u64_at(block, KEPT_FROM_AT),
            durable_to: u64_at(block, DURABLE_AT),
            discontinuities: (0..count).map(discontinuity).collect(),
        };
        checkpoint.is_sound().then_some(checkpoint)
    }

    /// Returns true when the positions and incarnations of the discontinuity records are in
    /// ascending order and agree with the rest of the checkpoint.
    fn is_sound(&self) -> bool {
        let forward = self
            .discontinuities
            .iter()
            .all(|discontinuity| discontinuity.end <= discontinuity.start);
        let ordered = self
            .discontinuities
            .windows(2)
            .all(|pair| pair[0].start <= pair[1].end && pair[0].run < pair[1].run);
        let last = self
            .discontinuities
            .last()
            .is_none_or(|last| last.run == self.run);
        let aligned = self.tail.is_multiple_of(BLOCK_BYTES);
        forward && ordered && last && aligned
    }
}

/// Result of reading both slots.
pub(super) struct Found {
    /// The newest checkpoint.
    pub(super) newest: Checkpoint,
    /// Index of the slot to write first next time. The other slot holds the newest checkpoint; this
    /// slot possibly holds an older one, or none.
    pub(super) older_slot: usize,
}

/// Reads the newest checkpoint of a side.
///
/// # Errors
/// When neither slot is valid: the error of the device if a slot cannot be read, otherwise
/// `Corrupt`.
pub(super) async fn read(device: &Rc<dyn Device>, side: &Uuid) -> Result<Found, IoError> {
    let (mut newest, mut error) = (None::<Found>, IoError::Corrupt);
    for (index, slot) in SLOTS.into_iter().enumerate() {
        let block = match device.submit(Request::read(slot, BLOCK_BYTES)).await {
            Ok(reply) => reply.into_data().to_vec(),
            Err(failed) => {
                error = failed;
                continue;
            }
        };
        let found = Checkpoint::decode(&block, side);
        let newer = |found: &Checkpoint| {
            let known = newest.as_ref();
            known.is_none_or(|known| known.newest.sequence < found.sequence)
        };
        if let Some(found) = found.filter(newer) {
            newest = Some(Found {
                newest: found,
                older_slot: 1 - index,
            });
        }
    }
    newest.ok_or(error)
}

/// Returns the number of slots that do not hold `checkpoint`. Both slots should hold it, because it
/// was written to both. A slot with an unreadable block is counted.
///
/// # Errors
/// Errors of the device other than an unreadable block.
pub(super) async fn wrong_slots(
    device: &Rc<dyn Device>,
    side: &Uuid,
    checkpoint: &Checkpoint,
) -> Result<u64, IoError> {
    let mut wrong = 0;
    for slot in SLOTS {
        let found = match device.submit(Request::read(slot, BLOCK_BYTES)).await {
            Ok(reply) => Checkpoint::decode(&reply.into_data().to_vec(), side),
            Err(IoError::Medium) => None,
            Err(error) => return Err(error),
        };
        wrong += u64::from(found.as_ref() != Some(checkpoint));
    }
    Ok(wrong)
}

/// Durably writes a checkpoint to both slots. The first slot written is the slot that may not hold
/// the newest checkpoint. Log space that the checkpoint frees must not be reused before this
/// returns: until then, an opening may find the checkpoint in either slot.
///
/// # Errors
/// When the device fails. One slot is intact nevertheless, with this checkpoint or the previous
/// one.
pub(super) async fn write(
    rt: &Rt,
    device: &Rc<dyn Device>,
    side: &Uuid,
    checkpoint: &Checkpoint,
    older_slot: &Cell<usize>,
) -> Result<(), IoError> {
    let block = rt.pool().copy_of(&checkpoint.encode(side));
    for _ in SLOTS {
        let slot = SLOTS[older_slot.get()];
        let written = device.submit(Request::write(slot, block.clone(), Flags::NONE));
        written.await?;
        device.submit(Request::flush()).await?;
        older_slot.set(1 - older_slot.get());
    }
    Ok(())
}
