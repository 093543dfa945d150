//! Adapter of the benchmark to the engine redb.

use super::{Durability, Engine, Reader, Seen, Setting, give};
use crate::record::Changes;
use anyhow::Result;
use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::ops::Bound;
use std::path::Path;

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("records");

pub struct Redb {
    db: Database,
}

impl Redb {
    pub fn open(folder: &Path, setting: &Setting) -> Result<Redb> {
        let db = Database::builder()
            .set_cache_size(setting.cache_bytes as usize)
            .create(folder.join("redb"))?;
        let redb = Redb { db };
        redb.write(&Changes::default(), Durability::Durable)?;
        Ok(redb)
    }
}

impl Engine for Redb {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let mut txn = self.db.begin_write()?;
        txn.set_durability(match durability {
            Durability::Durable => redb::Durability::Immediate,
            Durability::Relaxed => redb::Durability::None,
        })?;
        {
            let mut table = txn.open_table(TABLE)?;
            for (key, value) in changes.iter() {
                match value {
                    Some(value) => drop(table.insert(key, value)?),
                    None => drop(table.remove(key)?),
                }
            }
        }
        Ok(txn.commit()?)
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let txn = self.db.begin_read()?;
        let table = txn.open_table(TABLE)?;
        look(&mut Snapshot { table })
    }

    fn write_back(&self) -> Result<()> {
        self.write(&Changes::default(), Durability::Durable)
    }
}

struct Snapshot {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Reader for Snapshot {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let Some(value) = self.table.get(key)? else {
            return Ok(false);
        };
        give(out, value.value());
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let mut count = 0;
        for row in self.table.range::<&[u8]>(bounds)?.take(rows) {
            let (key, value) = row?;
            seen.row(key.value(), value.value());
            count += 1;
        }
        Ok(count)
    }
}
