//! Media: the devices at the bottom of a stack, which have no device below them, and the timing
//! models.

pub mod brp;
pub mod file;
pub mod memory;
pub mod model;
pub mod null;
pub mod remote;
pub mod tls;
