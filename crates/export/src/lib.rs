//! Exports: block devices served over a network protocol (NBD to ordinary clients, or BRP) or to
//! the kernel of the local machine ([`ublk`], [`fuse`]).
//!
//! The server processes requests and replies in batches, but never waits to fill a batch. One
//! receive call takes all bytes that the socket holds. Every complete request among these bytes is
//! started before the next receive call. One send call takes every reply that is ready. Batches
//! grow with the load, and a single request is not delayed.
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
