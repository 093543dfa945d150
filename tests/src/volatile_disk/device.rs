//! The volatile disk: its queue of operations, the worker thread that performs them, and their
//! latency.
//!
//! One thread performs the operations of all connections, one at a time, each when it is due. A
//! power cut empties the queue and forgets the connections in one step. So no operation that was in
//! flight before the cut can change the disk afterwards, even if its bytes are still in a socket.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::cache::{Content, Keep};
use crate::deadline::Deadline;
use crate::nbd::{SIMPLE_REPLY_MAGIC, errno};

/// Maximum number of queued operations of one connection. At this limit the thread that reads the
/// connection's requests waits.
const WAITING_MAX: usize = 256;

/// A client's request, checked against the size of the disk.
#[derive(Debug)]
pub enum Command {
    /// Read `length` bytes at `offset`.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: usize,
    },
    /// Write `bytes` at `offset`. With `fua` the data must be durable before the reply.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// Data to write.
        bytes: Vec<u8>,
        /// Whether the data must be durable before the reply.
        fua: bool,
    },
    /// Make all completed writes durable.
    Flush,
    /// Reply with this error number of the NBD protocol, and do no I/O.
    Refuse(u32),
}

/// Counters of a disk since its start, and two current values (unflushed blocks and queued
/// operations).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes of all kinds, zeroes and FUA included.
    pub writes: u64,
    /// Number of writes with FUA.
    pub durable_writes: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of blocks that a power cut at this moment could lose.
    pub unflushed_blocks: u64,
    /// Number of operations in the queue at this moment.
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
struct DiskState {
    content: Content,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    /// Queued operations, ordered by due time, then by arrival.
    queue: BTreeMap<(Deadline, u64), Waiting>,
    next_arrival: u64,
    frozen: bool,
    lying: bool,
    delay: Duration,
    /// Minimum time between two operations, which follows from the limit on operations per second.
    /// `next_slot` is the earliest time of the next operation.
    interval: Duration,
    next_slot: Deadline,
    counts: DiskCounters,
}

/// A disk that its worker thread and the threads of its connections share.
#[derive(Debug)]
pub struct Device {
    state: Mutex<DiskState>,
    changed: Condvar,
}

impl Device {
    /// Creates a disk that is fast (no delay, no limit), honest (flushes make data durable) and
    /// idle (no operation is queued).
    pub fn new(content: Content) -> Self {
        let state = DiskState {
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
            counts: DiskCounters::default(),
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().expect("no thread of the disk panicked")
    }

    /// Returns the size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.state().content.size_bytes()
    }

    /// Adds a connection and returns its number.
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

    /// Forgets a connection that its client has closed. The queued operations of the connection are
    /// still performed, because a disk does not know which clients are alive.
    pub fn disconnect(&self, number: u64) {
        self.state().connections.remove(&number);
    }

    /// Queues a command. If the connection's queue has no free slot, first waits for one. Returns
    /// false if a power cut has ended the connection.
    pub fn submit(&self, connection: u64, cookie: u64, command: Command) -> bool {
        let full = |s: &mut DiskState| {
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

    /// Performs the queued operations, each when it is due, and returns only if I/O on the backing
    /// file fails. The caller then ends the process: a test must not continue on a disk that is
    /// really broken.
    pub fn work(&self) -> std::io::Error {
        loop {
            let mut state = self.state();
            let next = state.queue.first_key_value().map(|(&(due, _), _)| due);
            let wait = match next {
                Some(due) if !state.frozen => due.left(),
                _ => Duration::MAX,
            };
            if !wait.is_zero() {
                // Whatever caused the wakeup, the loop examines the queue again.
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
                // The client has disconnected or does not read its replies. The shutdown also ends
                // the thread that reads the client's requests.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Cuts the power: closes every connection, discards all queued operations, and loses the
    /// cached and queued writes except for the part that `keep` selects. When this call returns,
    /// the disk has power again and is not frozen.
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
            // An error means that the client has already closed the connection.
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        state.frozen = false;
        state.next_slot = Deadline::now();
        self.changed.notify_all();
        Ok(())
    }

    /// Freezes or thaws the disk. A frozen disk performs no operation and sends no reply.
    pub fn freeze(&self, frozen: bool) {
        self.state().frozen = frozen;
        self.changed.notify_all();
    }

    /// Makes the disk lie or be honest. A lying disk reports flushes and FUA as done although no
    /// data became durable.
    pub fn lie(&self, lying: bool) {
        self.state().lying = lying;
    }

    /// Sets the delay that is added to every later operation. The delays of queued operations
    /// elapse concurrently.
    pub fn delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Limits the disk to the given number of operations a second, evenly spaced; 0 means no limit.
    pub fn limit(&self, operations_per_s: u64) {
        let mut state = self.state();
        let interval = 1_000_000_000u64.checked_div(operations_per_s);
        state.interval = interval.map_or(Duration::ZERO, Duration::from_nanos);
        state.next_slot = Deadline::now();
    }

    /// Returns the counters.
    pub fn counts(&self) -> DiskCounters {
        let state = self.state();
        DiskCounters {
            unflushed_blocks: state.content.unflushed_blocks() as u64,
            waiting: state.queue.len() as u64,
            ..state.counts
        }
    }

    /// Waits until `goal` writes have completed since the start; returns false if that takes longer
    /// than `within`.
    pub fn await_writes(&self, goal: u64, within: Duration) -> bool {
        let lacking = |s: &mut DiskState| s.counts.writes < goal;
        let waited = self
            .changed
            .wait_timeout_while(self.state(), within, lacking);
        !waited
            .expect("no thread of the disk panicked")
            .1
            .timed_out()
    }
}

impl DiskState {
    /// Performs one operation and returns the complete reply message.
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
