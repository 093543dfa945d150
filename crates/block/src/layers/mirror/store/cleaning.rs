//! The cleaner of a logged side: keeps enough segments free for the log.

use std::rc::Rc;
use std::time::Duration;

use super::Store;
use super::segments::Segments;
use crate::error::IoError;

/// Delay of the cleaner after an error.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Store {
    /// Cleans segments whenever few are free, until the store ends.
    pub(super) async fn clean_for_ever(self: &Rc<Self>, segments: &Segments) {
        loop {
            let is_due = || self.ending.get() || segments.wants_cleaning();
            segments.freed.until(is_due).await;
            if self.ending.get() {
                return;
            }
            let commits = segments.commits();
            match self.clean_now(segments).await {
                Ok(true) => {}
                // Nothing can be freed before the log is folded or content dies, and a commit
                // follows both.
                Ok(false) => {
                    let is_over = || self.ending.get() || segments.commits() > commits;
                    segments.freed.until(is_over).await;
                }
                Err(_) => self.rt.sleep(RETRY_AFTER).await,
            }
        }
    }

    /// Moves the live content of some segments and commits the map, which frees them. Returns false
    /// when there was nothing to free.
    async fn clean_now(self: &Rc<Self>, segments: &Segments) -> Result<bool, IoError> {
        if segments.clean_some().await? == 0 {
            return Ok(false);
        }
        self.write_pages().await?;
        Ok(true)
    }
}
