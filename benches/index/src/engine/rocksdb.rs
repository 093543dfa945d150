//! Adapter of the benchmark to RocksDB, with bloom filters of 10 bits a key, memtables of 64 MiB,
//! and LZ4 compression.

use super::{Durability, Engine, Reader, Seen, Setting, give};
use crate::record::Changes;
use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, FlushOptions, Options, SnapshotWithThreadMode,
    WriteBatch, WriteOptions,
};
use std::path::Path;
use std::time::Duration;

const MEMTABLE_BYTES: usize = 64 << 20;
const BLOOM_BITS: f64 = 10.0;

/// Properties of the library that are all 0 when no flush or compaction is pending or running.
const BUSY: [&str; 4] = [
    "rocksdb.mem-table-flush-pending",
    "rocksdb.num-running-flushes",
    "rocksdb.compaction-pending",
    "rocksdb.num-running-compactions",
];

pub struct Rocksdb {
    db: DB,
}

impl Rocksdb {
    pub fn open(folder: &Path, setting: &Setting) -> Result<Rocksdb> {
        let mut table = BlockBasedOptions::default();
        table.set_bloom_filter(BLOOM_BITS, false);
        table.set_block_cache(&Cache::new_lru_cache(setting.cache_bytes as usize));
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&table);
        options.set_write_buffer_size(MEMTABLE_BYTES);
        options.set_compression_type(DBCompressionType::Lz4);
        let db = DB::open(&options, folder)?;
        Ok(Rocksdb { db })
    }
}

impl Engine for Rocksdb {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(durability == Durability::Durable);
        Ok(self.db.write_opt(batch, &options)?)
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let snapshot = self.db.snapshot();
        look(&mut View { snapshot })
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let Some(value) = self.db.get_pinned(key)? else {
            return Ok(false);
        };
        give(out, &value);
        Ok(true)
    }

    fn write_back(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db.flush_opt(&options)?;
        self.settle()
    }

    fn settle(&self) -> Result<()> {
        // Poll the properties, because older versions of the library have no call that waits for
        // compaction.
        while BUSY.iter().try_fold(false, |busy, property| {
            let count = self.db.property_int_value(*property)?;
            anyhow::Ok(busy || count.unwrap_or(0) > 0)
        })? {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }
}

struct View<'a> {
    snapshot: SnapshotWithThreadMode<'a, DB>,
}

impl Reader for View<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let Some(value) = self.snapshot.get_pinned(key)? else {
            return Ok(false);
        };
        give(out, &value);
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let mut found = self.snapshot.raw_iterator();
        found.seek(from);
        let mut count = 0;
        while count < rows {
            let (Some(key), Some(value)) = (found.key(), found.value()) else {
                found.status()?;
                break;
            };
            seen.row(key, value);
            count += 1;
            found.next();
        }
        Ok(count)
    }
}
