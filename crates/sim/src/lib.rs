//! Experiments on simulated devices, and the simulation testers.
//!
//! A simulation runs the same layers as the server under the same executor, with a virtual clock
//! that jumps to the next event. A run depends only on its seed and its options. This crate must
//! never contain a second implementation of a policy or a layer.

pub mod cache;
pub mod campaign;
pub mod experiment;
pub mod index_tester;
pub mod tester;
