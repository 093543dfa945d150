//! Adapter of the benchmark to the engine fjall.

use super::{Durability, Engine, Reader, Seen, Setting, give};
use crate::record::Changes;
use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use serde_json::{Value, json};
use std::ops::Bound;
use std::path::Path;
use std::time::Duration;

const MEMTABLE_BYTES: u64 = 64 << 20;
/// Interval at which the engine's counters are polled until compaction has ended. The polls are
/// necessary because the library has no call that waits for this end.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Number of successive polls without compaction after which the engine is treated as idle.
const CALM: u32 = 10;

pub struct Fjall {
    db: Database,
    records: Keyspace,
}

impl Fjall {
    pub fn open(folder: &Path, setting: &Setting) -> Result<Fjall> {
        let db = Database::builder(folder)
            .cache_size(setting.cache_bytes)
            .open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let records = db.keyspace("records", options)?;
        Ok(Fjall { db, records })
    }
}

impl Engine for Fjall {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let persist = match durability {
            Durability::Durable => Some(PersistMode::SyncAll),
            Durability::Relaxed => None,
        };
        let mut batch = self.db.batch().durability(persist);
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.insert(&self.records, key, value),
                None => batch.remove(&self.records, key),
            }
        }
        Ok(batch.commit()?)
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        look(&mut View {
            snapshot: self.db.snapshot(),
            records: &self.records,
        })
    }

    fn write_back(&self) -> Result<()> {
        self.records.rotate_memtable_and_wait()?;
        self.settle()?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    fn settle(&self) -> Result<()> {
        let mut calm = 0;
        while calm < CALM {
            let busy = self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0;
            calm = if busy { 0 } else { calm + 1 };
            std::thread::park_timeout(ASK_EVERY);
        }
        Ok(())
    }

    fn statistics(&self) -> Result<Value> {
        Ok(json!({ "log_bytes": self.db.journal_disk_space()? }))
    }
}

struct View<'a> {
    snapshot: Snapshot,
    records: &'a Keyspace,
}

impl Reader for View<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let Some(value) = self.snapshot.get(self.records, key)? else {
            return Ok(false);
        };
        give(out, &value);
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let mut count = 0;
        for row in self
            .snapshot
            .range::<&[u8], _>(self.records, bounds)
            .take(rows)
        {
            let (key, value) = row.into_inner()?;
            seen.row(&key, &value);
            count += 1;
        }
        Ok(count)
    }
}
