//! Hard disks: one arm, a queue from which the arm chooses, an optional volatile write cache, and
//! optional shingling.
//!
//! The disk moves commands from the host into its queue (NCQ) in order of arrival. The arm serves
//! the queued command with the next higher offset, and when there is none, the command with the
//! lowest offset (C-LOOK). An access costs seek, rotation and transfer at the rate of its zone; an
//! access that continues the previous one costs only the transfer. With the write cache on, a write
//! completes when its bytes have crossed the bus, and the arm destages the bytes when no other
//! command waits. A flush is not a queued command (as in ATA): it waits for all earlier commands,
//! empties the cache, and blocks all later commands.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::draw::{Draws, ln};
use super::limits::{ModelError, require, require_rate, require_time};
use super::smr::{Placement, Shingles};
use super::{
    Command, CommandKind, MAX_OUTSTANDING, ModelCounters, Queued, TimingModel, Unreported,
    transfer_ns,
};

/// Number of queue depths in the table of rotational delays. The table covers every depth that
/// shortens the rotation further: the factor 1 / (1 + 0.13 log2 d) falls to its minimum 0.6 at the
/// depth d = 35.
const ROTATION_DEPTHS: usize = 64;

/// Parameters of a hard disk. docs/models.md gives the source of each default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HddParameters {
    /// Capacity of the whole disk, if the modelled device is only its first (outer) part, as when a
    /// small SSD is mirrored on a large disk. 0: the device is the whole disk.
    pub disk_bytes: u64,
    /// Fixed part of every seek, in ns.
    pub seek_base_ns: u64,
    /// Part of the seek time that grows with the square root of the distance. The value is this
    /// part for a seek over the full stroke, in ns.
    pub seek_sqrt_ns: u64,
    /// Part of the seek time that grows linearly with the distance. The value is this part for a
    /// seek over the full stroke, in ns.
    pub seek_linear_ns: u64,
    /// Settling time after every seek, in ns.
    pub settle_ns: u64,
    /// Additional settling time before a write, in ns.
    pub write_settle_ns: u64,
    /// Time of one revolution, in ns.
    pub revolution_ns: u64,
    /// Number of zones of equal capacity, each with one rate.
    pub zones: u32,
    /// Rate of the first (outer) zone.
    pub outer_rate_bytes_per_s: u64,
    /// Rate of the last (inner) zone. The rate falls linearly from the first zone to the last.
    pub inner_rate_bytes_per_s: u64,
    /// Number of commands in the disk's queue, from which the arm chooses.
    pub queue_commands: u32,
    /// Whether a sequential write that arrives after the previous write has ended misses its sector
    /// and waits until the sector passes the head again. Sequential reads never miss while the disk
    /// reads ahead.
    pub misses_revolution: bool,
    /// Whether the disk reads ahead after a read, so that a sequential read finds its data in the
    /// buffer. Without read-ahead, a sequential read that arrives late waits until its sector
    /// passes the head again.
    pub looks_ahead: bool,
    /// Fixed time of a sequential read whose data is already in the disk's read-ahead buffer, in
    /// ns.
    pub continued_read_ns: u64,
    /// Size of the volatile write cache. 0: no cache, every write goes to the medium.
    pub write_cache_bytes: u64,
    /// Rate of the bus, for transfers to and from the write cache.
    pub bus_rate_bytes_per_s: u64,
    /// Fixed time of a flush, of a discard, and of each access to the write cache, in ns.
    pub command_ns: u64,
    /// Size of the media cache of a shingled disk. 0: not shingled.
    pub media_cache_bytes: u64,
    /// Size of a shingled band.
    pub band_bytes: u64,
    /// Shortest time to clean a band, in ns.
    pub band_clean_min_ns: u64,
    /// Longest time to clean a band, in ns.
    pub band_clean_max_ns: u64,
    /// Time that the disk must be idle before bands are cleaned, in ns.
    pub band_clean_idle_ns: u64,
}

impl HddParameters {
    /// Checks that a device can have these values; an error names the field.
    pub fn validate(&self) -> Result<(), ModelError> {
        for (field, ns) in [
            ("seek_base_ns", self.seek_base_ns),
            ("seek_sqrt_ns", self.seek_sqrt_ns),
            ("seek_linear_ns", self.seek_linear_ns),
            ("settle_ns", self.settle_ns),
            ("write_settle_ns", self.write_settle_ns),
            ("command_ns", self.command_ns),
            ("continued_read_ns", self.continued_read_ns),
            ("band_clean_max_ns", self.band_clean_max_ns),
            ("band_clean_idle_ns", self.band_clean_idle_ns),
            ("revolution_ns", self.revolution_ns),
        ] {
            require_time(field, ns)?;
        }
        require("revolution_ns", self.revolution_ns > 0, "above 0")?;
        require("zones", (1..=1024).contains(&self.zones), "1..=1024")?;
        require(
            "queue_commands",
            (1..=256).contains(&self.queue_commands),
            "1..=256",
        )?;
        let outer = self.outer_rate_bytes_per_s;
        require_rate("inner_rate_bytes_per_s", self.inner_rate_bytes_per_s)?;
        require(
            "outer_rate_bytes_per_s",
            outer >= self.inner_rate_bytes_per_s,
            "at least the inner rate",
        )?;
        require_rate("bus_rate_bytes_per_s", self.bus_rate_bytes_per_s)?;
        let bands = self.media_cache_bytes == 0 || self.band_bytes > 0;
        require("band_bytes", bands, "above 0 on a shingled disk")?;
        let ordered = self.band_clean_min_ns <= self.band_clean_max_ns;
        require("band_clean_min_ns", ordered, "at most band_clean_max_ns")
    }
}

/// Current work of the arm.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// The disk serves a command of the host. The command completes when this work ends.
    Host(Queued),
    /// Destaging an extent of this length from the write cache.
    Destage(u64),
    /// Cleaning a band.
    Clean,
}

/// Kind and position of the next access that needs no positioning because it continues the last
/// access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    None,
    Read(u64),
    Write(u64),
    MediaCache,
}

/// A transfer between host and write cache. `write` is the extent that a write adds to the cache.
#[derive(Debug, Clone, Copy)]
struct BusTransfer {
    done_ns: u64,
    id: u64,
    write: Option<(u64, u64)>,
}

/// A hard disk; see the module head.
#[derive(Debug)]
pub struct Hdd {
    parameters: HddParameters,
    /// Capacity of the whole disk.
    capacity_bytes: u64,
    zone_rates: Vec<u64>,
    /// Largest rotational delay in ns. The first value applies if the arm can choose from one
    /// access, the second value if it can choose from two, and so on.
    rotation_limits_ns: Vec<u64>,
    draws: Draws,
    clock_ns: u64,
    arrivals: u64,
    /// Commands from the host that are not yet in the disk's queue.
    waiting: VecDeque<Queued>,
    /// Commands from which the arm can choose.
    queue: Vec<Queued>,
    /// Writes that wait for room in the write cache.
    cache_waiting: VecDeque<Queued>,
    bus: VecDeque<BusTransfer>,
    bus_free_ns: u64,
    /// Number of bytes in the write cache, in transfer into the cache, or in transfer from the
    /// cache to the medium.
    cached_bytes: u64,
    /// Extents in the write cache: (offset, order of arrival) to length.
    dirty: BTreeMap<(u64, u64), u64>,
    dirty_seq: u64,
    /// Current work of the arm, and the time at which the work ends; `None` while the arm is idle.
    arm: Option<(Work, u64)>,
    /// The id of the flush that blocks other commands, and the time at which the flush ends. This
    /// time is `None` until the cache is empty.
    flush: Option<(u64, Option<u64>)>,
    shingles: Option<Shingles>,
    head: u64,
    stream: Stream,
    /// End of the last access.
    arm_free_ns: u64,
    /// Time since which no work for the host remains.
    idle_since_ns: u64,
    unreported: Unreported,
    counters: ModelCounters,
}

impl Hdd {
    /// Creates an idle disk of `capacity_bytes` with its arm over the first byte. Errors: a
    /// parameter out of range.
    pub fn new(
        parameters: HddParameters,
        capacity_bytes: u64,
        seed: u64,
    ) -> Result<Self, ModelError> {
        parameters.validate()?;
        require("capacity_bytes", capacity_bytes > 0, "above 0")?;
        let shingled = parameters.media_cache_bytes > 0;
        Ok(Hdd {
            capacity_bytes: capacity_bytes.max(parameters.disk_bytes),
            zone_rates: zone_rates(&parameters),
            rotation_limits_ns: rotation_limits_ns(parameters.revolution_ns),
            draws: Draws::new(seed),
            clock_ns: 0,
            arrivals: 0,
            waiting: VecDeque::new(),
            queue: Vec::new(),
            cache_waiting: VecDeque::new(),
            bus: VecDeque::new(),
            bus_free_ns: 0,
            cached_bytes: 0,
            dirty: BTreeMap::new(),
            dirty_seq: 0,
            arm: None,
            flush: None,
            shingles: shingled
                .then(|| Shingles::new(parameters.band_bytes, parameters.media_cache_bytes)),
            head: 0,
            stream: Stream::None,
            arm_free_ns: 0,
            idle_since_ns: 0,
            unreported: Unreported::new(),
            counters: ModelCounters::default(),
            parameters,
        })
    }

    /// Returns the number of bytes in the write cache that are not yet on the medium.
    pub fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    fn next_instant_ns(&self) -> Option<u64> {
        let arm = self.arm.map(|(_, done_ns)| done_ns);
        let bus = self.bus.front().map(|transfer| transfer.done_ns);
        let flush = self.flush.and_then(|(_, done_ns)| done_ns);
        [arm, bus, flush, self.next_clean_ns()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the time at which an idle shingled disk begins to clean a band.
    fn next_clean_ns(&self) -> Option<u64> {
        let dirty = self
            .shingles
            .as_ref()
            .is_some_and(|shingles| !shingles.is_clean());
        let begin_ns = self.idle_since_ns + self.parameters.band_clean_idle_ns;
        (dirty && self.is_idle()).then(|| begin_ns.max(self.arm_free_ns))
    }

    fn is_idle(&self) -> bool {
        self.arm.is_none() && self.nothing_for_the_host()
    }

    fn nothing_for_the_host(&self) -> bool {
        self.held_commands() == 0
            && self.waiting.is_empty()
            && self.dirty.is_empty()
            && self.flush.is_none()
    }

    /// Returns the number of commands that occupy a slot of the disk's queue.
    fn held_commands(&self) -> usize {
        let on_arm = usize::from(matches!(self.arm, Some((Work::Host(_), _))));
        self.queue.len() + self.cache_waiting.len() + self.bus.len() + on_arm
    }

    fn run_until(&mut self, now_ns: u64) {
        while let Some(instant_ns) = self.next_instant_ns().filter(|ns| *ns <= now_ns) {
            self.end_bus_transfers(instant_ns);
            if let Some((work, done_ns)) = self.arm
                && done_ns <= instant_ns
            {
                self.end_arm_work(work, done_ns);
            }
            if let Some((id, Some(done_ns))) = self.flush
                && done_ns <= instant_ns
            {
                self.flush = None;
                self.finish(id, done_ns);
            }
            if self
                .next_clean_ns()
                .is_some_and(|begin_ns| begin_ns <= instant_ns)
            {
                self.start_cleaning(instant_ns);
            }
            self.dispatch(instant_ns);
        }
        self.clock_ns = self.clock_ns.max(now_ns);
    }

    /// Reports the completion of a command. The idle time starts at the last completion.
    fn finish(&mut self, id: u64, done_ns: u64) {
        self.unreported.push_back((id, done_ns));
        self.idle_since_ns = done_ns;
    }

    fn end_bus_transfers(&mut self, instant_ns: u64) {
        while let Some(transfer) = self
            .bus
            .front()
            .copied()
            .filter(|t| t.done_ns <= instant_ns)
        {
            self.bus.pop_front();
            if let Some((offset, len)) = transfer.write {
                self.dirty.insert((offset, self.dirty_seq), len);
                self.dirty_seq += 1;
            }
            self.finish(transfer.id, transfer.done_ns);
        }
    }

    fn end_arm_work(&mut self, work: Work, done_ns: u64) {
        self.arm = None;
        self.arm_free_ns = done_ns;
        match work {
            Work::Host(queued) => self.finish(queued.command.id, done_ns),
            Work::Destage(len) => {
                self.cached_bytes -= len;
                self.idle_since_ns = done_ns;
            }
            // After cleaning, `idle_since_ns` is unchanged, so an idle disk cleans the next band
            // without another pause.
            Work::Clean => {}
        }
    }

    /// Moves commands into the queue, starts bus transfers, and gives the arm its next work.
    fn dispatch(&mut self, now_ns: u64) {
        self.take_in(now_ns);
        self.fill_cache(now_ns);
        if self.arm.is_none() {
            self.start_arm(now_ns);
        }
        if let Some((id, None)) = self.flush
            && self.dirty.is_empty()
            && self.arm.is_none()
        {
            self.flush = Some((id, Some(now_ns + self.parameters.command_ns)));
        }
    }

    fn take_in(&mut self, now_ns: u64) {
        while self.flush.is_none() && self.held_commands() < self.parameters.queue_commands as usize
        {
            let Some(queued) = self.waiting.front().copied() else {
                return;
            };
            let command = queued.command;
            match command.kind {
                CommandKind::Flush => {
                    if self.held_commands() > 0 {
                        return;
                    }
                    self.flush = Some((command.id, None));
                }
                CommandKind::Discard => self.over_bus(now_ns, command.id, 0, None),
                CommandKind::Read if self.is_cached(&command) => {
                    self.counters.cache_read_hits += 1;
                    self.over_bus(now_ns, command.id, command.len, None);
                }
                CommandKind::Write | CommandKind::WriteZeroes
                    if !command.fua && command.len <= self.parameters.write_cache_bytes =>
                {
                    self.cache_waiting.push_back(queued);
                }
                CommandKind::Read | CommandKind::Write | CommandKind::WriteZeroes => {
                    self.queue.push(queued);
                }
            }
            self.waiting.pop_front();
        }
    }

    /// Admits writes to the write cache, in order of arrival, while the cache has room.
    fn fill_cache(&mut self, now_ns: u64) {
        while let Some(queued) = self.cache_waiting.front().copied() {
            let command = queued.command;
            if self.cached_bytes + command.len > self.parameters.write_cache_bytes {
                return;
            }
            self.cache_waiting.pop_front();
            self.cached_bytes += command.len;
            self.counters.cached_writes += 1;
            self.over_bus(
                now_ns,
                command.id,
                command.len,
                Some((command.offset, command.len)),
            );
        }
    }

    fn over_bus(&mut self, now_ns: u64, id: u64, len: u64, write: Option<(u64, u64)>) {
        let moving_ns = transfer_ns(len, self.parameters.bus_rate_bytes_per_s);
        self.bus_free_ns = self.bus_free_ns.max(now_ns) + self.parameters.command_ns + moving_ns;
        self.bus.push_back(BusTransfer {
            done_ns: self.bus_free_ns,
            id,
            write,
        });
    }

    /// Returns whether a single extent of the write cache contains the whole read.
    fn is_cached(&self, read: &Command) -> bool {
        let before = self.dirty.range(..=(read.offset, u64::MAX)).next_back();
        before.is_some_and(|((offset, _), len)| {
            read.offset.saturating_add(read.len) <= offset.saturating_add(*len)
        })
    }

    /// Chooses the next work of the arm. Queued commands take precedence over destaging. But if a
    /// write waits for room in the cache, or a flush waits for an empty cache, the arm serves
    /// commands and destaging together in the order of the sweep.
    fn start_arm(&mut self, now_ns: u64) {
        let pressed = !self.cache_waiting.is_empty() || self.flush.is_some();
        let command = self.nearest_command();
        let extent = self
            .nearest_extent()
            .filter(|_| pressed || command.is_none());
        let sweep = |offset: u64| (offset < self.head, offset);
        let take_extent = match (command, extent) {
            (None, None) => return,
            (Some(index), Some((offset, _))) => {
                sweep(offset) < sweep(self.queue[index].command.offset)
            }
            (command, _) => command.is_none(),
        };
        let choices = self.queue.len()
            + if extent.is_some() {
                self.dirty.len()
            } else {
                0
            };
        match (command, extent) {
            (_, Some(key)) if take_extent => {
                let Some(len) = self.dirty.get(&key).copied() else {
                    return;
                };
                let Some(done_ns) = self.access(now_ns, CommandKind::Write, key.0, len, choices)
                else {
                    return self.start_cleaning(now_ns);
                };
                self.dirty.remove(&key);
                self.counters.destages += 1;
                self.arm = Some((Work::Destage(len), done_ns));
            }
            (Some(index), _) => {
                let Command {
                    kind, offset, len, ..
                } = self.queue[index].command;
                let Some(done_ns) = self.access(now_ns, kind, offset, len, choices) else {
                    return self.start_cleaning(now_ns);
                };
                let queued = self.queue.swap_remove(index);
                self.arm = Some((Work::Host(queued), done_ns));
            }
            (None, _) => {}
        }
    }

    /// Chooses a queued command by C-LOOK: the command with the lowest offset at or above the head.
    /// If there is none, chooses the command with the lowest offset of all.
    fn nearest_command(&self) -> Option<usize> {
        let sweep = |queued: &Queued| {
            let offset = queued.command.offset;
            (offset < self.head, offset, queued.arrival_seq)
        };
        (0..self.queue.len()).min_by_key(|index| sweep(&self.queue[*index]))
    }

    /// Chooses an extent of the write cache by C-LOOK.
    fn nearest_extent(&self) -> Option<(u64, u64)> {
        let above = self.dirty.range((self.head, 0)..).next();
        above
            .or_else(|| self.dirty.first_key_value())
            .map(|(key, _)| *key)
    }

    /// Performs an access and returns the time at which it ends. Returns `None` when a shingled
    /// disk must clean a band before it can accept the write.
    fn access(
        &mut self,
        now_ns: u64,
        kind: CommandKind,
        offset: u64,
        len: u64,
        choices: usize,
    ) -> Option<u64> {
        let is_write = kind != CommandKind::Read;
        let mut target = offset.min(self.capacity_bytes - 1);
        let mut wanted = if is_write {
            Stream::Write(offset)
        } else {
            Stream::Read(offset)
        };
        let end = offset.saturating_add(len).min(self.capacity_bytes);
        let mut leaves = (
            if is_write {
                Stream::Write(end)
            } else {
                Stream::Read(end)
            },
            end,
        );
        if let Some(shingles) = self.shingles.as_mut().filter(|_| is_write) {
            let placement = shingles.placement(offset, len);
            if placement == Placement::AfterCleaning {
                return None;
            }
            shingles.record(offset, len, placement);
            if placement == Placement::MediaCache {
                // The media cache is a log at the outer edge: the next append to it needs no seek.
                target = 0;
                wanted = Stream::MediaCache;
                leaves = (Stream::MediaCache, 0);
            }
        }
        let positioning_ns = if self.stream == wanted {
            self.counters.sequential += 1;
            self.continuing_ns(now_ns, is_write)
        } else {
            self.seek_ns(target, is_write) + self.rotation_ns(choices)
        };
        self.counters.positioning_ns += positioning_ns;
        (self.stream, self.head) = leaves;
        Some(now_ns + positioning_ns + transfer_ns(len, self.rate_at(target)))
    }

    /// Returns the time before the transfer of an access that continues the previous one: the fixed
    /// time of a buffered read, or the wait for a missed sector.
    fn continuing_ns(&self, now_ns: u64, is_write: bool) -> u64 {
        let p = &self.parameters;
        let misses = match is_write {
            true => p.misses_revolution,
            false if p.looks_ahead => return p.continued_read_ns,
            false => true,
        };
        let gap_ns = now_ns - self.arm_free_ns;
        if !misses || gap_ns == 0 {
            return 0;
        }
        p.revolution_ns - gap_ns % p.revolution_ns
    }

    fn seek_ns(&mut self, target: u64, is_write: bool) -> u64 {
        let distance = self.head.abs_diff(target);
        self.counters.seeks += 1;
        self.counters.seek_distance_bytes += distance;
        let fraction = distance as f64 / self.capacity_bytes as f64;
        let p = &self.parameters;
        let travel_ns =
            p.seek_sqrt_ns as f64 * fraction.sqrt() + p.seek_linear_ns as f64 * fraction;
        let settle_ns = p.settle_ns + if is_write { p.write_settle_ns } else { 0 };
        p.seek_base_ns + travel_ns as u64 + settle_ns
    }

    fn rotation_ns(&mut self, choices: usize) -> u64 {
        let depth = choices.clamp(1, ROTATION_DEPTHS);
        self.draws.between(0, self.rotation_limits_ns[depth - 1])
    }

    fn rate_at(&self, offset: u64) -> u64 {
        let zones = self.zone_rates.len() as u128;
        let zone = u128::from(offset) * zones / u128::from(self.capacity_bytes);
        self.zone_rates[zone.min(zones - 1) as usize]
    }

    fn start_cleaning(&mut self, now_ns: u64) {
        let band = self.shingles.as_mut().and_then(Shingles::clean_oldest);
        let Some(band_start) = band else { return };
        let (min_ns, max_ns) = (
            self.parameters.band_clean_min_ns,
            self.parameters.band_clean_max_ns,
        );
        let clean_ns = self.draws.between(min_ns, max_ns);
        self.counters.bands_cleaned += 1;
        self.counters.cleaning_ns += clean_ns;
        self.stream = Stream::None;
        self.head = (band_start + self.parameters.band_bytes).min(self.capacity_bytes);
        self.arm = Some((Work::Clean, now_ns + clean_ns));
    }
}

/// Returns the rate of each zone, outermost first.
fn zone_rates(parameters: &HddParameters) -> Vec<u64> {
    let (outer, inner) = (
        parameters.outer_rate_bytes_per_s,
        parameters.inner_rate_bytes_per_s,
    );
    let steps = u64::from(parameters.zones.max(2) - 1);
    let fall = |zone: u64| u128::from(outer - inner) * u128::from(zone) / u128::from(steps);
    (0..u64::from(parameters.zones))
        .map(|zone| outer - u64::try_from(fall(zone)).unwrap_or(0))
        .collect()
}

/// Returns the maximum rotational delay for each queue depth from 1 on; the delay is uniformly
/// distributed. With more accesses to choose from, the arm finds one with a shorter delay: the
/// maximum is a revolution times max(0.6, 1 / (1 + 0.13 log2 depth)).
fn rotation_limits_ns(revolution_ns: u64) -> Vec<u64> {
    (1..=ROTATION_DEPTHS)
        .map(|depth| {
            let log2 = ln(depth as f64) / std::f64::consts::LN_2;
            let factor = (1.0 / (1.0 + 0.13 * log2)).max(0.6);
            (revolution_ns as f64 * factor) as u64
        })
        .collect()
}

impl TimingModel for Hdd {
    fn submit(&mut self, now_ns: u64, command: Command) {
        self.run_until(now_ns);
        let now_ns = self.clock_ns;
        let outstanding = self.waiting.len() + self.held_commands();
        assert!(
            outstanding < MAX_OUTSTANDING,
            "the layer above bounds its depth"
        );
        self.counters.count(&command);
        self.waiting.push_back(Queued {
            command,
            arrival_seq: self.arrivals,
        });
        self.arrivals += 1;
        self.dispatch(now_ns);
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
