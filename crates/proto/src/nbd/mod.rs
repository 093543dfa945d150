//! The Network Block Device protocol: fixed newstyle handshake and transmission phase.
//!
//! The source is the protocol document of the NBD project (`doc/proto.md` of
//! NetworkBlockDevice/nbd); item documentation names its sections. `docs/nbd.md` of this repository
//! lists the supported and the refused parts of the protocol.
//!
//! - [`wire`]: numbers and small types of the wire format, limits, [`ProtocolError`];
//! - [`ServerHandshake`] and [`ClientHandshake`]: option negotiation at either end;
//! - [`request`]: the request header, its validation, and the bounds of an export;
//! - [`reply`]: encoders for the server's replies;
//! - [`reply_decoder`]: decoding and checking of replies at the client.
//!
//! A [`ProtocolError`] always means that the connection must be ended. An error that can be
//! answered within the protocol (with an error reply to an option, or an [`Errno`] to a request) is
//! answered and is no `ProtocolError`.

mod client;
mod fields;
pub mod reply;
pub mod reply_decoder;
pub mod request;
mod server;
pub mod wire;

pub use client::{ClientHandshake, ClientProgress, ClientSession, Refusal, Wishes};
pub use reply::Extent;
pub use reply_decoder::{ReadCoverage, ReplyDecoder, ReplyHeader};
pub use request::{ExportInfo, Negotiated, Request};
pub use server::{Export, ExportDirectory, ServerHandshake, ServerProgress, ServerSession};
pub use wire::{Command, Errno, ProtocolError};
