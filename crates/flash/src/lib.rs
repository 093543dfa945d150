//! Flash drives as state machines: NAND geometry, translation layers, their operations and the cost
//! of these.
//!
//! Why this crate exists: the benefit of a buffer policy or a schedule on flash depends on the work
//! of the drive behind its interface. One state machine serves two uses: a plain cost model for
//! trace runs ([`Drive`]), and, with its operations recorded, the input of a timing device that
//! schedules them over channels and dies. It must never do I/O, read a clock, spawn anything or
//! allocate for an operation, and it depends on no other crate of the project.
//!
//! # Contract
//!
//! - **Geometry** ([`Geometry`]): channels, ways, dies, planes, blocks, pages of a block, bytes of
//!   a page. The host's pages are the flash less its spare share ([`Capacity`]).
//! - **Operations** ([`Operation`]): read, program and erase of a physical page or block on a die,
//!   each with its [`Purpose`]. They come in an order that the flash can execute: blocks are
//!   programmed from the first page to the last, and erased when no page in them is needed.
//! - **Counters** ([`Counters`], [`Wear`]): counted where the array changes. Programs = host +
//!   copied + padded + map, always; [`Drive::verify`] compares the counters, the map and the
//!   validity of every page with each other.
//! - **Bad input** is a [`FlashError`] that names the parameter and the remedy: impossible
//!   geometries, too little spare flash, pages beyond the end. No bad input causes a panic.
//!
//! ```
//! use bimetal_flash::{Capacity, Drive, DriveConfig, FtlConfig, Geometry, PageConfig};
//!
//! let flash = Geometry::one_die(64, 32, 4096);
//! let layer = FtlConfig::Page(PageConfig::default());
//! let mut drive = Drive::new(&DriveConfig::new(flash, Capacity::OverProvisioning(0.28), layer))?;
//! for lpn in 0..drive.logical_pages() {
//!     drive.write(&[lpn])?;
//! }
//! assert_eq!(drive.counters().write_amplification(), 1.0);
//! # Ok::<(), bimetal_flash::FlashError>(())
//! ```

mod buffer;
mod build;
mod config;
mod counters;
mod draw;
mod drive;
mod free_blocks;
mod ftl;
mod geometry;
mod ideal;
mod log_block;
mod nand;
mod operation;
mod page;
mod prefetch;
mod recency;
mod schedule;

pub use config::{
    BufferConfig, CLASSES_MAX, Capacity, Cleaning, DriveConfig, FtlConfig, PageConfig, Streams,
    WearLevelling,
};
pub use counters::{Costs, Counters, Wear};
pub use drive::Drive;
pub use ftl::Ftl;
pub use geometry::{FlashError, Geometry, NONE, PAGES_MAX};
pub use ideal::Ideal;
pub use nand::Inconsistent;
pub use operation::{Action, Operation, Purpose, Recorder};
pub use schedule::{OperationTimes, Schedule};
