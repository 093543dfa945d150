//! Exports: block devices served over a network protocol, NBD to ordinary clients and BRP, or to
//! the kernel of the machine itself ([`ublk`], [`fuse`]).
//!
//! The server is built for batching and never waits to get a batch: one receive takes whatever the
//! socket holds, every complete request in it is started before the next receive, and one send
//! takes every reply that is ready. Under load the batches grow by themselves; alone, a request
//! passes through without delay.
//!
//! This crate must never understand the wire itself (`bimetal-proto` does), never drop a write that
//! has reached a device, and never hold more of a client's than the stated bounds.

mod access;
mod account;
mod brp;
pub mod config;
mod counters;
mod export;
pub mod fuse;
mod input;
mod link;
mod listening;
mod nbd;
mod portal;
mod server;
mod session;
mod tasks;
#[allow(
    unsafe_code,
    reason = "vouches for what the driver does with the buffers it is lent"
)]
pub mod ublk;

pub use access::{Client, Rights, Rule, Who};
pub use bimetal_tls::{TlsError, TlsFiles};
pub use config::{ExportConfig, Persistence, Protocol};
pub use portal::StartError;
pub use server::{Limits, Server};
pub use session::{BYTES_IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX};
