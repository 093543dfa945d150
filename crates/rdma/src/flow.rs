//! Credit flow control: one end of a connection as a state machine that does no I/O. It knows which
//! messages are allowed to be sent, which data has arrived, and how many credits this end owes the
//! other end.
//!
//! A message that finds no receive posted at the other end breaks a reliable connection, so each
//! end counts credits. An end has one *credit* for each message with data for which the other end
//! has a free buffer. When the data of a buffer has been consumed and the buffer has been posted
//! again, a credit is given back in the immediate word of the next message. If there is no data to
//! send and half of the credits are owed, a message without data gives them back. A message without
//! data needs no credit; otherwise two ends without credits would wait for each other. The number
//! of such messages in flight is still bounded: each of them gives back at least half of all
//! credits, and credits can be given back only after they have been used, so there are never more
//! than two in flight ([`RESERVE`]).
//!
//! This module must never let an end send a message for which the other end has no receive,
//! whatever the other end sends. It must never wait forever while the program at the other end
//! consumes the data that has arrived.

use std::collections::VecDeque;

use crate::terms::Terms;

/// Number of receives that are posted in addition to the number of credits, for messages without
/// data, which only give credits back.
pub const RESERVE: u16 = 2;

/// A violation of the protocol by the other end. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A message came without the immediate word.
    #[error("a message arrived without its immediate word")]
    NoWord,
    /// The immediate word has undefined bits set.
    #[error("the immediate word {0:#010x} has bits without a meaning")]
    UnknownBits(u32),
    /// More credits were given back than had been used.
    #[error("{0} credits were returned, more than had been used")]
    TooManyCredits(u16),
    /// Data came without a credit for it.
    #[error("data arrived without a credit")]
    NoCredit,
    /// A message without data gave back less than half of all credits. A credit is the permission
    /// to send one message with data.
    #[error("a message without data returned only {0} credits")]
    IdleMessage(u16),
    /// A message was longer than its receive buffer.
    #[error("a message of {0} bytes is longer than its buffer")]
    TooLong(u32),
}

/// A message with data that is to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Number of the send buffer that holds the message until it has been sent.
    pub slot: u16,
    /// Number of data bytes that the message carries.
    pub bytes: usize,
    /// Immediate word of the message.
    pub word: u32,
}

/// Data that has arrived: a part of a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The buffer.
    pub slot: u16,
    /// Offset of the first byte that has not been consumed. `end` is the offset after the last
    /// byte.
    pub start: usize,
    /// See `start`.
    pub end: usize,
}

/// Flow control of one end of a connection: its credits, its send buffers, and the data that has
/// arrived and has not been consumed.
#[derive(Debug)]
pub struct Flow {
    own: Terms,
    peer: Terms,
    /// Send buffers of messages that are not in flight.
    free: Vec<u16>,
    /// Total number of send buffers.
    slots: u16,
    /// Number of messages with data that this end is allowed to send.
    credits: u16,
    /// Number of messages with data that the other end is still allowed to send.
    granted: u16,
    /// Number of credits that this end owes the other end: receives that were posted again and for
    /// which no credit has been given back.
    owed: u16,
    /// Number of messages without data whose send has not completed.
    idle_under_way: u16,
    arrived: VecDeque<Arrived>,
}

impl Flow {
    /// Creates the flow control of an end that has `slots` send buffers and has posted [`receives`]
    /// receives. `own` and `peer` are the terms of the two ends.
    pub fn new(own: Terms, peer: Terms, slots: u16) -> Flow {
        Flow {
            own,
            peer,
            free: (0..slots).rev().collect(),
            slots,
            credits: peer.credits,
            granted: own.credits,
            owed: 0,
            idle_under_way: 0,
            arrived: VecDeque::with_capacity(usize::from(own.credits)),
        }
    }

    /// Returns the next message with data, which uses a send buffer and a credit. `left_bytes` is
    /// the number of data bytes that wait to be sent. Returns `None` if there is no data, no credit
    /// or no free send buffer.
    pub fn next_message(&mut self, left_bytes: usize) -> Option<Outgoing> {
        if self.credits == 0 || left_bytes == 0 {
            return None;
        }
        let slot = self.free.pop()?;
        self.credits -= 1;
        let bytes_max = self.own.buffer_bytes.min(self.peer.buffer_bytes);
        Some(Outgoing {
            slot,
            bytes: left_bytes.min(bytes_max as usize),
            word: self.give_back(),
        })
    }

    /// Returns the immediate word (the 32-bit number sent with a message) of a message without
    /// data; `None` if no such message is due.
    pub fn next_idle_message(&mut self) -> Option<u32> {
        let due = self.is_idle_message_due() && self.idle_under_way < RESERVE;
        due.then(|| {
            self.idle_under_way += 1;
            self.give_back()
        })
    }

    fn is_idle_message_due(&self) -> bool {
        self.owed * 2 >= self.own.credits
    }

    /// Records that all owed credits have been given back to the other end. Returns the immediate
    /// word (the number sent with a message) that gives them back.
    fn give_back(&mut self) -> u32 {
        self.granted += self.owed;
        u32::from(std::mem::take(&mut self.owed))
    }

    /// Records that the send of a message with data has completed, so that its buffer can be
    /// reused.
    pub fn sent(&mut self, slot: u16) {
        assert!(
            slot < self.slots && !self.free.contains(&slot),
            "only what was under way can have been sent"
        );
        self.free.push(slot);
    }

    /// Records that the send of a message without data has completed.
    pub fn idle_message_sent(&mut self) {
        assert!(self.idle_under_way > 0, "one was under way");
        self.idle_under_way -= 1;
    }

    /// Returns true if progress depends on the completion of a send. This is the case if `has_data`
    /// is true and all send buffers are in flight, or if a message without data is due and the
    /// maximum number of such messages is in flight.
    pub fn waits_for_sent(&self, has_data: bool) -> bool {
        let for_buffer = has_data && self.free.is_empty();
        for_buffer || (self.is_idle_message_due() && self.idle_under_way == RESERVE)
    }

    /// Returns true when no message is in flight.
    pub fn is_settled(&self) -> bool {
        self.free.len() == usize::from(self.slots) && self.idle_under_way == 0
    }

    /// Processes a message that has arrived in the receive buffer `slot`. If the message has no
    /// data, returns `slot`, whose buffer must be posted again immediately.
    ///
    /// # Errors
    /// A violation of the protocol by the other end.
    pub fn arrive(
        &mut self,
        slot: u16,
        bytes: u32,
        word: Option<u32>,
    ) -> Result<Option<u16>, Breach> {
        let word = word.ok_or(Breach::NoWord)?;
        let credits = u16::try_from(word).map_err(|_| Breach::UnknownBits(word))?;
        if credits > self.peer.credits - self.credits {
            return Err(Breach::TooManyCredits(credits));
        }
        if bytes > self.own.buffer_bytes {
            return Err(Breach::TooLong(bytes));
        }
        if bytes == 0 && credits * 2 < self.peer.credits {
            return Err(Breach::IdleMessage(credits));
        }
        if bytes > 0 && self.granted == 0 {
            return Err(Breach::NoCredit);
        }
        self.credits += credits;
        if bytes == 0 {
            return Ok(Some(slot));
        }
        self.granted -= 1;
        let end = bytes as usize;
        self.arrived.push_back(Arrived {
            slot,
            start: 0,
            end,
        });
        Ok(None)
    }

    /// Returns the oldest data that has not been consumed.
    pub fn first(&self) -> Option<Arrived> {
        self.arrived.front().copied()
    }

    /// Consumes `bytes` bytes of the [first](Self::first) data. If all data of that receive buffer
    /// is then consumed, returns the buffer's slot. The caller must post this buffer again, and the
    /// flow control records that a credit for it is owed to the other end.
    ///
    /// # Panics
    /// If the first data has fewer than `bytes` bytes.
    pub fn take(&mut self, bytes: usize) -> Option<u16> {
        let first = self.arrived.front_mut().expect("something has arrived");
        assert!(first.start + bytes <= first.end, "only what is there");
        first.start += bytes;
        if first.start < first.end {
            return None;
        }
        let slot = first.slot;
        self.arrived.pop_front();
        self.owed += 1;
        Some(slot)
    }
}

/// Returns the number of receives that an end with these terms posts before it connects or accepts.
pub fn receives(own: Terms) -> u16 {
    own.credits + RESERVE
}

#[cfg(test)]
mod tests;
