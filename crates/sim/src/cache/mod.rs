//! Buffer caches over flash, driven by traces: the policies of the live cache, page by page, and
//! the work that each of them causes on the device.
//!
//! The result is device time, not the hit ratio: a policy that hits more often may write more, or
//! in an order that costs the flash more. This module must never implement a policy a second time,
//! and a run must depend on nothing but the trace and its parameters.

mod flash;
mod geometry;
mod grid;
mod run;
mod size;

pub use flash::{Costs, Flash, Ftl, NoFtl, UnknownFtl, Work};
pub use geometry::Geometry;
pub use grid::{Grid, Job, Over, jobs, miniature_pages, run_all};
pub use run::{Outcome, Run, run};
pub use size::{CacheSize, InvalidSize};
