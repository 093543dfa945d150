//! Decodes the messages of a stream and checks their order, at both ends (section "States").
//!
//! There is one reader for each end. The caller passes the bytes that have been received and not
//! yet consumed. The reader returns a message and its length, or reports that the message is not
//! complete. The data of commands and responses is not part of the message and follows it. The
//! readers keep none of the bytes, so the fragmentation of a stream makes no difference.

use super::command::{self, Request};
use super::frame::{Head, Order};
use super::greeting::{Hello, Listed, Refusal, Welcome};
use super::response::{self, Completion};
use super::wire::{
    CONTROL_BYTES_MAX, FENCE_BYTES, FENCES_MAX, HEAD_BYTES, LISTED_MAX, ProtocolError,
    command_flag, feature, kind, u32_at,
};

/// A message that the target receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToTarget {
    /// The greeting.
    Hello(Hello),
    /// A greeting that offers only versions above the version that this crate supports.
    LaterVersion,
    /// The requests of a command. They have been stored in the caller's vector. The data of the
    /// writes among them follows in the stream.
    Command {
        /// True when the target must handle the requests one at a time.
        in_turn: bool,
    },
    /// Request to fence the path of this number.
    Fence(u32),
    /// Orderly end of the path.
    Close,
}

/// A message that the initiator receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToInitiator {
    /// The connection has become a path.
    Welcome(Welcome),
    /// The connection was refused.
    Refused(Refusal),
    /// One export of a list.
    Listed(Listed),
    /// The list is complete.
    ListEnd,
    /// The fenced path of this number has ended.
    Fenced(u32),
    /// A response: its results have been stored in the caller's vector, and its data follows in the
    /// stream.
    Response,
}

/// Checks a control frame if it is complete, and returns its length including the head; returns
/// `None` if it is incomplete.
fn control(order: &mut Order, head: &Head, unread: &[u8]) -> Result<Option<usize>, ProtocolError> {
    let body_bytes = head.body_bytes as usize;
    if head.count != 0 || head.flags != 0 {
        return Err(ProtocolError::BadField("flags"));
    }
    if body_bytes > CONTROL_BYTES_MAX {
        return Err(ProtocolError::BadLength(head.body_bytes));
    }
    let whole = HEAD_BYTES + body_bytes;
    if unread.len() < whole {
        return Ok(None);
    }
    order.take(head, unread, body_bytes)?;
    Ok(Some(whole))
}

fn fence(body: &[u8]) -> Result<u32, ProtocolError> {
    if body.len() != FENCE_BYTES {
        return Err(ProtocolError::BadLength(body.len() as u32));
    }
    if u32_at(body, 4) != 0 || u32_at(body, 0) == 0 {
        return Err(ProtocolError::BadField("path"));
    }
    Ok(u32_at(body, 0))
}

/// Reader of an initiator's frames, at the target.
#[derive(Clone, Debug, Default)]
pub struct TargetInbound {
    order: Order,
    open: bool,
    merge: bool,
}

impl TargetInbound {
    /// Creates the reader in its state before the first byte.
    pub fn new() -> TargetInbound {
        TargetInbound::default()
    }

    /// Records that the connection has become a path for which the features `features` were
    /// negotiated.
    pub fn open(&mut self, features: u32) {
        self.open = true;
        self.merge = features & feature::MERGE != 0;
        self.order.crc = features & feature::CRC != 0;
    }

    /// Decodes the message at the start of `unread`, and stores the requests of a command in
    /// `requests`. Returns the message and its length, or `None` when it is incomplete.
    ///
    /// # Errors
    /// A violation of the protocol, after which the connection must end.
    pub fn next(
        &mut self,
        unread: &[u8],
        requests: &mut Vec<Request>,
    ) -> Result<Option<(ToTarget, usize)>, ProtocolError> {
        let Some(head) = Head::decode(unread) else {
            return Ok(None);
        };
        match head.kind {
            kind::HELLO if !self.open => {}
            kind::COMMAND if self.open => return self.command(&head, unread, requests),
            kind::FENCE | kind::CLOSE if self.open => {}
            _ if !self.open => return Err(ProtocolError::NotBrp),
            other => return Err(ProtocolError::UnexpectedFrame(other)),
        }
        let Some(whole) = control(&mut self.order, &head, unread)? else {
            return Ok(None);
        };
        let body = &unread[HEAD_BYTES..whole];
        let message = match head.kind {
            kind::HELLO if Hello::is_later(body) => ToTarget::LaterVersion,
            kind::HELLO => ToTarget::Hello(Hello::decode(body)?),
            kind::FENCE => ToTarget::Fence(fence(body)?),
            _ if body.is_empty() => ToTarget::Close,
            _ => return Err(ProtocolError::BadLength(head.body_bytes)),
        };
        Ok(Some((message, whole)))
    }

    fn command(
        &mut self,
        head: &Head,
        unread: &[u8],
        requests: &mut Vec<Request>,
    ) -> Result<Option<(ToTarget, usize)>, ProtocolError> {
        let entries_bytes = command::entries_bytes(head, self.merge)?;
        let whole = HEAD_BYTES + entries_bytes;
        if unread.len() < whole {
            return Ok(None);
        }
        self.order.take(head, unread, entries_bytes)?;
        let entries = &unread[HEAD_BYTES..whole];
        command::decode_entries(head, entries, self.order.crc, requests)?;
        let in_turn = head.flags & command_flag::IN_TURN != 0;
        Ok(Some((ToTarget::Command { in_turn }, whole)))
    }
}

/// Reader of a target's frames, at the initiator.
#[derive(Clone, Debug, Default)]
pub struct InitiatorInbound {
    order: Order,
    open: bool,
    merge: bool,
    offered: u32,
    listed: usize,
    fenced: usize,
}

impl InitiatorInbound {
    /// Creates the reader for the answer to a `HELLO` that offered the features `offered`.
    pub fn new(offered: u32) -> InitiatorInbound {
        InitiatorInbound {
            offered,
            ..InitiatorInbound::default()
        }
    }

    /// Records that a fence (a request to end another path of the session) was sent.
    ///
    /// # Panics
    /// If more than [`FENCES_MAX`] fences are unanswered.
    pub fn expect_fenced(&mut self) {
        self.fenced += 1;
        assert!(self.fenced <= FENCES_MAX, "fences have a bound");
    }

    /// Returns true when one more fence is allowed to be sent.
    pub fn may_fence(&self) -> bool {
        self.fenced < FENCES_MAX
    }

    /// Decodes the message at the start of `unread`, and stores the results of a response in
    /// `completions`. Returns the message and its length, or `None` when it is incomplete.
    ///
    /// # Errors
    /// A violation of the protocol, after which the connection must end.
    pub fn next(
        &mut self,
        unread: &[u8],
        completions: &mut Vec<Completion>,
    ) -> Result<Option<(ToInitiator, usize)>, ProtocolError> {
        let Some(head) = Head::decode(unread) else {
            return Ok(None);
        };
        match head.kind {
            kind::WELCOME | kind::REFUSED | kind::LISTING if !self.open => {}
            kind::RESPONSE if self.open => return self.response(&head, unread, completions),
            kind::FENCED if self.open && self.fenced > 0 => {}
            other => return Err(ProtocolError::UnexpectedFrame(other)),
        }
        let Some(whole) = control(&mut self.order, &head, unread)? else {
            return Ok(None);
        };
        let body = &unread[HEAD_BYTES..whole];
        let message = match head.kind {
            kind::WELCOME => ToInitiator::Welcome(self.welcome(body)?),
            kind::REFUSED => ToInitiator::Refused(Refusal::decode(body)?),
            kind::LISTING => self.listing(body)?,
            _ => {
                self.fenced -= 1;
                ToInitiator::Fenced(fence(body)?)
            }
        };
        Ok(Some((message, whole)))
    }

    fn welcome(&mut self, body: &[u8]) -> Result<Welcome, ProtocolError> {
        let welcome = Welcome::decode(body)?;
        if welcome.features & !self.offered != 0 {
            return Err(ProtocolError::BadField("features"));
        }
        self.open = true;
        self.merge = welcome.agreed(feature::MERGE);
        self.order.crc = welcome.agreed(feature::CRC);
        Ok(welcome)
    }

    fn listing(&mut self, body: &[u8]) -> Result<ToInitiator, ProtocolError> {
        let Some(listed) = Listed::decode(body)? else {
            return Ok(ToInitiator::ListEnd);
        };
        self.listed += 1;
        if self.listed > LISTED_MAX {
            return Err(ProtocolError::EndlessList);
        }
        Ok(ToInitiator::Listed(listed))
    }

    fn response(
        &mut self,
        head: &Head,
        unread: &[u8],
        completions: &mut Vec<Completion>,
    ) -> Result<Option<(ToInitiator, usize)>, ProtocolError> {
        let entries_bytes = response::entries_bytes(head, self.merge)?;
        let whole = HEAD_BYTES + entries_bytes;
        if unread.len() < whole {
            return Ok(None);
        }
        self.order.take(head, unread, entries_bytes)?;
        let entries = &unread[HEAD_BYTES..whole];
        response::decode_entries(head, entries, self.order.crc, completions)?;
        Ok(Some((ToInitiator::Response, whole)))
    }
}
