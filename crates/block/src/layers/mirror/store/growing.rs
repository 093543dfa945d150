//! Growing the volume on one side. The part beyond the old end must read as zeroes before any
//! superblock says that this part belongs to the volume. Until it is zeroed, the part may hold old
//! content of the disk, or content from a discarded part of the history. Its checksum pages may
//! have been damaged and reset.

use std::ops::Range;

use super::Store;
use super::checksums::{Checksums, Expected};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::{Flags, Op, Request};

/// Number of changed checksum pages at which the pages are written.
const UNWRITTEN_PAGES_MAX: usize = 1024;
/// Maximum length of the requests that zero the data area.
const ZERO_BYTES: u64 = 16 << 20;

impl Store {
    /// Sets the size of the volume to `volume_bytes`. Does nothing if the volume already has this
    /// size or is larger.
    pub(in super::super) fn grow(&self, volume_bytes: u64) {
        if volume_bytes <= self.volume_bytes.get() {
            return;
        }
        if let Some(checksums) = &self.checksums {
            checksums.reach(volume_bytes / BLOCK_BYTES);
        }
        self.regions.grow(volume_bytes);
        self.volume_bytes.set(volume_bytes);
    }

    /// Durably makes the part between the present end of the volume and `volume_bytes` read as
    /// zeroes.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// When the areas of the side are too short for this size.
    pub(in super::super) async fn clear_up_to(&self, volume_bytes: u64) -> Result<(), IoError> {
        let range = self.volume_bytes.get()..volume_bytes;
        match &self.checksums {
            Some(checksums) => self.clear_checksums(checksums, range).await,
            None => {
                self.clear_home(range).await?;
                self.device.submit(Request::flush()).await?;
                Ok(())
            }
        }
    }

    async fn clear_checksums(
        &self,
        checksums: &Checksums,
        range: Range<u64>,
    ) -> Result<(), IoError> {
        let (mut block, end) = (range.start / BLOCK_BYTES, range.end / BLOCK_BYTES);
        checksums.reach(end);
        while block < end {
            let kinds = match checksums.kinds_in_page(block..end).await {
                Ok(kinds) => kinds,
                Err(IoError::Corrupt) => Vec::new(),
                Err(error) => return Err(error),
            };
            let is_clear = |(kind, _): &&(Expected, u64)| *kind == Expected::NeverWritten;
            let clear: u64 = kinds
                .iter()
                .take_while(is_clear)
                .map(|(_, blocks)| blocks)
                .sum();
            block += clear;
            // If no block in the rest of the page was ever written, `block` is now the first block
            // of the next page, or `end`.
            let page_end = Checksums::blocks_of(Checksums::page_of(block)).end;
            let blocks = block..page_end.min(end);
            if clear == 0 {
                block = blocks.end;
                let zeroes = vec![Expected::NeverWritten; (blocks.end - blocks.start) as usize];
                self.set_expected(checksums, blocks.start, &zeroes).await?;
            }
            if checksums.unwritten_pages() >= UNWRITTEN_PAGES_MAX {
                self.write_pages().await?;
            }
        }
        self.write_pages().await
    }

    /// Zeroes a range of the data area of a side without checksums, on which nothing records that a
    /// block was never written.
    async fn clear_home(&self, range: Range<u64>) -> Result<(), IoError> {
        for start in range.clone().step_by(ZERO_BYTES as usize) {
            let len = ZERO_BYTES.min(range.end - start);
            let place = self.data_offset + start;
            let zeroes = Request::without_data(Op::WriteZeroes, place, len, Flags::NONE);
            self.device.submit(zeroes).await?;
        }
        Ok(())
    }
}
