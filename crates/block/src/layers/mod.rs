//! Layers: devices over other devices, from the export down to the medium.

pub mod atomic;
pub mod mirror;
pub mod passthrough;
pub mod timing;
