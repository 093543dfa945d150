//! A BRP initiator: a volume of a target as something to read and write, over paths that may break
//! and a target that may die.
//!
//! - [`Session`]: for programs on this project's runtime, in real and in virtual time;
//! - [`BlockingSession`]: for ordinary threads, any number of them at the same time;
//! - [`SessionThread`]: the same for threads that do not wait for each answer;
//! - [`list`]: what a target has.
//!
//! What may be sent when is decided in `bimetal_proto::brp::Initiator`; this crate connects, moves
//! bytes and keeps time. It must never answer a request before the target has, or it has been given
//! up for good.

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
pub use session::{Call, Figures, Session};
pub use shared::Answer;
pub use thread::{Ended, Job, SessionThread};
