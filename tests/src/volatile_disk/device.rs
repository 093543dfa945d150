//! The disk itself: one queue, one worker, and how long things take.
//!
//! Operations of all connections are done one after the other by one thread, each at its time. A
//! cut of the power empties the queue and forgets the connections in one step, so nothing that was
//! under way can reach the disk afterwards, whatever its sender's sockets still hold.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::cache::{Content, Keep};
use crate::deadline::Deadline;
use crate::nbd::{SIMPLE_REPLY_MAGIC, errno};

/// Operations of one connection that wait; then its sender has to.
const WAITING_MAX: usize = 256;

/// What a client asks for, checked against the size of the disk.
#[derive(Debug)]
pub enum Command {
    /// Read `length` bytes at `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: usize,
    },
    /// Write; with `fua` the reply says that it is durable.
    Write {
        /// First byte.
        offset: u64,
        /// What is written.
        bytes: Vec<u8>,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make durable what is complete.
    Flush,
    /// Answer with an error of the protocol.
    Refuse(u32),
}

/// What a disk has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes of all kinds.
    pub writes: u64,
    /// Of them those with FUA.
    pub durable_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Blocks that a power cut could lose now.
    pub unflushed_blocks: u64,
    /// Operations that wait for their time now.
    pub waiting: u64,
}

#[derive(Debug)]
struct Waiting {
    connection: u64,
    cookie: u64,
    command: Command,
}

#[derive(Debug)]
struct Connection {
    stream: Arc<UnixStream>,
    waiting: usize,
}

#[derive(Debug)]
struct State {
    content: Content,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// By the time each is due and, where that is the same, by arrival.
    queue: BTreeMap<(Deadline, u64), Waiting>,
    next_arrival: u64,
    frozen: bool,
    lying: bool,
    delay: Duration,
    /// Time between two operations, and when the next one may be.
    interval: Duration,
    next_slot: Deadline,
    counts: Counts,
}

/// See the module.
#[derive(Debug)]
pub struct Device {
    state: Mutex<State>,
    changed: Condvar,
}

impl Device {
    /// A disk that is fast, honest and idle.
    pub fn new(content: Content) -> Self {
        let state = State {
            content,
            connections: BTreeMap::new(),
            next_connection: 0,
            queue: BTreeMap::new(),
            next_arrival: 0,
            frozen: false,
            lying: false,
            delay: Duration::ZERO,
            interval: Duration::ZERO,
            next_slot: Deadline::now(),
            counts: Counts::default(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the disk panicked")
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.state().content.size_bytes()
    }

    /// Takes a connection on; the number names it from now on.
    pub fn connect(&self, stream: Arc<UnixStream>) -> u64 {
        let mut state = self.state();
        let number = state.next_connection;
        state.next_connection += 1;
        let waiting = 0;
        state
            .connections
            .insert(number, Connection { stream, waiting });
        number
    }

    /// Forgets a connection whose client is gone. What it asked for is still done: a disk does not
    /// know who is alive.
    pub fn disconnect(&self, number: u64) {
        self.state().connections.remove(&number);
    }

    /// Queues a command, and waits while the connection has too many; false once a power cut has
    /// ended the connection.
    pub fn submit(&self, connection: u64, cookie: u64, command: Command) -> bool {
        let full = |s: &mut State| {
            let found = s.connections.get(&connection);
            found.is_some_and(|c| c.waiting >= WAITING_MAX)
        };
        let guard = self.changed.wait_while(self.state(), full);
        let mut guard = guard.expect("no thread of the disk panicked");
        let state = &mut *guard;
        let Some(found) = state.connections.get_mut(&connection) else {
            return false;
        };
        found.waiting += 1;
        let slot = Deadline::now().max(state.next_slot);
        state.next_slot = slot.later(state.interval);
        let due = slot.later(state.delay);
        let waiting = Waiting {
            connection,
            cookie,
            command,
        };
        state.queue.insert((due, state.next_arrival), waiting);
        state.next_arrival += 1;
        self.changed.notify_all();
        true
    }

    /// Does operations, each at its time, for ever. An error of the file underneath ends the
    /// process: a test must not go on over a disk that is broken by accident.
    pub fn work(&self) -> std::io::Error {
        loop {
            let mut state = self.state();
            let next = state.queue.first_key_value().map(|(&(due, _), _)| due);
            let wait = match next {
                Some(due) if !state.frozen => due.left(),
                _ => Duration::MAX,
            };
            if !wait.is_zero() {
                // Whatever wakes it, it looks again.
                let _ = self.changed.wait_timeout(state, wait);
                continue;
            }
            let (_, waiting) = state.queue.pop_first().expect("it was just seen");
            let reply = match state.perform(&waiting) {
                Ok(reply) => reply,
                Err(error) => return error,
            };
            let found = state.connections.get_mut(&waiting.connection);
            let stream = found.map(|connection| {
                connection.waiting -= 1;
                Arc::clone(&connection.stream)
            });
            self.changed.notify_all();
            drop(state);
            if let Some(stream) = stream
                && (&*stream).write_all(&reply).is_err()
            {
                // The client is gone, or takes no reply; its reader sees the end as well.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Cuts the power: every connection is closed, nothing that waits is done, the cache is gone
    /// but for what `keep` says. The disk is on again at once, and thawed.
    pub fn cut(&self, keep: Keep) -> std::io::Result<()> {
        let mut state = self.state();
        let under_way: Vec<(u64, Vec<u8>)> = std::mem::take(&mut state.queue)
            .into_values()
            .filter_map(|waiting| match waiting.command {
                Command::Write { offset, bytes, .. } => Some((offset, bytes)),
                _ => None,
            })
            .collect();
        state.content.cut(keep, &under_way)?;
        for connection in std::mem::take(&mut state.connections).into_values() {
            // One that its client has closed already is closed all the same.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        state.frozen = false;
        state.next_slot = Deadline::now();
        self.changed.notify_all();
        Ok(())
    }

    /// While frozen the disk answers nothing.
    pub fn freeze(&self, frozen: bool) {
        self.state().frozen = frozen;
        self.changed.notify_all();
    }

    /// While lying the disk calls things durable that are not.
    pub fn lie(&self, lying: bool) {
        self.state().lying = lying;
    }

    /// Every operation takes so long, next to others.
    pub fn delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// At most so many operations a second, one after the other; 0 for no limit.
    pub fn limit(&self, operations_per_s: u64) {
        let mut state = self.state();
        let interval = 1_000_000_000u64.checked_div(operations_per_s);
        state.interval = interval.map_or(Duration::ZERO, Duration::from_nanos);
        state.next_slot = Deadline::now();
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts {
            unflushed_blocks: state.content.unflushed_blocks() as u64,
            waiting: state.queue.len() as u64,
            ..state.counts
        }
    }

    /// Waits until `goal` writes are complete since the start; false if that takes longer than
    /// `within`.
    pub fn await_writes(&self, goal: u64, within: Duration) -> bool {
        let lacking = |s: &mut State| s.counts.writes < goal;
        let waited = self
            .changed
            .wait_timeout_while(self.state(), within, lacking);
        !waited
            .expect("no thread of the disk panicked")
            .1
            .timed_out()
    }
}

impl State {
    /// Does one operation; returns the whole reply.
    fn perform(&mut self, waiting: &Waiting) -> std::io::Result<Vec<u8>> {
        let (mut error, mut data) = (0, Vec::new());
        match &waiting.command {
            &Command::Read { offset, length } => {
                self.counts.reads += 1;
                data = self.content.read(offset, length)?;
            }
            Command::Write { offset, bytes, fua } => {
                self.counts.writes += 1;
                self.content.write(*offset, bytes)?;
                if *fua {
                    self.counts.durable_writes += 1;
                    if !self.lying {
                        self.content.flush_range(*offset, bytes.len() as u64)?;
                    }
                }
            }
            Command::Flush => {
                self.counts.flushes += 1;
                if !self.lying {
                    self.content.flush()?;
                }
            }
            &Command::Refuse(number) => error = number,
        }
        assert!(error == 0 || error == errno::EINVAL || error == errno::ENOSPC);
        let mut reply = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend(u32::to_be_bytes(error));
        reply.extend(waiting.cookie.to_be_bytes());
        reply.append(&mut data);
        Ok(reply)
    }
}
