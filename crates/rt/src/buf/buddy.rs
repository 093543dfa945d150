//! A binary buddy allocator over page numbers. It knows no addresses and owns no memory.
//!
//! Single pages, which most requests use, are not merged immediately when they are freed: a few are
//! kept in a ready list. An allocation takes the page that was freed last, since the processor's
//! caches probably still hold its content. The pages of the ready list are merged when no free
//! block satisfies an allocation.

const NONE: u32 = u32::MAX;

/// State of a page at which no free block starts. A page at which a free block starts has the order
/// of that block as its state.
const NOT_FREE: u8 = u8::MAX;
/// The state of a page in the ready list.
const READY: u8 = NOT_FREE - 1;
/// Maximum number of pages in the ready list.
const READY_MAX: usize = 128;

/// Buddy allocator. The free blocks of each order form a doubly linked list through per-page links,
/// so allocating, freeing and merging cost a few array accesses.
pub(super) struct Buddy {
    /// The state of each page: the order of the free block that starts there, `NOT_FREE` or
    /// `READY`.
    free_order: Vec<u8>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heads: Vec<u32>,
    /// The ready list: single free pages that are not in the lists of free blocks.
    ready: Vec<u32>,
    used: usize,
    /// The maximum of `used` since [`Buddy::forget_peak`].
    peak: usize,
}

impl Buddy {
    /// Creates an allocator for up to `pages` pages in blocks of at most `block_pages_max`, a power
    /// of two that divides both numbers. It has the first `present` pages; others are
    /// [added](Self::add).
    pub(super) fn new(pages: usize, present: usize, block_pages_max: usize) -> Buddy {
        assert!(block_pages_max.is_power_of_two() && pages.is_multiple_of(block_pages_max));
        assert!(present <= pages && present.is_multiple_of(block_pages_max));
        assert!(pages < NONE as usize, "page numbers fit 32 bits");
        let top = block_pages_max.trailing_zeros() as usize;
        let mut buddy = Buddy {
            free_order: vec![NOT_FREE; pages],
            next: vec![NONE; pages],
            previous: vec![NONE; pages],
            heads: vec![NONE; top + 1],
            ready: Vec::with_capacity(READY_MAX),
            used: 0,
            peak: 0,
        };
        for page in (0..present).step_by(block_pages_max).rev() {
            buddy.link(page, top);
        }
        buddy
    }

    /// Adds a free block of the largest size that starts at `page`. The allocator must not have had
    /// its pages before.
    pub(super) fn add(&mut self, page: usize) {
        self.link(page, self.heads.len() - 1);
    }

    /// Takes the block of the largest size that starts at `page` out of the allocator, if all of it
    /// is free; otherwise returns false.
    pub(super) fn remove(&mut self, page: usize) -> bool {
        self.merge_ready();
        let top = self.heads.len() - 1;
        let is_free = usize::from(self.free_order[page]) == top;
        if is_free {
            self.unlink(page, top);
        }
        is_free
    }

    /// Allocates a block of `pages` pages, a power of two; returns `None` when no free block is
    /// large enough.
    pub(super) fn alloc(&mut self, pages: usize) -> Option<usize> {
        let page = match self.ready.pop() {
            Some(page) if pages == 1 => {
                self.free_order[page as usize] = NOT_FREE;
                page as usize
            }
            kept => {
                self.ready.extend(kept);
                self.split(pages).or_else(|| {
                    self.merge_ready();
                    self.split(pages)
                })?
            }
        };
        self.used += pages;
        self.peak = self.peak.max(self.used);
        Some(page)
    }

    /// Removes a block of `pages` pages from the lists of free blocks; splits a larger block if
    /// necessary.
    fn split(&mut self, pages: usize) -> Option<usize> {
        let wanted = pages.trailing_zeros() as usize;
        let found = (wanted..self.heads.len()).find(|&order| self.heads[order] != NONE)?;
        let page = self.heads[found] as usize;
        self.unlink(page, found);
        for order in (wanted..found).rev() {
            self.link(page + (1 << order), order);
        }
        Some(page)
    }

    /// Frees a block.
    pub(super) fn free(&mut self, page: usize, pages: usize) {
        assert!(pages <= self.used, "more pages come back than were lent");
        self.used -= pages;
        if pages == 1 && self.ready.len() < READY_MAX {
            assert_eq!(self.free_order[page], NOT_FREE, "a block is freed once");
            self.free_order[page] = READY;
            self.ready.push(page as u32);
        } else {
            self.merge(page, pages);
        }
    }

    /// Moves the pages of the ready list into the lists of free blocks.
    fn merge_ready(&mut self) {
        while let Some(page) = self.ready.pop() {
            self.free_order[page as usize] = NOT_FREE;
            self.merge(page as usize, 1);
        }
    }

    /// Merges a block with its free neighbours and adds the result to the lists of free blocks.
    fn merge(&mut self, page: usize, pages: usize) {
        let (mut page, mut order) = (page, pages.trailing_zeros() as usize);
        while order + 1 < self.heads.len() {
            let neighbour = page ^ (1 << order);
            if usize::from(self.free_order[neighbour]) != order {
                break;
            }
            self.unlink(neighbour, order);
            page &= !(1 << order);
            order += 1;
        }
        self.link(page, order);
    }

    /// Returns the number of allocated pages.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the highest number of allocated pages since the last call.
    pub(super) fn forget_peak(&mut self) -> usize {
        std::mem::replace(&mut self.peak, self.used)
    }

    fn link(&mut self, page: usize, order: usize) {
        assert_eq!(self.free_order[page], NOT_FREE, "a block is freed once");
        let head = self.heads[order];
        self.free_order[page] = order as u8;
        self.next[page] = head;
        self.previous[page] = NONE;
        if head != NONE {
            self.previous[head as usize] = page as u32;
        }
        self.heads[order] = page as u32;
    }

    fn unlink(&mut self, page: usize, order: usize) {
        let (next, previous) = (self.next[page], self.previous[page]);
        match previous {
            NONE => self.heads[order] = next,
            previous => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.free_order[page] = NOT_FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn blocks_never_overlap_and_everything_merges_again() {
        let (pages, top) = (1024, 256);
        let mut buddy = Buddy::new(pages, pages, top);
        let mut rng = Rng::new(5);
        let mut owner = vec![false; pages];
        let mut held: Vec<(usize, usize)> = Vec::new();
        for _ in 0..20_000 {
            if rng.chance(0.55) {
                let size = 1usize << rng.below(9);
                if let Some(page) = buddy.alloc(size) {
                    assert_eq!(page % size, 0, "a block is aligned to its size");
                    assert!(
                        owner[page..page + size].iter().all(|&o| !o),
                        "a page is lent once"
                    );
                    owner[page..page + size].fill(true);
                    held.push((page, size));
                }
            } else if !held.is_empty() {
                let (page, size) = held.swap_remove(rng.below(held.len() as u64) as usize);
                owner[page..page + size].fill(false);
                buddy.free(page, size);
            }
            assert_eq!(buddy.used(), owner.iter().filter(|&&o| o).count());
        }
        for (page, size) in held {
            buddy.free(page, size);
        }
        // All free blocks have been merged: exactly `pages / top` blocks of the largest size can be
        // allocated.
        assert!((0..pages / top).all(|_| buddy.alloc(top).is_some()));
        assert!(buddy.alloc(1).is_none());
    }

    #[test]
    fn blocks_are_added_and_only_free_ones_are_removed() {
        let top = 16;
        let mut buddy = Buddy::new(3 * top, top, top);
        assert_eq!(buddy.alloc(top), Some(0));
        assert_eq!(buddy.alloc(1), None, "the other pages are not there yet");
        buddy.add(2 * top);
        assert_eq!(buddy.alloc(1), Some(2 * top));
        assert!(!buddy.remove(2 * top), "a page of it is in use");
        buddy.free(2 * top, 1);
        assert_eq!(buddy.forget_peak(), top + 1);
        assert_eq!(buddy.forget_peak(), top);
        assert!(buddy.remove(2 * top));
        assert_eq!(buddy.alloc(1), None);
    }
}
