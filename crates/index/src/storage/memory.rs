//! A disk in memory that simulates faults, for the tests and the simulation.
//!
//! The fault model. A write is stored in a volatile cache, and a later sync makes it durable. A
//! write that is marked as durable needs no sync. When the power is cut, each 512-byte sector
//! independently keeps any version that it has had since it was last durable. A durable write in
//! progress leaves each of its sectors old or new. After the power cut the disk has any of the
//! lengths that it had since the last sync, except lengths that would cut off a durable write. The
//! operation with a chosen number fails, alone or together with all later operations. A failed
//! write has changed any subset of the sectors in its range. A failed sync leaves each sector of
//! the cache in one of four states: the sector is durable; or it is still in the cache for a later
//! sync; or it is read as written, but no later sync makes it durable; or its last durable content
//! is restored, and reads return that content. The disk must never lose content that a successful
//! sync covered.
//!
//! [`Astray`] and [`rot`](MemoryStorage::rot) are beyond that model: an index with a single copy of
//! its content cannot withstand these faults, but must detect them.

use super::{Storage, StorageError};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Length of a sector in bytes. A power cut leaves a sector old or new as a whole.
pub const SECTOR_BYTES: usize = 512;

/// Kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reads.
    Read,
    /// Writes, including durable ones.
    Write,
    /// Syncs.
    Sync,
    /// Changes of the length.
    Resize,
}

/// Fault of a call that the disk reports as successful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Astray {
    /// A write is lost.
    LostWrite,
    /// A write is stored at a location this number of blocks further on, wrapping at the end of the
    /// disk.
    MisdirectedWrite(u64),
    /// A read returns the content of another location, which is this number of blocks after the
    /// requested one. The count wraps at the end of the disk.
    MisdirectedRead(u64),
}

/// Faults that the disk simulates. Operations are numbered from 0; every call is an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of the operation that a power cut interrupts; this operation and all later ones fail.
    pub power_cut_at: Option<u64>,
    /// Number of the operation that fails.
    pub fail_at: Option<u64>,
    /// If set, `fail_at` applies only to calls of this kind. The first such call whose number is at
    /// least `fail_at` fails.
    pub fails_only: Option<Call>,
    /// Whether the failure is permanent. If true, every operation from `fail_at` on fails; if
    /// `fails_only` is set, only the operations of that kind fail. If false, one operation fails.
    pub fails_for_good: bool,
    /// A misdirected or lost operation: an operation number, and the fault. The fault affects the
    /// first operation at or after that number that this kind of fault can affect.
    pub astray_at: Option<(u64, Astray)>,
    /// Byte range: only writes that begin in it can be lost or misdirected. `None` stands for the
    /// whole disk.
    pub astray_in: Option<(u64, u64)>,
    /// Maximum length of the disk in bytes.
    pub len_bytes_max: Option<u64>,
}

/// A disk in memory.
#[derive(Debug, Default)]
pub struct MemoryStorage {
    state: Mutex<DiskState>,
}

/// Counters of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageCounters {
    /// Number of all calls.
    pub operations: u64,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes, including durable ones.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of durable writes and syncs; the device has to flush for each of them.
    pub flushes: u64,
    /// Number of calls that failed, because of a fault or without power.
    pub failures: u64,
    /// Number of sectors that were reverted by a failed sync, or that lost their newest version in
    /// a power cut.
    pub lost_sectors: u64,
}

/// A byte range that a fault has affected: the stored content, or the content that a read returned,
/// differed from the content written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// First byte of the range.
    pub offset: u64,
    /// Number of bytes.
    pub len_bytes: u64,
}

/// Versions of sectors, by the number of the sector.
type Sectors = BTreeMap<usize, Vec<[u8; SECTOR_BYTES]>>;

#[derive(Debug, Default)]
struct DiskState {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// Versions of each sector since it was last durable, oldest first. Reads return the last
    /// version in the list.
    unsynced: Sectors,
    /// Versions of sectors that the disk wrongly treats as durable since a failed sync: later syncs
    /// do not write these versions.
    doubtful: Sectors,
    /// Length at the last sync, and each later length except the current one. After a power cut,
    /// the disk can have any of these lengths.
    lengths: Vec<usize>,
    counts: StorageCounters,
    faults: Faults,
    hits: Vec<Hit>,
    is_off: bool,
    lies: bool,
}

/// Source of random numbers that decide the outcome of a power cut.
pub type Draw<'a> = dyn FnMut() -> u64 + 'a;

impl MemoryStorage {
    /// Creates an empty disk.
    pub fn new() -> MemoryStorage {
        MemoryStorage::default()
    }

    /// Creates a disk with this content, all of it durable.
    pub fn with_content(content: Vec<u8>) -> MemoryStorage {
        MemoryStorage {
            state: Mutex::new(DiskState {
                durable: content.clone(),
                current: content,
                ..DiskState::default()
            }),
        }
    }

    /// Replaces the faults, with effect from now on. The operation numbers in `faults` count from
    /// the first operation of the disk, not from this call.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    /// Returns the faults that are still to happen. Two faults are removed once they have happened:
    /// a misdirected or lost operation, and the failure of a single call if `fails_only` is set.
    pub fn faults(&self) -> Faults {
        self.state.lock().faults
    }

    /// Makes the disk acknowledge flushes without executing them from now on, to check that the
    /// tests notice this.
    pub fn lie_about_flushes(&self) {
        self.state.lock().lies = true;
    }

    /// Simulates a failed sync of the kind that is hardest to notice: content that was not durable
    /// is read as written, but no later sync makes it durable.
    pub fn fail_sync(&self) {
        let mut state = self.state.lock();
        for sector in state.unsynced_sectors() {
            state.doubt(sector);
        }
    }

    /// Flips bits at rest: the bits set in `mask`, which must not be 0, of the byte at `offset`.
    pub fn rot(&self, offset: u64, mask: u8) {
        let mut state = self.state.lock();
        let sector = offset as usize / SECTOR_BYTES;
        let within = offset as usize % SECTOR_BYTES;
        if let Some(byte) = state.durable.get_mut(offset as usize) {
            *byte ^= mask;
        }
        if let Some(byte) = state.current.get_mut(offset as usize) {
            *byte ^= mask;
        }
        let DiskState {
            unsynced, doubtful, ..
        } = &mut *state;
        let versions = [unsynced, doubtful].map(|sectors| sectors.get_mut(&sector));
        for version in versions.into_iter().flatten().flatten() {
            version[within] ^= mask;
        }
        state.hit(offset, 1);
    }

    /// Returns the byte ranges that faults have affected.
    pub fn hits(&self) -> Vec<Hit> {
        self.state.lock().hits.clone()
    }

    /// Returns the counters.
    pub fn counts(&self) -> StorageCounters {
        self.state.lock().counts
    }

    /// Returns true once the power was cut.
    pub fn is_off(&self) -> bool {
        self.state.lock().is_off
    }

    /// Returns the whole content as reads see it now.
    pub fn content(&self) -> Vec<u8> {
        self.state.lock().current.clone()
    }

    /// Returns the disk as it is found when the power is back. `draw` decides the length of that
    /// disk, and the version of each sector that was not durable.
    pub fn after_power_cut(&self, draw: &mut Draw<'_>) -> MemoryStorage {
        let state = self.state.lock();
        let lengths = state.lengths.iter().copied().chain([state.current.len()]);
        let len = match state.lengths.len() as u64 {
            0 => state.current.len(),
            changes => {
                let choice = draw() % (changes + 1);
                lengths.clone().nth(choice as usize).unwrap_or_default()
            }
        };
        let mut content = state.durable.clone();
        // A range that was cut off and added again holds zeroes or its earlier content.
        content.resize(len, 0);
        let mut lost_sectors = 0;
        let mut sectors = state.doubtful.clone();
        for (sector, versions) in &state.unsynced {
            sectors.entry(*sector).or_default().extend(versions);
        }
        for (sector, versions) in &sectors {
            let choice = (draw() % (versions.len() as u64 + 1)) as usize;
            lost_sectors += u64::from(choice < versions.len());
            if let Some(version) = choice.checked_sub(1).and_then(|index| versions.get(index)) {
                let at = sector * SECTOR_BYTES;
                if let Some(place) = content.get_mut(at..at + SECTOR_BYTES) {
                    place.copy_from_slice(version);
                }
            }
        }
        let found = MemoryStorage::with_content(content);
        {
            let mut found = found.state.lock();
            found.hits.clone_from(&state.hits);
            found.counts.lost_sectors = lost_sectors;
        }
        found
    }
}

/// Whether an operation succeeds.
enum Fate {
    Works,
    /// The operation fails, and may have been executed in part.
    Fails(StorageError),
}

/// Returns a number that looks random, but is always the same for the same arguments.
fn mixed(number: u64, sector: usize) -> u64 {
    let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector as u64;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl DiskState {
    fn begin(&mut self, call: Call) -> Fate {
        let number = self.counts.operations;
        self.counts.operations += 1;
        if self.faults.power_cut_at.is_some_and(|at| number >= at) {
            // The first operation that fails may have been in progress when the power was cut, so
            // it gets `EIO`. Later operations find no device, so they get `ENODEV`.
            let first = !std::mem::replace(&mut self.is_off, true);
            let error = if first { libc::EIO } else { libc::ENODEV };
            self.counts.failures += 1;
            return Fate::Fails(StorageError::Failed(error));
        }
        if self.fails(number, call) {
            self.counts.failures += 1;
            return Fate::Fails(StorageError::Failed(libc::EIO));
        }
        Fate::Works
    }

    /// Returns true if an operation must fail. If the fault is for a single call of one kind, the
    /// fault is removed when that call fails.
    fn fails(&mut self, number: u64, call: Call) -> bool {
        let faults = &mut self.faults;
        match (faults.fail_at, faults.fails_only) {
            (None, _) => false,
            (Some(at), None) if faults.fails_for_good => number >= at,
            (Some(at), None) => number == at,
            (Some(at), Some(only)) => {
                let fails = number >= at && only == call;
                if fails && !faults.fails_for_good {
                    faults.fail_at = None;
                }
                fails
            }
        }
    }

    fn hit(&mut self, offset: u64, len_bytes: u64) {
        self.hits.push(Hit { offset, len_bytes });
    }

    /// Returns the offset at which a call for `offset` really takes effect; `None` if the write is
    /// lost. A fault that has lost or misdirected a call is removed.
    fn goes_to(&mut self, call: Call, offset: u64, len: usize) -> Option<u64> {
        let Some((from, astray)) = self.faults.astray_at else {
            return Some(offset);
        };
        let blocks = |bytes: usize| (bytes / super::BLOCK_BYTES) as u64;
        let places = blocks(self.current.len()).saturating_sub(blocks(len)) + 1;
        let further = |by: u64| {
            let at = offset / super::BLOCK_BYTES as u64;
            (at + by) % places * super::BLOCK_BYTES as u64
        };
        let goes_to = match (astray, call) {
            (Astray::LostWrite, Call::Write) => None,
            (Astray::MisdirectedWrite(by), Call::Write)
            | (Astray::MisdirectedRead(by), Call::Read) => Some(further(by)),
            _ => return Some(offset),
        };
        let reach = self.faults.astray_in.filter(|_| call == Call::Write);
        let is_out_of_reach = reach.is_some_and(|(from, to)| offset < from || to <= offset);
        if self.counts.operations <= from || is_out_of_reach || goes_to == Some(offset) {
            return Some(offset);
        }
        self.faults.astray_at = None;
        self.hit(offset, len as u64);
        if let (Call::Write, Some(elsewhere)) = (call, goes_to) {
            self.hit(elsewhere, len as u64);
        }
        goes_to
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

    /// Makes a sector durable with its current content.
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
        let fate = self.begin(Call::Write);
        self.counts.writes += 1;
        self.counts.written_bytes += data.len() as u64;
        self.counts.flushes += u64::from(durable);
        if let Fate::Fails(error) = fate {
            match error {
                StorageError::Failed(libc::ENODEV) => {}
                // The write was in progress when the power was cut, and the power cut decides which
                // of its sectors survive.
                _ if self.is_off => self.put(offset, data)?,
                _ => self.put_some(offset, data)?,
            }
            return Err(error);
        }
        self.range(offset, data.len())?;
        let Some(offset) = self.goes_to(Call::Write, offset, data.len()) else {
            return Ok(());
        };
        self.put(offset, data)?;
        if durable && !self.lies {
            let first = offset as usize / SECTOR_BYTES;
            for sector in first..first + data.len() / SECTOR_BYTES {
                self.settle(sector);
            }
            // After this write, a power cut no longer restores an earlier, shorter length, which
            // would cut the written bytes off.
            let end = offset as usize + data.len();
            self.lengths.retain(|len| *len >= end);
        }
        Ok(())
    }

    /// Applies a failed write: an arbitrary subset of its sectors is written.
    fn put_some(&mut self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        let number = self.counts.operations;
        for (index, sector) in data.chunks_exact(SECTOR_BYTES).enumerate() {
            if mixed(number, index).is_multiple_of(2) {
                self.put(offset + (index * SECTOR_BYTES) as u64, sector)?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) {
        for sector in self.unsynced_sectors() {
            self.settle(sector);
        }
        let len = self.current.len();
        self.durable.resize(len, 0);
        self.lengths.clear();
    }

    /// Applies a failed sync. Each sector that is not durable becomes durable, stays in the cache,
    /// is wrongly treated as durable, or gets its last durable content back.
    fn sync_some(&mut self) {
        let number = self.counts.operations;
        for sector in self.unsynced_sectors() {
            match mixed(number, sector) % 4 {
                0 => self.settle(sector),
                1 => {}
                2 => self.doubt(sector),
                _ => self.revert(sector),
            }
        }
    }

    fn unsynced_sectors(&self) -> Vec<usize> {
        self.unsynced.keys().copied().collect()
    }

    /// Removes a sector from the set of unsynced sectors although the sector is not durable, so
    /// that no later sync makes it durable.
    fn doubt(&mut self, sector: usize) {
        let versions = self.unsynced.remove(&sector).unwrap_or_default();
        self.doubtful.entry(sector).or_default().extend(versions);
    }

    /// Discards all writes to a sector since it was last durable.
    fn revert(&mut self, sector: usize) {
        self.unsynced.remove(&sector);
        self.doubtful.remove(&sector);
        self.counts.lost_sectors += 1;
        let at = sector * SECTOR_BYTES;
        let end = (at + SECTOR_BYTES).min(self.current.len());
        let durable = self.durable.get(at..end).map(<[u8]>::to_vec);
        if let Some(place) = self.current.get_mut(at..end) {
            place.copy_from_slice(&durable.unwrap_or_else(|| vec![0; end - at]));
        }
    }
}

impl Storage for MemoryStorage {
    fn len_bytes(&self) -> u64 {
        self.state.lock().current.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        let fate = state.begin(Call::Read);
        state.counts.reads += 1;
        state.counts.read_bytes += buffer.len() as u64;
        if let Fate::Fails(error) = fate {
            return Err(error);
        }
        state.range(offset, buffer.len())?;
        let goes_to = state.goes_to(Call::Read, offset, buffer.len());
        let range = state.range(goes_to.unwrap_or(offset), buffer.len())?;
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
        let fate = state.begin(Call::Sync);
        state.counts.flushes += 1;
        if let Fate::Fails(error) = fate {
            if !state.is_off {
                state.sync_some();
            }
            return Err(error);
        }
        if !state.lies {
            state.sync();
        }
        Ok(())
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        if let Fate::Fails(error) = state.begin(Call::Resize) {
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
        let before = state.current.len();
        state.lengths.push(before);
        state.current.resize(len, 0);
        let beyond = len / SECTOR_BYTES;
        state.unsynced.split_off(&beyond);
        state.doubtful.split_off(&beyond);
        // If the storage grows over a range that was cut off earlier, the range reads as zeroes.
        // Like written data, these zeroes may be lost in a power cut before the next sync.
        let stale = before..len.min(state.durable.len());
        for sector in stale.step_by(SECTOR_BYTES) {
            let versions = state.unsynced.entry(sector / SECTOR_BYTES).or_default();
            versions.push([0; SECTOR_BYTES]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::BLOCK_BYTES;

    fn disk() -> MemoryStorage {
        MemoryStorage::with_content(vec![0; 8 * BLOCK_BYTES])
    }

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; BLOCK_BYTES]
    }

    /// After a failed write, the kernel treats the pages as written, so a later sync does not write
    /// them ("can PostgreSQL use fsync", 2018).
    #[test]
    fn what_a_sync_has_failed_for_a_later_one_does_not_save() {
        let disk = disk();
        disk.write(0, &block(1)).unwrap();
        disk.fail_sync();
        disk.write(BLOCK_BYTES as u64, &block(2)).unwrap();
        disk.sync().unwrap();
        assert_eq!(disk.content()[0], 1, "it is read");
        let after = disk.after_power_cut(&mut || 0).content();
        assert_eq!((after[0], after[BLOCK_BYTES]), (0, 2));
        // A block that is rewritten durably is durable.
        disk.write_durable(0, &block(3)).unwrap();
        assert_eq!(disk.after_power_cut(&mut || 0).content()[0], 3);
    }

    #[test]
    fn a_failed_sync_leaves_sectors_durable_waiting_doubtful_or_as_they_were() {
        let disk = disk();
        disk.write(0, &vec![1; 8 * BLOCK_BYTES]).unwrap();
        disk.set_faults(Faults {
            fail_at: Some(1),
            ..Faults::default()
        });
        disk.sync().unwrap_err();
        let there = disk.content();
        let count = |read: u8, kept: u8| {
            let after = disk.after_power_cut(&mut || 0).content();
            let sectors = there.chunks(SECTOR_BYTES).zip(after.chunks(SECTOR_BYTES));
            sectors
                .filter(|(a, b)| a[0] == read && b[0] == kept)
                .count()
        };
        let (durable, not_durable, lost) = (count(1, 1), count(1, 0), count(0, 0));
        assert_eq!(durable + not_durable + lost, 64);
        assert!(durable > 6 && not_durable > 12 && lost > 6);
        assert_eq!(disk.counts().lost_sectors, lost as u64);
        // The next sync makes those sectors durable that are still in the cache. It does not write
        // the sectors that the disk wrongly treats as durable.
        disk.sync().unwrap();
        assert!(count(1, 0) > 6 && count(1, 1) > durable + 6);
    }

    #[test]
    fn a_length_is_durable_with_a_sync_or_with_a_durable_write_that_needs_it() {
        let disk = disk();
        let blocks = |disk: &MemoryStorage| disk.len_bytes() / BLOCK_BYTES as u64;
        disk.resize(20 * BLOCK_BYTES as u64).unwrap();
        let found = [0, 1].map(|choice| blocks(&disk.after_power_cut(&mut || choice)));
        assert_eq!(found, [8, 20]);
        disk.write_durable(12 * BLOCK_BYTES as u64, &block(1))
            .unwrap();
        assert_eq!(blocks(&disk.after_power_cut(&mut || 0)), 20);
        disk.resize(4 * BLOCK_BYTES as u64).unwrap();
        assert_eq!(blocks(&disk.after_power_cut(&mut || 0)), 20);
        disk.sync().unwrap();
        assert_eq!(blocks(&disk.after_power_cut(&mut || 0)), 4);
    }

    #[test]
    fn what_goes_astray_once_is_told_and_the_next_is_as_ever() {
        let disk = disk();
        let astray = |astray| Faults {
            astray_at: Some((0, astray)),
            ..Faults::default()
        };
        let byte = |index: usize| disk.content()[index * BLOCK_BYTES];
        disk.set_faults(astray(Astray::LostWrite));
        disk.write(0, &block(1)).unwrap();
        disk.set_faults(astray(Astray::MisdirectedWrite(3)));
        disk.write_durable(BLOCK_BYTES as u64, &block(2)).unwrap();
        assert_eq!([byte(0), byte(1), byte(4)], [0, 0, 2]);
        disk.write(0, &block(3)).unwrap();
        assert_eq!(byte(0), 3);
        disk.set_faults(astray(Astray::MisdirectedRead(4)));
        let mut read = block(9);
        disk.read(0, &mut read).unwrap();
        assert_eq!(read[0], 2);
        disk.read(0, &mut read).unwrap();
        assert_eq!(read[0], 3);
        disk.rot(4 * BLOCK_BYTES as u64, 0x80);
        assert_eq!(byte(4), 0x82);
        let at: Vec<u64> = disk.hits().iter().map(|hit| hit.offset / 4096).collect();
        assert_eq!(at, [0, 1, 4, 0, 4]);
    }
}
