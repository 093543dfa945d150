//! Overlay of a storage that is only read: the overlay accepts writes, but they stay in memory and
//! are lost when the overlay is dropped. So an index can be opened without write access, or while
//! other processes read it. The overlay must never write to the storage below.

use super::{BLOCK_BYTES, Storage, StorageError};
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// A storage that is only read, and the blocks that were written to the overlay.
#[derive(Debug)]
pub struct Overlay<S> {
    below: S,
    state: RwLock<OverlayState>,
}

#[derive(Debug)]
struct OverlayState {
    blocks: BTreeMap<u64, Box<[u8]>>,
    len_bytes: u64,
}

impl<S: Storage> Overlay<S> {
    /// Creates an overlay without written blocks.
    pub fn new(below: S) -> Overlay<S> {
        let len_bytes = below.len_bytes();
        Overlay {
            below,
            state: RwLock::new(OverlayState {
                blocks: BTreeMap::new(),
                len_bytes,
            }),
        }
    }
}

impl<S: Storage> Storage for Overlay<S> {
    fn len_bytes(&self) -> u64 {
        self.state.read().len_bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let state = self.state.read();
        let end = offset + buffer.len() as u64;
        if end > state.len_bytes {
            return Err(StorageError::OutOfRange);
        }
        // The part beyond the end of the storage below was added by growing the overlay. It is zero
        // until it is written.
        let is_below = self.below.len_bytes().clamp(offset, end) - offset;
        let (below, added) = buffer.split_at_mut(is_below as usize);
        if !below.is_empty() {
            self.below.read(offset, below)?;
        }
        added.fill(0);
        let first = offset / BLOCK_BYTES as u64;
        for (block, bytes) in state.blocks.range(first..end / BLOCK_BYTES as u64) {
            let at = (block - first) as usize * BLOCK_BYTES;
            buffer[at..at + BLOCK_BYTES].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        let mut state = self.state.write();
        if offset + data.len() as u64 > state.len_bytes {
            return Err(StorageError::OutOfRange);
        }
        let first = offset / BLOCK_BYTES as u64;
        for (block, bytes) in (first..).zip(data.chunks(BLOCK_BYTES)) {
            state.blocks.insert(block, bytes.into());
        }
        Ok(())
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.write(offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        let mut state = self.state.write();
        // A range that is cut off and added again reads as zeroes, whatever the storage below
        // holds.
        let cut = state.len_bytes.min(self.below.len_bytes());
        for block in len_bytes.div_ceil(BLOCK_BYTES as u64)..cut / BLOCK_BYTES as u64 {
            state.blocks.insert(block, vec![0; BLOCK_BYTES].into());
        }
        state.len_bytes = len_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryStorage;

    #[test]
    fn what_is_written_is_read_and_nothing_is_below() {
        let content: Vec<u8> = (0..4 * BLOCK_BYTES).map(|at| (at / 1000) as u8).collect();
        let below = std::sync::Arc::new(MemoryStorage::with_content(content.clone()));
        let overlay = Overlay::new(below.clone());
        overlay.write(4096, &[7; BLOCK_BYTES]).expect("a write");
        overlay.resize(6 * 4096).expect("it grows");
        overlay
            .write_durable(5 * 4096, &[9; BLOCK_BYTES])
            .expect("a write");
        let mut expected = content.clone();
        expected[4096..8192].fill(7);
        expected.resize(5 * 4096, 0);
        expected.resize(6 * 4096, 9);
        let mut read = vec![1; 6 * 4096];
        overlay.read(0, &mut read).expect("a read");
        assert!(read == expected);
        // A range that was cut off and added again is zero.
        overlay.resize(4096).expect("it shrinks");
        let beyond = overlay.read(4096, &mut [0; BLOCK_BYTES]);
        assert_eq!(beyond, Err(StorageError::OutOfRange));
        overlay.resize(3 * 4096).expect("it grows");
        overlay.read(0, &mut read[..3 * 4096]).expect("a read");
        assert!(read[..4096] == content[..4096] && read[4096..3 * 4096].iter().all(|b| *b == 0));
        assert_eq!(below.content(), content);
        assert_eq!(below.counts().writes, 0);
    }
}
