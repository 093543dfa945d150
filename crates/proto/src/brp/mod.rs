//! BRP, the block protocol with temporal merge: its frames, and the state machines of both ends.
//!
//! The source is `docs/brp.md` of this repository; item documentation names its sections.
//!
//! - [`wire`]: numbers and small types of the wire, limits, [`ProtocolError`];
//! - [`frame`]: the head of every frame, and its sequence number and check at either end;
//! - [`greeting`]: the initiator's greeting and the target's answers to it;
//! - [`command`] and [`response`]: requests and results, alone and merged;
//! - [`inbound`]: the permitted order of messages, and where each message ends;
//! - [`Sessions`]: the target's state of sessions, paths and fences;
//! - [`Initiator`]: a session at the initiator: order, merging, replay.
//!
//! A [`ProtocolError`] always means that the connection must end. An error that can be answered
//! within the protocol is answered with a [`Status`] or a [`Refusal`], and is not a
//! `ProtocolError`. Every length is checked against its limit before it is used and before memory
//! is allocated for it.

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
