//! Experiments in virtual time: published systems are rebuilt and compared with the published
//! results, and a mirror is loaded for longer than its logs last.

pub mod comparison;
mod filling;
pub mod hetero;
pub mod index;
pub mod latency;
pub mod parallel;
pub mod pattern;
pub mod reopening;
mod sparse;
pub mod sustained;
