//! The virtual world: experiments on simulated devices, and the simulation testers.
//!
//! The same layers run here as in the server, under the same executor, with a virtual clock that
//! jumps to the next event. A run depends on its seed alone. This crate must never hold a second
//! version of a policy or a layer.

pub mod cache;
pub mod campaign;
pub mod experiment;
pub mod index_tester;
pub mod tester;
