//! Making the pages of a side durable: those of the checksums and of the dirty-region bitmap, and
//! on a logged side the map, with a commit.
//!
//! A page that is durable must have been read back: a device may lose a write, and an outdated page
//! cannot be recognized later.

use std::collections::BTreeSet;

use futures_util::future::try_join3;

use super::Store;
use super::checksums::Checksums;
use super::segments::Segments;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::request::Request;

/// Maximum number of attempts to write the changed pages, when a page read back differs from the
/// page written.
const PAGE_TRIES: usize = 4;

impl Store {
    /// Durably writes what has changed in the checksums and the bitmap, and reads it back. Then
    /// durably sets the bits that record which of these pages were ever written. Everything written
    /// to home locations before the call is durable as well when this returns.
    ///
    /// On a logged side, this is a commit. It writes changed entries of the checksums and of the
    /// map to the journal, and only some of their pages.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when the device does not keep what is written.
    pub(super) async fn write_pages(&self) -> Result<(), IoError> {
        let _one = self.turn_for_commit().await;
        if let Some(segments) = &self.segments {
            segments.begin(self.log.floor()).await?;
        }
        for _ in 0..PAGE_TRIES {
            let settled = match &self.segments {
                Some(segments) => self.commit(segments).await?,
                None => self.write_pages_home().await?,
            };
            if let Some(fresh) = settled {
                if let Some(written) = &self.written {
                    written.settle(fresh).await?;
                }
                return Ok(());
            }
        }
        Err(IoError::Corrupt)
    }

    /// Writes the changed pages of a side with a home. Returns the pages that are durable and whose
    /// bits are not set; `None` when a page read back is not as it was written.
    async fn write_pages_home(&self) -> Result<Option<BTreeSet<u64>>, IoError> {
        if let Some(checksums) = &self.checksums {
            checksums.write_back().await?;
        }
        self.write_regions().await?;
        self.flush_and_verify().await
    }

    async fn write_regions(&self) -> Result<(), IoError> {
        match self.regions.dirty() {
            true => self.regions.write_back().await,
            false => Ok(()),
        }
    }

    /// Flushes the device, and reads back the pages that were written, and on a logged side the
    /// runs of the journal. Returns the pages that the flush makes durable and whose bits are not
    /// set; `None` when something read back is not as it was written.
    async fn flush_and_verify(&self) -> Result<Option<BTreeSet<u64>>, IoError> {
        // The flush possibly does not cover pages that are written from now on.
        let fresh = self.written.as_ref().map(|written| written.fresh());
        if self.segments.is_none() || !is_planted(Bug::CommitsUnflushed) {
            self.device.submit(Request::flush()).await?;
        }
        // A disk needs a rotation for each read that is not in flight together with others.
        let of_checksums = async {
            match &self.checksums {
                Some(checksums) => checksums.verify().await,
                None => Ok(true),
            }
        };
        let of_journal = async {
            match &self.segments {
                Some(segments) => segments.verify_journal().await,
                None => Ok(true),
            }
        };
        let (regions, checksums, journal) =
            try_join3(self.regions.verify(), of_checksums, of_journal).await?;
        let taken = regions && checksums && journal;
        Ok(taken.then(|| fresh.unwrap_or_default()))
    }

    /// Commits the map and the checksums of a logged side. Returns as
    /// [`write_pages_home`](Self::write_pages_home) does.
    async fn commit(&self, segments: &Segments) -> Result<Option<BTreeSet<u64>>, IoError> {
        // A segment that is dead now is free after the commit: what referred to it has changed
        // before, so the commit contains that change.
        let dead = segments.dead();
        let (of_map, of_checksums) = self.pages_to_write(segments);
        // The log goes on while pages are read.
        let map_pages = segments.take_map_pages(of_map).await?;
        let checksum_pages = match &self.checksums {
            Some(checksums) => Some((checksums, checksums.take_pages(of_checksums).await?)),
            None => None,
        };
        let given_way = self.log_gives_way();
        if let Some((checksums, pages)) = checksum_pages {
            // Writing a page of the checksums changes its place, so this precedes the map.
            let lost = checksums.write_taken(pages).await?;
            self.suspect_pages(lost);
        }
        self.write_regions().await?;
        // Entries may be dropped during the commit. It releases only segments of the log whose
        // summaries it has written.
        let log_floor = self.log.floor();
        segments.write_summaries(log_floor).await?;
        segments.write_map(map_pages).await?;
        segments.write_tables().await?;
        let changes = self.checksums.as_ref().map(Checksums::take_changes);
        let first_run = segments.next_run();
        segments.write_journal(changes.unwrap_or_default()).await?;
        let Some(fresh) = self.flush_and_verify().await? else {
            return Ok(None);
        };
        let oldest = self.checksums.as_ref().and_then(Checksums::oldest_run);
        let floor = match oldest {
            Some(oldest) if !is_planted(Bug::DropsRunsEarly) => oldest.min(first_run),
            _ => first_run,
        };
        segments
            .commit_changes(&dead, log_floor, (floor, first_run))
            .await?;
        if let Some(checksums) = &self.checksums {
            checksums.committed(first_run);
        }
        drop(given_way);
        // The log may have become longer.
        self.log.pump();
        Ok(Some(fresh))
    }

    /// Returns the numbers of pages of the map and of the checksums that this commit should write
    /// of those of which the journal has entries.
    fn pages_to_write(&self, segments: &Segments) -> (usize, usize) {
        let of_checksums = self.checksums.as_ref().map_or((0, 0), Checksums::owed);
        let of_map = segments.owed();
        let bytes = of_checksums.1 + of_map.1;
        (
            segments.pages_per_commit(of_map.0, bytes),
            segments.pages_per_commit(of_checksums.0, bytes),
        )
    }

    /// Records that the blocks that pages of the checksums describe must be checked, because the
    /// pages were damaged.
    pub(super) fn suspect_pages(&self, pages: Vec<u64>) {
        for page in pages {
            let blocks = Checksums::blocks_of(page);
            let end = (blocks.end * BLOCK_BYTES).min(self.volume_bytes.get());
            let range = blocks.start * BLOCK_BYTES..end;
            if !range.is_empty() {
                self.suspect.borrow_mut().insert(range);
            }
        }
    }
}
