//! Postmark: the small files of a mail server. The load creates files, and then executes
//! transactions. Each transaction reads a file or appends to one, and creates a file or removes
//! one. At the end, the load removes all files.
//!
//! Source: `postmark` 1.5 (`run_transactions`) with its defaults: in each transaction both choices
//! are equally likely, there is one directory, and file sizes are uniform between the bounds.

use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

use super::OPERATIONS_MAX;
use crate::files::{FileId, Program};
use crate::layer::{FileLayer, LoadError};

/// The four predefined loads, which are from the paper, by their names in experiment files.
pub const NAMED: [(&str, Postmark); 4] = [
    ("SS", Postmark::new(9 << 10, 15 << 10, 10_000, 100_000)),
    ("SL", Postmark::new(9 << 10, 15 << 10, 100_000, 100_000)),
    ("LS", Postmark::new(100 << 10, 3 << 20, 1_000, 10_000)),
    ("LL", Postmark::new(100 << 10, 3 << 20, 4_250, 10_000)),
];

/// Parameters of a Postmark load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Postmark {
    /// Minimum length of a file in bytes.
    pub low_bytes: u64,
    /// Maximum length of a file in bytes.
    pub high_bytes: u64,
    /// Number of files at the start.
    pub files: u64,
    /// Number of transactions.
    pub transactions: u64,
    /// When all data is made durable.
    #[serde(default, skip_serializing_if = "Sync::is_behind_transactions")]
    pub sync: Sync,
}

/// When all data is made durable. The original program never syncs, so the plan must choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// All data is made durable after the transactions, and again after the removal of all files.
    /// The measured time includes writing the data that the transactions have left in memory.
    #[default]
    Transactions,
    /// Data is made durable only after the removal of all files. Data that is still in memory when
    /// its file is removed is never written.
    Removal,
}

impl Sync {
    fn is_behind_transactions(&self) -> bool {
        *self == Sync::Transactions
    }
}

/// Counters of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of transactions completed.
    pub transactions: u64,
    /// Number of bytes that the program read.
    pub read_bytes: u64,
    /// Number of bytes that the program wrote.
    pub written_bytes: u64,
    /// Number of files created, including those at the start.
    pub created: u64,
    /// Number of files that transactions removed.
    pub removed: u64,
}

/// Maximum length in bytes that a plan can specify for a file.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// Size in bytes of the buffer through which the program reads, as with C's stdio.
const BUFFER_BYTES: u64 = 4096;

impl Postmark {
    /// Creates a load with files of `low_bytes` to `high_bytes`.
    pub const fn new(low_bytes: u64, high_bytes: u64, files: u64, transactions: u64) -> Postmark {
        Postmark {
            low_bytes,
            high_bytes,
            files,
            transactions,
            sync: Sync::Transactions,
        }
    }

    /// Returns a predefined load by its name.
    ///
    /// # Errors
    /// A message, if no load has this name.
    pub fn named(name: &str) -> Result<Postmark, String> {
        let found = NAMED.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, load)| *load)
            .ok_or_else(|| format!("no load `{name}`, expected one of SS, SL, LS, LL"))
    }

    /// Checks that the parameters are valid.
    ///
    /// # Errors
    /// A description of the mistake.
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

    /// Returns the load with its numbers of files and of transactions multiplied by `scale`; both
    /// are at least ten.
    pub fn scaled(self, scale: f64) -> Postmark {
        let times = |count: u64| ((count as f64 * scale).round() as u64).max(10);
        Postmark {
            files: times(self.files),
            transactions: times(self.transactions),
            ..self
        }
    }

    /// Returns the approximate number of pages that the program reads and writes. Each transaction
    /// reads a file or appends to one, and also creates a file or removes one. Each of these
    /// alternatives has a probability of one half.
    pub(crate) fn estimated_pages(&self) -> u64 {
        let pages_of_file = (self.low_bytes + self.high_bytes) / 2 / BUFFER_BYTES + 1;
        let moved = self.files + self.transactions + self.transactions / 4;
        moved.saturating_mul(pages_of_file)
    }

    /// Creates the files that exist at the start.
    ///
    /// # Errors
    /// If the device is full, or the layer fails.
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

    /// Executes one transaction.
    ///
    /// # Errors
    /// If the device is full, or the layer fails.
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

    /// Appends to a file, unless the file has its maximum length.
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

    /// Removes all remaining files.
    ///
    /// # Errors
    /// If the layer fails.
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

/// Files that currently exist, and their directory.
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

/// Reads a file from start to end, one buffer at a time.
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
