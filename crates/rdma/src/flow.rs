//! What may be sent, what has arrived, and who owes whom a buffer: one end of a connection as a
//! state machine that does no I/O.
//!
//! A message that finds no receive posted at the other end breaks a reliable connection. So an end
//! counts: it has a *credit* for each message with data that the other end has a buffer for, and
//! gives credits back as its own buffers are empty and posted again, in the immediate word of
//! whatever it sends. When nothing is to be sent and half of the credits are owed, a message
//! without data carries them. Such a message takes no credit, or two ends without credits would
//! wait for each other; how many of them can be on their way is bounded all the same: each carries
//! at least half of all the credits there are, and they are only given back once they have been
//! used, so there are never more than two ([`RESERVE`]).
//!
//! It must never let an end send what the other has no receive for, whatever the other says, and it
//! must never wait for ever while the program at the other end takes what has arrived.

use std::collections::VecDeque;

use crate::terms::Terms;

/// Receives posted beyond the credits, for messages that only give credits back.
pub const RESERVE: u16 = 2;

/// What the other end did that it must not do. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A message without the immediate word.
    #[error("a message came without its immediate word")]
    NoWord,
    /// A bit of the word that has no meaning.
    #[error("the immediate word {0:#010x} has bits without a meaning")]
    UnknownBits(u32),
    /// More credits than there are.
    #[error("{0} credits were given back, more than had been used")]
    TooManyCredits(u16),
    /// Data without a credit for it.
    #[error("data came without a credit for it")]
    NoCredit,
    /// A message without data that gives back less than half of the credits.
    #[error("a message without data gave back only {0} credits")]
    IdleMessage(u16),
    /// A message longer than the buffer that it came into.
    #[error("a message of {0} bytes is longer than its buffer")]
    TooLong(u32),
}

/// A message with data that is to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The buffer that holds it until it has been sent.
    pub slot: u16,
    /// How much of the data it takes.
    pub bytes: usize,
    /// Its immediate word.
    pub word: u32,
}

/// Data that has arrived: a part of a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The buffer.
    pub slot: u16,
    /// The first byte that has not been taken, and the one behind the last.
    pub start: usize,
    /// See `start`.
    pub end: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Flow {
    own: Terms,
    peer: Terms,
    /// Buffers of messages that are not under way.
    free: Vec<u16>,
    /// Buffers of messages in all.
    slots: u16,
    /// Messages with data that may be sent.
    credits: u16,
    /// Messages with data that the other end may still send.
    granted: u16,
    /// Receives that were posted again and that the other end does not know of.
    owed: u16,
    /// Messages without data that have not been sent to their end.
    idle_under_way: u16,
    arrived: VecDeque<Arrived>,
}

impl Flow {
    /// An end with `slots` buffers for what it sends, between two ends of these terms. The
    /// receives, as many as [`receives`] says, have been posted.
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

    /// The next message with data when `left_bytes`, more than none, wait to be sent; its slot is
    /// taken and its credit used. `None` as long as there is no credit or no slot.
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

    /// The word of a message without data, if one is due.
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

    /// Gives all credits back that are owed.
    fn give_back(&mut self) -> u32 {
        self.granted += self.owed;
        u32::from(std::mem::take(&mut self.owed))
    }

    /// A message with data has been sent to its end: its buffer may be used again.
    pub fn sent(&mut self, slot: u16) {
        assert!(
            slot < self.slots && !self.free.contains(&slot),
            "only what was under way can have been sent"
        );
        self.free.push(slot);
    }

    /// A message without data has been sent to its end.
    pub fn idle_message_sent(&mut self) {
        assert!(self.idle_under_way > 0, "one was under way");
        self.idle_under_way -= 1;
    }

    /// True when something waits for the end of a message under way: for a buffer to send from
    /// while `has_data`, or for room for a message without data.
    pub fn waits_for_sent(&self, has_data: bool) -> bool {
        let for_buffer = has_data && self.free.is_empty();
        for_buffer || (self.is_idle_message_due() && self.idle_under_way == RESERVE)
    }

    /// True when nothing is under way.
    pub fn is_settled(&self) -> bool {
        self.free.len() == usize::from(self.slots) && self.idle_under_way == 0
    }

    /// A message has arrived in the receive buffer `slot`. Where it has no data, that buffer is to
    /// be posted again at once, and its number is given.
    ///
    /// # Errors
    /// What the other end must not do.
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

    /// The oldest data that has not been taken.
    pub fn first(&self) -> Option<Arrived> {
        self.arrived.front().copied()
    }

    /// Takes `bytes` of the [first](Self::first). When that is all of it, its buffer is to be
    /// posted again and its number is given; from then on the other end is owed a credit for it.
    ///
    /// # Panics
    /// When so much is not there.
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

/// Receives that an end of these terms posts before it connects or accepts.
pub fn receives(own: Terms) -> u16 {
    own.credits + RESERVE
}

#[cfg(test)]
mod tests;
