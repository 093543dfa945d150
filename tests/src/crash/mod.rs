//! Crashes of the real program: a volume on disks with volatile caches, loads that record every
//! promise of the server, and the required content after a power cut.
//!
//! All steps of a round are drawn from a seed, and every moment is a condition (a number of
//! answers, a number of writes at a disk), never a time. The check must never allow more than the
//! promise does: flushed data are present, and every block is completely old or completely new.

pub mod files;
pub mod fio;
pub mod load;
pub mod lost;
pub mod model;
pub mod stand;
