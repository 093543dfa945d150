//! Timing models of storage devices, as pure state machines.
//!
//! A model answers one question: when would such a device have finished this command? It holds no
//! data, reads no clock, starts no task and performs no I/O; the layer above gives it the time with
//! every call and completes its own requests when the model says so. The same code therefore runs
//! in virtual time and as a real-time emulation over a file.
//!
//! What a model must never do: depend on how often or how late it is called. Completions carry the
//! modelled time; a late [`TimingModel::advance`] reports the same commands in the same order as
//! an early one, and a command submitted meanwhile finds the device as it would have been.
//!
//! All times are integer nanoseconds. Random durations are drawn once, by arithmetic that is
//! bit-identical on every platform (see `draw`), rounded to nanoseconds and never recomputed, so
//! one seed and one sequence of commands give one sequence of completions everywhere.

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

/// Commands a model accepts before the earlier ones have finished. The layer above bounds its depth
/// far below this; more is a defect there, and `submit` asserts it.
pub const MAX_OUTSTANDING: usize = 65_536;

/// What a command asks the device to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Read `len` bytes.
    Read,
    /// Write `len` bytes.
    Write,
    /// Make every completed write durable. Offset and length are ignored.
    Flush,
    /// The bytes are no longer needed (ATA TRIM, SCSI UNMAP, NVMe deallocate).
    Discard,
    /// Write zeroes without a payload.
    WriteZeroes,
}

/// What a model is asked to time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// The caller's name for the command, returned on completion. Unique among those outstanding.
    pub id: u64,
    /// What to do.
    pub kind: CommandKind,
    /// First byte. Beyond the capacity it is taken as the last byte: the bounds check is not here.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Forced unit access: a write completes only when it is on the medium.
    pub fua: bool,
}

/// A device's timing, as a state machine on the caller's clock.
///
/// Times are nanoseconds from any fixed origin and never decrease: an earlier time than one already
/// given counts as that one.
pub trait TimingModel {
    /// The command reached the device at `now_ns`.
    fn submit(&mut self, now_ns: u64, command: Command);

    /// Moves the device to `now_ns` and appends to `done` the id of every command that finished by
    /// then and was not reported before, in order of completion.
    fn advance(&mut self, now_ns: u64, done: &mut Vec<u64>);

    /// As [`advance`](Self::advance), with the modelled time of every completion, in ns. A layer
    /// that was called late still knows how long the device took.
    fn advance_timed(&mut self, now_ns: u64, done: &mut Vec<(u64, u64)>);

    /// When the device next has something to do (a completion or an internal event), in ns. None
    /// when it is idle with nothing pending. It may lie before the last time given when completions
    /// wait to be reported.
    fn next_event_ns(&self) -> Option<u64>;

    /// What the device has done since it was made.
    fn counters(&self) -> ModelCounters;
}

/// What a device has done since it was made. Counters that mean nothing for a model stay 0.
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
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Bytes given by writes.
    pub written_bytes: u64,
    /// SSD: times the pre-erased pool ran empty and the device froze. Flash: writes before which
    /// flash had to be cleaned.
    pub freezes: u64,
    /// SSD: modelled length of those freezes, in ns. Flash: the sum of the times in the cells of
    /// that cleaning, on all dies.
    pub frozen_ns: u64,
    /// SSD: single writes that stalled.
    pub stalls: u64,
    /// SSD: modelled length of those stalls, in ns.
    pub stalled_ns: u64,
    /// SSD: bytes the background reclaim added to the pre-erased pool.
    pub reclaimed_bytes: u64,
    /// SSD: bytes written into the SLC cache.
    pub slc_written_bytes: u64,
    /// SSD: bytes folded out of the SLC cache while idle.
    pub slc_folded_bytes: u64,
    /// Flash: pages programmed, for whatever reason.
    pub flash_programs: u64,
    /// Flash: of these, pages that cleaning and merging moved.
    pub flash_copied_pages: u64,
    /// Flash: of these, pages without content.
    pub flash_padded_pages: u64,
    /// Flash: of these, pages of the translation table.
    pub flash_map_programs: u64,
    /// Flash: blocks erased.
    pub flash_erases: u64,
    /// Flash: merges of log blocks, of all kinds.
    pub flash_merges: u64,
    /// Flash: blocks cleaned while the host was quiet.
    pub flash_background_cleanings: u64,
    /// SSD, HDD: accesses that continued the one before.
    pub sequential: u64,
    /// HDD: accesses that moved the head.
    pub seeks: u64,
    /// HDD: sum of the distances the head moved, in bytes of address.
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
    /// Network disk: sum of those waits, in ns.
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

/// A command with its place in the order of arrival.
#[derive(Debug, Clone, Copy)]
struct Queued {
    command: Command,
    arrival_seq: u64,
}

/// Completions that lie ahead, earliest first; at one instant, in order of arrival.
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

    /// The earliest completion if it lies at or before `now_ns`, as (id, time).
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

/// Completions that happened and were not reported yet, as (id, time), in order.
type Unreported = VecDeque<(u64, u64)>;

const NS_PER_S: u64 = 1_000_000_000;

/// Time to move `bytes` at `rate_bytes_per_s`, in ns, rounded up.
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

/// Bytes moved in `ns` at `rate_bytes_per_s`, rounded down, at most `limit_bytes`.
fn moved_bytes(ns: u64, rate_bytes_per_s: u64, limit_bytes: u64) -> u64 {
    let wide = u128::from(ns) * u128::from(rate_bytes_per_s) / u128::from(NS_PER_S);
    u64::try_from(wide).unwrap_or(u64::MAX).min(limit_bytes)
}
