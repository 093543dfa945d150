//! The room of a log: how many bytes the next entry may have, and how much of what is free is
//! withheld for the sake of an even pace; see [`bimetal_policy::pacing`].
//!
//! Withheld room is free: only new changes with data wait for it. Entries without data, for
//! flushes, and relogged changes are given it at once. A change that waits only for withheld room
//! does not make the log full.

use std::rc::Rc;

use super::entry::HEADER_BYTES;
use super::flying::Pending;
use super::index::Entry;
use super::log::Log;
use crate::BLOCK_BYTES;

impl Log {
    /// Returns the number of bytes available for the data of the next entry; `None` when there is
    /// no space for an entry. With `again`, the entry is for relogged changes.
    pub(super) fn room(&self, again: bool) -> Option<u64> {
        let only_claim = !again && self.is_claim_first();
        let withheld = match again || only_claim {
            true => 0,
            false => self.withheld.bytes.get().unwrap_or(0),
        };
        let free = self.free_bytes(again || only_claim)?;
        if only_claim {
            return (free >= HEADER_BYTES).then_some(0);
        }
        let free = free.saturating_sub(withheld);
        let free = match again {
            true => free,
            // On a logged side, new changes also keep step with cleaning.
            false => free.min(self.area.granted_bytes(self.head.get())),
        };
        let free = free.min(self.bytes_left_in_window());
        if free < HEADER_BYTES + BLOCK_BYTES {
            return None;
        }
        let most = HEADER_BYTES + self.area.data_blocks_max * BLOCK_BYTES;
        Some(free.min(self.area.bytes_left_at(self.head.get())).min(most) - HEADER_BYTES)
    }

    /// Returns the number of bytes by which the entries in flight may become longer: all of them
    /// lie within one window.
    pub(super) fn bytes_left_in_window(&self) -> u64 {
        self.area.window() - (self.head.get() - self.stored())
    }

    /// Returns the number of free bytes, withheld or not; `None` when a part of the reserve is in
    /// use. `urgent` is for entries without data and for relogged changes.
    pub(super) fn free_bytes(&self, urgent: bool) -> Option<u64> {
        // Two in-flight windows of space stay free for the gap before the next incarnation. One
        // more is kept for entries without data, so that a flush never waits for space that only a
        // flush can free, and for relogged changes, which let older entries be dropped.
        let reserve = if urgent { 2 } else { 3 };
        let taken = self.head.get() + reserve * self.area.window();
        self.area.limit(self.floor()).checked_sub(taken)
    }

    /// Returns the number of bytes that new changes may be given now and the number of bytes that
    /// are free for them.
    pub(super) fn open_bytes(&self) -> (u64, u64) {
        let free = self.free_bytes(false).unwrap_or(0);
        let withheld = self.withheld.bytes.get().unwrap_or(0);
        (free.saturating_sub(withheld), free)
    }

    /// Returns the lowest position whose space must not be overwritten.
    pub(super) fn floor(&self) -> u64 {
        let tail = self.checkpoint.borrow().tail;
        self.lowest_in_use().map_or(tail, |used| used.min(tail))
    }

    /// Returns the lowest position that is being read, or at which an overtaken entry is still
    /// being written.
    pub(super) fn lowest_in_use(&self) -> Option<u64> {
        let pinned = self.index.borrow().lowest_pin();
        pinned.into_iter().chain(self.overtaking.lowest()).min()
    }

    /// Withholds `bytes` of the free room from now on; with `None`, nothing. Writes the changes for
    /// which there is room then.
    pub(super) fn withhold(self: &Rc<Self>, bytes: Option<u64>) {
        let bytes = bytes.map(|bytes| bytes.next_multiple_of(BLOCK_BYTES));
        let waits = self.is_paced();
        let less = bytes.unwrap_or(0) < self.withheld.bytes.replace(bytes).unwrap_or(0);
        if less && waits {
            self.take_up();
        }
    }

    /// Called when no entry could be formed. If only withheld room is missing, notes that changes
    /// wait for it and returns true.
    pub(super) fn waits_for_withheld(&self) -> bool {
        let free = self.free_bytes(false).unwrap_or(0);
        let waits = free >= HEADER_BYTES + BLOCK_BYTES && !self.is_claim_first();
        let withheld = &self.withheld;
        if waits {
            withheld.waited_at.set(Some(self.rt.now()));
        }
        if waits && !withheld.waits.replace(true) {
            withheld.count.set(withheld.count.get() + 1);
            self.changed.notify();
        }
        waits
    }

    /// Returns true while changes wait for room, whether the log is full, or is kept in step with
    /// the destager or with cleaning.
    pub(super) fn waits_for_room(&self) -> bool {
        self.is_full() || self.withheld.waits.get() && self.has_pending()
    }

    /// Returns true while a change waits only because room is withheld.
    pub(super) fn is_paced(&self) -> bool {
        self.withheld.waits.get() && self.withheld.bytes.get().is_some() && self.has_pending()
    }

    /// Records whether changes wait for room now.
    pub(super) fn note_held_up(&self) {
        let waits = self.is_full() || self.is_paced();
        self.held_up.set(self.rt.turn_began(), waits);
    }

    /// Returns true when a change waits for withheld room, or waited for it less than `recent` ago.
    pub(super) fn was_paced_within(&self, recent: std::time::Duration) -> bool {
        let waited_at = self.withheld.waited_at.get();
        self.is_paced() || waited_at.is_some_and(|at| self.rt.now().since(at) < recent)
    }

    /// Returns true when `bytes` bytes in `records` records fit into the log after the waiting
    /// appends. Each entry is assumed to be full or to have at least `records_per_entry` records.
    /// Entries before the first incomplete change count as free, because they can be destaged. The
    /// gap before a new incarnation is reserved.
    pub(super) fn takes(&self, bytes: u64, records: u64, records_per_entry: u64) -> bool {
        let complete = self.complete.get();
        let index = self.index.borrow();
        let stays = |entry: &&Entry| entry.highest().is_some_and(|highest| highest >= complete);
        let first = index.entries().iter().find(stays);
        let stays_bytes = first.map_or(0, |first| self.head.get() - first.position);
        let pending = self.pending.borrow();
        let waits = |waiting: &Pending| waiting.append.data_bytes() + HEADER_BYTES;
        let waits_bytes: u64 = pending.iter().map(waits).sum();
        // The sum includes extra headers for entries that end before they are full: an entry ends
        // after each group of appends, and at the end of the area.
        let full = bytes / (self.area.data_blocks_max * BLOCK_BYTES);
        let headers = (full + records.div_ceil(records_per_entry) + 4) * HEADER_BYTES;
        let all = stays_bytes + waits_bytes + bytes + headers + self.area.window();
        all <= self.usable_bytes()
    }
}
