//! What an index is held against: an ordered map and the history of its batches, and a generator of
//! operations from a seed.
//!
//! Every batch puts its number under one key as well, so that what is found after a crash says which
//! batches it should hold, and must hold exactly those.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod gate;
pub mod lives;
pub mod mishap;

use bimetal_index::storage::Storage;
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Batch, Clusters, Db, Durability, Error, Options, PaperRules, ScanBounds};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The key with the number of the last batch.
pub const NUMBER_KEY: &[u8] = b"~number";

/// Content as a map.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A disk that outlives the index on it.
pub type Disk = Arc<MemoryStorage>;

/// Numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One change.
#[derive(Clone, Debug)]
pub enum Change {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Option<Vec<u8>>),
}

pub fn change_map(map: &mut Map, change: &Change) {
    match change {
        Change::Put(key, value) => {
            map.insert(key.clone(), value.clone());
        }
        Change::Delete(key) => {
            map.remove(key);
        }
        Change::DeleteRange(start, end) => {
            let is_in = |key: &Vec<u8>| key >= start && end.as_ref().is_none_or(|end| key < end);
            map.retain(|key, _| !is_in(key));
        }
    }
}

/// What kinds of keys and values there are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub keys: u64,
    pub integers: bool,
    pub long_values: bool,
    pub ranges: bool,
}

impl Shape {
    pub fn draw(draw: &mut Draw) -> Shape {
        Shape {
            keys: [20, 300, 3000][draw.below(3) as usize],
            integers: draw.once_in(2),
            long_values: draw.once_in(2),
            ranges: draw.once_in(2),
        }
    }

    pub fn key(&self, draw: &mut Draw) -> Vec<u8> {
        let number = draw.below(self.keys);
        if self.integers {
            return (number * 3).to_be_bytes().to_vec();
        }
        let mut key = format!("key/{:03}", number / 7).into_bytes();
        key.extend(std::iter::repeat_n(b'x', (number % 7 * 5) as usize));
        if number.is_multiple_of(97) {
            key.resize(2000, b'k');
        }
        key
    }

    pub fn value(&self, draw: &mut Draw) -> Vec<u8> {
        let len = match draw.below(20) {
            0 => 0,
            1..=12 => 8,
            13..=17 => draw.below(100),
            18 => draw.below(600),
            _ if self.long_values => draw.below(6000),
            _ => 300,
        };
        let first = draw.number();
        (0..len)
            .map(|index| (first >> (index % 8 * 8)) as u8 ^ index as u8)
            .collect()
    }

    pub fn batch(&self, draw: &mut Draw) -> Vec<Change> {
        let count = match draw.below(10) {
            0..=5 => 1,
            6..=8 => 1 + draw.below(8),
            _ => 1 + draw.below(60),
        };
        (0..count).map(|_| self.change(draw)).collect()
    }

    fn change(&self, draw: &mut Draw) -> Change {
        match draw.below(40) {
            0..=24 => Change::Put(self.key(draw), self.value(draw)),
            39 if self.ranges => {
                let (a, b) = (self.key(draw), self.key(draw));
                let end = (!draw.once_in(8)).then(|| a.clone().max(b.clone()));
                Change::DeleteRange(a.min(b), end)
            }
            _ => Change::Delete(self.key(draw)),
        }
    }
}

/// An index beside what it should hold.
pub struct World {
    pub disk: Disk,
    pub db: Db,
    pub options: Options,
    /// After each batch, its number being the index.
    pub history: Vec<Map>,
    /// Batches up to this must survive.
    pub durable: usize,
}

/// The smallest index there can be, so that everything happens often.
pub fn small_options(draw: &mut Draw) -> Options {
    let memory_bytes = [256 << 10, 1 << 20][draw.below(2) as usize];
    let buffer_bytes = [4 << 10, 64 << 10, 400 << 10][draw.below(3) as usize];
    Options {
        memory_bytes,
        buffer_bytes: buffer_bytes.min(memory_bytes / 2),
        log_bytes: [256 << 10, 1 << 20][draw.below(2) as usize],
        segment_bytes: 64 << 10,
        node_bytes: [512, 1024, 4096][draw.below(3) as usize],
        inline_value_bytes: [100, 1024][draw.below(2) as usize],
        utilisation: [0.5, 0.85][draw.below(2) as usize],
        ..Options::default()
    }
}

/// The same under the paper's rules.
pub fn small_paper_options(draw: &mut Draw) -> Options {
    let paper = Some(small_paper_rules(draw));
    Options {
        paper,
        ..small_options(draw)
    }
}

fn small_paper_rules(draw: &mut Draw) -> PaperRules {
    let one = Clusters::One {
        segments: 4 + draw.below(12) as u32,
    };
    let two = Clusters::HotAndCold {
        hot_segments: 4 + draw.below(4) as u32,
        cold_segments: 4 + draw.below(8) as u32,
    };
    PaperRules {
        clusters: if draw.once_in(2) { one } else { two },
        fill: [0.69, 0.97][draw.below(2) as usize],
    }
}

impl World {
    pub fn new(options: Options) -> Result<World, Error> {
        let disk = Disk::default();
        World::over(disk.clone(), disk, options)
    }

    /// A new index that reaches its disk through something else.
    pub fn over(
        disk: Disk,
        storage: impl Storage + 'static,
        options: Options,
    ) -> Result<World, Error> {
        let db = Db::create(storage, 7, &options)?;
        Ok(World {
            disk,
            db,
            options,
            history: vec![Map::new()],
            durable: 0,
        })
    }

    pub fn now(&self) -> &Map {
        self.history.last().expect("there is a beginning")
    }

    /// Writes a batch. What it would make is in the history even if it fails: nobody knows then.
    pub fn write(&mut self, changes: &[Change], durability: Durability) -> Result<(), Error> {
        let number = self.history.len();
        let mut next = self.now().clone();
        let mut batch = Batch::new();
        for change in changes {
            change_map(&mut next, change);
            match change {
                Change::Put(key, value) => batch.put(key, value),
                Change::Delete(key) => batch.delete(key),
                Change::DeleteRange(start, end) => batch.delete_range(start, end.as_deref()),
            }
        }
        batch.put(NUMBER_KEY, &(number as u64).to_le_bytes());
        next.insert(NUMBER_KEY.to_vec(), (number as u64).to_le_bytes().to_vec());
        let result = self.db.write(&batch, durability);
        match &result {
            Err(Error::Full { .. } | Error::BatchTooLong { .. } | Error::ReadOnly { .. }) => {}
            Ok(()) => {
                self.history.push(next);
                if durability == Durability::Durable {
                    self.durable = number;
                }
            }
            Err(_) => self.history.push(next),
        }
        result
    }

    /// Opens what is on a disk and holds it against the history. What was not durable may be gone, but
    /// then for good.
    pub fn reopen(&mut self, disk: Disk) -> Result<(), Error> {
        let verified = bimetal_index::verify(&disk, &mut |_, _| {})?;
        assert_eq!(verified.problems, [], "what is found is whole");
        let db = Db::open(disk.clone(), &self.options)?;
        let number = match db.get(NUMBER_KEY)? {
            Some(value) => u64::from_le_bytes(value.try_into().expect("a number")) as usize,
            None => 0,
        };
        assert!(
            self.durable <= number && number < self.history.len(),
            "batch {number} is the last; {} are durable and {} were written",
            self.durable,
            self.history.len() - 1
        );
        self.history.truncate(number + 1);
        self.durable = number;
        (self.disk, self.db) = (disk, db);
        self.check_all()
    }

    /// Holds everything against the map, by scans both ways.
    pub fn check_all(&self) -> Result<(), Error> {
        check_scan(&self.db, self.now(), (Bound::Unbounded, Bound::Unbounded))
    }

    pub fn check_get(&self, key: &[u8]) -> Result<(), Error> {
        let found = self.db.get(key)?;
        assert_eq!(found.as_ref(), self.now().get(key), "key {key:?}");
        Ok(())
    }
}

/// Keys and values in the order of a scan.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

pub fn collect(scan: &mut bimetal_index::Scan) -> Result<Pairs, Error> {
    let mut all = Vec::new();
    while let Some((key, value)) = scan.next()? {
        all.push((key.to_vec(), value.to_vec()));
    }
    Ok(all)
}

/// Holds scans both ways against a map.
pub fn check_scan(db: &Db, map: &Map, bounds: ScanBounds<'_>) -> Result<(), Error> {
    let is_in = |key: &[u8]| {
        let above = match bounds.0 {
            Bound::Unbounded => true,
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
        };
        let below = match bounds.1 {
            Bound::Unbounded => true,
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
        };
        above && below
    };
    let mut expected: Vec<_> = map.iter().filter(|(key, _)| is_in(key)).collect();
    let forward = collect(&mut db.scan(bounds))?;
    compare(&forward, &expected);
    expected.reverse();
    let backward = collect(&mut db.scan_reverse(bounds))?;
    compare(&backward, &expected);
    Ok(())
}

fn compare(found: &[(Vec<u8>, Vec<u8>)], expected: &[(&Vec<u8>, &Vec<u8>)]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((&found.0, &found.1), *expected);
    }
    assert_eq!(found.len(), expected.len(), "as many rows");
}
