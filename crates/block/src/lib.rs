//! Block devices: the contract ([`device`]), the layers and the media, and the graph that builds a
//! stack from a configuration.
//!
//! A request passes a stack from the top to the bottom: an export submits it to the top, layers
//! split, copy, cache or delay it, and media store the data. Every layer uses the same contract
//! towards its parent and its children, so a configuration can combine layers freely, and any layer
//! can be tested alone.
//!
//! This crate must never read a clock, start a thread or open a socket except through `bimetal-rt`,
//! because the same code runs in virtual time.

pub mod device;
pub mod disk;
pub mod document;
pub mod error;
pub mod extent_map;
pub mod extents;
pub mod geometry;
pub mod graph;
pub mod latency;
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
