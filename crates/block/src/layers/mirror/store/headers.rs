//! Scrub of the headers of log entries. Without it, headers would be read only at an opening. A
//! corrupt header would then be found just when the changes after it are needed, and when the side
//! from which they could be copied may have left the volume.
//!
//! A corrupt header is rewritten from the copy of its fields in memory.

use std::rc::Rc;

use futures_util::future::try_join_all;

use super::Store;
use super::entry::{HEADER_BYTES, Header, Kind, Record};
use super::index::{Content, Entry, block_count};
use super::log::Log;
use crate::error::IoError;
use crate::layers::mirror::superblock::Uuid;
use crate::request::{Flags, Request};

/// Maximum number of headers that one call checks. The call reads at most `READS_IN_FLIGHT_MAX` of
/// them at the same time.
const HEADERS_AT_ONCE: usize = 64;
const READS_IN_FLIGHT_MAX: usize = 8;

/// Result of checking some headers of log entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct CheckedHeaders {
    pub(in super::super) read_bytes: u64,
    /// Number of headers that were not as written.
    pub(in super::super) wrong: u64,
    /// Number of wrong headers that were repaired.
    pub(in super::super) repaired: u64,
    /// Position at which the next call must begin; `None` when this call found no entry to check.
    pub(in super::super) next: Option<u64>,
}

/// An entry whose space in the log is protected from reuse until this guard is dropped.
struct Held<'l> {
    log: &'l Rc<Log>,
    entry: Entry,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.log.index.borrow_mut().unpin(self.entry.position);
        if self.log.is_full() || self.log.is_paced() {
            self.log.pump();
        }
    }
}

impl Store {
    /// Reads the headers of some entries from position `from` on, and rewrites wrong headers.
    ///
    /// # Errors
    /// Errors of the device, except those that concern only the requested blocks. A header with
    /// such an error counts as wrong.
    pub(in super::super) async fn check_headers(
        &self,
        from: u64,
    ) -> Result<CheckedHeaders, IoError> {
        let held = self.hold_entries(from);
        let mut checked = CheckedHeaders {
            next: held.last().map(|last| last.entry.end),
            ..CheckedHeaders::default()
        };
        for some in held.chunks(READS_IN_FLIGHT_MAX) {
            let right = try_join_all(some.iter().map(|held| self.is_header_right(&held.entry)));
            let right = right.await?;
            checked.read_bytes += right.len() as u64 * HEADER_BYTES;
            for (held, _) in some.iter().zip(right).filter(|(_, right)| !right) {
                checked.wrong += 1;
                checked.repaired += u64::from(self.rewrite_header(&held.entry).await?);
            }
        }
        Ok(checked)
    }

    fn hold_entries(&self, from: u64) -> Vec<Held<'_>> {
        let mut index = self.log.index.borrow_mut();
        let entries = index.entries();
        let first = entries.partition_point(|entry| entry.position < from);
        let some: Vec<Entry> = entries
            .range(first..)
            .take(HEADERS_AT_ONCE)
            .cloned()
            .collect();
        some.iter().for_each(|entry| index.pin(entry.position));
        let held = |entry| Held {
            log: &self.log,
            entry,
        };
        some.into_iter().map(held).collect()
    }

    async fn is_header_right(&self, entry: &Entry) -> Result<bool, IoError> {
        let read = Request::read(self.log.area.at(entry.position), HEADER_BYTES);
        let block = match self.device.submit(read).await {
            Ok(reply) => reply.into_data().to_vec(),
            Err(error) if error.is_of_a_block() => return Ok(false),
            Err(error) => return Err(error),
        };
        let found = Header::decode(&block);
        Ok(found.is_some_and(|found| {
            let place = (found.position, found.end(), found.run);
            found.side == self.log.side && place == (entry.position, entry.end, entry.run)
        }))
    }

    /// Writes the header of an entry again. Returns false when the header is no longer known, or
    /// when the device has not stored it correctly.
    async fn rewrite_header(&self, entry: &Entry) -> Result<bool, IoError> {
        let Some(header) = header_of(entry, self.log.side) else {
            return Ok(false);
        };
        let mut block = self.rt.pool().alloc_now(HEADER_BYTES as usize);
        header.encode(&mut block);
        let place = self.log.area.at(entry.position);
        let write = Request::write(place, block.freeze(), Flags::FUA);
        match self.device.submit(write).await {
            Ok(_) => self.is_header_right(entry).await,
            Err(error) if error.is_of_a_block() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns the header of an entry as it was written; `None` when it is no longer known, because
/// some changes of the entry were discarded.
fn header_of(entry: &Entry, side: Uuid) -> Option<Header> {
    let (mut records, mut digests) = (Vec::new(), Vec::new());
    for (range, logged) in &entry.records {
        let kind = match &logged.content {
            Content::Data { digests: of, .. } => {
                digests.extend_from_slice(of.values());
                Kind::Write
            }
            Content::Zeroes(space) => Kind::Zeroes(*space),
            Content::Lost => Kind::Lost,
        };
        records.push(Record {
            offset: range.start,
            number: logged.number,
            blocks: block_count(range.end - range.start),
            kind,
        });
    }
    let header = Header {
        side,
        run: entry.run,
        position: entry.position,
        follows: entry.follows,
        flushed: entry.flushed,
        complete_below: entry.complete_below,
        epoch: entry.epoch,
        written_s: entry.written_s,
        shared_below: entry.shared_below,
        records,
        digests,
    };
    (header.records.len() == entry.records_written && header.end() == entry.end).then_some(header)
}
