//! Reading a log after a clean stop or any crash: its entries, the sequence number up to which it
//! is complete, and the position of its next entry. Reading writes nothing to the device, so it can
//! be interrupted and repeated.

use std::ops::Range;
use std::rc::Rc;

use futures_util::future::try_join_all;

use super::StoreDevice;
use super::checkpoint::{self, Checkpoint};
use super::entry::{HEADER_BYTES, Header};
use super::index::{Entry, Index};
use super::late::Overtaking;
use super::log::LogStart;
use super::log_area::Area;
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::superblock::{FIRST_CHANGE, Uuid};
use crate::request::Request;

/// Minimum number of bytes in one read of the log.
const CHUNK_BYTES: u64 = 1 << 20;
/// Maximum number of reads in flight. The reader starts with one read and doubles the number with
/// each chunk, because a single read suffices for an empty log.
const READS_IN_FLIGHT_MAX: usize = 8;

/// Result of reading the log of a side.
pub(super) struct Recovered {
    pub(super) start: LogStart,
    /// Time at which the newest entry was written, in seconds since 1970; `None` in an empty log.
    pub(super) written_s: Option<u64>,
    /// Sequence number below which every change was durable on every member of the epoch.
    pub(super) shared_below: u64,
    /// Ranges of invalid records that were possibly destaged.
    pub(super) given_up: Vec<Range<u64>>,
    /// Whether entries that had been durable are missing, so that the side has lost unknown
    /// changes.
    pub(super) damaged: bool,
}

/// Reader of the log that reads ahead, so that small entries do not need a request each.
struct Reader<'d> {
    device: &'d Rc<dyn Device>,
    digest: BlockDigest,
    area: Area,
    /// Position at which the space of the log ends.
    limit: u64,
    position: u64,
    bytes: Vec<u8>,
    /// Number of reads in flight for the next chunk of bytes. It doubles with each chunk, up to
    /// [`READS_IN_FLIGHT_MAX`].
    reads: usize,
}

impl Reader<'_> {
    /// Returns the `len` bytes that start at a position. These bytes must not cross the end of the
    /// area.
    async fn at(&mut self, position: u64, len: u64) -> Result<&[u8], IoError> {
        let inside =
            position >= self.position && position + len <= self.position + self.bytes.len() as u64;
        if !inside {
            let left = self.area.bytes_left_at(position);
            let chunk = len.max(CHUNK_BYTES);
            let want = (chunk * self.reads as u64).min(left);
            let reads = (0..want).step_by(chunk as usize).map(|from| {
                let request = Request::read(self.area.at(position) + from, chunk.min(want - from));
                self.device.submit(request)
            });
            self.bytes = Vec::with_capacity(want as usize);
            for reply in try_join_all(reads).await? {
                let data = reply.into_data();
                data.slices()
                    .iter()
                    .for_each(|slice| self.bytes.extend_from_slice(slice));
            }
            self.reads = (self.reads * 2).min(READS_IN_FLIGHT_MAX);
            self.position = position;
        }
        let from = (position - self.position) as usize;
        Ok(&self.bytes[from..from + len as usize])
    }

    /// Returns the header at a position; `None` when there is no valid header of this side,
    /// incarnation and position.
    async fn header(
        &mut self,
        side: &Uuid,
        run: u64,
        position: u64,
    ) -> Result<Option<Header>, IoError> {
        if position + HEADER_BYTES > self.limit {
            return Ok(None);
        }
        let left = self.area.bytes_left_at(position);
        let block = self.at(position, HEADER_BYTES).await?;
        let header = Header::decode(block).filter(|header| {
            header.side == *side
                && header.run == run
                && header.position == position
                && header.end() - position <= left
        });
        Ok(header)
    }

    /// Returns true when the data of an entry match the digests in its header.
    async fn is_whole(&mut self, header: &Header) -> Result<bool, IoError> {
        let made_by = self.digest;
        for (index, &digest) in header.digests.iter().enumerate() {
            let at = header.position + HEADER_BYTES + index as u64 * BLOCK_BYTES;
            if made_by.of(self.at(at, BLOCK_BYTES).await?) != digest {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Searches for valid entries behind the position `end`, at which there is none, within the
    /// distance in which entries can be in flight together.
    async fn behind(
        &mut self,
        side: &Uuid,
        run: u64,
        end: u64,
        durable_to: u64,
    ) -> Result<Behind, IoError> {
        let mut found = Behind::default();
        for distance in (BLOCK_BYTES..=self.area.window()).step_by(BLOCK_BYTES as usize) {
            let position = end + distance;
            let Some(header) = self.header(side, run, position).await? else {
                continue;
            };
            if header.follows <= end {
                found.overtaking = found.overtaking.or(Some(position));
                if self.is_whole(&header).await? {
                    found.overtaking = Some(position);
                    return Ok(found);
                }
            }
            if header.flushed.max(durable_to) > end {
                found.proof = found.proof.or(Some(position));
            }
        }
        Ok(found)
    }
}

/// Entries behind a position at which there is no valid entry.
#[derive(Default)]
struct Behind {
    /// Position of an entry that has overtaken what is missing, with which to go on. Of several,
    /// that is the first one whose data are whole. If there is none, it is the first one, whose
    /// data may have become corrupt since.
    overtaking: Option<u64>,
    /// Position of the first entry, if it or the checkpoint proves that the missing entry was
    /// durable.
    proof: Option<u64>,
}

/// Reads the log of a side, which lies in `area`, and calls `told` repeatedly with the number of
/// bytes read so far. [`counts_below`](StoreDevice::counts_below) returns a sequence number for
/// each epoch. Only changes below this number are valid among the changes of that epoch.
///
/// # Errors
/// When the device cannot be read. `Corrupt` when no checkpoint is valid, so that the start of the
/// log is unknown.
pub(super) async fn recover(
    device: &Rc<dyn Device>,
    on: &StoreDevice,
    area: Area,
    told: &dyn Fn(u64),
) -> Result<Recovered, IoError> {
    let (side, digest, counts_below) = (&on.side, on.digest, &*on.counts_below);
    let slots = checkpoint::read(device, side).await?;
    let checkpoint = slots.newest;
    if !area.holds(checkpoint.tail) {
        return Err(IoError::Corrupt);
    }
    let mut reader = Reader {
        device,
        digest,
        limit: area.limit(checkpoint.tail),
        area,
        position: 0,
        bytes: Vec::new(),
        reads: 1,
    };
    let mut walk = Walk::new(&checkpoint);
    let mut found = Recovered {
        start: LogStart {
            index: Index::default(),
            head: checkpoint.tail,
            // No change has a lower number than `FIRST_CHANGE`, so none is missing below it.
            complete: checkpoint.complete_below.max(FIRST_CHANGE),
            checkpoint: Checkpoint::default(),
            older_slot: slots.older_slot,
            overtaking: Overtaking::default(),
        },
        written_s: None,
        shared_below: checkpoint.shared_below,
        given_up: Vec::new(),
        damaged: false,
    };
    while walk.position < reader.limit {
        told(walk.position - checkpoint.tail);
        if walk.discontinuity() {
            found.start.head = found.start.head.max(walk.position);
            continue;
        }
        let header = reader.header(side, walk.run, walk.position).await?;
        let whole = match &header {
            Some(header) => reader.is_whole(header).await?,
            None => false,
        };
        if !whole {
            let durable_to = checkpoint.durable_to;
            let behind = reader
                .behind(side, walk.run, walk.position, durable_to)
                .await?;
            if let Some(position) = behind.overtaking {
                walk.position = position;
                continue;
            }
            let proof = behind.proof;
            let known_end = walk.end();
            let was_durable = walk.position < durable_to;
            match (header, proof, known_end) {
                // A later entry, the end of the incarnation, or the checkpoint proves that this
                // entry was durable, so its data have become corrupt since. Reads of the data will
                // report this.
                (Some(header), proof, end) if was_durable || proof.is_some() || end.is_some() => {
                    reader.area.note_found(&header);
                    found.take(&header, digest, counts_below);
                    walk.position = header.end();
                }
                (_, Some(beyond), _) => {
                    found.damaged = true;
                    walk.position = beyond;
                }
                (_, None, Some(end)) => {
                    found.damaged = true;
                    walk.position = end;
                }
                (_, None, None) => {
                    found.damaged |= was_durable;
                    break;
                }
            }
            continue;
        }
        let header = header.expect("what is whole has a header");
        reader.area.note_found(&header);
        found.take(&header, digest, counts_below);
        walk.position = header.end();
    }
    // The log may end before everything that was durable, if the space of a logged side is not
    // what it was.
    found.damaged |= walk.position < checkpoint.durable_to;
    found.start.checkpoint = checkpoint;
    Ok(found)
}

/// A walk through the incarnations and entries of a log.
struct Walk<'c> {
    position: u64,
    run: u64,
    discontinuities: std::iter::Peekable<std::slice::Iter<'c, checkpoint::Discontinuity>>,
}

impl<'c> Walk<'c> {
    fn new(checkpoint: &'c Checkpoint) -> Walk<'c> {
        let mut discontinuities = checkpoint.discontinuities.iter().peekable();
        // Each discontinuity record begins a new incarnation. So the number of the incarnation at
        // the tail is one less than the number in the first record.
        let run = discontinuities
            .peek()
            .map_or(checkpoint.run, |discontinuity| discontinuity.run - 1);
        Walk {
            position: checkpoint.tail,
            run,
            discontinuities,
        }
    }

    /// If the current incarnation of the log ends at the reader's position, moves the reader to the
    /// next incarnation and returns true.
    fn discontinuity(&mut self) -> bool {
        let discontinuity = self
            .discontinuities
            .next_if(|discontinuity| self.position >= discontinuity.end);
        if let Some(discontinuity) = discontinuity {
            (self.position, self.run) = (discontinuity.start, discontinuity.run);
        }
        discontinuity.is_some()
    }

    /// Returns the position at which the current incarnation ended; `None` in the last incarnation,
    /// whose end is unknown.
    fn end(&mut self) -> Option<u64> {
        self.discontinuities
            .peek()
            .map(|discontinuity| discontinuity.end)
    }
}

impl Recovered {
    fn take(&mut self, header: &Header, digest: BlockDigest, counts_below: &dyn Fn(u64) -> u64) {
        let (mut entry, limit) = (Entry::of(header, digest), counts_below(header.epoch));
        entry.records.retain(|(range, record)| {
            let counts = record.number < limit;
            if !counts {
                self.given_up.push(range.clone());
            }
            counts
        });
        entry.complete_below = entry.complete_below.min(limit);
        entry.shared_below = entry.shared_below.min(limit);
        self.start.head = entry.end;
        self.start.complete = self.start.complete.max(entry.complete_below);
        self.written_s = Some(self.written_s.unwrap_or(0).max(entry.written_s));
        self.shared_below = self.shared_below.max(entry.shared_below);
        self.start.index.push(entry);
    }

    /// Returns the lowest sequence number that is higher than the sequence numbers of all changes
    /// that the side possibly received.
    pub(super) fn next_number(&self) -> u64 {
        let entries = self.start.index.entries().iter();
        let highest = entries.filter_map(Entry::highest).max();
        highest
            .map_or(0, |highest| highest + 1)
            .max(self.start.complete)
    }
}
