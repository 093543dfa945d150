//! A disk behind the page cache of Linux: written data stays in the cache until a sync. A failed
//! sync leaves pages in the cache that differ from the disk but are marked clean (fsync(2): the
//! error is reported once).

use super::Disk;
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::storage::{Aligned, BLOCK_BYTES, Storage, StorageError};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const IO_ERROR: StorageError = StorageError::Failed(5);

/// The disk and the cache. Clones share both.
#[derive(Clone, Default)]
pub struct Cached {
    /// Content that programs read.
    cache: Disk,
    /// Content that survives a power cut.
    pub disk: Disk,
    state: Arc<Mutex<CachedState>>,
}

#[derive(Default)]
struct CachedState {
    /// Offsets of the blocks that the next sync saves.
    dirty: BTreeSet<u64>,
    sync_fails: bool,
    /// Number of calls until the power is cut; `None` if no power cut is planned.
    calls_left: Option<u64>,
    calls: u64,
}

impl Cached {
    /// Makes the next sync fail without writing any data to the disk.
    pub fn fail_sync(&self) {
        self.state.lock().expect("a lock").sync_fails = true;
    }

    /// Returns an independent copy of the disk and of the cache.
    pub fn copied(&self) -> Cached {
        let copied = |disk: &Disk| Disk::new(MemoryStorage::with_content(disk.content()));
        let state = self.state.lock().expect("a lock");
        Cached {
            cache: copied(&self.cache),
            disk: copied(&self.disk),
            state: Arc::new(Mutex::new(CachedState {
                dirty: state.dirty.clone(),
                ..CachedState::default()
            })),
        }
    }

    /// Cuts the power after `calls` more calls. All later calls fail and have no effect.
    pub fn cut_power_after(&self, calls: u64) {
        self.state.lock().expect("a lock").calls_left = Some(calls);
    }

    /// Returns the number of calls that have read or changed the disk.
    pub fn calls(&self) -> u64 {
        self.state.lock().expect("a lock").calls
    }

    fn call(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock().expect("a lock");
        state.calls += 1;
        match &mut state.calls_left {
            None => Ok(()),
            Some(0) => Err(IO_ERROR),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn save(&self, offset: u64) -> Result<(), StorageError> {
        let mut block = Aligned::zeroed(BLOCK_BYTES);
        self.cache.read(offset, &mut block)?;
        self.disk.write_durable(offset, &block)
    }
}

impl Storage for Cached {
    fn len_bytes(&self) -> u64 {
        self.cache.len_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.call()?;
        self.cache.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.call()?;
        self.cache.write(offset, data)?;
        let blocks = (offset..offset + data.len() as u64).step_by(BLOCK_BYTES);
        self.state.lock().expect("a lock").dirty.extend(blocks);
        Ok(())
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.call()?;
        self.cache.write(offset, data)?;
        self.disk.write_durable(offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.call()?;
        let (dirty, fails) = {
            let mut state = self.state.lock().expect("a lock");
            let fails = std::mem::take(&mut state.sync_fails);
            (std::mem::take(&mut state.dirty), fails)
        };
        if fails {
            return Err(IO_ERROR);
        }
        let is_there = |offset: &u64| *offset < self.disk.len_bytes();
        dirty
            .into_iter()
            .filter(is_there)
            .try_for_each(|offset| self.save(offset))
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.call()?;
        self.cache.resize(len_bytes)?;
        self.disk.resize(len_bytes)?;
        self.disk.sync()
    }
}
