//! A BRP initiator. It reads and writes a volume of a target, over paths that can break and with a
//! target that can die.
//!
//! - [`Session`]: for programs on this project's runtime, in real and in virtual time;
//! - [`BlockingSession`]: for any number of ordinary threads that each wait for their answer;
//! - [`SessionThread`]: for threads that do not wait for each answer;
//! - [`list`]: the exports of a target.
//!
//! `bimetal_proto::brp::Initiator` decides which requests may be sent when; this crate connects,
//! transfers bytes and measures time. It must never answer a request before the target has answered
//! it or the session has permanently abandoned it.

mod blocking;
mod error;
mod establish;
mod options;
mod path;
mod session;
mod shared;
mod thread;
mod uri;

pub use bimetal_proto::Escaped;
pub use bimetal_proto::brp::greeting::{Listed, Refusal, RefusalCode};
pub use bimetal_proto::brp::initiator::Unusable;
pub use bimetal_proto::brp::response::Run;
pub use bimetal_proto::brp::wire::right;
pub use bimetal_proto::brp::{Mode, Op, Status, Welcome};
pub use bimetal_tls::{TlsError, TlsFiles};
pub use blocking::BlockingSession;
pub use error::{ConnectError, Error, Final};
pub use establish::{Connector, list};
pub use options::{Options, OptionsError, PATHS_MAX, TlsOptions};
pub use session::{Call, Session, Statistics};
pub use shared::Answer;
pub use thread::{Ended, Job, SessionThread};
