//! Flash behind the index's storage seam, which counts: pages read, pages programmed, units erased.
//!
//! A page that was programmed since its unit was erased cannot be programmed again: the unit is
//! erased first. What else is in the unit stays readable, since an index that rewrites a part of a
//! unit (its superblocks) would have it copied by the device; the copies are not counted. It must
//! never answer with bytes that were not written there.

use std::sync::{Arc, Mutex, MutexGuard};

use bimetal_index::storage::{BLOCK_BYTES, Storage, StorageError};

use crate::cache::Work;

/// Flash that keeps its content for as long as one of its handles is there.
#[derive(Clone, Debug)]
pub(super) struct Flash(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    /// By page: programmed since its unit was erased.
    programmed: Vec<bool>,
    unit_pages: usize,
    work: Work,
}

impl Flash {
    /// No flash yet: it grows as it is asked to. A unit of `unit_bytes`, whole pages, is erased at
    /// once.
    pub(super) fn new(unit_bytes: usize) -> Flash {
        Flash(Arc::new(Mutex::new(State {
            bytes: Vec::new(),
            programmed: Vec::new(),
            unit_pages: unit_bytes / BLOCK_BYTES,
            work: Work::default(),
        })))
    }

    /// Everything done so far.
    pub(super) fn work(&self) -> Work {
        self.state().work
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics with the lock")
    }
}

impl State {
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
        // What is given back and taken again was programmed: a unit is erased once between.
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
        // Four pages of one unit, in order: one erase for all.
        flash.write(at(0), &four).unwrap();
        assert_eq!(flash.work(), done(0, 9, 1));
        let mut page = vec![0; 2 * BLOCK_BYTES];
        flash.read(at(3), &mut page).unwrap();
        assert_eq!(page, [7; 2 * BLOCK_BYTES]);
        assert_eq!(flash.work(), done(2, 9, 1));
        assert_eq!(flash.read(at(7), &mut page), Err(StorageError::OutOfRange));
    }
}
