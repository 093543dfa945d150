//! TLS 1.3 over a byte stream, with certificates of both ends.
//!
//! Nothing else is offered: no older version, no end without a certificate, no resumption. It
//! exists for byte streams that leave the machine. A stream without TLS goes nowhere near this
//! crate.
//!
//! It must never hand out a byte that was not authenticated, nor take the end of the stream below
//! for the peer's own word that it has ended.

mod files;
mod handshake;
mod names;
mod stream;

pub use files::{ClientTls, ServerTls, TlsError, TlsFiles};
