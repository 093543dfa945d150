//! Asymmetric buffer management: clean pages are in a read buffer, which evicts single pages in any
//! order. Dirty pages are in a write buffer, which evicts clusters. A pointer divides the capacity
//! between the two buffers.
//!
//! Source: Jung, Kang and Cha, 2011. The rules, with the paper's section or letter:
//!
//! - When the cache is full, the buffer that exceeds its share evicts (3.1); each buffer can borrow
//!   unused capacity from the other buffer.
//! - A clean page that is written moves to the write buffer (3.2, A).
//! - When a cluster is written, only one of its frames is freed (B). Its other pages are then clean
//!   and move to the evicted-first end of the read buffer (C).
//! - Accesses to remembered evicted pages, the ghosts, move the pointer (3.3).
//!
//! The paper leaves three points open. In this implementation, the freed page of a written cluster
//! is the least recently used page. The number of ghosts of a buffer is at most the whole capacity
//! minus the number of pages in the buffer. If a page that was kept by rule C is evicted later, it
//! becomes a ghost of the write buffer, unless it was read in the meantime.
//!
//! Padding is an addition, after BPLRU (Kim and Ahn, FAST 2008): the eviction of a cluster also
//! writes the pages of the cluster that are not in the buffer, if this costs less than to write
//! only the buffered pages. The reason: a log-block layer eventually merges an erase block of which
//! a part was written, and copies the rest of the block; a block that is written whole just
//! replaces the old one.
//!
//! A page is dirty exactly while it is in the write buffer. No other code stores dirtiness.

mod costs;
pub(super) mod pointer;

use super::dirty::Dirty;
use super::order::Order;
use super::write_order::WriteOrder;
use super::{
    Access, DeviceCost, Evictions, Occupancy, Outcome, PageAddress, PageId, Pointer, Replacement,
};
use crate::lists::{Links, List, grow};
use pointer::Side;

/// What the policy remembers about a page, apart from the fact that the page is in one of the
/// buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Nothing,
    /// The page was written to the device, is in the cache as a clean page, and has not been read
    /// since the write (rule C).
    Delayed,
    /// The page is not in the cache, and is remembered as evicted from the read buffer.
    ReadGhost,
    /// The page is not in the cache, and is remembered as evicted from the write buffer.
    WriteGhost,
}

/// ABM with any eviction order for the read buffer.
pub(super) struct Abm<R> {
    capacity: usize,
    read: R,
    read_capacity: usize,
    write: Box<dyn WriteOrder>,
    pointer: Pointer,
    /// True if the eviction of a cluster writes the whole cluster, including pages that are not in
    /// the buffer (padding), whenever that costs less than writing only the buffered pages.
    pads: bool,
    memory: Vec<Memory>,
    /// For each page that was flushed since it was last written, the value of `flushed` then; 0
    /// for other pages.
    flushed_at: Vec<u64>,
    /// Number of pages that the write buffer has flushed.
    flushed: u64,
    ghost_links: Links,
    read_ghosts: List,
    write_ghosts: List,
    /// An empty set of dirty pages. It is passed to `read`, the order of the read buffer, which has
    /// only clean pages.
    none_dirty: Dirty,
    leaving: Vec<PageId>,
    cluster: Vec<PageId>,
}

impl<R: Order> Abm<R> {
    pub(super) fn new(
        capacity: usize,
        read: R,
        write: Box<dyn WriteOrder>,
        pointer: Pointer,
        pads: bool,
    ) -> Abm<R> {
        Abm {
            capacity,
            read,
            read_capacity: capacity,
            write,
            pointer,
            pads,
            memory: Vec::new(),
            flushed_at: Vec::new(),
            flushed: 0,
            ghost_links: Links::default(),
            read_ghosts: List::default(),
            write_ghosts: List::default(),
            none_dirty: Dirty::default(),
            leaving: Vec::with_capacity(8),
            cluster: Vec::with_capacity(64),
        }
    }

    fn held(&self) -> usize {
        self.read.len() + self.write.len()
    }

    /// Forgets that `page` is a ghost (a remembered evicted page). Returns the side that remembered
    /// the page, read or write; `None` if neither did.
    fn unghost(&mut self, page: PageId) -> Option<Side> {
        let side = match self.memory[page as usize] {
            Memory::ReadGhost => Side::Read,
            Memory::WriteGhost => Side::Write,
            Memory::Nothing | Memory::Delayed => return None,
        };
        match side {
            Side::Read => self.read_ghosts.remove(&mut self.ghost_links, page),
            Side::Write => self.write_ghosts.remove(&mut self.ghost_links, page),
        }
        self.memory[page as usize] = Memory::Nothing;
        Some(side)
    }

    /// Remembers `page`, which has been evicted from the cache, as a ghost of the given side.
    fn remember(&mut self, page: PageId, side: Side) {
        let (ghosts, held, memory) = match side {
            Side::Read => (&mut self.read_ghosts, self.read.len(), Memory::ReadGhost),
            Side::Write => (&mut self.write_ghosts, self.write.len(), Memory::WriteGhost),
        };
        ghosts.push_front(&mut self.ghost_links, page);
        self.memory[page as usize] = memory;
        while ghosts.len() > self.pointer.ghosts_max(held) {
            let Some(forgotten) = ghosts.pop_back(&mut self.ghost_links) else {
                return;
            };
            self.memory[forgotten as usize] = Memory::Nothing;
        }
    }

    /// Hands out the pages that the read side has evicted.
    fn hand_out_read(&mut self, out: &mut Evictions) {
        while let Some(page) = self.leaving.pop() {
            let side = match self.memory[page as usize] {
                Memory::Delayed => Side::Write,
                _ => Side::Read,
            };
            self.remember(page, side);
            out.page(page, false, false);
            out.end(false);
        }
    }

    /// Sets the capacity of the read side to its share of the cache, or to its current number of
    /// pages plus `more` if that is larger.
    fn size_read(&mut self, more: usize) {
        let share = self.capacity - (self.pointer.write_target() as usize).min(self.capacity);
        let capacity = share.max(self.read.len() + more).max(1);
        if capacity != self.read_capacity {
            self.read_capacity = capacity;
            self.read.resize(capacity);
        }
    }

    fn evict_read(&mut self, out: &mut Evictions) {
        self.read.evict(&self.none_dirty, &mut self.leaving);
        self.hand_out_read(out);
    }

    /// Evicts a cluster from the write buffer. All of its pages are written. The least recently
    /// used page is then no longer in the cache, and the other pages stay in the cache as clean
    /// pages (rules B and C).
    fn evict_write(&mut self, out: &mut Evictions) {
        let mut cluster = std::mem::take(&mut self.cluster);
        self.write.resize(self.pointer.write_target() as usize);
        self.write.evict(&mut cluster);
        let padded = self.pads && self.pointer.costs().padding_pays(cluster.len());
        self.flushed += cluster.len() as u64;
        for page in &cluster {
            self.flushed_at[*page as usize] = self.flushed;
        }
        if let Some((freed, stay)) = cluster.split_last() {
            self.size_read(stay.len());
            for page in stay {
                self.read.insert_cold(*page);
                self.memory[*page as usize] = Memory::Delayed;
                out.page(*page, true, true);
            }
            out.page(*freed, true, false);
            self.remember(*freed, Side::Write);
        }
        out.end(padded);
        cluster.clear();
        self.cluster = cluster;
    }

    /// Evicts from the write side if it is above its target, otherwise from the read side. If the
    /// write side is exactly at its target, the access decides: a write evicts from the write side.
    fn make_room(&mut self, access: Access, out: &mut Evictions) {
        let (held, target) = (self.write.len() as f64, self.pointer.write_target());
        let from_write = match access {
            Access::Read => held > target,
            Access::Write => held >= target,
        };
        if (from_write && self.write.len() > 0) || self.read.len() == 0 {
            self.evict_write(out);
        } else {
            self.evict_read(out);
        }
    }

    fn hit_read(&mut self, page: PageId, access: Access, out: &mut Evictions) {
        let was_delayed = self.memory[page as usize] == Memory::Delayed;
        self.memory[page as usize] = Memory::Nothing;
        match access {
            Access::Read => {
                self.read.hit(page, &self.none_dirty, &mut self.leaving);
                self.hand_out_read(out);
            }
            Access::Write => {
                if was_delayed {
                    self.pointer.flushed_too_early();
                }
                self.read.remove(page);
                self.insert_write(page);
            }
        }
    }

    /// Inserts `page`, which is not in the write buffer, into the write buffer.
    fn insert_write(&mut self, page: PageId) {
        let flushed_at = std::mem::take(&mut self.flushed_at[page as usize]);
        if flushed_at > 0 {
            self.pointer.page_again(self.flushed - flushed_at);
        }
        if let Some(left_since) = self.write.take_left_since(page) {
            self.pointer.cluster_again(left_since);
        }
        self.write.insert(page, Access::Write);
    }

    fn miss(&mut self, page: PageId, access: Access, out: &mut Evictions) {
        if let Some(side) = self.unghost(page) {
            self.pointer.ghost_hit(side, access);
        }
        if self.held() >= self.capacity {
            self.make_room(access, out);
        }
        match access {
            Access::Read => {
                self.size_read(1);
                self.read.insert(page, &self.none_dirty, &mut self.leaving);
                self.hand_out_read(out);
            }
            Access::Write => {
                // The page enters the write buffer, so the order of the read buffer no longer needs
                // to remember it.
                self.read.remove(page);
                self.insert_write(page);
            }
        }
    }
}

impl<R: Order> Replacement for Abm<R> {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn reserve(&mut self, ids: usize) {
        self.read.reserve(ids);
        self.write.reserve(ids);
        self.ghost_links.reserve(ids);
        self.none_dirty.reserve(ids);
        grow(&mut self.memory, ids, Memory::Nothing);
        grow(&mut self.flushed_at, ids, 0);
    }

    fn introduce(&mut self, page: PageId, place: PageAddress) {
        self.reserve(page as usize + 1);
        self.flushed_at[page as usize] = 0;
        self.read.place(page, place);
        self.write.place(page, place);
    }

    fn access(&mut self, page: PageId, access: Access, out: &mut Evictions) -> Outcome {
        self.write.observe(page, access);
        if self.write.holds(page) {
            self.write.hit(page, access);
            Outcome::Hit
        } else if self.read.holds(page) {
            self.hit_read(page, access, out);
            Outcome::Hit
        } else {
            self.miss(page, access, out);
            Outcome::Miss
        }
    }

    /// Moves a dirty page to the read buffer, as a page that was just used.
    fn cleaned(&mut self, page: PageId) {
        if self.write.holds(page) {
            self.write.remove(page);
            self.size_read(1);
            self.read.insert(page, &self.none_dirty, &mut self.leaving);
            assert!(self.leaving.is_empty(), "there was room for the page");
        }
    }

    fn remove(&mut self, page: PageId) {
        self.unghost(page);
        self.memory[page as usize] = Memory::Nothing;
        self.flushed_at[page as usize] = 0;
        self.write.remove(page);
        self.read.remove(page);
    }

    fn cost(&mut self, cost: DeviceCost) {
        self.pointer.learn(cost);
        let costs = self.pointer.costs();
        let (page_us, mean_us) = (costs.page_us(), costs.flush_us());
        self.write.set_costs(page_us, mean_us, costs.beside_us());
    }

    fn weighs_costs(&self) -> bool {
        self.pads || self.pointer.weighs_costs()
    }

    fn holds(&self, page: PageId) -> bool {
        self.write.holds(page) || self.read.holds(page)
    }

    fn is_dirty(&self, page: PageId) -> bool {
        self.write.holds(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.write.remembers(page)
            || self.memory[page as usize] != Memory::Nothing
            || self.read.remembers(page)
    }

    fn dirty_pages(&self, out: &mut Vec<PageId>) {
        self.write.list_held(out);
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy {
            held: self.held(),
            dirty: self.write.len(),
            write_target: Some(self.pointer.write_target()),
            write_held: Some(self.write.len()),
        }
    }
}
