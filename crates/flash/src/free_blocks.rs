//! The erased blocks of a drive or a die, and the selection of the next block to program.
//!
//! Dynamic wear levelling selects the least worn block. Without it, the block that was erased
//! longest ago is selected.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::nand::Nand;

/// Erased blocks in the order in which they will be programmed. The list never holds more blocks
/// than its initial capacity, so it allocates no memory after construction.
#[derive(Debug)]
pub(crate) enum FreeBlocks {
    Oldest(VecDeque<u32>),
    LeastWorn(BinaryHeap<Reverse<(u32, u32)>>),
}

impl FreeBlocks {
    /// Creates a list of the blocks in `order`. Every block in it must already be erased.
    pub fn new(order: impl Iterator<Item = u32>, least_worn_first: bool, nand: &Nand) -> Self {
        let blocks: VecDeque<u32> = order.collect();
        if !least_worn_first {
            return FreeBlocks::Oldest(blocks);
        }
        let worn = |block: u32| Reverse((nand.block(block).erases, block));
        FreeBlocks::LeastWorn(blocks.into_iter().map(worn).collect())
    }

    pub fn len(&self) -> u32 {
        let len = match self {
            FreeBlocks::Oldest(blocks) => blocks.len(),
            FreeBlocks::LeastWorn(blocks) => blocks.len(),
        };
        len as u32
    }

    pub fn push(&mut self, block: u32, nand: &Nand) {
        match self {
            FreeBlocks::Oldest(blocks) => blocks.push_back(block),
            FreeBlocks::LeastWorn(blocks) => {
                blocks.push(Reverse((nand.block(block).erases, block)));
            }
        }
    }

    /// Removes and returns the next block to program.
    ///
    /// # Panics
    /// When the list is empty. This does not happen, because constructors reserve as many blocks as
    /// a layer can need at one time.
    pub fn take(&mut self) -> u32 {
        let block = match self {
            FreeBlocks::Oldest(blocks) => blocks.pop_front(),
            FreeBlocks::LeastWorn(blocks) => blocks.pop().map(|Reverse((_, block))| block),
        };
        block.expect("the reserve covers what a layer can need at once")
    }
}

#[cfg(test)]
mod tests {
    use super::FreeBlocks;
    use crate::geometry::Geometry;
    use crate::nand::Nand;

    #[test]
    fn the_least_worn_block_comes_first_where_wear_is_levelled() {
        let mut nand = Nand::new(&Geometry::one_die(3, 4, 512)).expect("valid");
        for block in [0, 0, 0, 2] {
            nand.erase(block);
        }
        let order = |least_worn_first| {
            let mut free = FreeBlocks::new([0, 1, 2].into_iter(), least_worn_first, &nand);
            [free.take(), free.take(), free.take()]
        };
        assert_eq!(order(true), [1, 2, 0]);
        assert_eq!(order(false), [0, 1, 2]);
    }
}
