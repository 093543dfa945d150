//! Adapter of the benchmark to the engine canopydb. Its checksums are enabled, because all other
//! engines verify their reads as well.

use super::{Durability, Engine, Reader, Seen, Setting, give};
use crate::record::Changes;
use anyhow::{Context, Result};
use canopydb::{Database, DbOptions, EnvOptions, Tree};
use std::ops::Bound;
use std::path::Path;

const TREE: &[u8] = b"records";

pub struct Canopydb {
    db: Database,
}

impl Canopydb {
    pub fn open(folder: &Path, setting: &Setting) -> Result<Canopydb> {
        let mut options = EnvOptions::new(folder);
        options.use_checksums = true;
        options.page_cache_size = setting.cache_bytes as usize;
        let db = Database::with_options(options, DbOptions::default())?;
        let canopydb = Canopydb { db };
        canopydb.write(&Changes::default(), Durability::Durable)?;
        Ok(canopydb)
    }
}

impl Engine for Canopydb {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let transaction = self.db.begin_write()?;
        {
            let mut tree = transaction.get_or_create_tree(TREE)?;
            for (key, value) in changes.iter() {
                match value {
                    Some(value) => tree.insert(key, value)?,
                    None => {
                        tree.delete(key)?;
                    }
                }
            }
        }
        transaction.commit_with(durability == Durability::Durable)?;
        Ok(())
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let transaction = self.db.begin_read()?;
        let tree = transaction.get_tree(TREE)?.context("the tree is there")?;
        look(&mut Snapshot { tree })
    }

    fn write_back(&self) -> Result<()> {
        self.db.sync()?;
        Ok(self.db.checkpoint()?)
    }
}

struct Snapshot<'a> {
    tree: Tree<'a>,
}

impl Reader for Snapshot<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let Some(value) = self.tree.get(key)? else {
            return Ok(false);
        };
        give(out, &value);
        Ok(true)
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let mut count = 0;
        for row in self.tree.range::<&[u8]>(bounds)?.take(rows) {
            let (key, value) = row?;
            seen.row(&key, &value);
            count += 1;
        }
        Ok(count)
    }
}
