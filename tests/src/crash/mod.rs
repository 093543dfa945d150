//! Crashes of the real program: a volume on disks with volatile caches, loads whose every promise
//! is written down, and what must be there after the power was cut.
//!
//! Everything that a round does is drawn from a seed, and every moment is a condition (so many
//! answers, so many writes at a disk), never a time. It must never forgive more than the promise
//! allows: whatever was flushed is there, and every block is old or new as a whole.

pub mod files;
pub mod fio;
pub mod load;
pub mod lost;
pub mod model;
pub mod stand;
