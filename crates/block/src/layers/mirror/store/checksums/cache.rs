//! The pages of the checksum area that are in memory, and which of them goes when there are too
//! many: CLOCK, over the pages that the device has.
//!
//! It must never drop a page that has changed before the device has taken it and has given it back
//! as it was written: a write that the device has lost is only told by that.

use std::collections::{BTreeMap, VecDeque};

use super::entries::Entries;
use crate::layers::mirror::store::pages::WriteBack;

/// A page in memory.
pub(super) struct Cached {
    pub(super) entries: Entries,
    /// Somebody has asked for it since the clock's hand went by.
    pub(super) used: bool,
    on_clock: bool,
}

/// The pages in memory.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) pages: BTreeMap<u64, Cached>,
    /// The clock, from its hand on. Every page that the device has is on it; one that has changed
    /// leaves it when the hand comes, and returns when it has been written.
    clock: VecDeque<u64>,
}

impl Cache {
    /// Puts a page into memory, or other entries into one that is there.
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

    /// Puts the pages back on the clock that memory need not keep any more.
    pub(super) fn rejoin(&mut self, due: &WriteBack) {
        for (page, cached) in &mut self.pages {
            if !cached.on_clock && !due.is_needed(*page) {
                cached.on_clock = true;
                self.clock.push_back(*page);
            }
        }
    }

    /// Drops pages until at most `pages_max` are left, or only such as memory must keep.
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
