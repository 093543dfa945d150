//! The write buffer inside a drive. It holds pages that the host has written and the drive has not
//! yet written to the translation layer below.
//!
//! Pages are destaged in the order of arrival. A buffer in volatile memory rewrites a page in
//! place. A buffer that is an SLC log appends the new version of a page; the slot of the outdated
//! version is later freed without a write. A page is written to the translation layer before its
//! slot is reused, so a read always finds the newest version in the buffer or in the translation
//! layer.

use crate::geometry::NONE;

/// The write buffer: a ring of slots, each of which holds a page. No memory is allocated after
/// construction.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    /// Logical page and write stream (class) of each slot. The page is `NONE` if the version in the
    /// slot is outdated.
    slots: Vec<(u32, u8)>,
    /// Slot of each logical page; `NONE` if the newest version of the page is not in the buffer.
    slot_of: Vec<u32>,
    oldest: u32,
    len: u32,
    live: u32,
    appends: bool,
}

impl WriteBuffer {
    /// Creates an empty buffer of `slots` pages. `appends` is true for a log, which cannot rewrite
    /// pages in place.
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

    /// Returns whether the buffer is a durable log (true) or volatile memory (false).
    pub fn is_log(&self) -> bool {
        self.appends
    }

    /// Returns the capacity of the buffer in pages.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the number of pages whose newest version is in the buffer.
    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn is_full(&self) -> bool {
        self.len as usize == self.slots.len()
    }

    /// Returns the slot that holds the newest version of a page; `None` if it is not in the buffer.
    pub fn slot_of(&self, lpn: u32) -> Option<u32> {
        let slot = self.slot_of.get(lpn as usize).copied();
        slot.filter(|slot| *slot != NONE)
    }

    /// Rewrites a page in place. Returns false if the page is not in the buffer, or if the buffer
    /// is a log.
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

    /// Appends a page and returns its slot. The buffer must not be full.
    pub fn push(&mut self, lpn: u32, class: u8) -> u32 {
        self.forget(lpn);
        let slot = (self.oldest + self.len) % self.slots();
        self.slots[slot as usize] = (lpn, class);
        self.slot_of[lpn as usize] = slot;
        self.len += 1;
        self.live += 1;
        slot
    }

    /// Marks the buffered version of a page as outdated. Returns false if the page is not in the
    /// buffer.
    pub fn forget(&mut self, lpn: u32) -> bool {
        let slot = std::mem::replace(&mut self.slot_of[lpn as usize], NONE);
        if slot == NONE {
            return false;
        }
        self.slots[slot as usize].0 = NONE;
        self.live -= 1;
        true
    }

    /// Frees the oldest slot. Returns the number of the slot and, if the slot held the newest
    /// version of a page, the page and its class. Returns `None` if the buffer is empty.
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
