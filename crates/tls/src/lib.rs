//! TLS 1.3 over a byte stream, with certificates of both ends.
//!
//! Nothing else is supported: no older version, no end without a certificate, no resumption. The
//! crate is for byte streams that leave the machine. A stream without TLS does not use this crate.
//!
//! This crate must never hand out a byte that was not authenticated. It must never take the end of
//! the stream below for the peer's authenticated end of data.

mod files;
mod handshake;
mod names;
mod stream;

pub use files::{ClientTls, ServerTls, TlsError, TlsFiles};
