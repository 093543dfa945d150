//! A disk in memory, with what goes wrong with disks. The tests and the simulation use it.
//!
//! The fault model. A write goes to a volatile cache and becomes durable by a sync, a durable write by
//! itself. When the power is cut, each 512-byte sector of what was written since keeps, for itself,
//! any version that it has had since it was last durable, and a durable write in progress leaves any
//! of its sectors old or new. Single operations fail by number, once or from there on; a failed write
//! has changed any part of its range, and a failed sync has made any part of what it was for durable
//! and drops the rest's claim: it is not written again by a later sync. It must never lose what a
//! successful sync covered.

use super::{Storage, StorageError};
use parking_lot::Mutex;
use std::collections::BTreeMap;

const SECTOR_BYTES: usize = 512;

/// What goes wrong, by the number of the operation, from 0 on. Every call counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The power is cut before this operation has completed; nothing works from there on.
    pub power_cut_at: Option<u64>,
    /// This operation fails.
    pub fail_at: Option<u64>,
    /// All operations from `fail_at` on fail.
    pub fails_for_good: bool,
    /// No more bytes than these.
    pub len_bytes_max: Option<u64>,
}

/// A disk in memory.
#[derive(Debug, Default)]
pub struct MemoryStorage {
    state: Mutex<State>,
}

/// What a disk has been asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All calls.
    pub operations: u64,
    /// Calls that read, and their bytes.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Calls that write, durable ones too.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Durable writes and syncs: how often the device has to flush.
    pub flushes: u64,
}

/// Versions of sectors.
type Sectors = BTreeMap<usize, Vec<[u8; SECTOR_BYTES]>>;

#[derive(Debug, Default)]
struct State {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// Versions of a sector since it was last durable, oldest first; the last is what is read.
    unsynced: Sectors,
    /// The same of sectors that a sync has failed for: later ones do not write them again.
    doubtful: Sectors,
    counts: Counts,
    faults: Faults,
    is_off: bool,
    lies: bool,
}

/// Draws numbers for what a power cut leaves.
pub type Draw<'a> = dyn FnMut() -> u64 + 'a;

impl MemoryStorage {
    /// An empty disk.
    pub fn new() -> MemoryStorage {
        MemoryStorage::default()
    }

    /// A disk with this content, all of it durable.
    pub fn with_content(content: Vec<u8>) -> MemoryStorage {
        MemoryStorage {
            state: Mutex::new(State {
                durable: content.clone(),
                current: content,
                ..State::default()
            }),
        }
    }

    /// What goes wrong from now on; numbers count from the first operation of the disk.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// From now on a flush is acknowledged and not done: to see that this is noticed.
    pub fn lie_about_flushes(&self) {
        self.state.lock().lies = true;
    }

    /// A sync fails: what was not durable is read as it was written, and no later sync makes it durable.
    pub fn fail_sync(&self) {
        self.state.lock().fail_sync();
    }

    /// What it has been asked for.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// True once the power was cut.
    pub fn is_off(&self) -> bool {
        self.state.lock().is_off
    }

    /// Everything as it is read now.
    pub fn content(&self) -> Vec<u8> {
        self.state.lock().current.clone()
    }

    /// The disk that is found when the power is back. `draw` decides for each sector that was not
    /// durable which of its versions it has.
    pub fn after_power_cut(&self, draw: &mut Draw<'_>) -> MemoryStorage {
        let state = self.state.lock();
        let mut content = state.durable.clone();
        content.resize(state.current.len(), 0);
        let mut sectors = state.doubtful.clone();
        for (sector, versions) in &state.unsynced {
            sectors.entry(*sector).or_default().extend(versions);
        }
        for (sector, versions) in &sectors {
            let choice = (draw() % (versions.len() as u64 + 1)) as usize;
            if let Some(version) = choice.checked_sub(1).and_then(|index| versions.get(index)) {
                let at = sector * SECTOR_BYTES;
                if let Some(place) = content.get_mut(at..at + SECTOR_BYTES) {
                    place.copy_from_slice(version);
                }
            }
        }
        MemoryStorage::with_content(content)
    }
}

/// Whether an operation is carried out.
enum Fate {
    Works,
    /// It fails, and whatever it would have done is done in part.
    Fails(StorageError),
}

impl State {
    fn fail_sync(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            self.doubtful.entry(sector).or_default().extend(versions);
        }
    }

    fn begin(&mut self) -> Fate {
        let number = self.counts.operations;
        self.counts.operations += 1;
        if self.faults.power_cut_at.is_some_and(|at| number >= at) {
            // The operation that meets the cut may have been under way.
            let first = !std::mem::replace(&mut self.is_off, true);
            let error = if first { libc::EIO } else { libc::ENODEV };
            return Fate::Fails(StorageError::Failed(error));
        }
        let fails = match self.faults.fail_at {
            Some(at) if self.faults.fails_for_good => number >= at,
            Some(at) => number == at,
            None => false,
        };
        if fails {
            return Fate::Fails(StorageError::Failed(libc::EIO));
        }
        Fate::Works
    }

    fn range(&self, offset: u64, len: usize) -> Result<std::ops::Range<usize>, StorageError> {
        let start = usize::try_from(offset).map_err(|_| StorageError::OutOfRange)?;
        let end = start.checked_add(len).ok_or(StorageError::OutOfRange)?;
        if end > self.current.len() {
            return Err(StorageError::OutOfRange);
        }
        Ok(start..end)
    }

    /// Puts data into the volatile cache.
    fn put(&mut self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        let range = self.range(offset, data.len())?;
        self.current[range.clone()].copy_from_slice(data);
        for (index, sector) in data.chunks_exact(SECTOR_BYTES).enumerate() {
            let number = range.start / SECTOR_BYTES + index;
            let mut version = [0; SECTOR_BYTES];
            version.copy_from_slice(sector);
            self.unsynced.entry(number).or_default().push(version);
        }
        Ok(())
    }

    /// Makes one sector durable as it is now.
    fn settle(&mut self, sector: usize) {
        self.unsynced.remove(&sector);
        self.doubtful.remove(&sector);
        let at = sector * SECTOR_BYTES;
        let end = (at + SECTOR_BYTES).min(self.current.len());
        if at < end {
            let (durable, current) = (&mut self.durable, &self.current);
            durable.resize(current.len(), 0);
            durable[at..end].copy_from_slice(&current[at..end]);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> Result<(), StorageError> {
        let fate = self.begin();
        self.counts.writes += 1;
        self.counts.written_bytes += data.len() as u64;
        self.counts.flushes += u64::from(durable);
        if let Fate::Fails(error) = fate {
            if error != StorageError::Failed(libc::ENODEV) {
                // Under way when it failed: any of it may be there.
                self.put(offset, data)?;
            }
            return Err(error);
        }
        self.put(offset, data)?;
        if durable && !self.lies {
            let first = offset as usize / SECTOR_BYTES;
            for sector in first..first + data.len() / SECTOR_BYTES {
                self.settle(sector);
            }
        }
        Ok(())
    }
}

impl Storage for MemoryStorage {
    fn len_bytes(&self) -> u64 {
        self.state.lock().current.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        let fate = state.begin();
        state.counts.reads += 1;
        state.counts.read_bytes += buffer.len() as u64;
        if let Fate::Fails(error) = fate {
            return Err(error);
        }
        let range = state.range(offset, buffer.len())?;
        buffer.copy_from_slice(&state.current[range]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.state.lock().write(offset, data, false)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.state.lock().write(offset, data, true)
    }

    fn sync(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        let fate = state.begin();
        state.counts.flushes += 1;
        if let Fate::Fails(error) = fate {
            state.fail_sync();
            return Err(error);
        }
        if state.lies {
            return Ok(());
        }
        let sectors: Vec<usize> = state.unsynced.keys().copied().collect();
        for sector in sectors {
            state.settle(sector);
        }
        let len = state.current.len();
        state.durable.resize(len, 0);
        Ok(())
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        if let Fate::Fails(error) = state.begin() {
            return Err(error);
        }
        if state
            .faults
            .len_bytes_max
            .is_some_and(|max| len_bytes > max)
        {
            return Err(StorageError::Full);
        }
        let len = usize::try_from(len_bytes).map_err(|_| StorageError::Full)?;
        state.current.resize(len, 0);
        let beyond = len / SECTOR_BYTES;
        state.unsynced.split_off(&beyond);
        state.doubtful.split_off(&beyond);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::BLOCK_BYTES;

    /// "can PostgreSQL use fsync", 2018: the kernel takes what it failed to write for written.
    #[test]
    fn what_a_sync_has_failed_for_a_later_one_does_not_save() {
        let disk = MemoryStorage::with_content(vec![0; 2 * BLOCK_BYTES]);
        disk.write(0, &[1; BLOCK_BYTES]).unwrap();
        disk.set_faults(Faults {
            fail_at: Some(1),
            ..Faults::default()
        });
        assert!(disk.sync().is_err());
        disk.write(BLOCK_BYTES as u64, &[2; BLOCK_BYTES]).unwrap();
        disk.sync().unwrap();
        assert_eq!(disk.content()[0], 1, "it is read");
        let after = disk.after_power_cut(&mut || 0).content();
        assert_eq!((after[0], after[BLOCK_BYTES]), (0, 2));
        // Written again, it is saved.
        disk.write_durable(0, &[3; BLOCK_BYTES]).unwrap();
        assert_eq!(disk.after_power_cut(&mut || 0).content()[0], 3);
    }
}
