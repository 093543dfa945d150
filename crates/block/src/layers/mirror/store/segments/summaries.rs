//! What the segments of a side hold, for cleaning: from memory while it was filled not long ago,
//! else from the summary on the device.

use std::collections::BTreeMap;
use std::rc::Rc;

use bimetal_rt::Payload;
use futures_util::future::try_join_all;

use super::description::{self, Described};
use super::{Place, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::request::{Flags, Request};

/// Maximum number of described blocks of a disk that are kept in memory, 64 MiB of descriptions.
/// Segments of small sides are short, and a disk would seek for the summary of each.
const KEPT_BLOCKS_MAX: usize = 2 << 20;

/// Descriptions of the segments that were filled last; see the module documentation.
#[derive(Default)]
pub(super) struct Summaries {
    /// Each with the number of the segment in the order in which they were filled.
    of: BTreeMap<u32, (u64, Rc<Vec<Described>>)>,
    /// The segments in that order.
    order: BTreeMap<u64, u32>,
    kept_blocks: usize,
}

impl Summaries {
    /// Keeps the descriptions of a segment that was filled.
    pub(super) fn keep(&mut self, segment: u32, described: Vec<Described>) {
        self.forget(segment);
        self.kept_blocks += described.len();
        let number = self.order.last_key_value().map_or(0, |(last, _)| last + 1);
        self.order.insert(number, segment);
        self.of.insert(segment, (number, Rc::new(described)));
        while self.kept_blocks > KEPT_BLOCKS_MAX
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.forget(*oldest);
        }
    }

    /// Forgets the descriptions of a segment that becomes free.
    pub(super) fn forget(&mut self, segment: u32) {
        if let Some((number, described)) = self.of.remove(&segment) {
            self.kept_blocks -= described.len();
            self.order.remove(&number);
        }
    }
}

/// What a summary says.
pub(super) struct Summary {
    pub(super) described: Rc<Vec<Described>>,
    /// Whether the summary is certainly that of what the segment was filled with last. It may be
    /// one of an earlier generation otherwise.
    pub(super) is_newest: bool,
}

impl Segments {
    /// Keeps what a segment of a disk holds that was filled.
    pub(super) fn keep_described(&self, segment: u32, described: Vec<Described>) {
        if self.device.geometry().rotational && !described.is_empty() {
            self.summaries.borrow_mut().keep(segment, described);
        }
    }

    /// Returns what the blocks of a segment hold, as its summary says; `None` when the summary is
    /// damaged or was never written.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn described(&self, segment: u32) -> Result<Option<Summary>, IoError> {
        if let Some((_, kept)) = self.summaries.borrow().of.get(&segment) {
            return Ok(Some(Summary {
                described: Rc::clone(kept),
                is_newest: true,
            }));
        }
        let Some(bytes) = self.read_summary_bytes(segment).await? else {
            return Ok(None);
        };
        let newest = self.usage.borrow().summary(segment);
        let is_newest =
            newest == Some(crc32c::crc32c(&bytes)) || is_planted(Bug::BelievesOldSummary);
        let read = description::read_summary(&self.side, &bytes, self.layout.usable_blocks());
        Ok(read.map(|(_, described)| Summary {
            described: Rc::new(described),
            is_newest,
        }))
    }

    /// Reads the summary of a segment. Returns the generation that it describes, and
    /// what the blocks hold.
    pub(super) async fn read_summary(
        &self,
        segment: u32,
    ) -> Result<Option<(u64, Vec<Described>)>, IoError> {
        let read = self.read_summary_bytes(segment).await?;
        let usable = self.layout.usable_blocks();
        Ok(read.and_then(|bytes| description::read_summary(&self.side, &bytes, usable)))
    }

    async fn read_summary_bytes(&self, segment: u32) -> Result<Option<Vec<u8>>, IoError> {
        let first = segment * self.layout.segment_blocks() as u32;
        let _pin = self.pin(&[(Place::At(first), 1)]);
        let usable = self.layout.usable_blocks();
        let bytes = (self.layout.segment_blocks() - usable) * BLOCK_BYTES;
        let offset = self.summary_offset(segment);
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        let step = transfer / BLOCK_BYTES * BLOCK_BYTES;
        let reads = (0..bytes).step_by(step as usize).map(|from| {
            let read = Request::read(offset + from, step.min(bytes - from));
            self.device.submit(read)
        });
        let mut data = Payload::empty();
        match try_join_all(reads).await {
            Ok(parts) => parts
                .into_iter()
                .for_each(|part| data.append(part.into_data())),
            Err(error) if error.is_of_a_block() => return Ok(None),
            Err(error) => return Err(error),
        }
        Ok(Some(data.to_vec()))
    }

    /// Records that the log begins at `tail`: the opening does not read the entries before it in
    /// the same segment, whose content may be live. So the segment gets no summary, and cleaning
    /// reads what it holds. A summary that it has does not count: it may be of an earlier program,
    /// whose entries a power cut has taken back, and which were written at the same positions.
    pub(in super::super) fn log_begins_at(&self, tail: u64) {
        let (place, _) = self.chain.generation_at(tail);
        let start = place * self.chain.usable_bytes();
        if tail > start && tail < self.chain.end() {
            self.chain.leave_undescribed(place);
        }
    }

    /// Writes the summaries of the segments of the log that the next commit releases, where the log
    /// has not written them itself.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in super::super) async fn write_summaries(&self, log_floor: u64) -> Result<(), IoError> {
        let below = self.released_below(log_floor);
        for (offset, summary) in self.chain.unwritten_summaries(below) {
            let data = self.rt.pool().copy_of(&summary);
            let write = Request::write(offset, data, Flags::NONE);
            self.device.submit(write).await?;
        }
        Ok(())
    }
}
