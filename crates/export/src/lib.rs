//! Exports: block devices served to ordinary clients over a network protocol, which today is NBD.
//!
//! The server is built for batching and never waits to get a batch: one receive takes whatever the
//! socket holds, every complete request in it is started before the next receive, and one send
//! takes every reply that is ready. Under load the batches grow by themselves; alone, a request
//! passes through without delay.
//!
//! This crate must never understand the wire itself (`bimetal-proto` does), never drop a write that
//! has reached a device, and never hold more of a client's than the stated bounds.

pub mod config;
mod connection;
mod export;
mod link;
mod server;

pub use config::{ExportConfig, Protocol};
pub use connection::{BYTES_IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX};
pub use server::{Server, StartError};
