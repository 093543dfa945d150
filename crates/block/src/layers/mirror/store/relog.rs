//! Relogging: moving changes that a lagging member lacks from the tail of the log to its head.
//!
//! A lagging member may lack a change whose entry has become the oldest of the log. If the entry
//! were dropped, a crash would leave the member without the change, and no side would know which
//! change it was. Therefore, the parts of the entry that are still the newest are appended again
//! under their old sequence numbers, so that entries can be dropped. Parts that newer changes have
//! replaced are not moved: a client that repeatedly writes the same blocks does not fill the log.

use std::ops::Range;

use super::index::Logged;
use super::{Append, Content, Store, all_stored};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::Origin;

impl Store {
    /// Durably appends the newest content of the oldest entries again, if the log keeps these
    /// entries only for a lagging member. Returns true when content was moved. The number of bytes
    /// moved since the member's last progress is limited to half the sum of the log's usable size
    /// and the bytes that the tail has passed since then. At the limit, nothing is moved: moving
    /// more would free little space, so the log waits for the member.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn relog(&self) -> Result<bool, IoError> {
        if self.log.has_gap() {
            return Ok(false);
        }
        let (moved, since) = self.relogged.get();
        if moved >= (self.log.usable_bytes() + self.log.tail() - since) / 2 {
            return Ok(false);
        }
        let parts = self.parts_to_relog();
        let mut outcomes = Vec::with_capacity(parts.len());
        let mut bytes = 0;
        for (range, record) in parts {
            let append = match &record.content {
                Content::Zeroes(space) => Append::zeroes(range, *space, record.number),
                Content::Lost => Append::lost(range, record.number),
                Content::Data { digests, .. } => {
                    match self.read_logged(&range, &record, Origin::NONE).await {
                        Ok(reply) => {
                            Append::known(range, reply, Some(digests.clone()), record.number)
                        }
                        // Corrupt content is not moved. It is later repaired from a member that has
                        // it.
                        Err(IoError::Corrupt) => {
                            self.suspect.borrow_mut().insert(range);
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            self.noticed.note();
            bytes += append.data_bytes() + BLOCK_BYTES;
            outcomes.push(append);
        }
        if outcomes.is_empty() {
            return Ok(false);
        }
        self.relogged.set((moved + bytes, since));
        let outcomes = self.log.append_again(outcomes);
        match all_stored(outcomes).await {
            Ok(()) => {}
            Err(IoError::NoSpace) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.log.flush(0).await?;
        Ok(true)
    }

    /// Returns the parts of the oldest entries that no newer record of the log replaces. Together
    /// they fit into one entry, except that all parts of the oldest entry are always included.
    fn parts_to_relog(&self) -> Vec<(Range<u64>, Logged)> {
        let (index, limits) = (self.log.index.borrow(), self.limits());
        let bytes_max = self.log.area.data_blocks_max * BLOCK_BYTES;
        let (mut parts, mut bytes) = (Vec::new(), 0);
        for entry in index.entries() {
            if !limits.may_be_destaged(entry) || !self.is_needed(&index, &limits, entry) {
                break;
            }
            let mut own = Vec::new();
            for (range, _) in &entry.records {
                let newest = index.newest_in(range).into_iter();
                own.extend(newest.filter(|(_, logged)| logged.entry == entry.position));
            }
            let own_bytes: u64 = own.iter().map(|(range, _)| range.end - range.start).sum();
            bytes += own_bytes;
            if bytes > bytes_max && !parts.is_empty() {
                break;
            }
            parts.append(&mut own);
        }
        parts
    }
}
