//! Errors of connecting, of requests, and of sessions that have ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bimetal_proto::Escaped;
use bimetal_proto::brp::initiator::Unusable;
use bimetal_proto::brp::{ProtocolError, Refusal, Status};

/// Reason why a connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A network error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer does not speak BRP, or violates the protocol.
    #[error("the peer is not a valid BRP target: {0}")]
    Protocol(#[from] ProtocolError),
    /// The target refused the connection.
    #[error("the target refused the connection: {}", Escaped(&.0.words))]
    Refused(Refusal),
    /// The target is no longer usable by this session.
    #[error("{0}")]
    Unusable(#[from] Unusable),
    /// The target did not answer in time.
    #[error("the target did not answer in time")]
    Silent,
}

/// Reason why a session fails all requests.
#[derive(Debug, thiserror::Error)]
#[error("{target}: no connection within {} s: {cause}", patience.as_secs_f64())]
pub struct Final {
    /// The export, and the addresses of its target.
    pub target: String,
    /// The last failure.
    pub cause: String,
    /// Time for which the connection was attempted.
    pub patience: Duration,
}

/// Reason why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The target answered with this status.
    #[error("the target answered {0:?}")]
    Target(Status),
    /// The target died and lost changes. It had answered these changes, but no flush had covered
    /// them. Exactly one flush fails with this error.
    #[error("the target died and lost changes that were not flushed")]
    Lost,
    /// Several paths broke, one after the other, while this request was in flight on them. If the
    /// request is a change, it is unknown whether it took effect.
    #[error("every connection failed during this request")]
    Broken,
    /// The target did not become reachable again in time. If the request is a change, it is unknown
    /// whether it took effect.
    #[error("{0}")]
    Unreachable(Arc<Final>),
    /// The target can never be used by this session again.
    #[error("{0}")]
    Unusable(Unusable),
    /// A write has more data than the target accepts in one request; nothing was sent.
    #[error("the write is longer than the target accepts in one request")]
    TooLong,
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}
