//! Timing models of storage devices, as pure state machines.
//!
//! A model answers one question: when would such a device have finished a given command? It holds
//! no data, reads no clock, starts no task and performs no I/O. The layer above passes the time
//! with every call, and completes its own requests at the time that the model gives. The same code
//! therefore runs in virtual time and as a real-time emulation over a file.
//!
//! The results of a model must never depend on how often or how late it is called. Completions
//! carry the modelled time; a late [`TimingModel::advance`] reports the same commands in the same
//! order as an early one, and a command submitted in between finds the same device state.
//!
//! All times are integer nanoseconds. Random durations are drawn once, by arithmetic that is
//! bit-identical on every platform (see `draw`), rounded to nanoseconds and never recomputed. So
//! the same seed and the same sequence of commands give the same sequence of completions
//! everywhere.

mod draw;
pub mod flash;
pub mod hdd;
mod limits;
pub mod network;
pub mod profile;
mod smr;
pub mod ssd;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

pub use draw::Lognormal;
pub use flash::{Flash, FlashCleaning, FlashLayer, FlashParameters};
pub use hdd::{Hdd, HddParameters};
pub use limits::{ModelError, ModelType};
pub use network::{NetworkDisk, NetworkParameters};
pub use profile::{Parameters, Profile, profiles};
pub use ssd::{Ssd, SsdParameters};

/// Maximum number of unfinished commands that a model accepts. The layer above keeps its own, much
/// lower limit. Exceeding this maximum is a bug of that layer, and `submit` panics.
pub const MAX_OUTSTANDING: usize = 65_536;

/// The operation of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Read `len` bytes.
    Read,
    /// Write `len` bytes.
    Write,
    /// Make every completed write durable. Offset and length are ignored.
    Flush,
    /// Declare that the bytes are no longer needed (ATA TRIM, SCSI UNMAP, NVMe deallocate).
    Discard,
    /// Write zeroes without a payload.
    WriteZeroes,
}

/// A command whose completion a model computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Identifier chosen by the caller and returned on completion; unique among outstanding
    /// commands.
    pub id: u64,
    /// Operation.
    pub kind: CommandKind,
    /// Offset of the first byte. A model does not reject an offset beyond the capacity. For a read
    /// or write there, a model with positions on the medium uses its last byte or page.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Forced unit access: a write completes only when it is on the medium.
    pub fua: bool,
}

/// The timing of a device, as a state machine that runs on the caller's clock.
///
/// Times are nanoseconds from any fixed origin. Time never decreases: if a call gives an earlier
/// time than a previous call, the model uses the latest time given so far.
pub trait TimingModel {
    /// Submits a command that reaches the device at `now_ns`.
    fn submit(&mut self, now_ns: u64, command: Command);

    /// Advances the device to `now_ns` and appends to `done` the id of every command that has
    /// finished by then and was not reported before, in order of completion.
    fn advance(&mut self, now_ns: u64, done: &mut Vec<u64>);

    /// Advances the device like [`advance`](Self::advance), and also reports the modelled time of
    /// every completion, in ns. A layer that is called late thus still learns how long the device
    /// took.
    fn advance_timed(&mut self, now_ns: u64, done: &mut Vec<(u64, u64)>);

    /// Returns the time in ns of the device's next event (a completion or an internal event), or
    /// `None` if the device is idle and has no pending work. If the device has completions that
    /// were not reported yet, the returned time can be in the past.
    fn next_event_ns(&self) -> Option<u64>;

    /// Returns the counters since the device was created.
    fn counters(&self) -> ModelCounters;
}

/// Counters of a device since it was created. Counters that do not apply to a model stay 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelCounters {
    /// Read commands received.
    pub reads: u64,
    /// Write commands received.
    pub writes: u64,
    /// Flush commands received.
    pub flushes: u64,
    /// Discard commands received.
    pub discards: u64,
    /// Write-zeroes commands received.
    pub write_zeroes: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Bytes written by write commands.
    pub written_bytes: u64,
    /// SSD: number of freezes, which occur when the pre-erased pool is empty. Flash: number of
    /// writes that had to wait for cleaning.
    pub freezes: u64,
    /// SSD: total modelled time of the freezes, in ns. Flash: total time in ns for which cleaning
    /// occupied the flash cells and thereby delayed writes, added up over all dies.
    pub frozen_ns: u64,
    /// SSD: number of writes that stalled. A stall affects one command; a freeze affects the whole
    /// device.
    pub stalls: u64,
    /// SSD: total modelled time of the stalls, in ns.
    pub stalled_ns: u64,
    /// SSD: bytes that background reclaim added to the pre-erased pool.
    pub reclaimed_bytes: u64,
    /// SSD: bytes written into the SLC cache.
    pub slc_written_bytes: u64,
    /// SSD: bytes moved out of the SLC cache while the device was idle.
    pub slc_folded_bytes: u64,
    /// Flash: pages programmed for any reason.
    pub flash_programs: u64,
    /// Flash: pages that were programmed as copies by cleaning and merging.
    pub flash_copied_pages: u64,
    /// Flash: programmed pages without content (padding).
    pub flash_padded_pages: u64,
    /// Flash: programmed pages of the translation table.
    pub flash_map_programs: u64,
    /// Flash: blocks erased.
    pub flash_erases: u64,
    /// Flash: merges of log blocks, of all kinds.
    pub flash_merges: u64,
    /// Flash: blocks cleaned while the host was idle.
    pub flash_background_cleanings: u64,
    /// SSD, HDD: accesses that continued the previous access.
    pub sequential: u64,
    /// HDD: accesses that moved the head.
    pub seeks: u64,
    /// HDD: sum of the distances that the head moved, as differences of byte offsets.
    pub seek_distance_bytes: u64,
    /// HDD: time spent positioning (seek, settling and rotation), in ns.
    pub positioning_ns: u64,
    /// HDD: reads served from the write cache.
    pub cache_read_hits: u64,
    /// HDD: writes acknowledged by the write cache.
    pub cached_writes: u64,
    /// HDD: extents written from the cache to the medium.
    pub destages: u64,
    /// SMR HDD: bands cleaned.
    pub bands_cleaned: u64,
    /// SMR HDD: time spent cleaning bands, in ns.
    pub cleaning_ns: u64,
    /// Network disk: commands that waited for tokens.
    pub token_waits: u64,
    /// Network disk: total time spent waiting for tokens, in ns.
    pub token_wait_ns: u64,
    /// Network disk: latency spikes.
    pub spikes: u64,
}

impl ModelCounters {
    fn count(&mut self, command: &Command) {
        match command.kind {
            CommandKind::Read => {
                self.reads += 1;
                self.read_bytes += command.len;
            }
            CommandKind::Write => {
                self.writes += 1;
                self.written_bytes += command.len;
            }
            CommandKind::Flush => self.flushes += 1,
            CommandKind::Discard => self.discards += 1,
            CommandKind::WriteZeroes => self.write_zeroes += 1,
        }
    }
}

/// A waiting command, with a number that gives the order of arrival.
#[derive(Debug, Clone, Copy)]
struct Queued {
    command: Command,
    arrival_seq: u64,
}

/// Future completions, earliest first. Completions at the same time are in order of arrival of
/// their commands.
#[derive(Debug, Default)]
struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, u64)>>,
}

impl Agenda {
    fn push(&mut self, done_ns: u64, arrival_seq: u64, id: u64) {
        self.heap.push(Reverse((done_ns, arrival_seq, id)));
    }

    fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((done_ns, _, _))| *done_ns)
    }

    /// Removes the earliest completion if it is due at `now_ns`, and returns it as (id, time).
    fn pop_due(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap
            .pop()
            .map(|Reverse((done_ns, _, id))| (id, done_ns))
    }

    fn len(&self) -> usize {
        self.heap.len()
    }

    fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

/// Completions that are not yet reported, as (id, time), in order of time.
type Unreported = VecDeque<(u64, u64)>;

const NS_PER_S: u64 = 1_000_000_000;

/// Returns the time to transfer `bytes` at `rate_bytes_per_s`, in ns, rounded up.
fn transfer_ns(bytes: u64, rate_bytes_per_s: u64) -> u64 {
    // The usual case fits 64 bits; the wide division is several times slower.
    match bytes.checked_mul(NS_PER_S) {
        Some(product) => product.div_ceil(rate_bytes_per_s),
        None => {
            let wide = u128::from(bytes) * u128::from(NS_PER_S);
            u64::try_from(wide.div_ceil(u128::from(rate_bytes_per_s))).unwrap_or(u64::MAX / 4)
        }
    }
}

/// Returns the bytes transferred in `ns` at `rate_bytes_per_s`, rounded down, at most
/// `limit_bytes`.
fn moved_bytes(ns: u64, rate_bytes_per_s: u64, limit_bytes: u64) -> u64 {
    let wide = u128::from(ns) * u128::from(rate_bytes_per_s) / u128::from(NS_PER_S);
    u64::try_from(wide).unwrap_or(u64::MAX).min(limit_bytes)
}
