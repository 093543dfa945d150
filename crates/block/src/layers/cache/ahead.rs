//! Read-ahead: the pages that follow the requests of a sequential reader are read before the reader
//! requests them.
//!
//! [`bimetal_policy::readers`] selects the pages. Read-ahead runs concurrently with the reader's
//! request and is never part of it: the request does not wait for pages that only read-ahead needs,
//! and a block that cannot be read fails only requests for that block. Read-ahead must never
//! displace pages in use. Therefore the number of concurrent reads ahead is bounded, and no page is
//! read ahead while eviction is blocked.

use std::ops::Range;
use std::rc::Rc;

use super::Shared;
use super::reads::Fill;
use crate::BLOCK_BYTES;
use crate::request::{Origin, Request};

/// Maximum number of concurrent reads ahead. While this number is in flight, no further page is
/// read ahead: the reader itself reads the selected pages.
const UNDER_WAY_MAX: usize = 16;

impl Shared {
    /// Returns the pages that should be read ahead for the reader whose request is about to be
    /// executed.
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

    /// Reads pages into memory, except pages that are already in memory or being read.
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
                // The error is ignored: a request for these blocks reads the device again and
                // reports the error.
                let _ = shared.fetch(run, origin).await;
                shared.ahead_under_way.set(shared.ahead_under_way.get() - 1);
            });
        }
    }
}
