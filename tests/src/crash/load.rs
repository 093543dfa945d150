//! A client that keeps requests in flight on one connection, and records the server's promises in a
//! [`Model`].

use std::collections::BTreeMap;
use std::ops::Range;

use super::model::{Breach, Model, Settled, content};
use crate::nbd::{FUA, Request, Wire, cmd};
use crate::random::Random;
use crate::volatile_disk::BLOCK_BYTES;

/// Number of blocks that the load uses at each end of the volume. The number is small, so that
/// blocks are overwritten often.
const ZONE_BLOCKS: u64 = 384;
/// Maximum length of a request, in blocks.
const LENGTH_MAX: u64 = 8;

/// A request in flight.
#[derive(Debug)]
enum Waiting {
    Write { blocks: Range<u64>, fua: bool },
    Read { blocks: Range<u64> },
    Flush { sent: u64 },
}

impl Waiting {
    fn blocks(&self) -> Range<u64> {
        match self {
            Waiting::Write { blocks, .. } | Waiting::Read { blocks } => blocks.clone(),
            Waiting::Flush { .. } => 0..0,
        }
    }
}

/// The kinds of requests that a load sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All kinds: writes, some with FUA, zeroes, flushes, reads.
    All,
    /// Only plain writes, which the server acknowledges even while a side is frozen.
    Writes,
}

/// A load: a connection, its requests in flight, and the model of the volume's content.
#[derive(Debug)]
pub struct Load<'m> {
    wire: Wire,
    model: &'m mut Model,
    waiting: BTreeMap<u64, Waiting>,
    next_cookie: u64,
}

impl<'m> Load<'m> {
    /// Creates a load on a connection that has no requests in flight.
    pub fn new(wire: Wire, model: &'m mut Model) -> Self {
        Self {
            wire,
            model,
            waiting: BTreeMap::new(),
            next_cookie: 0,
        }
    }

    /// Returns the number of requests in flight.
    pub fn under_way(&self) -> usize {
        self.waiting.len()
    }

    /// Keeps up to `depth` requests in flight until `answers` requests have completed. The
    /// remaining requests stay in flight.
    ///
    /// # Errors
    /// A breach of the server's promises: a read returned data other than that of the newest write,
    /// or a reply was an error.
    pub fn run(
        &mut self,
        random: &mut Random,
        mix: Mix,
        depth: usize,
        answers: u64,
    ) -> Result<(), Breach> {
        for _ in 0..answers {
            while self.waiting.len() < depth {
                self.send_one(random, mix);
            }
            self.answer()?;
        }
        Ok(())
    }

    /// Waits for the answers to all requests in flight.
    ///
    /// # Errors
    /// In the same cases as [`Load::run`].
    pub fn finish(&mut self) -> Result<(), Breach> {
        while !self.waiting.is_empty() {
            self.answer()?;
        }
        Ok(())
    }

    fn send_one(&mut self, random: &mut Random, mix: Mix) {
        let blocks = self.free_blocks(random);
        let kind = match mix {
            Mix::All => random.below(100),
            Mix::Writes => 99,
        };
        match kind {
            0..10 => self.send(cmd::FLUSH, 0, 0..0, &[], |model| Waiting::Flush {
                sent: model.flush_sent(),
            }),
            10..22 => {
                let read = blocks.clone();
                self.send(cmd::READ, 0, blocks, &[], |_| Waiting::Read {
                    blocks: read,
                });
            }
            22..26 => self.send_write(cmd::WRITE_ZEROES, 0, blocks, false),
            _ => {
                let stamp = self.model.stamp();
                self.send_write(cmd::WRITE, stamp, blocks, (26..34).contains(&kind));
            }
        }
    }

    /// Returns a random range of blocks near one end of the volume that no request in flight
    /// touches. Few requests are in flight, so a free range is found soon.
    fn free_blocks(&self, random: &mut Random) -> Range<u64> {
        loop {
            let length = if random.chance(1, 2) {
                1
            } else {
                1 + random.below(LENGTH_MAX)
            };
            let start = random.below(ZONE_BLOCKS - LENGTH_MAX);
            let zone = *random.pick(&zones(self.model));
            let blocks = zone + start..zone + start + length;
            let meets = |w: &Waiting| {
                let other = w.blocks();
                other.start < blocks.end && blocks.start < other.end
            };
            if !self.waiting.values().any(meets) {
                return blocks;
            }
        }
    }

    fn send_write(&mut self, command: u16, stamp: u64, blocks: Range<u64>, fua: bool) {
        let payload = match command {
            cmd::WRITE => content(blocks.clone(), stamp),
            _ => Vec::new(),
        };
        self.model.sent(blocks.clone(), stamp);
        let written = blocks.clone();
        let flags = if fua { FUA } else { 0 };
        self.send(command, flags, blocks, &payload, |_| Waiting::Write {
            blocks: written,
            fua,
        });
    }

    fn send(
        &mut self,
        command: u16,
        flags: u16,
        blocks: Range<u64>,
        payload: &[u8],
        waiting: impl FnOnce(&Model) -> Waiting,
    ) {
        let length = (blocks.end - blocks.start) * BLOCK_BYTES;
        let request = Request {
            flags,
            cookie: self.next_cookie,
            ..Request::new(command, blocks.start * BLOCK_BYTES, length as u32)
        };
        let waiting = waiting(self.model);
        self.waiting.insert(self.next_cookie, waiting);
        self.next_cookie += 1;
        let mut bytes = request.bytes();
        bytes.extend(payload);
        self.wire.send(&bytes).expect("the server takes a request");
    }

    /// Receives one reply and records it in the model.
    fn answer(&mut self) -> Result<(), Breach> {
        let (error, cookie) = self.wire.simple_reply().expect("the server answers");
        let waiting = self.waiting.remove(&cookie);
        let waiting = waiting.unwrap_or_else(|| panic!("nothing has the cookie {cookie}"));
        if error != 0 {
            return Err(refused(waiting.blocks().start, error, &waiting));
        }
        match waiting {
            Waiting::Write { blocks, fua } => self.model.acknowledged(blocks, fua),
            Waiting::Flush { sent } => self.model.flushed(sent),
            Waiting::Read { blocks } => {
                let length = (blocks.end - blocks.start) * BLOCK_BYTES;
                let bytes = self.wire.recv(length as usize).expect("the data of a read");
                self.model.check_newest(blocks.start, &bytes)?;
            }
        }
        Ok(())
    }
}

/// Returns the breach for an error reply. An error is always a breach, because both disks are
/// present.
fn refused(block: u64, error: u32, request: &impl std::fmt::Debug) -> Breach {
    let words = format!("{request:?} was answered with the error {error}");
    Breach { block, words }
}

/// Returns the first blocks of the two zones that a load uses: one at the start and one at the end
/// of the volume.
fn zones(model: &Model) -> [u64; 2] {
    [0, model.blocks() - ZONE_BLOCKS]
}

/// Reads all blocks that a load may have touched, and compares them with their possible content.
///
/// # Errors
/// The breach for the first block that holds other content, or that cannot be read.
pub fn settle(wire: &mut Wire, model: &mut Model) -> Result<Settled, Breach> {
    let mut sum = Settled::default();
    for zone in zones(model) {
        let length = (ZONE_BLOCKS * BLOCK_BYTES) as u32;
        let read = Request::new(cmd::READ, zone * BLOCK_BYTES, length);
        match wire.run(read, &[]).expect("the server answers") {
            0 => {}
            error => return Err(refused(zone, error, &read)),
        }
        let bytes = wire.recv(length as usize).expect("the data of a read");
        let settled = model.settle(zone, &bytes)?;
        sum.newest += settled.newest;
        sum.older += settled.older;
    }
    Ok(sum)
}
