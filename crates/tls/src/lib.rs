//! TLS 1.3 over a byte stream, with certificates of both ends.
//!
//! The crate supports no older version, no end without a certificate, and no resumption of
//! sessions. It is for byte streams that leave the machine. A stream without TLS does not use this
//! crate.
//!
//! This crate must never give its caller a byte that was not authenticated. It must never mistake
//! the end of the underlying stream for the peer's authenticated end of data.

mod files;
mod handshake;
mod names;
mod stream;

pub use files::{ClientTls, ServerTls, TlsError, TlsFiles};
