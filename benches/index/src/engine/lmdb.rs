//! Adapter of the benchmark to LMDB, by the crate heed and without read-ahead. In measurements with
//! data larger than the memory, read-ahead multiplied the number of reads by 30. With data that fit
//! into the memory, it made no difference.

use super::{Durability, Engine, Reader, Seen, give};
use crate::record::Changes;
use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, RoTxn};
use serde_json::{Value, json};
use std::ops::Bound;
use std::path::Path;
use std::sync::Mutex;

const MAP_BYTES: usize = 1 << 36;

type Table = Database<Bytes, Bytes>;

pub struct Lmdb {
    env: Env,
    table: Table,
    /// Durability of a commit with the flags that are set on the LMDB environment now.
    durability: Mutex<Durability>,
}

impl Lmdb {
    pub fn open(folder: &Path) -> Result<Lmdb> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        // SAFETY: read-ahead only affects speed; and the folder belongs to this run, so that no
        // other process changes or truncates the file while it is mapped.
        #[expect(
            unsafe_code,
            reason = "a map of a file is a promise that only the caller can make"
        )]
        let env = unsafe { options.flags(EnvFlags::NO_READ_AHEAD).open(folder)? };
        let mut txn = env.write_txn()?;
        let table = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb {
            env,
            table,
            durability: Mutex::new(Durability::Durable),
        })
    }

    fn set(&self, wanted: Durability) -> Result<()> {
        let mut durability = self
            .durability
            .lock()
            .expect("no thread panics with the lock");
        if *durability == wanted {
            return Ok(());
        }
        let mode = match wanted {
            Durability::Durable => FlagSetMode::Disable,
            Durability::Relaxed => FlagSetMode::Enable,
        };
        // SAFETY: the flag changes only durability, and no other thread writes at the same time
        // with another durability: all concurrent writers use the same durability.
        #[expect(unsafe_code, reason = "the only way to a commit without a sync")]
        unsafe {
            self.env.set_flags(EnvFlags::NO_SYNC, mode)?;
        }
        *durability = wanted;
        if wanted == Durability::Durable {
            self.env.force_sync()?;
        }
        Ok(())
    }
}

impl Engine for Lmdb {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        self.set(durability)?;
        let mut txn = self.env.write_txn()?;
        for (key, value) in changes.iter() {
            match value {
                Some(value) => self.table.put(&mut txn, key, value)?,
                None => {
                    self.table.delete(&mut txn, key)?;
                }
            }
        }
        txn.commit().context("a commit")
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let txn = self.env.read_txn()?;
        look(&mut Snapshot {
            txn: &txn,
            table: self.table,
        })
    }

    fn write_back(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn statistics(&self) -> Result<Value> {
        Ok(json!({ "live_bytes": self.env.non_free_pages_size()? }))
    }
}

struct Snapshot<'a> {
    txn: &'a RoTxn<'a>,
    table: Table,
}

impl Reader for Snapshot<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let Some(value) = self.table.get(self.txn, key)? else {
            return Ok(false);
        };
        give(out, value);
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let mut count = 0;
        for row in self.table.range(self.txn, &bounds)?.take(rows) {
            let (key, value) = row?;
            seen.row(key, value);
            count += 1;
        }
        Ok(count)
    }
}
