//! Creation of an index on a storage that is empty or whose content is no longer needed.

use crate::error::{At, Error};
use crate::layout::{Geometry, LOG_OFFSET, Superblock};
use crate::rings::{Ring, Rings};
use crate::storage::{Aligned, BLOCK_BYTES, Storage};
use std::io::{self, Read};

/// Creates an empty index. The superblock is written last.
pub(crate) fn create(storage: &dyn Storage, geometry: Geometry) -> Result<(), Error> {
    let len_bytes = geometry.segments_offset();
    if storage.len_bytes() < len_bytes {
        let grown = storage.resize(len_bytes);
        grown.at("extending the storage for the log", len_bytes)?;
    }
    let zeroes = Aligned::zeroed(2 * BLOCK_BYTES);
    storage
        .write_durable(0, &zeroes)
        .at("erasing the previous content", 0)?;
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
    storage.sync().at("extending the storage for the log", 0)?;
    superblock.write(storage)
}

/// Maximum number of bytes written or read at a time.
const ZEROES_BYTES: u64 = 4 << 20;

/// Fills the front of the log with zeroes. If a file system has to allocate a block, or to mark it
/// as used, it does this now, and not during a later commit. Remains of an older index are
/// overwritten as well.
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

/// Number of bytes at the start of a storage that are checked to decide whether it is blank. File
/// systems and partition tables identify themselves in this part.
const BLANK_BYTES: u64 = 1 << 20;

/// Returns true if a storage begins with only zeroes, so that it was probably never written.
pub(crate) fn is_blank(storage: &dyn Storage) -> Result<bool, Error> {
    let len_bytes = storage.len_bytes().min(BLANK_BYTES) as usize;
    let mut beginning = Aligned::zeroed(len_bytes / BLOCK_BYTES * BLOCK_BYTES);
    let read = storage.read(0, &mut beginning);
    read.at("reading the present content", 0)?;
    Ok(beginning.iter().all(|byte| *byte == 0))
}

/// Maximum length of an index whose creation was interrupted.
const UNFINISHED_BYTES_MAX: u64 = 128 << 20;

/// Returns true if a storage is empty or holds only zeroes. An interrupted creation leaves a file
/// in this state, and a new creation then overwrites no data. Returns false if the storage is
/// longer than 128 MiB or does not consist of whole blocks.
///
/// # Errors
///
/// If the storage cannot be read.
pub fn is_unfinished(storage: &dyn Storage) -> Result<bool, Error> {
    let len_bytes = storage.len_bytes();
    if len_bytes > UNFINISHED_BYTES_MAX || !len_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(false);
    }
    let mut piece = Aligned::zeroed(ZEROES_BYTES.min(len_bytes) as usize);
    // The first block of an index is not all zeroes. So this block is read alone first, which
    // avoids longer reads if an index exists.
    let mut len = BLOCK_BYTES as u64;
    let mut offset = 0;
    while offset < len_bytes {
        let read = &mut piece[..len.min(len_bytes - offset) as usize];
        storage
            .read(offset, read)
            .at("reading the present content", offset)?;
        if read.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        offset += read.len() as u64;
        len = ZEROES_BYTES;
    }
    Ok(true)
}

/// Returns a random id for a new index, so that no two indexes have the same id.
///
/// # Errors
///
/// The errors of reading random numbers.
pub fn new_id() -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
