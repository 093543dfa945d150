//! The engines, all behind the same few calls.
//!
//! A durable write is the engine's own commit with a full sync: after it has returned, no power cut
//! loses the write. Objects that an engine needs for a call (a transaction, a statement, a batch)
//! are created inside the call, so their cost is part of its time. This module must never favor one
//! engine.

#[cfg(feature = "canopydb")]
mod canopydb;
#[cfg(feature = "fjall")]
mod fjall;
mod floor;
#[cfg(feature = "lmdb")]
mod lmdb;
mod ours;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;

use crate::record::Changes;
use anyhow::Result;
use serde_json::Value;
use std::path::Path;

/// The engines that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// A bare log without an index: the minimum cost of a durable commit.
    Floor,
    /// This project's engine, `bimetal-index`.
    Ours,
    #[cfg(feature = "lmdb")]
    Lmdb,
    #[cfg(feature = "redb")]
    Redb,
    #[cfg(feature = "sqlite")]
    Sqlite,
    #[cfg(feature = "fjall")]
    Fjall,
    #[cfg(feature = "canopydb")]
    Canopydb,
    #[cfg(feature = "rocksdb")]
    Rocksdb,
}

/// Parameters with which an engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Size of the engine's own read cache in bytes. LMDB has no read cache and uses the kernel's
    /// page cache.
    pub cache_bytes: u64,
    /// Part of `cache_bytes` for changes that are not in nodes yet, in bytes. Only the engine
    /// `ours` (`bimetal-index`) uses it.
    pub buffer_bytes: u64,
    /// Maximum size of a leaf image in bytes; only for `ours`.
    pub node_bytes: usize,
}

/// Whether a write waits until it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Durable,
    Relaxed,
}

/// An open engine.
pub trait Engine: Send + Sync {
    /// Applies all changes of a batch atomically.
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()>;

    /// Calls `look` with a reader. All reads of this reader see the same snapshot.
    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()>;

    /// Replaces the content of `out` with the newest value of a key, using the engine's fastest
    /// call. Returns whether the key exists.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let mut found = false;
        self.read(&mut |reader| {
            found = reader.get(key, out)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Writes back all content that is only in memory or in a log, and waits until this is done.
    fn write_back(&self) -> Result<()>;

    /// Waits until the background work of earlier writes, on other threads of the engine, is done.
    /// Starts no new work.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the engine's own statistics. The values `log_bytes` and `reserve_bytes`, if an
    /// engine reports them, are the sizes of the parts of its files that hold no records.
    fn statistics(&self) -> Result<Value> {
        Ok(Value::Null)
    }
}

/// Reader of one snapshot.
pub trait Reader {
    /// Replaces the content of `out` by the value of a key. Returns whether the key exists.
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;

    /// Reads up to `rows` records into `seen`, starting at the key `from`. Returns the number of
    /// records read.
    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize>;
}

/// Sum over the first and last bytes of all keys and values read. Because the sum is used, an
/// engine must really deliver these bytes.
#[derive(Debug, Default)]
pub struct Seen {
    sum: u64,
}

impl Seen {
    /// Adds the first and the last byte of a key, and of its value, to the sum of bytes read.
    #[inline]
    pub fn row(&mut self, key: &[u8], value: &[u8]) {
        let ends = |bytes: &[u8]| match bytes {
            [first, .., last] => u64::from(*first) + u64::from(*last),
            _ => 0,
        };
        self.sum = self.sum.wrapping_add(ends(key) + ends(value));
    }

    /// Returns the sum, which depends on all rows.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

/// Copies a value into the caller's buffer.
#[inline]
fn give(out: &mut Vec<u8>, value: &[u8]) {
    out.clear();
    out.extend_from_slice(value);
}

/// Opens an engine in a folder that only it uses, and creates its files if they are missing.
pub fn open(name: Name, folder: &Path, setting: &Setting) -> Result<Box<dyn Engine>> {
    Ok(match name {
        Name::Floor => Box::new(floor::Floor::open(folder)?),
        Name::Ours => Box::new(ours::Ours::open(folder, setting)?),
        #[cfg(feature = "lmdb")]
        Name::Lmdb => Box::new(lmdb::Lmdb::open(folder)?),
        #[cfg(feature = "redb")]
        Name::Redb => Box::new(redb::Redb::open(folder, setting)?),
        #[cfg(feature = "sqlite")]
        Name::Sqlite => Box::new(sqlite::Sqlite::open(folder, setting)?),
        #[cfg(feature = "fjall")]
        Name::Fjall => Box::new(fjall::Fjall::open(folder, setting)?),
        #[cfg(feature = "canopydb")]
        Name::Canopydb => Box::new(canopydb::Canopydb::open(folder, setting)?),
        #[cfg(feature = "rocksdb")]
        Name::Rocksdb => Box::new(rocksdb::Rocksdb::open(folder, setting)?),
    })
}
