//! Media: the devices that hold data instead of passing it on, and the models that time them.

pub mod brp;
pub mod file;
pub mod memory;
pub mod model;
pub mod null;
pub mod remote;
pub mod tls;
