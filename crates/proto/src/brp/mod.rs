//! BRP, the block protocol with temporal merge: its frames, and the state machines of both ends.
//!
//! The source is `docs/brp.md` of this repository; item documentation names its sections.
//!
//! - [`wire`]: numbers and small types of the wire, limits, [`ProtocolError`];
//! - [`frame`]: the head that every frame has, and its sequence and check at either end;
//! - [`greeting`]: who asks for what, and what a target answers;
//! - [`command`] and [`response`]: requests and results, alone and merged;
//! - [`inbound`]: what may come when, and where one message ends;
//! - [`Sessions`]: what a target knows of sessions, paths and fences;
//! - [`Initiator`]: a session from the other end: order, merging, replay.
//!
//! A [`ProtocolError`] always means: end the connection. What can be answered is answered with a
//! [`Status`] or a [`Refusal`] and is no `ProtocolError`. No length is believed, and no memory
//! taken for it, before it has been held against its limit.

pub mod command;
pub mod frame;
pub mod greeting;
pub mod inbound;
pub mod initiator;
pub mod response;
mod sessions;
pub mod wire;

pub use command::Request;
pub use frame::Outbound;
pub use greeting::{Hello, Listed, Purpose, Refusal, Welcome};
pub use inbound::{InitiatorInbound, TargetInbound};
pub use initiator::{Initiator, Mode};
pub use response::Completion;
pub use sessions::{Path, Sessions};
pub use wire::{Op, ProtocolError, Status};
