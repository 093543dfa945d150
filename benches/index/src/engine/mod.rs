//! The engines, each behind the same few calls.
//!
//! A durable write is the engine's own commit with a full sync: when it returns, a power cut takes
//! nothing of it. What an engine needs for a call (a transaction, a statement, a batch) is made
//! inside the call and so is part of its time. It must never do for one engine what it does not for
//! another.

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

/// The engines that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// A bare log, no index: what a durable commit costs at least.
    Floor,
    /// `bimetal-index`.
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

/// How an engine is opened.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Memory for what was read, in bytes: each engine's own cache. LMDB has none, the kernel has
    /// it.
    pub cache_bytes: u64,
    /// For ours: the part of it for changes that are not in nodes yet, in bytes.
    pub buffer_bytes: u64,
    /// For ours: the longest image of a leaf, in bytes.
    pub node_bytes: usize,
}

/// Whether a write waits until nothing can take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Durable,
    Relaxed,
}

/// An open engine.
pub trait Engine: Send + Sync {
    /// Makes all the changes as one.
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()>;

    /// Shows one snapshot.
    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()>;

    /// The newest value of a key, in place of what is in `out`: the engine's shortest way.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let mut found = false;
        self.read(&mut |reader| {
            found = reader.get(key, out)?;
            Ok(())
        })?;
        Ok(found)
    }

    /// Writes back everything that is only in memory or in a log, and waits until nothing is left
    /// to do.
    fn write_back(&self) -> Result<()>;

    /// Waits for work that writes have left to other threads, and starts none.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// What the engine says of itself; `log_bytes` and `reserve_bytes` are parts of its files that
    /// hold no records, if it knows them.
    fn figures(&self) -> Result<Value> {
        Ok(Value::Null)
    }
}

/// One snapshot.
pub trait Reader {
    /// The value of a key, in place of what is in `out`.
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;

    /// Looks at up to `rows` records from a key on; returns how many there were.
    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize>;
}

/// Looks at keys and values, so that an engine must have them at hand.
#[derive(Debug, Default)]
pub struct Seen {
    sum: u64,
}

impl Seen {
    /// Looks at both ends of a key and a value.
    #[inline]
    pub fn row(&mut self, key: &[u8], value: &[u8]) {
        let ends = |bytes: &[u8]| match bytes {
            [first, .., last] => u64::from(*first) + u64::from(*last),
            _ => 0,
        };
        self.sum = self.sum.wrapping_add(ends(key) + ends(value));
    }

    /// Something that depends on all of it.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

/// Puts a value into the buffer of the caller.
#[inline]
fn give(out: &mut Vec<u8>, value: &[u8]) {
    out.clear();
    out.extend_from_slice(value);
}

/// Opens an engine in a folder of its own, or makes it there.
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
