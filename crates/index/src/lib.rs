//! An ordered, durable index for flash: keys and values of variable length, read snapshots, atomic
//! transactions, and a durability level for each commit.
//!
//! Source: the CHC-Tree (Byun 2011), a B+-tree with hot and cold clusters of nodes and packed cold
//! nodes. docs/index.md describes the parts that the paper leaves open (log, recovery, concurrency,
//! space); docs/format/ describes the bytes.
//!
//! The core is a passive state machine: it starts no thread, reads no clock, and reaches its device
//! through one interface ([`storage`]). It must never return content that it has not verified.

// The module `world` of the tests is also compiled into this crate, and names the crate by its
// external name.
#[cfg(any(test, feature = "fuzzing"))]
extern crate self as bimetal_index;

mod batch;
mod commit;
mod conflicts;
mod create;
mod db;
mod error;
mod footer;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod geometry;
mod layout;
mod limits;
mod log;
pub mod model;
pub mod node;
mod options;
mod paper;
#[cfg(not(interleaved))]
mod planted;
#[cfg(interleaved)]
pub mod planted;
mod readers;
mod rebuild;
mod replay;
mod rings;
mod scan;
mod segments;
mod snapshot;
pub mod storage;
mod sync;
mod tree;
mod verify;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../tests/world/mod.rs"]
mod world;
mod writer;

pub use batch::Batch;
pub use create::{is_unfinished, new_id};
pub use db::{Compaction, Db, Statistics, Transaction};
pub use error::{Error, ErrorKind};
pub use limits::Limits;
pub use node::KEY_BYTES_MAX;
pub use options::Options;
pub use paper::{Clusters, PaperRules};
pub use readers::SnapshotStatistics;
pub use rebuild::{Loss, Lost, RebuildProgress, RebuildStep, Rebuilt, rebuild};
pub use scan::{KeyValue, Scan, ScanBounds};
pub use segments::SpaceStatistics;
pub use snapshot::Snapshot;
pub use verify::{Problem, Verified, verify};
pub use writer::{Durability, MaintenanceStatistics};
