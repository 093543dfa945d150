//! Flash drives as state machines: the geometry of NAND flash, translation layers, their flash
//! operations, and the cost of these operations.
//!
//! Why this crate exists: the benefit of a buffer policy or a schedule on flash depends on the work
//! that the drive does internally. The state machine has two uses. It is a plain cost model for
//! trace runs ([`Drive`]). With its operations recorded, it is the input of a timing device that
//! schedules the operations over channels and dies. The crate must never do I/O, read a clock,
//! spawn a task or a thread, or allocate memory for an operation. It depends on no other crate of
//! the project.
//!
//! # Contract
//!
//! - **Geometry** ([`Geometry`]): numbers of channels, ways, dies, planes, blocks and pages of a
//!   block, and the bytes of a page. The host's pages are the flash without its spare share
//!   ([`Capacity`]).
//! - **Operations** ([`Operation`]): read, program or erase of a physical page or block on a die,
//!   each with its [`Purpose`]. The flash can execute the operations in the order in which they are
//!   recorded: blocks are programmed from the first page to the last, and erased when no page in
//!   them is needed.
//! - **Counters** ([`Counters`], [`Wear`]): incremented together with each change of the array. At
//!   any time, programs = host + copied + padded + map. [`Drive::verify`] compares the counters,
//!   the map and the validity of every page with each other.
//! - **Invalid input** is reported as a [`FlashError`] that names the parameter and the remedy:
//!   impossible geometries, too little spare flash, pages beyond the end. No invalid input causes a
//!   panic.
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
