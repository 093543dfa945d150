//! Crashes of the real program: a volume on disks with volatile caches, loads whose every promise is
//! written down, and what must be there after the power was cut.
//!
//! Everything that a round does is drawn from a seed, and every moment is a condition (so many
//! answers, so many writes at a disk), never a time. It must never forgive more than the promise
//! allows: [`RECOVERY`] is the one place that says how far the promise reaches.

pub mod files;
pub mod fio;
pub mod load;
pub mod lost;
pub mod model;
pub mod stand;

use crate::volatile_disk::SECTOR_BYTES;

/// What the program does today after a stop that was not clean.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    /// What `serve` needs to be told.
    pub serve_options: &'static [&'static str],
    /// Bytes that are old or new as a whole.
    pub atomic_bytes: u64,
}

/// Until the mirror recovers by itself, it is told to copy one side over the others, and a block that
/// a disk tore stays torn. Then this becomes no options and 4096 bytes.
pub const RECOVERY: Recovery = Recovery {
    serve_options: &["--resync"],
    atomic_bytes: SECTOR_BYTES,
};
