//! Cache of pages of the checksum area, with CLOCK as its eviction policy over the pages that the
//! device has.
//!
//! It must never evict a changed page before the device has taken it and it was read back as
//! written: only the read tells that the device has lost a write.

use std::collections::{BTreeMap, VecDeque};

use super::entries::Entries;
use crate::layers::mirror::store::pages::WriteBack;

/// A page in memory.
pub(super) struct Cached {
    pub(super) entries: Entries,
    /// The page was requested since the clock's hand passed it.
    pub(super) used: bool,
    on_clock: bool,
}

/// The pages in memory.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) pages: BTreeMap<u64, Cached>,
    /// The clock, from its hand on. Every page that the device has is on it. A changed page is
    /// removed when the hand reaches it, and returns when it has been written.
    clock: VecDeque<u64>,
}

impl Cache {
    /// Inserts a page, or replaces the entries of one that is there.
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

    /// Puts pages back on the clock that memory need no longer keep.
    pub(super) fn rejoin(&mut self, due: &WriteBack) {
        for (page, cached) in &mut self.pages {
            if !cached.on_clock && !due.is_needed(*page) {
                cached.on_clock = true;
                self.clock.push_back(*page);
            }
        }
    }

    /// Evicts pages until at most `pages_max` are left, or only pages that memory must keep.
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
