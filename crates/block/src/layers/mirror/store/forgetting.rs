//! Discarding changes that are in the log but are not valid.
//!
//! A discarded change may have replaced an older change that the side was not given yet. It may
//! also have been destaged while the side was being rebuilt. So the content of its range may differ
//! from the other sides. The log drops the change immediately, but the range must stay recorded for
//! as long as its content may differ.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::yield_now;

use super::Store;
use super::checksums::{Checksums, Expected};
use super::superseded::Superseded;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_set::RangeSet;

/// Number of log entries processed between two yields to other tasks.
const ENTRIES_PER_TURN: usize = 64;

impl Store {
    /// Begins the first incarnation of the log of a side whose superblock durably says that the
    /// side is to be rebuilt. The last epoch with the side as a member is `member_until`, and the
    /// side lacks the ranges `lacks`. If `member_until` is `None`, the side lacks everything.
    /// `superseded` names changes in the log that an earlier store of this side discarded because a
    /// rebuild had written newer content.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in super::super) async fn begin_rebuilt(
        self: &Rc<Self>,
        member_until: Option<u64>,
        lacks: &RangeSet,
        superseded: &Superseded,
    ) -> Result<(), IoError> {
        match member_until {
            None => self.forget_everything().await?,
            Some(_) => {
                self.forget_lacking(lacks, superseded).await;
                self.unsettle().await?;
            }
        }
        self.begin_mixing(member_until);
        self.begin().await
    }

    /// Discards every change with a sequence number of at least `first`, because the side is
    /// started alone or these changes belong to an invalid history. Must be called before the first
    /// incarnation of the log begins.
    pub(in super::super) fn forget_from(&self, first: u64) {
        for (range, _) in self.changes_from(first) {
            self.forgotten.borrow_mut().insert(range.clone());
            self.unsettled.borrow_mut().insert(range);
        }
        self.log.forget_from(first);
    }

    /// Discards every change with a sequence number of at least `first`. These changes are not
    /// valid on this side, which was last a member in the epoch `member_until`. Returns the ranges
    /// that the side lacks: the ranges that its bitmap marks in later epochs, and the ranges of all
    /// discarded changes, including those discarded earlier. The side may lack the range of a
    /// discarded change, because that change may have replaced an older change that the side was
    /// never given. The dirty-region bitmap marks these ranges too, because the log drops the
    /// changes. Must be called before the first incarnation of the log begins.
    pub(in super::super) fn discard_from(&self, first: u64, member_until: u64) -> Vec<Range<u64>> {
        self.forget_from(first);
        // In the epochs in which the side was a member, its bitmap marked the regions that other
        // sides lack. Only marks of later epochs mean that this side lacks the region.
        let mut lacks = self.out_of_sync_since(member_until + 1);
        for range in self.forgotten_ranges() {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
            lacks.push(range);
        }
        lacks
    }

    /// Discards every change and every entry of the log, because the side is to be rebuilt
    /// completely and is durably marked so in its superblock. The next incarnation begins an empty
    /// log. Without this, each opening would find that the old log has lost entries, even after the
    /// rebuild. Before the log drops its entries, the dirty-region bitmap durably records where the
    /// data area may hold content of the discarded changes. Must be called before the first
    /// incarnation of the log begins.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn forget_everything(&self) -> Result<(), IoError> {
        self.forget_from(0);
        for range in self.forgotten_ranges() {
            self.regions.mark(range, self.epoch.get() + 1);
        }
        self.unsettle().await?;
        self.write_pages().await?;
        self.log.forget_all();
        Ok(())
    }

    /// Discards changes in the log of a side that is to be rebuilt: the changes in the ranges
    /// `lacks`, which the side lacks, and the changes that an earlier, interrupted rebuild has
    /// superseded (`superseded`), even if the side no longer lacks their ranges. The rebuild can
    /// then write newer content directly to the home locations, without waiting until the older
    /// changes are destaged. Before the log drops these changes, the dirty-region bitmap records
    /// where the data area may hold their content. Must be called before the first incarnation of
    /// the log begins.
    pub(super) async fn forget_lacking(&self, lacks: &RangeSet, superseded: &Superseded) {
        let entries = self.log.index.borrow().entries().len();
        for at in 0..entries {
            self.forget_in_entry(at, lacks, superseded);
            if at % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1 {
                yield_now().await;
            }
        }
    }

    fn forget_in_entry(&self, at: usize, lacks: &RangeSet, superseded: &Superseded) {
        let mut index = self.log.index.borrow_mut();
        let entry = index.entries()[at].position;
        let mut had = index.forget_ranges(at, lacks);
        if let Some(before) = superseded.of_entry(entry) {
            had.extend(index.forget_ranges(at, before));
        }
        for range in &had {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
            self.unsettled.borrow_mut().insert(range.clone());
        }
        self.straight.supersede(entry, had);
    }

    /// Returns the ranges of the discarded changes, cut to the volume.
    pub(in super::super) fn forgotten_ranges(&self) -> Vec<Range<u64>> {
        let mut forgotten = self.forgotten.borrow().clone();
        // The volume was possibly larger in a discarded part of its history, so ranges beyond its
        // present end are removed.
        forgotten.remove(self.volume_bytes.get()..u64::MAX);
        forgotten.iter().collect()
    }

    /// Changes the checksum entries of blocks in the ranges of discarded changes from never written
    /// to unknown, so that a rebuild writes zeroes there instead of skipping the blocks as empty.
    /// Call this only on a side that lacks all of these ranges. In a range that the side does not
    /// lack, an entry that says never written is correct and must remain.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn unsettle(&self) -> Result<(), IoError> {
        let Some(checksums) = &self.checksums else {
            return Ok(());
        };
        for range in self.forgotten_ranges() {
            self.unsettle_range(checksums, range).await?;
        }
        Ok(())
    }

    async fn unsettle_range(
        &self,
        checksums: &Checksums,
        range: Range<u64>,
    ) -> Result<(), IoError> {
        let (first, end) = (range.start / BLOCK_BYTES, range.end / BLOCK_BYTES);
        let expected = match checksums.expected(first..end).await {
            // The checksum page is damaged. All blocks of the range are treated as never written,
            // so that the next step marks them as unknown.
            Err(IoError::Corrupt) => vec![Expected::NeverWritten; (end - first) as usize],
            other => other?,
        };
        let mut block = first;
        for run in expected.chunk_by(|a, b| a == b) {
            if run[0] == Expected::NeverWritten {
                let unknown = vec![Expected::Unknown; run.len()];
                self.set_expected(checksums, block, &unknown).await?;
            }
            block += run.len() as u64;
        }
        Ok(())
    }
}
