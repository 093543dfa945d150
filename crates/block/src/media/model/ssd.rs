//! SSDs: a device with service slots, a shared data path, and three causes of slow writes.
//!
//! - The pre-erased pool (SATA drives of 2009): writes consume it, idle time refills it, and an
//!   empty pool freezes the device until garbage collection has freed more blocks.
//! - The SLC cache (QLC drives): writes are fast until the cache is full; after that, they have the
//!   rate of the QLC cells.
//! - Single stalls: an occasional write takes much longer, more often once the SLC cache is full.
//!
//! A freeze affects the whole device: no write, flush or discard starts, and a parameter decides
//! whether reads proceed or wait. A stall affects one command and its service slot; on a device
//! with one slot, all later commands wait too.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::draw::{Draws, Lognormal};
use super::limits::{
    ModelError, require, require_lognormal, require_probability, require_rate, require_time,
};
use super::{
    Agenda, Command, CommandKind, MAX_OUTSTANDING, ModelCounters, Queued, TimingModel, Unreported,
    moved_bytes, transfer_ns,
};

/// Bytes per terabyte. The size of an SLC cache is given for each terabyte of capacity.
const TERABYTE: u64 = 1_000_000_000_000;

/// Parameters of an SSD. The defaults are in the profiles; docs/models.md gives the source of each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdParameters {
    /// Maximum number of commands in service concurrently. This is 1 for the drives of 2009,
    /// because these were fitted as serial devices. For NVMe this is the number of independent
    /// flash channels x dies that a queue can keep busy.
    pub channels_commands: u32,
    /// Fixed time of a read, in ns, in addition to its transfer.
    pub read_latency_ns: u64,
    /// Rate of the data path for reads, shared by all commands in service.
    pub read_rate_bytes_per_s: u64,
    /// Fixed time of a write, in ns, in addition to its transfer.
    pub write_latency_ns: u64,
    /// Rate of the data path for writes that do not go to an SLC cache, shared by all commands in
    /// service. On a device with an SLC cache, this rate applies when the cache is full.
    pub write_rate_bytes_per_s: u64,
    /// Time of a flush, in ns, counted from the end of all earlier commands. A FUA write takes this
    /// time in addition to its own time.
    pub flush_latency_ns: u64,
    /// Time of a discard, and of a write-zeroes if `zeroes_deallocate` is set, in ns.
    pub discard_latency_ns: u64,
    /// Whether a write-zeroes only deallocates its bytes (NVMe) or programs them like a write
    /// (SATA).
    pub zeroes_deallocate: bool,

    /// Maximum number of pre-erased bytes in the pool. The pool reaches it after a long idle time.
    /// If it is 0, there is no pool, and the device never freezes.
    pub pool_bytes: u64,
    /// Rate at which an idle device refills the pool.
    pub pool_reclaim_bytes_per_s: u64,
    /// Time that the device must be idle before reclaim begins, in ns.
    pub pool_reclaim_idle_ns: u64,
    /// Share of the length of a sequential write, from 0 to 1, that the write takes from the pool
    /// of pre-erased bytes.
    pub sequential_pool_share: f64,
    /// Length of a freeze.
    pub freeze: Lognormal,
    /// Bytes that a freeze adds to the pool.
    pub freeze_frees_bytes: u64,
    /// Whether reads wait for the end of a freeze.
    pub freeze_holds_reads: bool,

    /// Size of the SLC cache for each terabyte (10^12 bytes) of capacity. 0: no SLC cache.
    pub slc_cache_bytes_per_tb: u64,
    /// Write rate while the cache has room.
    pub slc_rate_bytes_per_s: u64,
    /// Rate at which an idle device empties the SLC cache.
    pub slc_fold_bytes_per_s: u64,
    /// Time that the device must be idle before the SLC cache is emptied, in ns.
    pub slc_fold_idle_ns: u64,

    /// Probability that a write stalls while the SLC cache has room, or on a device without an SLC
    /// cache.
    pub stall_probability: f64,
    /// Probability that a write stalls if the SLC cache has no room for all of it.
    pub stall_exhausted_probability: f64,
    /// Additional time of a stalled write.
    pub stall: Lognormal,
}

impl SsdParameters {
    /// Checks that a device can have these values; an error names the field.
    pub fn validate(&self) -> Result<(), ModelError> {
        require(
            "channels_commands",
            (1..=4096).contains(&self.channels_commands),
            "1..=4096",
        )?;
        require_rate("read_rate_bytes_per_s", self.read_rate_bytes_per_s)?;
        require_rate("write_rate_bytes_per_s", self.write_rate_bytes_per_s)?;
        require_rate("slc_rate_bytes_per_s", self.slc_rate_bytes_per_s)?;
        require_time("read_latency_ns", self.read_latency_ns)?;
        require_time("write_latency_ns", self.write_latency_ns)?;
        require_time("flush_latency_ns", self.flush_latency_ns)?;
        require_time("discard_latency_ns", self.discard_latency_ns)?;
        let freed = self.pool_bytes == 0 || self.freeze_frees_bytes > 0;
        require("freeze_frees_bytes", freed, "above 0 where there is a pool")?;
        require_probability("sequential_pool_share", self.sequential_pool_share)?;
        require_probability("stall_probability", self.stall_probability)?;
        require_probability(
            "stall_exhausted_probability",
            self.stall_exhausted_probability,
        )?;
        require_lognormal("freeze", &self.freeze)?;
        require_lognormal("stall", &self.stall)
    }
}

/// An SSD; see the module head.
#[derive(Debug)]
pub struct Ssd {
    parameters: SsdParameters,
    slc_bytes: u64,
    draws: Draws,
    clock_ns: u64,
    arrivals: u64,
    /// Waiting reads, in a separate list because reads can proceed during a freeze.
    reads: VecDeque<Queued>,
    others: VecDeque<Queued>,
    in_service: Agenda,
    unreported: Unreported,
    /// Time at which the shared data path becomes free.
    path_free_ns: u64,
    frozen_until_ns: Option<u64>,
    /// Number of bytes that the write at the head of `others` still needs from the pool; `None`
    /// before the first attempt to take bytes for that write.
    head_needs_bytes: Option<u64>,
    idle_since_ns: u64,
    pool_bytes: u64,
    slc_used_bytes: u64,
    last_write_end: u64,
    last_read_end: u64,
    counters: ModelCounters,
}

impl Ssd {
    /// Creates an idle device of `capacity_bytes` with a full pool of pre-erased bytes. Errors: a
    /// parameter out of range.
    pub fn new(
        parameters: SsdParameters,
        capacity_bytes: u64,
        seed: u64,
    ) -> Result<Self, ModelError> {
        parameters.validate()?;
        require("capacity_bytes", capacity_bytes > 0, "above 0")?;
        let slc = u128::from(parameters.slc_cache_bytes_per_tb) * u128::from(capacity_bytes)
            / u128::from(TERABYTE);
        Ok(Ssd {
            slc_bytes: u64::try_from(slc).unwrap_or(u64::MAX),
            draws: Draws::new(seed),
            clock_ns: 0,
            arrivals: 0,
            reads: VecDeque::new(),
            others: VecDeque::new(),
            in_service: Agenda::default(),
            unreported: Unreported::new(),
            path_free_ns: 0,
            frozen_until_ns: None,
            head_needs_bytes: None,
            idle_since_ns: 0,
            pool_bytes: parameters.pool_bytes,
            slc_used_bytes: 0,
            // No command starts at this offset, so the first access is random.
            last_write_end: u64::MAX,
            last_read_end: u64::MAX,
            counters: ModelCounters::default(),
            parameters,
        })
    }

    /// Returns the number of bytes that the pre-erased pool had at the last activity of the device.
    /// Bytes reclaimed since then are added only when the device is next used.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    fn is_idle(&self) -> bool {
        self.in_service.is_empty()
            && self.reads.is_empty()
            && self.others.is_empty()
            && self.frozen_until_ns.is_none()
    }

    /// Returns the time of the device's own next event: a completion or the end of a freeze.
    fn next_instant_ns(&self) -> Option<u64> {
        match (self.in_service.next_ns(), self.frozen_until_ns) {
            (Some(done_ns), Some(thaw_ns)) => Some(done_ns.min(thaw_ns)),
            (done_ns, thaw_ns) => done_ns.or(thaw_ns),
        }
    }

    fn run_until(&mut self, now_ns: u64) {
        while let Some(instant_ns) = self.next_instant_ns().filter(|ns| *ns <= now_ns) {
            if self
                .frozen_until_ns
                .is_some_and(|thaw_ns| thaw_ns <= instant_ns)
            {
                self.frozen_until_ns = None;
                self.pool_bytes = (self.pool_bytes + self.parameters.freeze_frees_bytes)
                    .min(self.parameters.pool_bytes);
            }
            while let Some(completion) = self.in_service.pop_due(instant_ns) {
                self.unreported.push_back(completion);
            }
            self.start_commands(instant_ns);
            if self.is_idle() {
                self.idle_since_ns = instant_ns;
            }
        }
        self.clock_ns = self.clock_ns.max(now_ns);
    }

    /// Puts waiting commands into service, oldest first, as far as service slots and freezes
    /// permit.
    fn start_commands(&mut self, now_ns: u64) {
        while self.in_service.len() < self.parameters.channels_commands as usize {
            let frozen = self.frozen_until_ns.is_some();
            let read_seq = match self.reads.front() {
                Some(_) if frozen && self.parameters.freeze_holds_reads => None,
                read => read.map(|queued| queued.arrival_seq),
            };
            let other_seq = self
                .others
                .front()
                .filter(|_| !frozen)
                .map(|q| q.arrival_seq);
            match (read_seq, other_seq) {
                (None, None) => return,
                (Some(read), other) if other.is_none_or(|other| read < other) => {
                    self.start_read(now_ns);
                }
                _ => {
                    if !self.start_other(now_ns) {
                        return;
                    }
                }
            }
        }
    }

    fn start_read(&mut self, now_ns: u64) {
        let Some(queued) = self.reads.pop_front() else {
            return;
        };
        let command = queued.command;
        self.counters.sequential += u64::from(command.offset == self.last_read_end);
        self.last_read_end = command.offset.saturating_add(command.len);
        let moving_ns = transfer_ns(command.len, self.parameters.read_rate_bytes_per_s);
        let done_ns = self.occupy_path(now_ns, moving_ns) + self.parameters.read_latency_ns;
        self.in_service
            .push(done_ns, queued.arrival_seq, command.id);
    }

    /// Starts the oldest command that is not a read. Returns false if there is no such command, or
    /// if it is a flush that must wait for commands in service. Returns true if the command has
    /// started or has begun a freeze.
    fn start_other(&mut self, now_ns: u64) -> bool {
        let Some(queued) = self.others.front().copied() else {
            return false;
        };
        let command = queued.command;
        let done_ns = match command.kind {
            CommandKind::Flush => {
                if !self.in_service.is_empty() {
                    return false;
                }
                now_ns + self.parameters.flush_latency_ns
            }
            CommandKind::Discard => now_ns + self.parameters.discard_latency_ns,
            CommandKind::WriteZeroes if self.parameters.zeroes_deallocate => {
                now_ns + self.parameters.discard_latency_ns
            }
            CommandKind::Read | CommandKind::Write | CommandKind::WriteZeroes => {
                if !self.take_from_pool(now_ns, &command) {
                    // The write has begun a freeze. Reads might be allowed to start during the
                    // freeze, so the caller's loop continues.
                    return true;
                }
                self.write_done_ns(now_ns, &command)
            }
        };
        self.others.pop_front();
        self.in_service
            .push(done_ns, queued.arrival_seq, command.id);
        true
    }

    /// Takes from the pool the bytes that a write consumes. If the pool has too few bytes, takes
    /// all of them, begins a freeze and returns false. After the freeze, the write needs only the
    /// remaining bytes, so a freeze does not change the number of bytes that a write consumes.
    fn take_from_pool(&mut self, now_ns: u64, command: &Command) -> bool {
        if self.parameters.pool_bytes == 0 {
            return true;
        }
        let share_bytes = if command.offset == self.last_write_end {
            (command.len as f64 * self.parameters.sequential_pool_share) as u64
        } else {
            command.len
        };
        let needs_bytes = self.head_needs_bytes.take().unwrap_or(share_bytes);
        if needs_bytes <= self.pool_bytes {
            self.pool_bytes -= needs_bytes;
            return true;
        }
        self.head_needs_bytes = Some(needs_bytes - self.pool_bytes);
        self.pool_bytes = 0;
        let freeze_ns = self.draws.lognormal(&self.parameters.freeze);
        self.counters.freezes += 1;
        self.counters.frozen_ns += freeze_ns;
        self.frozen_until_ns = Some(now_ns + freeze_ns);
        false
    }

    fn write_done_ns(&mut self, now_ns: u64, command: &Command) -> u64 {
        self.counters.sequential += u64::from(command.offset == self.last_write_end);
        self.last_write_end = command.offset.saturating_add(command.len);
        let slc_part = command.len.min(self.slc_bytes - self.slc_used_bytes);
        self.slc_used_bytes += slc_part;
        self.counters.slc_written_bytes += slc_part;
        let exhausted = self.parameters.slc_cache_bytes_per_tb > 0 && slc_part < command.len;
        let moving_ns = transfer_ns(slc_part, self.parameters.slc_rate_bytes_per_s)
            + transfer_ns(
                command.len - slc_part,
                self.parameters.write_rate_bytes_per_s,
            );
        let probability = if exhausted {
            self.parameters.stall_exhausted_probability
        } else {
            self.parameters.stall_probability
        };
        let mut latency_ns = self.parameters.write_latency_ns;
        if self.draws.chance(probability) {
            let stall_ns = self.draws.lognormal(&self.parameters.stall);
            self.counters.stalls += 1;
            self.counters.stalled_ns += stall_ns;
            latency_ns += stall_ns;
        }
        if command.fua {
            latency_ns += self.parameters.flush_latency_ns;
        }
        self.occupy_path(now_ns, moving_ns) + latency_ns
    }

    /// Reserves the shared data path and returns the time at which the transfer ends.
    fn occupy_path(&mut self, now_ns: u64, moving_ns: u64) -> u64 {
        self.path_free_ns = self.path_free_ns.max(now_ns) + moving_ns;
        self.path_free_ns
    }

    /// Accounts for the background work that the device has done while it was idle until `now_ns`.
    fn wake(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(self.idle_since_ns);
        let p = &self.parameters;
        let reclaimed = moved_bytes(
            idle_ns.saturating_sub(p.pool_reclaim_idle_ns),
            p.pool_reclaim_bytes_per_s,
            p.pool_bytes - self.pool_bytes,
        );
        self.pool_bytes += reclaimed;
        self.counters.reclaimed_bytes += reclaimed;
        let folded = moved_bytes(
            idle_ns.saturating_sub(p.slc_fold_idle_ns),
            p.slc_fold_bytes_per_s,
            self.slc_used_bytes,
        );
        self.slc_used_bytes -= folded;
        self.counters.slc_folded_bytes += folded;
    }
}

impl TimingModel for Ssd {
    fn submit(&mut self, now_ns: u64, command: Command) {
        self.run_until(now_ns);
        let now_ns = self.clock_ns;
        let outstanding = self.in_service.len() + self.reads.len() + self.others.len();
        assert!(
            outstanding < MAX_OUTSTANDING,
            "the layer above bounds its depth"
        );
        if outstanding == 0 && self.frozen_until_ns.is_none() {
            self.wake(now_ns);
        }
        self.counters.count(&command);
        let queued = Queued {
            command,
            arrival_seq: self.arrivals,
        };
        self.arrivals += 1;
        match command.kind {
            CommandKind::Read => self.reads.push_back(queued),
            _ => self.others.push_back(queued),
        }
        self.start_commands(now_ns);
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        self.run_until(now_ns);
        done.extend(self.unreported.drain(..).map(|(id, _)| id));
    }

    fn advance_timed(&mut self, now_ns: u64, done: &mut Vec<(u64, u64)>) {
        self.run_until(now_ns);
        done.extend(self.unreported.drain(..));
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.unreported
            .front()
            .map(|(_, done_ns)| *done_ns)
            .or_else(|| self.next_instant_ns())
    }

    fn counters(&self) -> ModelCounters {
        self.counters
    }
}
