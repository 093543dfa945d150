//! Exports: block devices served over a network protocol (NBD to ordinary clients, or BRP) or to
//! the kernel of the local machine ([`ublk`], [`fuse`]).
//!
//! The server is built for batching and never waits to fill a batch: one receive takes all bytes
//! that the socket holds, every complete request among them is started before the next receive, and
//! one send takes every reply that is ready. Under load the batches grow by themselves; a lone
//! request passes through without delay.
//!
//! This crate must never parse or encode the wire format itself (`bimetal-proto` does), never drop
//! a write that has reached a device, and never hold more client data than the stated bounds.

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
