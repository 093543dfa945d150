//! Reading ahead: what comes behind the requests of one who goes on is read before he asks.
//!
//! Which pages is decided by [`bimetal_policy::readers`]. They are read beside the request and
//! never by it: nobody waits for them before he wants them, and a block that cannot be read fails
//! whoever asks for that block. They must never crowd out what is wanted now, so there is a bound
//! on what is under way, and where nothing may leave memory nothing is brought into it.

use std::ops::Range;
use std::rc::Rc;

use super::Shared;
use super::reads::Fill;
use crate::BLOCK_BYTES;
use crate::request::{Origin, Request};

/// Reads ahead that may be under way at a time. What is decided beyond it is not read: the reader
/// comes to it, and reads it himself.
const UNDER_WAY_MAX: usize = 16;

impl Shared {
    /// What is to be read behind a request that is about to be made.
    pub(super) fn pages_ahead(&self, request: &Request) -> Option<Range<u64>> {
        let mut readers = self.readers.as_ref()?.borrow_mut();
        let state = self.state.borrow();
        let pages = request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES;
        let ahead = readers.read(pages, |page| state.is_here(page))?;
        let end = ahead
            .end
            .min(self.below.geometry().size_bytes / BLOCK_BYTES);
        (ahead.start < end).then_some(ahead.start..end)
    }

    /// Brings pages into memory, those that are not there.
    pub(super) fn read_ahead(self: &Rc<Self>, pages: Range<u64>, origin: Origin) {
        if self.is_choked() || self.ahead_under_way.get() >= UNDER_WAY_MAX {
            return;
        }
        let mut runs: Vec<Fill> = Vec::new();
        for page in pages {
            let fill = self.state.borrow_mut().read_ahead(page);
            let Some(fill) = fill else { continue };
            match runs.last_mut() {
                Some(run) if run.end_page() == page => run.fills.push(fill),
                _ => runs.push(Fill {
                    shared: Rc::clone(self),
                    first_page: page,
                    fills: vec![fill],
                }),
            }
        }
        self.wake_destaging();
        for run in runs {
            self.ahead_under_way.set(self.ahead_under_way.get() + 1);
            let shared = Rc::clone(self);
            self.tasks.spawn(async move {
                // Whoever asks for these blocks asks the device again, and is told what is wrong.
                let _ = shared.fetch(run, origin).await;
                shared.ahead_under_way.set(shared.ahead_under_way.get() - 1);
            });
        }
    }
}
