//! Finds out which blocks of the volume have content, by reading the whole map. A volume that is
//! larger than what its sides have room for must know this before it is written to.

use bimetal_rt::turn::give_way;

use super::Segments;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::written_blocks::WrittenBlocks;

/// Number of pages that are read and kept in memory together.
const BATCH_PAGES: usize = 512;

impl Segments {
    /// Returns the blocks of the volume that have content by the map. Blocks whose places are lost
    /// count as well: content that is given back to them needs no room then. Calls `told` with the
    /// number of bytes of the pages that were read, and that of the pages that are to be read.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn content(
        &self,
        told: &dyn Fn(u64, u64),
    ) -> Result<WrittenBlocks, IoError> {
        let pages = self.places.borrow().pages();
        let mut content = WrittenBlocks::default();
        let mut left = Vec::new();
        for page in 0..pages {
            give_way().await;
            match self.places.borrow().is_known(page) {
                true => self.add_content(page, &mut content),
                false => left.push(page),
            }
        }
        let all_bytes = left.len() as u64 * BLOCK_BYTES;
        left.sort_unstable_by_key(|page| self.tables.borrow().get(*page).block());
        // A page that could not be read is read again, until it is lost.
        while !left.is_empty() {
            let batch: Vec<u64> = left.drain(..left.len().min(BATCH_PAGES)).collect();
            self.places.borrow_mut().hold(batch.iter().copied());
            let unread = self.bring_in(&batch).await;
            let read = |page: &&u64| !matches!(&unread, Ok(unread) if unread.contains(page));
            for page in batch.iter().filter(read).filter(|_| unread.is_ok()) {
                give_way().await;
                self.add_content(*page, &mut content);
            }
            self.places.borrow_mut().release(batch.iter().copied());
            self.places.borrow_mut().trim();
            left.extend(unread?);
            told(all_bytes - left.len() as u64 * BLOCK_BYTES, all_bytes);
        }
        Ok(content)
    }

    /// Adds the blocks of a page that is in memory.
    fn add_content(&self, page: u64, content: &mut WrittenBlocks) {
        let first = self.pages_bytes / BLOCK_BYTES;
        for block in self.places.borrow().with_content(page) {
            // The first blocks are those of the checksums.
            if let Some(block) = block.checked_sub(first) {
                let start = block * BLOCK_BYTES;
                content.insert(&(start..start + BLOCK_BYTES));
            }
        }
    }
}
