//! Experiments that hold the published systems against their own figures.

pub mod comparison;
pub mod hetero;
pub mod index;
pub mod parallel;
mod sparse;
