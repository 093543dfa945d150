//! A disk that remembers all earlier versions of its blocks, so that a block can revert to an
//! earlier version, as after a lost write.

use super::{Change, Disk, Draw, History, Map, NUMBER_KEY, World, collect};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::storage::{BLOCK_BYTES, Storage, StorageError};
use bimetal_index::{Db, Durability, Error, Options};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

/// Returns the whole content of the index on a disk, or the error of opening or reading the index.
fn found(disk: Disk, options: &Options) -> Result<Map, Error> {
    let db = Db::open(disk, options)?;
    let all = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)))?;
    Ok(all.into_iter().collect())
}

/// Checks that opening the index either finds exactly the content after the first batches of the
/// history (any number of them), or reports damage. Returns false if it reports damage.
pub fn assert_not_wrong(disk: Disk, options: &Options, history: &History, how: &str) -> bool {
    match found(disk, options) {
        Ok(map) => {
            // Every batch writes its own number under `NUMBER_KEY`. The number found is that of the
            // last batch in the index.
            let number = map
                .get(NUMBER_KEY)
                .and_then(|number| number[..].try_into().ok());
            let number = number.map_or(0, u64::from_le_bytes);
            assert!(
                history.at(number as usize) == map,
                "{how}: what is found was never there"
            );
            true
        }
        Err(Error::Damaged { .. } | Error::NotAnIndex { .. }) => false,
        // A location read from an old block might be beyond the end of the storage, which has been
        // shortened since.
        Err(Error::Storage {
            source: StorageError::OutOfRange,
            ..
        }) => false,
        Err(error) => panic!("{how}: {error}"),
    }
}

/// A disk that remembers every version of every block.
#[derive(Clone, Default)]
pub struct Remembers {
    disk: Disk,
    versions: Arc<Mutex<BTreeMap<u64, Vec<Vec<u8>>>>>,
}

impl Remembers {
    fn note(&self, offset: u64, data: &[u8]) {
        let mut versions = self.versions.lock().expect("a lock");
        for (index, block) in data.chunks(BLOCK_BYTES).enumerate() {
            let at = offset + (index * BLOCK_BYTES) as u64;
            versions.entry(at).or_default().push(block.to_vec());
        }
    }
}

impl Storage for Remembers {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.disk.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.note(offset, data);
        self.disk.write(offset, data)
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.note(offset, data);
        self.disk.write_durable(offset, data)
    }
    fn sync(&self) -> Result<(), StorageError> {
        self.disk.sync()
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.disk.resize(len_bytes)
    }
}

/// Checks that a read of each key returns its current value or reports damage. No older value is
/// accepted, because the log is intact. Returns false if any damage is reported.
fn assert_right_or_refused(disk: Disk, world: &World, how: &str) -> bool {
    let is_damage = |error: &Error| matches!(error, Error::Damaged { .. });
    let db = match Db::open(disk, &world.options) {
        Ok(db) => db,
        Err(error) => {
            assert!(is_damage(&error), "{how}: {error}");
            return false;
        }
    };
    let mut refused = 0;
    for (key, value) in world.now() {
        match db.get(key) {
            Ok(found) => assert_eq!(found.as_ref(), Some(value), "{how}: {key:?}"),
            Err(error) => {
                assert!(is_damage(&error), "{how}: {error}");
                refused += 1;
            }
        }
    }
    refused == 0
}

/// Part of the disk whose blocks revert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Blocks of superblocks and of the log.
    Log,
    /// Blocks of segments.
    Segments,
}

/// Maximum number of earlier versions that are tried for each block.
const OLDS_MAX: usize = 4;
/// Number of keys, large enough for many leaves.
const KEYS: u64 = 2400;
const BATCH: u64 = 8;

/// Reverts one block at a time to an earlier version. Returns the number of cases in which this is
/// harmless, and the number of cases in which the damage is noticed.
pub fn blocks_come_back(options: Options, part: Part) -> (u64, u64) {
    let storage = Remembers::default();
    let disk = storage.disk.clone();
    let mut world = World::over(disk, storage.clone(), options).expect("an index");
    let mut draw = Draw::new(4);
    let put = |key: u64, number: u64| {
        // All values have the same length, so that the images of a leaf also have the same length
        // and use the same locations again.
        Change::Put(key.to_be_bytes().to_vec(), vec![number as u8; 20])
    };
    // The loop runs until the log has wrapped around more than once and segments have been
    // refilled.
    for number in 0..400 {
        // The changed keys are adjacent, and they are such a large part of their leaf that the
        // index writes the whole leaf and not only a patch.
        let first = draw.below(KEYS / BATCH) * BATCH;
        let changes: Vec<Change> = (first..first + BATCH).map(|key| put(key, number)).collect();
        let written = world.write(&changes, Durability::Durable);
        written.expect("a write");
        if part == Part::Segments && number % 25 == 24 {
            // All leaves are written in order, so that each leaf uses a location that it had
            // before.
            for first in (0..KEYS).step_by(100) {
                let all: Vec<Change> = (first..first + 100).map(|key| put(key, number)).collect();
                world.write(&all, Durability::Durable).expect("a write");
            }
            world.db.write_back().expect("a write-back");
        }
    }
    let (content, log_end) = (world.disk.content(), world.db.segments_offset());
    let versions = storage.versions.lock().expect("a lock");
    let is_meant = |at: u64| (at < log_end) == (part == Part::Log);
    let (mut harmless, mut noticed) = (0, 0);
    for (at, versions) in versions.iter().filter(|(at, _)| is_meant(**at)) {
        // The last version is the current one.
        let olds = versions.split_last().map_or(&[][..], |(_, olds)| olds);
        let offset = *at as usize;
        for old in olds.iter().rev().take(OLDS_MAX) {
            let mut content = content.clone();
            let Some(place) = content.get_mut(offset..offset + BLOCK_BYTES) else {
                // The storage has become shorter.
                continue;
            };
            place.copy_from_slice(old);
            let disk = Arc::new(MemoryStorage::with_content(content));
            let how = format!("an old block at {at}");
            let is_harmless = match part {
                Part::Log => assert_not_wrong(disk, &world.options, &world.history, &how),
                Part::Segments => assert_right_or_refused(disk, &world, &how),
            };
            match is_harmless {
                true => harmless += 1,
                false => noticed += 1,
            }
        }
    }
    (harmless, noticed)
}
