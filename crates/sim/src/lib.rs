//! The virtual world: experiments on simulated devices, and the simulation testers.
//!
//! What runs here is what runs in the server: the same layers, under the same executor, with the
//! clock jumping. A run depends on its seed alone. This crate must never hold a second version of
//! a policy or a layer.

pub mod cache;
pub mod campaign;
pub mod experiment;
pub mod index_tester;
pub mod tester;
