//! Block devices: the contract ([`device`]), the layers and the media, and the graph that puts a
//! stack together from a configuration.
//!
//! A request travels down: an export hands it to the top of a stack, layers cut it, copy it, keep
//! it or time it, and media store it. Every layer speaks the same contract on both of its faces,
//! so any stack can be put together from a file, and any layer can be tested alone.
//!
//! This crate must never read a clock, start a thread or open a socket except through
//! `bimetal-rt`: the same code runs in virtual time.

pub mod device;
pub mod disk;
pub mod document;
pub mod error;
pub mod extent_map;
pub mod extents;
pub mod geometry;
pub mod graph;
pub mod layers;
pub mod media;
pub mod range_lock;
pub mod range_set;
pub mod request;
pub mod tap;
pub mod token_bucket;
pub mod units;

pub use device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
pub use error::IoError;
pub use extents::ExtentList;
pub use geometry::Geometry;
pub use request::{
    BLOCK_BYTES, BorrowedWrite, EXTENTS_MAX, Extent, Flags, IoResult, Op, Origin, PerOp, Reply,
    Request,
};
