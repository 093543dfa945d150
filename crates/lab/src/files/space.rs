//! Free blocks of the device, as a bitmap that is searched upwards from a goal block.

/// Bitmap of free blocks; see the module.
pub(crate) struct Space {
    /// One bit for each block, set if the block is in use.
    words: Vec<u64>,
    blocks: u32,
    free: u32,
}

impl Space {
    /// Creates a bitmap with all blocks free.
    pub(crate) fn new(blocks: u32) -> Space {
        let mut words = vec![0; (blocks as usize).div_ceil(64)];
        // Some bits of the last word represent no block. Mark these bits as in use.
        for block in blocks as usize..words.len() * 64 {
            words[block / 64] |= 1 << (block % 64);
        }
        Space {
            words,
            blocks,
            free: blocks,
        }
    }

    /// Returns the number of free blocks.
    #[cfg(test)]
    pub(crate) fn free_blocks(&self) -> u32 {
        self.free
    }

    /// Returns true if the block is free.
    pub(crate) fn is_free(&self, block: u32) -> bool {
        self.words[block as usize / 64] & (1 << (block % 64)) == 0
    }

    /// Allocates a block that is free.
    ///
    /// # Panics
    /// If the block is in use.
    pub(crate) fn take(&mut self, block: u32) {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        assert!(self.words[word] & bit == 0, "a block has one owner");
        self.words[word] |= bit;
        self.free -= 1;
    }

    /// Frees a block.
    ///
    /// # Panics
    /// If the block is free already.
    pub(crate) fn give(&mut self, block: u32) {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        assert!(self.words[word] & bit != 0, "a free block is not given");
        self.words[word] &= !bit;
        self.free += 1;
    }

    /// Allocates the first free block from `goal` on, or else the first free block of the device.
    /// Returns `None` if no block is free.
    pub(crate) fn take_near(&mut self, goal: u32) -> Option<u32> {
        let goal = if goal < self.blocks { goal } else { 0 };
        let block = self
            .first_free(goal as usize)
            .or_else(|| self.first_free(0))?;
        self.take(block);
        Some(block)
    }

    fn first_free(&self, from: usize) -> Option<u32> {
        let mut word = from / 64;
        let mut used = self.words.get(word)? | ((1u64 << (from % 64)) - 1);
        while used == u64::MAX {
            word += 1;
            used = *self.words.get(word)?;
        }
        Some((word * 64) as u32 + used.trailing_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_goes_up_and_round() {
        let mut space = Space::new(130);
        assert_eq!(space.take_near(127), Some(127));
        assert_eq!(space.take_near(127), Some(128));
        assert_eq!(space.take_near(127), Some(129));
        assert_eq!(space.take_near(127), Some(0));
        assert_eq!(space.take_near(9000), Some(1));
        space.give(128);
        assert_eq!(space.take_near(5), Some(5));
        assert_eq!(space.take_near(70), Some(70));
        assert_eq!(space.free_blocks(), 130 - 6);
    }

    #[test]
    fn a_full_device_has_none() {
        let mut space = Space::new(3);
        let taken: Vec<_> = (0..4).map(|_| space.take_near(1)).collect();
        assert_eq!(taken, [Some(1), Some(2), Some(0), None]);
    }
}
