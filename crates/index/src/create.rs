//! Making an index where nothing is, or where what is there is not needed any more.

use crate::error::{At, Error};
use crate::layout::{Geometry, LOG_OFFSET, Superblock};
use crate::rings::{Ring, Rings};
use crate::storage::{Aligned, BLOCK_BYTES, Storage};
use std::io::{self, Read};

/// Makes an empty index. The superblock is written last.
pub(crate) fn create(storage: &dyn Storage, geometry: Geometry) -> Result<(), Error> {
    let len_bytes = geometry.segments_offset();
    if storage.len_bytes() < len_bytes {
        let grown = storage.resize(len_bytes);
        grown.at("making the storage as long as the log", len_bytes)?;
    }
    let zeroes = Aligned::zeroed(2 * BLOCK_BYTES);
    storage
        .write_durable(0, &zeroes)
        .at("removing what was there", 0)?;
    let superblock = Superblock {
        geometry,
        generation: 1,
        opening: 0,
        opening_at_tail: 0,
        log_tail: 0,
        seq_at_tail: 0,
        checkpoint: Vec::new(),
        checkpoint_bytes: 0,
        checkpoint_crc: 0,
        log_durable: 0,
        rings: Rings::of_one(Ring::front(&geometry, 0)),
    };
    prepare_log(storage, geometry)?;
    storage
        .sync()
        .at("making the storage as long as the log", 0)?;
    superblock.write(storage)
}

/// The log is prepared in pieces of this length.
const ZEROES_BYTES: u64 = 4 << 20;

/// Writes zeroes to the log as it begins: a file system that has to find space, or to note that a
/// block is in use, takes its time now, and not in a commit. What is left there of an older index
/// goes, too.
fn prepare_log(storage: &dyn Storage, geometry: Geometry) -> Result<(), Error> {
    let end = LOG_OFFSET + geometry.front_blocks * BLOCK_BYTES as u64;
    let zeroes = Aligned::zeroed(ZEROES_BYTES.min(end - LOG_OFFSET) as usize);
    let mut offset = LOG_OFFSET;
    while offset < end {
        let piece = (end - offset).min(ZEROES_BYTES) as usize;
        let written = storage.write(offset, &zeroes[..piece]);
        written.at("preparing the log", offset)?;
        offset += piece as u64;
    }
    Ok(())
}

/// What has nothing but zeroes up to here holds nothing that anybody knows: file systems and tables
/// of partitions say what they are before it.
const BLANK_BYTES: u64 = 1 << 20;

/// True if nothing was ever written to a storage, as far as its beginning tells.
pub(crate) fn is_blank(storage: &dyn Storage) -> Result<bool, Error> {
    let len_bytes = storage.len_bytes().min(BLANK_BYTES) as usize;
    let mut beginning = Aligned::zeroed(len_bytes / BLOCK_BYTES * BLOCK_BYTES);
    let read = storage.read(0, &mut beginning);
    read.at("reading what is there", 0)?;
    Ok(beginning.iter().all(|byte| *byte == 0))
}

/// A file that is longer than this is no index whose making was interrupted.
const UNFINISHED_BYTES_MAX: u64 = 128 << 20;

/// True if a storage is empty, or has nothing but zeroes: so the making of an index leaves a file
/// that it has not ended for, and nothing is lost if it is begun anew. False for one of more than
/// 128 MiB.
///
/// # Errors
///
/// If it cannot be read.
pub fn is_unfinished(storage: &dyn Storage) -> Result<bool, Error> {
    let len_bytes = storage.len_bytes();
    if len_bytes > UNFINISHED_BYTES_MAX || !len_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(false);
    }
    let mut piece = Aligned::zeroed(ZEROES_BYTES.min(len_bytes) as usize);
    // Of an index the first block says enough.
    let mut len = BLOCK_BYTES as u64;
    let mut offset = 0;
    while offset < len_bytes {
        let read = &mut piece[..len.min(len_bytes - offset) as usize];
        storage
            .read(offset, read)
            .at("reading what is there", offset)?;
        if read.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        offset += read.len() as u64;
        len = ZEROES_BYTES;
    }
    Ok(true)
}

/// A number that no other index has.
///
/// # Errors
///
/// Those of reading random numbers.
pub fn new_id() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
