//! Adapter of the benchmark to SQLite: a table without row numbers, a write-ahead log, and a full
//! sync for each commit. The adapter uses one connection, because several connections write no
//! faster, and a connection would have to retry while another one writes.

use super::{Durability, Engine, Reader, Seen, Setting, give};
use crate::record::Changes;
use anyhow::Result;
use rusqlite::{CachedStatement, Connection, OptionalExtension, TransactionBehavior};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

const STATEMENTS: usize = 16;

pub struct Sqlite {
    state: Mutex<State>,
}

struct State {
    connection: Connection,
    durability: Durability,
}

impl Sqlite {
    pub fn open(folder: &Path, setting: &Setting) -> Result<Sqlite> {
        let connection = Connection::open(folder.join("sqlite"))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let cache_kib = setting.cache_bytes / 1024;
        connection.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -{cache_kib};
             CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB NOT NULL)
             WITHOUT ROWID;"
        ))?;
        let state = State {
            connection,
            durability: Durability::Durable,
        };
        Ok(Sqlite {
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the lock")
    }
}

impl State {
    fn set(&mut self, durability: Durability) -> Result<()> {
        if self.durability != durability {
            // With a write-ahead log, the level NORMAL syncs only at checkpoints, not at commits.
            let level = match durability {
                Durability::Durable => "FULL",
                Durability::Relaxed => "NORMAL",
            };
            self.connection
                .execute_batch(&format!("PRAGMA synchronous = {level}"))?;
            self.durability = durability;
        }
        Ok(())
    }
}

impl Engine for Sqlite {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let mut state = self.lock();
        state.set(durability)?;
        let transaction = state
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut put =
                transaction.prepare_cached("INSERT OR REPLACE INTO records VALUES (?1, ?2)")?;
            let mut delete = transaction.prepare_cached("DELETE FROM records WHERE key = ?1")?;
            for (key, value) in changes.iter() {
                match value {
                    Some(value) => put.execute((key, value))?,
                    None => delete.execute((key,))?,
                };
            }
        }
        Ok(transaction.commit()?)
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        let transaction = state.connection.transaction()?;
        {
            let get = transaction.prepare_cached("SELECT value FROM records WHERE key = ?1")?;
            let scan = transaction.prepare_cached(
                "SELECT key, value FROM records WHERE key >= ?1 ORDER BY key LIMIT ?2",
            )?;
            look(&mut Snapshot { get, scan })?;
        }
        Ok(transaction.commit()?)
    }

    fn write_back(&self) -> Result<()> {
        let state = self.lock();
        state
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))?;
        Ok(())
    }
}

struct Snapshot<'a> {
    get: CachedStatement<'a>,
    scan: CachedStatement<'a>,
}

impl Reader for Snapshot<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let found = self.get.query_row((key,), |row| {
            give(out, row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        Ok(found.optional()?.is_some())
    }

    fn scan(&mut self, from: &[u8], rows: usize, seen: &mut Seen) -> Result<usize> {
        let mut found = self.scan.query((from, rows as i64))?;
        let mut count = 0;
        while let Some(row) = found.next()? {
            seen.row(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
            count += 1;
        }
        Ok(count)
    }
}
