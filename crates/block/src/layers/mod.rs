//! Layers: devices over other devices, from the export down to the medium.

pub mod adopted;
pub mod atomic;
pub mod cache;
pub mod fault;
pub mod log;
pub mod mirror;
pub mod passthrough;
pub mod queue;
pub mod rate;
pub mod shard;
pub mod stats;
pub mod stripe;
pub mod timing;
