//! Cache of pages of the checksum area, with CLOCK as the eviction policy for clean pages.
//!
//! The cache must never evict a changed page until the device has written the page and a read has
//! returned it as written. Only this read reveals that the device has lost a write.

use std::collections::{BTreeMap, VecDeque};

use super::entries::Entries;
use crate::layers::mirror::store::pages::WriteBack;

/// A page in the cache.
pub(super) struct Cached {
    pub(super) entries: Entries,
    /// Whether the page was used since the hand of the CLOCK eviction last passed it.
    pub(super) used: bool,
    on_clock: bool,
}

/// The pages in memory, by page number.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) pages: BTreeMap<u64, Cached>,
    /// Pages that the hand of the clock will reach, in this order. Every clean page is in this
    /// queue. A changed page is removed when the hand reaches it, and is added again once the page
    /// was written and verified.
    clock: VecDeque<u64>,
}

impl Cache {
    /// Inserts a page, or replaces the entries of a page in the cache.
    pub(super) fn put(&mut self, page: u64, entries: Entries) {
        let cached = self.pages.entry(page).or_insert(Cached {
            entries: Box::default(),
            used: true,
            on_clock: false,
        });
        cached.entries = entries;
        if !cached.on_clock {
            cached.on_clock = true;
            self.clock.push_back(page);
        }
    }

    /// Adds pages to the clock again, once they no longer have to stay in memory.
    pub(super) fn rejoin(&mut self, due: &WriteBack) {
        for (page, cached) in &mut self.pages {
            if !cached.on_clock && !due.is_needed(*page) {
                cached.on_clock = true;
                self.clock.push_back(*page);
            }
        }
    }

    /// Evicts clean pages until at most `pages_max` pages remain, or until every remaining page
    /// must stay in memory.
    pub(super) fn trim(&mut self, pages_max: usize, due: &WriteBack) {
        while self.pages.len() > pages_max
            && let Some(page) = self.clock.pop_front()
        {
            let cached = self.pages.get_mut(&page);
            let cached = cached.expect("what is on the clock is in memory");
            if due.is_needed(page) {
                cached.on_clock = false;
            } else if cached.used {
                cached.used = false;
                self.clock.push_back(page);
            } else {
                self.pages.remove(&page);
            }
        }
    }
}
