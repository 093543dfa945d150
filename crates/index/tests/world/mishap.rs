//! A disk on which one chosen change fails. A change is any call but a read. Changes are numbered
//! in order.

use super::Disk;
use bimetal_index::storage::{BLOCK_BYTES, Storage, StorageError};
use std::sync::{Arc, Mutex};

const SECTOR_BYTES: usize = 512;
const IO_ERROR: StorageError = StorageError::Failed(5);

/// Kind of failure of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The change returns an error, and is done in part.
    Fails,
    /// A write is acknowledged, and nothing is written.
    Lost,
    /// A write is acknowledged, but its data is written to an offset that is too high by this
    /// number of blocks.
    Misdirected(u64),
    /// A write is acknowledged, but only the first sector of each block is written.
    Torn,
    /// A growth fails for lack of space, either once or from this change on.
    Full { for_good: bool },
}

#[derive(Debug, Default)]
struct MishapState {
    changes: u64,
    planned: Option<(u64, Mishap)>,
    has_happened: bool,
}

/// A disk whose clones share its content and the planned failure.
#[derive(Clone, Debug)]
pub struct Mishaps {
    disk: Disk,
    state: Arc<Mutex<MishapState>>,
}

impl Mishaps {
    /// Creates a disk on which one change fails. `number` is the number of that change, counted
    /// from now on.
    pub fn at(disk: Disk, number: u64, mishap: Mishap) -> Mishaps {
        let state = MishapState {
            planned: Some((number, mishap)),
            ..MishapState::default()
        };
        Mishaps {
            disk,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns true once the failure has happened.
    pub fn has_happened(&self) -> bool {
        self.state.lock().expect("a lock").has_happened
    }

    /// Ends the failures.
    pub fn end(&self) {
        self.state.lock().expect("a lock").planned = None;
    }

    /// Counts a change. Returns the planned failure if it is due and can happen to this kind of
    /// change.
    fn count(&self, can: impl Fn(Mishap) -> bool) -> Option<Mishap> {
        let mut state = self.state.lock().expect("a lock");
        let number = state.changes;
        state.changes += 1;
        let (at, mishap) = state.planned?;
        let is_due = match mishap {
            Mishap::Full { for_good: true } => number >= at,
            _ => number == at,
        };
        let happens = is_due && can(mishap);
        state.has_happened |= happens;
        happens.then_some(mishap)
    }

    fn change(&self, offset: u64, data: &[u8], is_durable: bool) -> Result<(), StorageError> {
        let write = |offset, data: &[u8]| match is_durable {
            true => self.disk.write_durable(offset, data),
            false => self.disk.write(offset, data),
        };
        match self.count(|mishap| !matches!(mishap, Mishap::Full { .. })) {
            None | Some(Mishap::Full { .. }) => write(offset, data),
            Some(Mishap::Fails) => {
                // The data is in the cache of the disk, and not durable.
                self.disk.write(offset, data)?;
                Err(IO_ERROR)
            }
            Some(Mishap::Lost) => Ok(()),
            Some(Mishap::Misdirected(blocks)) => {
                let elsewhere = offset + blocks * BLOCK_BYTES as u64;
                match write(elsewhere, data) {
                    Err(StorageError::OutOfRange) => Ok(()),
                    done => done,
                }
            }
            Some(Mishap::Torn) => {
                let mut there = vec![0; data.len()];
                self.disk.read(offset, &mut there)?;
                let blocks = there.chunks_mut(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES));
                for (old, new) in blocks {
                    old[..SECTOR_BYTES].copy_from_slice(&new[..SECTOR_BYTES]);
                }
                write(offset, &there)
            }
        }
    }
}

impl Storage for Mishaps {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.disk.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.change(offset, data, false)
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.change(offset, data, true)
    }
    fn sync(&self) -> Result<(), StorageError> {
        match self.count(|mishap| mishap == Mishap::Fails) {
            Some(_) => {
                self.disk.fail_sync();
                Err(IO_ERROR)
            }
            None => self.disk.sync(),
        }
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        let is_longer = len_bytes > self.disk.len_bytes();
        let can = |mishap| match mishap {
            Mishap::Fails => true,
            Mishap::Full { .. } => is_longer,
            _ => false,
        };
        match self.count(can) {
            Some(Mishap::Full { .. }) => Err(StorageError::Full),
            Some(_) => Err(IO_ERROR),
            None => self.disk.resize(len_bytes),
        }
    }
}
