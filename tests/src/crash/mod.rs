//! Tests of crashes of the real program: a volume on disks with volatile caches, loads that record
//! every promise of the server, and checks of the content after a power cut.
//!
//! All steps of a test round are drawn from a seed. The moment of a step is a condition (a number
//! of answers, a number of writes at a disk), never a time. A check must never accept content that
//! breaks the server's promise: flushed data are present, and every block is completely old or
//! completely new.

pub mod files;
pub mod fio;
pub mod load;
pub mod lost;
pub mod model;
pub mod stand;
