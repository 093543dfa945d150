//! The virtual world: experiments on simulated devices, and the simulation tester.
//!
//! What runs here is what runs in the server: the same layers, under the same executor, with the
//! clock jumping. A run depends on its seed alone. This crate must never hold a second version of
//! a policy or a layer.

pub mod cache;
pub mod experiment;
pub mod tester;
