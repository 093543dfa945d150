//! Simulation of buffer caches over flash, driven by traces: the policies of the live cache run
//! page by page, and the model counts the flash operations that each policy causes.
//!
//! The result is device time, not only the hit ratio: a policy with more hits can write more, or in
//! an order that costs the flash more. This module must never contain a second implementation of a
//! policy, and a run must depend only on the trace and its parameters.

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
