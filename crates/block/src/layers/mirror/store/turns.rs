//! Turns on a disk: commits, parts of cleaning and copies of a rebuild, in the order in which they
//! were requested.
//!
//! A commit has several requests in a row, each of which waits for the one before. Beside a rebuild
//! or cleaning that always has requests at the disk, each of them would wait for some of these, and
//! the commit, for which everything waits in the end, would take seconds.
//!
//! A task must never wait for free segments while it has a turn, because only a commit frees them.

use std::ops::Range;

use bimetal_rt::Payload;
use bimetal_rt::sync::Permit;

use super::Store;
use super::segments::Segments;
use crate::device::Device;
use crate::error::IoError;

/// Number of permits for turns. A commit takes all of them.
pub(super) const ALL: u64 = 4;

impl Store {
    /// Waits for the turn of a commit, or of a part of cleaning that is written.
    pub(super) async fn turn_for_commit(&self) -> Permit {
        self.writing_pages.acquire(ALL).await
    }

    /// Waits until no commit is under way. None begins before the returned permit is dropped.
    pub(super) async fn no_commit(&self) -> Permit {
        self.writing_pages.acquire(1).await
    }

    /// Waits for the turn of some reads of cleaning, or of a copy, on a disk; `None` on a device
    /// that does not seek.
    pub(super) async fn turn_beside_commits(&self) -> Option<Permit> {
        match self.noticed.geometry().rotational {
            true => Some(self.no_commit().await),
            false => None,
        }
    }

    /// Appends content that a rebuild copies to the segments, when they have space for it and
    /// copies keep step with cleaning. `ranges` are ranges of the volume, and `data` the content of
    /// all of them.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn append_copies(
        &self,
        segments: &Segments,
        ranges: &[Range<u64>],
        data: &Payload,
    ) -> Result<(), IoError> {
        loop {
            segments.until_it_takes_copies().await;
            let turn = self.turn_beside_commits().await;
            if !segments.takes_copies() {
                continue;
            }
            let places = ranges
                .iter()
                .map(|range| self.data_offset + range.start..self.data_offset + range.end);
            match segments.append_copies(places, data).await {
                Err(IoError::NoSpace) => drop(turn),
                other => {
                    drop(turn);
                    // The log may have waited for this copy.
                    self.log.pump();
                    return other;
                }
            }
        }
    }
}
