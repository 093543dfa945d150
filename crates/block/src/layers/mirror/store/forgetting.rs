//! Changes that are in the log and do not count.
//!
//! They may have replaced others before the side was given these, and may have gone home when the
//! side was being rebuilt. What that leaves behind must be known as long as it is there: the log
//! lets go of such changes at once.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::yield_now;

use super::Store;
use super::checksums::{Checksums, Expected};
use super::superseded::Superseded;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_set::RangeSet;

/// Entries of the log that are looked at between two looks at everything else.
const ENTRIES_PER_TURN: usize = 64;

impl Store {
    /// Begins the first run of a side that is going to be rebuilt, and is marked so durably. It has
    /// been no member since the epoch `member_until`, and lacks these ranges; without an epoch it
    /// lacks everything. `superseded` is what an earlier store of this side had forgotten of the
    /// log because a rebuild brought something newer.
    ///
    /// # Errors
    /// Those of the device.
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

    /// Forgets every change with a number from `first` on: the side is started alone, or these
    /// changes are of a past that does not count. Only before the first run.
    pub(in super::super) fn forget_from(&self, first: u64) {
        for (range, _) in self.changes_from(first) {
            self.forgotten.borrow_mut().insert(range.clone());
            self.unsettled.borrow_mut().insert(range);
        }
        self.log.forget_from(first);
    }

    /// Forgets every change with a number from `first` on, because these do not count on a side
    /// that has been no member since the epoch `member_until`, and says where the side lacks
    /// something for that: also for what it had to forget before. What a forgotten change had
    /// replaced before the side was given it, the side never had. The map keeps that in mind when
    /// the log does not any more. Only before the first run.
    pub(in super::super) fn discard_from(&self, first: u64, member_until: u64) -> Vec<Range<u64>> {
        self.forget_from(first);
        // As long as it was a member it marked what others lack; in later epochs this.
        let mut lacks = self.stale_since(member_until + 1);
        for range in self.forgotten_ranges() {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
            lacks.push(range);
        }
        lacks
    }

    /// Forgets every change and every entry of the log, because the side is given everything anew:
    /// it is marked so, durably. The next run begins an empty log. Entries that the old log has
    /// lost are not missed any more then, or they would be again at each opening, also of a side
    /// that has been rebuilt since. Before the log lets go of them, the map says durably where the
    /// home may hold what the forgotten changes have left. Only before the first run.
    ///
    /// # Errors
    /// Those of the device.
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

    /// Forgets what the log has of ranges that the side lacks, on a side that is going to be
    /// rebuilt: what counts there is newer and comes past the log, without waiting until what is
    /// older has gone home. It also forgets what was superseded in an earlier rebuild that was cut
    /// short, whether the side still lacks that or not. Before the log lets go of it, the map says
    /// where the home may hold something of it. Only before the first run.
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

    /// The ranges of what was forgotten, as far as they are in the volume.
    pub(in super::super) fn forgotten_ranges(&self) -> Vec<Range<u64>> {
        let mut forgotten = self.forgotten.borrow().clone();
        // A past that does not count may have been larger.
        forgotten.remove(self.volume_bytes.get()..u64::MAX);
        forgotten.iter().collect()
    }

    /// Has the checksums say of the home of forgotten changes, where nothing was ever written by
    /// them, that it is unknown: so a rebuild writes zeroes there that would else find it empty.
    /// Only on a side that lacks all of it, since what it holds there is not what it should be.
    ///
    /// # Errors
    /// Those of the device.
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
            // Nothing is known of the page, and nothing may stay known.
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
