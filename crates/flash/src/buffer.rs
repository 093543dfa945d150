//! The write buffer inside a drive: pages that the host has written and the layer below has not.
//!
//! Pages leave in the order in which they came. Volatile memory keeps a rewritten page in its
//! place; the SLC log appends the new version and skips the old one when it gets there. A page is
//! written below before its slot is used again, so a read always finds its newest version in one of
//! the two.

use crate::geometry::NONE;

/// The ring of buffered pages. Bounded by its slots; never allocates after it was made.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    /// Logical page and class; NONE where the version is old.
    slots: Vec<(u32, u8)>,
    /// The slot of each logical page.
    slot_of: Vec<u32>,
    oldest: u32,
    len: u32,
    live: u32,
    appends: bool,
}

impl WriteBuffer {
    /// An empty buffer of `slots` pages; `appends` for a log, which cannot rewrite in place.
    pub fn new(slots: u32, logical_pages: u32, appends: bool) -> Self {
        WriteBuffer {
            slots: vec![(NONE, 0); slots as usize],
            slot_of: vec![NONE; logical_pages as usize],
            oldest: 0,
            len: 0,
            live: 0,
            appends,
        }
    }

    /// Whether this is a durable log and not memory.
    pub fn is_log(&self) -> bool {
        self.appends
    }

    /// Pages it has room for.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Pages whose newest version is here.
    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn is_full(&self) -> bool {
        self.len as usize == self.slots.len()
    }

    /// The slot of a page whose newest version is here.
    pub fn slot_of(&self, lpn: u32) -> Option<u32> {
        let slot = self.slot_of.get(lpn as usize).copied();
        slot.filter(|slot| *slot != NONE)
    }

    /// Rewrites a page where it lies. False when it is not here, or this is a log.
    pub fn rewrite(&mut self, lpn: u32, class: u8) -> bool {
        if self.appends {
            return false;
        }
        let slot = self.slot_of(lpn);
        if let Some(slot) = slot {
            self.slots[slot as usize].1 = class;
        }
        slot.is_some()
    }

    /// Appends a page and returns its slot. The buffer is not full.
    pub fn push(&mut self, lpn: u32, class: u8) -> u32 {
        self.forget(lpn);
        let slot = (self.oldest + self.len) % self.slots();
        self.slots[slot as usize] = (lpn, class);
        self.slot_of[lpn as usize] = slot;
        self.len += 1;
        self.live += 1;
        slot
    }

    /// The page's version here is no longer the newest. True if there was one.
    pub fn forget(&mut self, lpn: u32) -> bool {
        let slot = std::mem::replace(&mut self.slot_of[lpn as usize], NONE);
        if slot == NONE {
            return false;
        }
        self.slots[slot as usize].0 = NONE;
        self.live -= 1;
        true
    }

    /// Frees the oldest slot: its number, and its page and class if that is still the newest
    /// version. None of an empty buffer.
    pub fn pop(&mut self) -> Option<(u32, Option<(u32, u8)>)> {
        if self.len == 0 {
            return None;
        }
        let slot = self.oldest;
        let (lpn, class) = std::mem::replace(&mut self.slots[slot as usize], (NONE, 0));
        self.oldest = (slot + 1) % self.slots();
        self.len -= 1;
        if lpn == NONE {
            return Some((slot, None));
        }
        self.slot_of[lpn as usize] = NONE;
        self.live -= 1;
        Some((slot, Some((lpn, class))))
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
