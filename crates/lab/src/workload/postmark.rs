//! Postmark: the small files of a mail server. Files are made; then each transaction reads a file
//! or appends to one, and makes a file or removes one; then all files are removed.
//!
//! Source: `postmark` 1.5 (`run_transactions`), with its defaults: both choices even, one
//! directory, sizes even between the bounds.

use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

use super::OPERATIONS_MAX;
use crate::files::{FileId, Program};
use crate::layer::{FileLayer, LoadError};

/// The four loads of the paper, by their names in experiment files.
pub const NAMED: [(&str, Postmark); 4] = [
    ("SS", Postmark::new(9 << 10, 15 << 10, 10_000, 100_000)),
    ("SL", Postmark::new(9 << 10, 15 << 10, 100_000, 100_000)),
    ("LS", Postmark::new(100 << 10, 3 << 20, 1_000, 10_000)),
    ("LL", Postmark::new(100 << 10, 3 << 20, 4_250, 10_000)),
];

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Postmark {
    /// The shortest file.
    pub low_bytes: u64,
    /// The longest file.
    pub high_bytes: u64,
    /// Files at the start.
    pub files: u64,
    /// Transactions.
    pub transactions: u64,
    /// When what was written has to be on the device.
    #[serde(default, skip_serializing_if = "Sync::is_behind_transactions")]
    pub sync: Sync,
}

/// When everything is made durable. The program of which this is the load never asks for that, so
/// it is for whoever measures to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// Behind the transactions, and again when all files are removed: what the transactions have
    /// left in memory counts.
    #[default]
    Transactions,
    /// When all files are removed, and not before: what is still in memory then is never written.
    Removal,
}

impl Sync {
    fn is_behind_transactions(&self) -> bool {
        *self == Sync::Transactions
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Transactions done.
    pub transactions: u64,
    /// Bytes that the program read.
    pub read_bytes: u64,
    /// Bytes that the program wrote.
    pub written_bytes: u64,
    /// Files made, those at the start included.
    pub created: u64,
    /// Files removed by transactions.
    pub removed: u64,
}

/// The longest file that there may be.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// The program reads and writes through a buffer, as C's does.
const BUFFER_BYTES: u64 = 4096;

impl Postmark {
    /// Files of `low_bytes` to `high_bytes`.
    pub const fn new(low_bytes: u64, high_bytes: u64, files: u64, transactions: u64) -> Postmark {
        Postmark {
            low_bytes,
            high_bytes,
            files,
            transactions,
            sync: Sync::Transactions,
        }
    }

    /// One of the paper's loads.
    ///
    /// # Errors
    /// When there is none of that name, in words.
    pub fn named(name: &str) -> Result<Postmark, String> {
        let found = NAMED.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, load)| *load)
            .ok_or_else(|| format!("no load `{name}`, expected one of SS, SL, LS, LL"))
    }

    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.low_bytes == 0
            || self.low_bytes > self.high_bytes
            || self.high_bytes > FILE_BYTES_MAX
        {
            return Err("files must have `low` to `high` bytes, 1 B to 1 TiB".to_owned());
        }
        let possible = 1..=OPERATIONS_MAX;
        if !possible.contains(&self.files) || !possible.contains(&self.transactions) {
            let why = "`files` and `transactions` must be 1 to 1,000,000,000";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// The same with so many times as many files and transactions, at least ten of each.
    pub fn scaled(self, scale: f64) -> Postmark {
        let times = |count: u64| ((count as f64 * scale).round() as u64).max(10);
        Postmark {
            files: times(self.files),
            transactions: times(self.transactions),
            ..self
        }
    }

    /// Pages that the program reads and writes, about: half of the transactions read a file, half
    /// append to one, half make one.
    pub(crate) fn estimated_pages(&self) -> u64 {
        let pages_of_file = (self.low_bytes + self.high_bytes) / 2 / BUFFER_BYTES + 1;
        let moved = self.files + self.transactions + self.transactions / 4;
        moved.saturating_mul(pages_of_file)
    }

    /// Makes the files.
    ///
    /// # Errors
    /// When the device is full, or the layer fails.
    pub async fn prepare(
        &self,
        files: &impl FileLayer,
        rng: &mut Rng,
        program: &mut Program,
        tally: &mut Tally,
    ) -> Result<Pool, LoadError> {
        let directory = files.make_directory(program).await?;
        let mut pool = Pool {
            directory,
            files: Vec::new(),
        };
        for _ in 0..self.files {
            self.create(files, &mut pool, rng, program, tally).await?;
        }
        Ok(pool)
    }

    async fn create(
        &self,
        files: &impl FileLayer,
        pool: &mut Pool,
        rng: &mut Rng,
        program: &mut Program,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        let bytes = rng.between(self.low_bytes, self.high_bytes);
        let file = files.file_of(&files.create(pool.directory, program).await?);
        files.write(file, 0, bytes, program).await?;
        tally.written_bytes += bytes;
        tally.created += 1;
        pool.files.push(file);
        Ok(())
    }

    /// One transaction.
    ///
    /// # Errors
    /// When the device is full, or the layer fails.
    pub async fn transact(
        &self,
        files: &impl FileLayer,
        pool: &mut Pool,
        rng: &mut Rng,
        program: &mut Program,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        if let Some(at) = pool.draw(rng) {
            let file = pool.files[at];
            match rng.below(2) {
                0 => read_all(files, file, program, tally).await?,
                _ => self.append(files, file, rng, program, tally).await?,
            }
        }
        if rng.below(2) == 0 || pool.files.is_empty() {
            self.create(files, pool, rng, program, tally).await?;
        } else if let Some(at) = pool.draw(rng) {
            let file = pool.files.swap_remove(at);
            files.remove(file, program).await?;
            tally.removed += 1;
        }
        tally.transactions += 1;
        Ok(())
    }

    /// Adds something to a file that may become longer.
    async fn append(
        &self,
        files: &impl FileLayer,
        file: FileId,
        rng: &mut Rng,
        program: &mut Program,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        files.open(file, program).await?;
        let old_bytes = files.size_bytes(file);
        if old_bytes >= self.high_bytes {
            return Ok(());
        }
        let bytes = rng.between(1, self.high_bytes - old_bytes);
        files.write(file, old_bytes, bytes, program).await?;
        tally.written_bytes += bytes;
        Ok(())
    }

    /// Removes all files.
    ///
    /// # Errors
    /// When the layer fails.
    pub async fn clean_up(
        &self,
        files: &impl FileLayer,
        pool: Pool,
        program: &mut Program,
    ) -> Result<(), LoadError> {
        for file in pool.files {
            files.remove(file, program).await?;
        }
        Ok(())
    }
}

/// The files there are.
pub struct Pool {
    directory: u32,
    files: Vec<FileId>,
}

impl Pool {
    fn draw(&self, rng: &mut Rng) -> Option<usize> {
        let count = self.files.len() as u64;
        (count > 0).then(|| rng.below(count) as usize)
    }
}

/// Reads a file from start to end, by the buffer.
async fn read_all(
    files: &impl FileLayer,
    file: FileId,
    program: &mut Program,
    tally: &mut Tally,
) -> Result<(), LoadError> {
    let mut open = files.open(file, program).await?;
    let bytes = files.size_bytes(file);
    let mut offset = 0;
    while offset < bytes {
        files.read(&mut open, offset, BUFFER_BYTES, program).await?;
        offset += BUFFER_BYTES;
    }
    tally.read_bytes += bytes;
    Ok(())
}
