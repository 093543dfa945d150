//! An index together with the model that it is compared with. Any difference fails the test.

#![allow(
    dead_code,
    unused_imports,
    reason = "the tests inside the library use a part of it"
)]

pub mod cached;
pub mod gate;
pub mod lives;
pub mod mishap;
pub mod past;
pub mod rebuilt;

pub use bimetal_index::model::{
    Change, Draw, History, Map, NUMBER_KEY, Pairs, Shape, collect, small_growing_options,
    small_options, small_paper_options,
};

use bimetal_index::model::{Found, Survivors, batch_of, rows_within};
use bimetal_index::storage::Storage;
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Db, Durability, Error, Options, ScanBounds};
use std::ops::Bound;
use std::sync::Arc;

/// A disk that outlives the index on it.
pub type Disk = Arc<MemoryStorage>;

/// An index together with its expected content.
pub struct World {
    pub disk: Disk,
    pub db: Db,
    pub options: Options,
    pub history: History,
}

impl World {
    pub fn new(options: Options) -> Result<World, Error> {
        let disk = Disk::default();
        World::over(disk.clone(), disk, options)
    }

    /// Creates an index that accesses `disk` through `storage`.
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
            history: History::new(),
        })
    }

    pub fn now(&self) -> &Map {
        self.history.now()
    }

    /// Writes a batch together with its number.
    pub fn write(&mut self, changes: &[Change], durability: Durability) -> Result<(), Error> {
        let changes = self.history.numbered(changes);
        let result = self.db.write(&batch_of(&changes), durability);
        let answer = result.as_ref().err();
        self.history.wrote(changes, durability, answer);
        result
    }

    /// Opens the index on a disk and compares it with the history. Batches that were not durable
    /// are allowed to be missing, and must then remain missing.
    pub fn reopen(&mut self, disk: Disk) -> Result<(), Error> {
        // The old index might be on the same disk, so it is abandoned as if its process had been
        // killed.
        self.db.clone().abandon();
        let verified = bimetal_index::verify(&disk, &mut |_, _| {})?;
        assert_eq!(verified.problems, [], "what is found is whole");
        let db = Db::open(disk.clone(), &self.options)?;
        let rows = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)))?;
        let found = rows
            .into_iter()
            .map(|(key, value)| (key, Some(Some(value))));
        let found: Found = found.collect();
        let fits = self.history.reopened(&found, Survivors::Durable);
        assert_eq!(fits, Ok(()));
        (self.disk, self.db) = (disk, db);
        self.check_all()
    }

    /// Opens the index on a storage, as after a kill, without comparing it with the history.
    pub fn open_again(&mut self, storage: impl Storage + 'static) -> Result<(), Error> {
        self.db.clone().abandon();
        self.db = Db::open(storage, &self.options)?;
        Ok(())
    }

    /// Compares the whole content with the map, by scans in both directions.
    pub fn check_all(&self) -> Result<(), Error> {
        check_scan(&self.db, self.now(), (Bound::Unbounded, Bound::Unbounded))
    }

    pub fn check_get(&self, key: &[u8]) -> Result<(), Error> {
        let found = self.db.get(key)?;
        assert_eq!(found.as_ref(), self.now().get(key), "key {key:?}");
        Ok(())
    }
}

/// Compares scans in both directions with a map.
pub fn check_scan(db: &Db, map: &Map, bounds: ScanBounds<'_>) -> Result<(), Error> {
    let forward = collect(&mut db.scan(bounds))?;
    compare(&forward, &rows_within(map, bounds, false));
    let backward = collect(&mut db.scan_reverse(bounds))?;
    compare(&backward, &rows_within(map, bounds, true));
    Ok(())
}

fn compare(found: &Pairs, expected: &Pairs) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "as many rows");
}
