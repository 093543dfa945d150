//! Errors: of a connection that never came about, of a request, and of a session that has ended.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bimetal_proto::Escaped;
use bimetal_proto::brp::initiator::Unusable;
use bimetal_proto::brp::{ProtocolError, Refusal, Status};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The network says so.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Whoever answers does not speak BRP, or not properly.
    #[error("not a sound BRP target: {0}")]
    Protocol(#[from] ProtocolError),
    /// The target refuses.
    #[error("the target refused: {}", Escaped(&.0.words))]
    Refused(Refusal),
    /// The target is not the one of this session any more.
    #[error("{0}")]
    Unusable(#[from] Unusable),
    /// Nobody answered.
    #[error("no answer in time")]
    Silent,
}

/// Why a session serves no request.
#[derive(Debug, thiserror::Error)]
#[error("{target}: given up after {} s: {cause}", patience.as_secs_f64())]
pub struct Final {
    /// The export and the addresses it was sought at.
    pub target: String,
    /// What happened last.
    pub cause: String,
    /// How long it was tried.
    pub patience: Duration,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The target says so.
    #[error("the target answered {0:?}")]
    Target(Status),
    /// The target died, and changes that it had answered and no flush had covered are lost. One
    /// flush says so.
    #[error("the target died and lost changes that were not flushed")]
    Lost,
    /// Path after path broke under this request; a change may have happened or not.
    #[error("every path broke under this request")]
    Broken,
    /// The target did not come back in time; a change may have happened or not.
    #[error("{0}")]
    Unreachable(Arc<Final>),
    /// The target can never be used by this session again.
    #[error("{0}")]
    Unusable(Unusable),
    /// A write has more data than the target takes at once; nothing was sent.
    #[error("the write is longer than the target takes at once")]
    TooLong,
    /// The session was closed.
    #[error("the session is closed")]
    Closed,
}
