//! A bare log without an index: the lower bound of the cost of a durable commit. The file is
//! preallocated and fully written, and each commit is one direct and durable write of whole blocks.
//! No engine that makes each commit durable can be faster on the same device.

use super::{Durability, Engine, Reader, Seen};
use crate::record::Changes;
use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;

const LOG_BYTES: u64 = 256 << 20;
const BLOCK_BYTES: usize = 4096;
const BATCH_BYTES_MAX: usize = 4 << 20;

pub struct Floor {
    log: Mutex<Log>,
}

struct Log {
    durable: File,
    relaxed: File,
    at: u64,
    /// Buffer for a batch. It is larger than the longest batch, so that the batch can start at
    /// `start`, whose address is a multiple of the block size.
    memory: Vec<u8>,
    start: usize,
}

/// Opens the log for direct writes. `flags` are constants of the crate libc. The constant `DSYNC`
/// of the crate rustix is not used, because it has the value of `O_SYNC`. `O_SYNC` also commits the
/// modification time, which costs three more blocks and one more flush.
fn open_direct(path: &Path, flags: i32) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT | flags)
        .open(path)
        .with_context(|| path.display().to_string())
}

impl Floor {
    pub fn open(folder: &Path) -> Result<Floor> {
        let path = folder.join("log");
        if !path.exists() {
            let file = File::create(&path)?;
            let zeroes = vec![0; 1 << 20];
            for at in (0..LOG_BYTES).step_by(zeroes.len()) {
                file.write_all_at(&zeroes, at)?;
            }
            file.sync_all()?;
        }
        let memory = vec![0; BATCH_BYTES_MAX + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let log = Log {
            durable: open_direct(&path, libc::O_DSYNC)?,
            relaxed: open_direct(&path, 0)?,
            at: 0,
            memory,
            start,
        };
        Ok(Floor {
            log: Mutex::new(log),
        })
    }
}

impl Engine for Floor {
    fn write(&self, changes: &Changes, durability: Durability) -> Result<()> {
        let mut log = self.log.lock().expect("no thread panics with the lock");
        let log = &mut *log;
        let bytes = changes.user_bytes();
        let len = bytes.len().next_multiple_of(BLOCK_BYTES);
        if len > BATCH_BYTES_MAX {
            bail!("a batch of {len} bytes");
        }
        if log.at + len as u64 > LOG_BYTES {
            log.at = 0;
        }
        log.memory[log.start..log.start + bytes.len()].copy_from_slice(bytes);
        let block = &log.memory[log.start..log.start + len];
        match durability {
            Durability::Durable => log.durable.write_all_at(block, log.at)?,
            Durability::Relaxed => log.relaxed.write_all_at(block, log.at)?,
        }
        log.at += len as u64;
        Ok(())
    }

    fn read(&self, look: &mut dyn FnMut(&mut dyn Reader) -> Result<()>) -> Result<()> {
        look(&mut Nothing)
    }

    fn write_back(&self) -> Result<()> {
        Ok(())
    }
}

/// Reader of the log, which finds no record because there is no index.
struct Nothing;

impl Reader for Nothing {
    fn get(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<bool> {
        Ok(false)
    }

    fn scan(&mut self, _: &[u8], _: usize, _: &mut Seen) -> Result<usize> {
        Ok(0)
    }
}
