//! Selection of the next full block to clean (the victim).
//!
//! - Greedy selects the block with the fewest valid pages, in O(1), by lists of blocks with equal
//!   counts. It is optimal for uniform random writes (Bux and Iliadis, Performance Evaluation
//!   2010).
//! - FIFO selects the block that was filled longest ago. It is the original policy of LFS
//!   (Desnoyers, SYSTOR 2012, calls it LRU).
//! - Cost-benefit weighs free space against age (Rosenblum and Ousterhout, SOSP 1991). It examines
//!   every full block, so its time is linear in the number of blocks.
//! - Random choice selects the block with the fewest valid pages among d blocks drawn at random
//!   (Van Houdt, SIGMETRICS 2013).

use std::collections::VecDeque;

use crate::config::Cleaning;
use crate::draw::Draw;
use crate::geometry::NONE;
use crate::nand::Nand;

/// The full blocks of one write stream, in the data structure that the cleaning policy needs.
/// Blocks are numbered from the first block of their die.
#[derive(Debug)]
pub(super) enum Victims {
    Greedy(Buckets),
    Fifo(VecDeque<u32>),
    CostBenefit {
        members: Members,
        filled: Vec<u64>,
    },
    Choices {
        members: Members,
        choices: u32,
        draw: Draw,
    },
}

impl Victims {
    pub fn new(cleaning: Cleaning, blocks: u32, pages_per_block: u32, seed: u64) -> Self {
        match cleaning {
            Cleaning::Greedy => Victims::Greedy(Buckets::new(blocks, pages_per_block)),
            Cleaning::Fifo => Victims::Fifo(VecDeque::with_capacity(blocks as usize)),
            Cleaning::CostBenefit => Victims::CostBenefit {
                members: Members::new(blocks),
                filled: vec![0; blocks as usize],
            },
            Cleaning::Choices(choices) => Victims::Choices {
                members: Members::new(blocks),
                choices,
                draw: Draw::new(seed),
            },
        }
    }

    /// Adds a block that has become full. `clock` is the number of host writes at this time.
    pub fn insert(&mut self, block: u32, valid: u32, clock: u64) {
        match self {
            Victims::Greedy(buckets) => buckets.insert(block, valid),
            Victims::Fifo(order) => order.push_back(block),
            Victims::CostBenefit { members, filled } => {
                members.insert(block);
                filled[block as usize] = clock;
            }
            Victims::Choices { members, .. } => members.insert(block),
        }
    }

    /// Records that a page of a full block has become invalid. The block then has `valid` valid
    /// pages.
    #[inline]
    pub fn invalidated(&mut self, block: u32, valid: u32) {
        if let Victims::Greedy(buckets) = self {
            buckets.lower(block, valid);
        }
    }

    /// Removes a block. For FIFO, the time is linear in the number of blocks.
    pub fn remove(&mut self, block: u32) {
        match self {
            Victims::Greedy(buckets) => buckets.remove(block),
            Victims::Fifo(order) => order.retain(|b| *b != block),
            Victims::CostBenefit { members, .. } | Victims::Choices { members, .. } => {
                members.remove(block);
            }
        }
    }

    /// Removes and returns the block to clean next; `None` if there is no full block. `first` is
    /// the number of the die's first block.
    pub fn take(&mut self, nand: &Nand, first: u32, clock: u64) -> Option<u32> {
        let valid = |block: u32| nand.block(first + block).valid;
        let chosen = match self {
            Victims::Greedy(buckets) => buckets.lowest(),
            Victims::Fifo(order) => return order.pop_front(),
            Victims::CostBenefit { members, filled } => {
                let worth = |block: &u32| {
                    let age = clock - filled[*block as usize];
                    worth(age, valid(*block), nand.pages_per_block())
                };
                let blocks = members.list.iter().copied();
                blocks.max_by(|a, b| worth(a).total_cmp(&worth(b)))
            }
            Victims::Choices {
                members,
                choices,
                draw,
            } => members.emptiest(*choices, draw, valid),
        };
        if let Some(block) = chosen {
            self.remove(block);
        }
        chosen
    }
}

/// Returns the ratio of benefit to cost of cleaning a block. Let u be the share of valid pages in
/// the block. The cost is 2u, because the valid pages are read and written. The benefit is the
/// freed share 1 - u, multiplied by the age of the block, because an old block will probably stay
/// unchanged for longer.
fn worth(age: u64, valid: u32, pages_per_block: u32) -> f64 {
    let share = f64::from(valid) / f64::from(pages_per_block);
    if valid == 0 {
        return f64::INFINITY;
    }
    (age as f64 + 1.0) * (1.0 - share) / (2.0 * share)
}

/// Full blocks in doubly linked lists, one list for each number of valid pages.
#[derive(Debug)]
pub(super) struct Buckets {
    heads: Vec<u32>,
    /// Links of each block: the next block towards the head of its list, and the next block away
    /// from the head. They are `NONE` at the ends of the list.
    links: Vec<(u32, u32)>,
    /// Number of valid pages under which each block is listed; `NONE` for a block that is not
    /// listed.
    listed: Vec<u32>,
    /// Lower bound of the number of valid pages of the listed blocks: every list for a smaller
    /// number is empty.
    low: u32,
}

impl Buckets {
    fn new(blocks: u32, pages_per_block: u32) -> Self {
        Buckets {
            heads: vec![NONE; pages_per_block as usize + 1],
            links: vec![(NONE, NONE); blocks as usize],
            listed: vec![NONE; blocks as usize],
            low: pages_per_block,
        }
    }

    fn insert(&mut self, block: u32, valid: u32) {
        let head = std::mem::replace(&mut self.heads[valid as usize], block);
        self.links[block as usize] = (NONE, head);
        if head != NONE {
            self.links[head as usize].0 = block;
        }
        self.listed[block as usize] = valid;
        self.low = self.low.min(valid);
    }

    fn remove(&mut self, block: u32) {
        let valid = std::mem::replace(&mut self.listed[block as usize], NONE);
        if valid == NONE {
            return;
        }
        let (before, after) = self.links[block as usize];
        if before == NONE {
            self.heads[valid as usize] = after;
        } else {
            self.links[before as usize].1 = after;
        }
        if after != NONE {
            self.links[after as usize].0 = before;
        }
    }

    #[inline]
    fn lower(&mut self, block: u32, valid: u32) {
        self.remove(block);
        self.insert(block, valid);
    }

    fn lowest(&mut self) -> Option<u32> {
        let occupied = |valid: &u32| self.heads[*valid as usize] != NONE;
        let found = (self.low..self.heads.len() as u32).find(occupied);
        self.low = found.unwrap_or(self.heads.len() as u32 - 1);
        found.map(|valid| self.heads[valid as usize])
    }
}

/// Set of full blocks without an order, from which blocks can be drawn at random.
#[derive(Debug)]
pub(super) struct Members {
    list: Vec<u32>,
    place: Vec<u32>,
}

impl Members {
    fn new(blocks: u32) -> Self {
        Members {
            list: Vec::with_capacity(blocks as usize),
            place: vec![NONE; blocks as usize],
        }
    }

    fn insert(&mut self, block: u32) {
        self.place[block as usize] = self.list.len() as u32;
        self.list.push(block);
    }

    fn remove(&mut self, block: u32) {
        let place = std::mem::replace(&mut self.place[block as usize], NONE);
        if place == NONE {
            return;
        }
        self.list.swap_remove(place as usize);
        if let Some(moved) = self.list.get(place as usize) {
            self.place[*moved as usize] = place;
        }
    }

    /// Draws `choices` blocks at random, and returns the block with the fewest valid pages among
    /// them. If all pages of the drawn blocks are valid, cleaning the returned block frees no page,
    /// and the next draw might be better.
    fn emptiest(&self, choices: u32, draw: &mut Draw, valid: impl Fn(u32) -> u32) -> Option<u32> {
        let count = self.list.len() as u32;
        if count == 0 {
            return None;
        }
        let drawn = (0..choices).map(|_| self.list[draw.below(count) as usize]);
        drawn.min_by_key(|block| valid(*block))
    }
}
