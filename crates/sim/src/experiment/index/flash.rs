//! Flash below the storage interface of the index. It counts pages read, pages programmed and erase
//! units erased.
//!
//! A page that has been programmed since its unit was erased cannot be programmed again before the
//! unit is erased. The other pages of the unit stay readable. When an index rewrites a part of a
//! unit, such as a superblock, a real device would copy the other pages; these copies are not
//! counted. The flash must never return bytes other than those written at the offset.

use std::sync::{Arc, Mutex, MutexGuard};

use bimetal_index::storage::{BLOCK_BYTES, Storage, StorageError};

use crate::cache::Work;

/// Shared handle to simulated flash. The content lives as long as any handle exists.
#[derive(Clone, Debug)]
pub(super) struct Flash(Arc<Mutex<FlashState>>);

#[derive(Debug)]
struct FlashState {
    bytes: Vec<u8>,
    /// For each page, whether it was programmed since its erase unit was erased.
    programmed: Vec<bool>,
    unit_pages: usize,
    work: Work,
}

impl Flash {
    /// Creates flash of length 0, which the index resizes. `unit_bytes` is the size of an erase
    /// unit, a whole number of pages.
    pub(super) fn new(unit_bytes: usize) -> Flash {
        Flash(Arc::new(Mutex::new(FlashState {
            bytes: Vec::new(),
            programmed: Vec::new(),
            unit_pages: unit_bytes / BLOCK_BYTES,
            work: Work::default(),
        })))
    }

    /// Returns the number of flash operations so far.
    pub(super) fn work(&self) -> Work {
        self.state().work
    }

    fn state(&self) -> MutexGuard<'_, FlashState> {
        self.0.lock().expect("nothing panics with the lock")
    }
}

impl FlashState {
    fn range(&self, offset: u64, len: usize) -> Result<std::ops::Range<usize>, StorageError> {
        let start = usize::try_from(offset).map_err(|_| StorageError::OutOfRange)?;
        let end = start.checked_add(len).ok_or(StorageError::OutOfRange)?;
        let is_there = end <= self.bytes.len();
        is_there
            .then_some(start..end)
            .ok_or(StorageError::OutOfRange)
    }

    fn program(&mut self, page: usize) {
        if self.programmed[page] {
            let unit = page / self.unit_pages * self.unit_pages;
            let end = self.programmed.len().min(unit + self.unit_pages);
            self.programmed[unit..end].fill(false);
            self.work.erases += 1;
        }
        self.programmed[page] = true;
        self.work.programs += 1;
    }
}

impl Storage for Flash {
    fn len_bytes(&self) -> u64 {
        self.state().bytes.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let mut state = self.state();
        let range = state.range(offset, buffer.len())?;
        state.work.reads += (buffer.len() / BLOCK_BYTES) as u64;
        buffer.copy_from_slice(&state.bytes[range]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        let mut state = self.state();
        let range = state.range(offset, data.len())?;
        for page in range.start / BLOCK_BYTES..range.end / BLOCK_BYTES {
            state.program(page);
        }
        state.bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.write(offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        let mut state = self.state();
        let len = usize::try_from(len_bytes).map_err(|_| StorageError::Full)?;
        state.bytes.resize(len, 0);
        // If pages are released and allocated again, they stay marked as programmed. So programming
        // such a page erases its unit first.
        let pages = len / BLOCK_BYTES;
        if state.programmed.len() < pages {
            state.programmed.resize(pages, false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_erased_when_a_page_of_it_is_programmed_again() {
        let flash = Flash::new(4 * BLOCK_BYTES);
        flash.resize(8 * BLOCK_BYTES as u64).unwrap();
        let at = |page: usize| (page * BLOCK_BYTES) as u64;
        let four = vec![7; 4 * BLOCK_BYTES];
        flash.write(at(0), &four).unwrap();
        flash.write(at(4), &four[..BLOCK_BYTES]).unwrap();
        let done = |reads, programs, erases| Work {
            reads,
            programs,
            erases,
        };
        assert_eq!(flash.work(), done(0, 5, 0));
        // Writing four pages of one unit in order erases the unit only once.
        flash.write(at(0), &four).unwrap();
        assert_eq!(flash.work(), done(0, 9, 1));
        let mut page = vec![0; 2 * BLOCK_BYTES];
        flash.read(at(3), &mut page).unwrap();
        assert_eq!(page, [7; 2 * BLOCK_BYTES]);
        assert_eq!(flash.work(), done(2, 9, 1));
        assert_eq!(flash.read(at(7), &mut page), Err(StorageError::OutOfRange));
    }
}
