//! The experiment of the CHC-Tree paper: a closed queue of searches, insertions and deletions on
//! one flash device, served by the paper's tree, by two B+-trees, and by the index of this project
//! with its own rules.
//!
//! Source: section 3 of the paper (Byun 2011; its figures 1 and 2). docs/experiments/chc-tree.md
//! lists the parameters that the paper does not give, and the values chosen here. All trees are the
//! engine of `bimetal-index` on flash that counts operations. This module must never contain a
//! second implementation of a node, a class or a cleaner.

mod comparison;
mod flash;
mod life;
mod population;
mod queue;
mod scheme;
mod setting;
mod sweep;

pub use comparison::{Comparison, Cost, Extent, Gain, Row, compare};
pub use life::{Kind, LifeError, Lived, PerOperation, live};
pub use queue::{Served, serve};
pub use scheme::{Area, Scheme};
pub use setting::{KeyForm, Setting};
pub use sweep::{SweepPoint, settings, sweep};
