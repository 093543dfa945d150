//! Experiments that rebuild published systems and compare the results with the published results.

pub mod comparison;
pub mod hetero;
pub mod index;
pub mod parallel;
mod sparse;
