//! The control socket of a server: each request is one line of JSON, and each answer is one line of
//! JSON. docs/control.md describes the protocol. This crate contains both ends of the socket: the
//! server ([`Control`]) and the client ([`Client`]). It also contains both ends of the verb that
//! records the requests on a device ([`record`]).
//!
//! No answer depends on a device that may hang, so the server end must never wait for a device. The
//! answers of a server must not be trusted: their length is bounded, and no answer causes a panic.

mod client;
pub mod record;
mod server;

pub use client::{AskError, Client, ask, carry_out, pause};
pub use server::{Answer, Control, StartError};
