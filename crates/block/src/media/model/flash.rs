//! A flash drive whose freezes result from its own work: a translation layer determines the flash
//! operations of a command, and channels and dies determine when these operations complete.
//!
//! The state machines of the translation layer and of the dies are in `bimetal-flash`; this model
//! connects them to a host. A command passes a shared interface, its pages are translated in order
//! of arrival, and its operations queue at their dies. With a write cache, a write completes once
//! its pages are in the cache, and the next write waits for room in the cache. So bursts are fast,
//! and a drive that must clean during a burst freezes. While the host is idle, the drive empties
//! its SLC buffer and cleans blocks in advance.
//!
//! The model is deterministic except for the initial state of the drive and the choices of a
//! cleaning policy that chooses at random.

use std::collections::VecDeque;

use bimetal_flash::{
    Action, BufferConfig, Cleaning, Costs, Counters, Drive, DriveConfig, FtlConfig, Geometry,
    Operation, OperationTimes, PageConfig, Purpose, Schedule, Streams, WearLevelling,
};
use serde::{Deserialize, Serialize};
use slab::Slab;

use super::draw::Draws;
use super::limits::{ModelError, require, require_rate, require_time};
use super::{
    Agenda, Command, CommandKind, MAX_OUTSTANDING, ModelCounters, Queued, TimingModel, Unreported,
    transfer_ns,
};

/// The translation layers, by their names in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlashLayer {
    /// No translation layer: no block is ever cleaned.
    None,
    /// Page-mapped.
    Page,
    /// Block-mapped.
    Block,
    /// BAST (block-associative): a log block belongs to a single data block. Only a few data blocks
    /// have a log block.
    Bast,
    /// FAST (fully associative): all data blocks share the log blocks.
    Fast,
}

/// The cleaning policies, by their names in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlashCleaning {
    /// Cleans the block with the fewest valid pages.
    Greedy,
    /// Cleans the block that was filled longest ago.
    Fifo,
    /// Cleans a block that is selected by two values: the space that cleaning it frees, and the age
    /// of its pages.
    CostBenefit,
    /// Cleans the emptiest of `cleaning_choices` blocks drawn at random.
    Choices,
}

/// Parameters of a flash drive. docs/flash.md explains their effect and gives the source of the
/// values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashParameters {
    /// Buses between controller and flash.
    pub channels: u32,
    /// Chips on a channel.
    pub ways: u32,
    /// Dies in a chip.
    pub dies: u32,
    /// Planes in a die; they only add blocks.
    pub planes: u32,
    /// Pages in an erase block.
    pub pages_per_block: u32,
    /// Bytes of user data in a page.
    pub page_bytes: u32,
    /// Spare flash capacity, as a share of the user capacity.
    pub over_provisioning: f64,

    /// The translation layer.
    pub layer: FlashLayer,
    /// For the page-mapped layer: policy that selects the block to clean.
    pub cleaning: FlashCleaning,
    /// For the page-mapped layer: number of candidate blocks that the cleaning policy `choices`
    /// draws at random.
    pub cleaning_choices: u32,
    /// For the page-mapped layer: whether hot and cold pages are distinguished and written to
    /// separate blocks.
    pub separates_hot: bool,
    /// For the page-mapped layer: number of entries of the mapping table that are kept in memory
    /// (DFTL). 0 keeps all entries in memory.
    pub cached_map_entries: u32,
    /// For BAST and FAST: number of log blocks, as a share of the data blocks. There are at least
    /// four log blocks.
    pub log_share: f64,
    /// Whether the next block to program is the free block with the fewest erases.
    pub least_worn_first: bool,
    /// For the page-mapped layer: threshold of static wear levelling. A block is emptied, so that
    /// it is reused, if its number of erases is below that of the most worn block by more than this
    /// value. 0 disables static wear levelling.
    pub wear_spread_erases: u32,
    /// For the page-mapped layer: number of free blocks on each die up to which idle cleaning
    /// continues.
    pub background_free_blocks: u32,
    /// Time that the host must be idle before background work begins, in ns.
    pub background_idle_ns: u64,

    /// Size of the volatile write cache, in pages. 0: no cache, a write completes when it is
    /// programmed.
    pub write_cache_pages: u32,
    /// Size of the flash used as an SLC buffer, in pages. 0: no SLC buffer.
    pub slc_pages: u32,
    /// Number of pages read ahead of a sequential reader. 0: no read-ahead.
    pub prefetch_pages: u32,

    /// Time to read a page from the cells into the page register, in ns.
    pub read_ns: u64,
    /// Time to program a page from the page register into the cells, in ns.
    pub program_ns: u64,
    /// Time to erase a block, in ns.
    pub erase_ns: u64,
    /// Time to read a page of the SLC buffer, in ns.
    pub slc_read_ns: u64,
    /// Time to program a page of the SLC buffer, in ns.
    pub slc_program_ns: u64,
    /// Rate of one channel.
    pub channel_rate_bytes_per_s: u64,
    /// Whether a copied page stays on its die, so that it does not pass the channel.
    pub copy_back: bool,
    /// Whether reads of the host overtake other operations that wait for the same die.
    pub reads_first: bool,
    /// Fixed time that is part of every command, in ns.
    pub command_ns: u64,
    /// Rate of the interface to the host, shared by all commands.
    pub interface_rate_bytes_per_s: u64,
    /// Time, in ns, that a flush takes after all earlier writes have been programmed. A FUA write
    /// takes this time in addition to its own time.
    pub flush_ns: u64,
    /// Whether a write-zeroes only deallocates its pages, instead of programming them.
    pub zeroes_deallocate: bool,

    /// Share of the pages that are written sequentially before simulated time begins, from 0 to 1.
    pub filled_share: f64,
    /// Number of random overwrites before simulated time begins, as a multiple of the filled pages.
    pub overwritten_times: f64,
}

/// Maximum of `overwritten_times`.
const OVERWRITTEN_MAX: f64 = 100.0;

/// Minimum number of log blocks of BAST and FAST.
const LOG_BLOCKS_MIN: u32 = 4;

impl FlashParameters {
    /// Checks that a device can have these values; an error names the field. Values that depend on
    /// the capacity are checked when the device is created.
    pub fn validate(&self) -> Result<(), ModelError> {
        require_time("read_ns", self.read_ns)?;
        require_time("program_ns", self.program_ns)?;
        require_time("erase_ns", self.erase_ns)?;
        require_time("slc_read_ns", self.slc_read_ns)?;
        require_time("slc_program_ns", self.slc_program_ns)?;
        require_time("command_ns", self.command_ns)?;
        require_time("flush_ns", self.flush_ns)?;
        require_time("background_idle_ns", self.background_idle_ns)?;
        require_rate("channel_rate_bytes_per_s", self.channel_rate_bytes_per_s)?;
        require_rate(
            "interface_rate_bytes_per_s",
            self.interface_rate_bytes_per_s,
        )?;
        let share = 0.0..=1.0;
        require("log_share", share.contains(&self.log_share), "from 0 to 1")?;
        require(
            "filled_share",
            share.contains(&self.filled_share),
            "from 0 to 1",
        )?;
        let overwritten = (0.0..=OVERWRITTEN_MAX).contains(&self.overwritten_times);
        require("overwritten_times", overwritten, "from 0 to 100")?;
        // The other values are checked by creating a drive of one page.
        let smallest = DriveConfig {
            buffer: BufferConfig::None,
            ..self.drive_config(1, 0)?
        };
        Drive::new(&smallest)?;
        Ok(())
    }

    fn ftl(&self, logical_pages: u32) -> FtlConfig {
        let data_blocks = logical_pages.div_ceil(self.pages_per_block.max(1));
        let share = (f64::from(data_blocks) * self.log_share) as u32;
        let log_blocks = share.max(LOG_BLOCKS_MIN);
        match self.layer {
            FlashLayer::None => FtlConfig::None,
            FlashLayer::Page => FtlConfig::Page(self.page_config()),
            FlashLayer::Block => FtlConfig::Block,
            FlashLayer::Bast => FtlConfig::Bast { log_blocks },
            FlashLayer::Fast => FtlConfig::Fast { log_blocks },
        }
    }

    fn page_config(&self) -> PageConfig {
        PageConfig {
            cleaning: match self.cleaning {
                FlashCleaning::Greedy => Cleaning::Greedy,
                FlashCleaning::Fifo => Cleaning::Fifo,
                FlashCleaning::CostBenefit => Cleaning::CostBenefit,
                FlashCleaning::Choices => Cleaning::Choices(self.cleaning_choices),
            },
            streams: if self.separates_hot {
                Streams::Measured
            } else {
                Streams::One
            },
            separate_copies: true,
            cached_map_entries: self.cached_map_entries,
            // The model has no power cuts, so it need not represent the loss of a mapping table in
            // volatile memory.
            volatile_map: false,
            background_free_blocks: self.background_free_blocks,
        }
    }

    fn drive_config(&self, logical_pages: u32, seed: u64) -> Result<DriveConfig, ModelError> {
        let shape = Geometry {
            channels: self.channels,
            ways: self.ways,
            dies: self.dies,
            planes: self.planes,
            blocks: 1,
            pages_per_block: self.pages_per_block,
            page_bytes: self.page_bytes,
        };
        let ftl = self.ftl(logical_pages);
        let mut config =
            DriveConfig::for_capacity(shape, logical_pages, self.over_provisioning, ftl)?;
        config.wear = WearLevelling {
            least_worn_first: self.least_worn_first,
            spread_erases: self.wear_spread_erases,
        };
        if self.slc_pages > 0 {
            config.buffer = BufferConfig::Slc(self.slc_pages);
        }
        config.prefetch_pages = self.prefetch_pages;
        config.seed = seed;
        // The model has its own times, so the drive need not account for costs.
        config.costs = Costs::default();
        Ok(config)
    }

    fn times(&self) -> OperationTimes {
        OperationTimes {
            read_ns: self.read_ns,
            program_ns: self.program_ns,
            erase_ns: self.erase_ns,
            buffer_read_ns: self.slc_read_ns,
            buffer_program_ns: self.slc_program_ns,
            transfer_ns: transfer_ns(u64::from(self.page_bytes), self.channel_rate_bytes_per_s),
            copy_back: self.copy_back,
            reads_first: self.reads_first,
        }
    }
}

/// A command between its start and its completion.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    command: Command,
    arrival_seq: u64,
    /// Number of operations that the command still waits for.
    operations_left: u32,
    /// Time from the end of the last operation to the completion of the command.
    tail_ns: u64,
}

/// Bits of an operation's tag. `WAITS`: a command waits for the operation. `EMPTIES`: the operation
/// empties a page of the write cache. The bits from `KEY_SHIFT` up hold the key of the command.
const WAITS: u64 = 1;
const EMPTIES: u64 = 2;
const KEY_SHIFT: u32 = 2;

/// A flash drive; see the module head.
#[derive(Debug)]
pub struct Flash {
    parameters: FlashParameters,
    drive: Drive,
    schedule: Schedule,
    /// Counters of the drive when simulated time began.
    before: Counters,
    clock_ns: u64,
    /// Time of the last event.
    instant_ns: u64,
    arrivals: u64,
    /// Waiting commands other than reads.
    others: VecDeque<Queued>,
    in_flight: Slab<InFlight>,
    /// Writes in transfer over the interface, as (arrival, key), in order of arrival.
    arriving: VecDeque<(u64, usize)>,
    interface_free_ns: u64,
    /// Number of pages in the write cache or in transfer to it.
    cached_pages: u64,
    ending: Agenda,
    unreported: Unreported,
    quiet_since_ns: Option<u64>,
    /// True if no background work remains until the next command of the host.
    is_rested: bool,
    lpns: Vec<u32>,
    counters: ModelCounters,
}

impl Flash {
    /// Creates a drive of `capacity_bytes`, filled and overwritten as its parameters describe.
    /// Errors: a parameter out of range, or a capacity of 0 or of too many pages.
    pub fn new(
        parameters: FlashParameters,
        capacity_bytes: u64,
        seed: u64,
    ) -> Result<Self, ModelError> {
        parameters.validate()?;
        require("capacity_bytes", capacity_bytes > 0, "above 0")?;
        let pages = capacity_bytes.div_ceil(u64::from(parameters.page_bytes));
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let config = parameters.drive_config(pages, seed)?;
        let mut drive = Drive::new(&config)?;
        age(&mut drive, &parameters, seed)?;
        drive.recorder().record(true);
        let is_rested = !drive.wants_background_work();
        Ok(Flash {
            schedule: Schedule::new(&config.geometry, parameters.times()),
            before: drive.counters(),
            drive,
            clock_ns: 0,
            instant_ns: 0,
            arrivals: 0,
            others: VecDeque::new(),
            in_flight: Slab::new(),
            arriving: VecDeque::new(),
            interface_free_ns: 0,
            cached_pages: 0,
            ending: Agenda::default(),
            unreported: Unreported::new(),
            quiet_since_ns: Some(0),
            is_rested,
            lpns: Vec::new(),
            counters: ModelCounters::default(),
            parameters,
        })
    }

    /// Returns the pages that a command touches. A range beyond the end is mapped to the last page.
    fn pages_of(&self, command: &Command) -> std::ops::Range<u32> {
        let page_bytes = u64::from(self.parameters.page_bytes);
        let all = self.drive.logical_pages();
        let first = (command.offset / page_bytes).min(u64::from(all - 1));
        let end = command
            .offset
            .saturating_add(command.len)
            .div_ceil(page_bytes);
        let end = end.clamp(first + 1, u64::from(all));
        first as u32..end as u32
    }

    /// Returns the pages that lie entirely inside a command's range.
    fn whole_pages_of(&self, command: &Command) -> std::ops::Range<u32> {
        let page_bytes = u64::from(self.parameters.page_bytes);
        let all = u64::from(self.drive.logical_pages());
        let first = command.offset.div_ceil(page_bytes).min(all);
        let end = command.offset.saturating_add(command.len) / page_bytes;
        first as u32..end.clamp(first, all) as u32
    }

    fn next_instant_ns(&self) -> Option<u64> {
        let candidates = [
            self.ending.next_ns(),
            self.schedule.next_ns(),
            self.arriving.front().map(|(arrival_ns, _)| *arrival_ns),
            self.background_ns(),
        ];
        candidates.into_iter().flatten().min()
    }

    /// Returns the time at which background work continues. Returns `None` if there is no
    /// background work, or if the drive still executes commands or flash operations.
    fn background_ns(&self) -> Option<u64> {
        let quiet_since_ns = self.quiet_since_ns?;
        let waits = self.is_rested || self.schedule.pending() > 0;
        let due_ns = quiet_since_ns.saturating_add(self.parameters.background_idle_ns);
        (!waits).then_some(due_ns.max(self.instant_ns))
    }

    fn run_until(&mut self, now_ns: u64) {
        while let Some(instant_ns) = self.next_instant_ns().filter(|ns| *ns <= now_ns) {
            self.instant_ns = instant_ns;
            self.run_instant(instant_ns);
            if self.quiet_since_ns.is_none() && self.is_quiet() {
                self.quiet_since_ns = Some(instant_ns);
                self.is_rested = !self.drive.wants_background_work();
            }
        }
        self.clock_ns = self.clock_ns.max(now_ns);
    }

    /// Returns whether every command has been answered.
    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.others.is_empty() && self.ending.is_empty()
    }

    /// Processes one of the events that are due at `now_ns`. If several are due, the caller calls
    /// again.
    fn run_instant(&mut self, now_ns: u64) {
        if let Some(completion) = self.ending.pop_due(now_ns) {
            self.unreported.push_back(completion);
            self.start_commands(now_ns);
        } else if self.schedule.next_ns() == Some(now_ns) {
            if let Some(tag) = self.schedule.step() {
                self.operation_ended(now_ns, tag);
            }
        } else if self.arriving.front().is_some_and(|(ns, _)| *ns == now_ns) {
            if let Some((_, key)) = self.arriving.pop_front() {
                self.write_arrived(now_ns, key);
            }
        } else {
            self.work_in_background(now_ns);
        }
    }

    fn operation_ended(&mut self, now_ns: u64, tag: u64) {
        if tag & EMPTIES != 0 {
            self.cached_pages -= 1;
        }
        if tag & WAITS != 0 {
            let key = (tag >> KEY_SHIFT) as usize;
            self.in_flight[key].operations_left -= 1;
            if self.in_flight[key].operations_left == 0 {
                self.end_command(now_ns, key);
            }
        }
        self.start_commands(now_ns);
    }

    /// Ends a command whose operations are complete, or that has no operations.
    fn end_command(&mut self, now_ns: u64, key: usize) {
        let ended = self.in_flight.remove(key);
        let mut done_ns = now_ns + ended.tail_ns;
        if ended.command.kind == CommandKind::Read {
            done_ns = self.pass_interface(now_ns, ended.command.len) + ended.tail_ns;
        }
        self.ending
            .push(done_ns, ended.arrival_seq, ended.command.id);
        self.start_commands(now_ns);
    }

    /// Reserves the interface for a transfer of `len` bytes and returns the time at which the
    /// transfer ends.
    fn pass_interface(&mut self, now_ns: u64, len: u64) -> u64 {
        let moving_ns = transfer_ns(len, self.parameters.interface_rate_bytes_per_s);
        self.interface_free_ns = self.interface_free_ns.max(now_ns) + moving_ns;
        self.interface_free_ns
    }

    /// Starts waiting commands other than reads, oldest first, as far as the write cache and
    /// flushes permit.
    fn start_commands(&mut self, now_ns: u64) {
        while let Some(queued) = self.others.front().copied() {
            let started = match queued.command.kind {
                CommandKind::Flush => self.start_flush(now_ns, &queued),
                CommandKind::Discard => self.start_discard(now_ns, &queued),
                CommandKind::WriteZeroes if self.parameters.zeroes_deallocate => {
                    self.start_discard(now_ns, &queued)
                }
                CommandKind::WriteZeroes | CommandKind::Write | CommandKind::Read => {
                    self.start_write(now_ns, &queued)
                }
            };
            if !started {
                return;
            }
            self.others.pop_front();
        }
    }

    fn start_flush(&mut self, now_ns: u64, queued: &Queued) -> bool {
        if !self.in_flight.is_empty() || !self.ending.is_empty() || self.cached_pages > 0 {
            return false;
        }
        self.ending.push(
            now_ns + self.parameters.flush_ns,
            queued.arrival_seq,
            queued.command.id,
        );
        true
    }

    fn start_discard(&mut self, now_ns: u64, queued: &Queued) -> bool {
        for lpn in self.whole_pages_of(&queued.command) {
            let trimmed = self.drive.trim(lpn);
            debug_assert!(trimmed.is_ok(), "a page of the drive");
        }
        self.add_operations(now_ns, None, false);
        let done_ns = now_ns + self.parameters.command_ns;
        self.ending
            .push(done_ns, queued.arrival_seq, queued.command.id);
        true
    }

    /// Starts the transfer of a write over the interface once its pages fit into the cache. A write
    /// larger than the cache waits until the cache is empty.
    fn start_write(&mut self, now_ns: u64, queued: &Queued) -> bool {
        let cache_pages = u64::from(self.parameters.write_cache_pages);
        let pages = self.pages_of(&queued.command).len() as u64;
        let fits = self.cached_pages == 0 || self.cached_pages + pages <= cache_pages;
        if cache_pages > 0 && !fits {
            return false;
        }
        self.cached_pages += pages;
        let arrival_ns = self.pass_interface(now_ns, queued.command.len);
        let key = self.in_flight.insert(InFlight {
            command: queued.command,
            arrival_seq: queued.arrival_seq,
            operations_left: 0,
            tail_ns: self.parameters.command_ns,
        });
        self.arriving.push_back((arrival_ns, key));
        true
    }

    /// Handles a write whose data has arrived: translates its pages and issues their flash
    /// operations.
    fn write_arrived(&mut self, now_ns: u64, key: usize) {
        let command = self.in_flight[key].command;
        let pages = self.pages_of(&command);
        self.read_edges(&command, &pages);
        self.lpns.clear();
        self.lpns.extend(pages);
        let written = self.drive.write(&self.lpns);
        debug_assert!(written.is_ok(), "pages of the drive");
        self.count_freeze();
        let waits = command.fua || self.parameters.write_cache_pages == 0;
        if command.fua {
            self.in_flight[key].tail_ns += self.parameters.flush_ns;
        }
        self.add_operations(now_ns, waits.then_some(key), true);
        // During the transfer, the pages of the write were counted as cached. From now on, its
        // program operations are counted instead, so the pages are subtracted.
        self.cached_pages -= self.lpns.len() as u64;
        if self.in_flight[key].operations_left == 0 {
            self.end_command(now_ns, key);
        }
    }

    /// Reads the first and the last page of a write if the write covers them only partly.
    fn read_edges(&mut self, command: &Command, pages: &std::ops::Range<u32>) {
        let whole = self.whole_pages_of(command);
        let first = Some(pages.start);
        let last = pages.clone().next_back().filter(|lpn| *lpn > pages.start);
        for lpn in [first, last].into_iter().flatten() {
            if !whole.contains(&lpn) {
                let read = self.drive.read(lpn);
                debug_assert!(read.is_ok(), "a page of the drive");
            }
        }
    }

    /// Counts a write that had to wait for cleaning, and adds the time for which this cleaning
    /// occupies the flash cells.
    fn count_freeze(&mut self) {
        let times = self.parameters.times();
        let cleaning = |o: &&Operation| o.purpose == Purpose::Copy || o.action == Action::Erase;
        let operations = self.drive.recorder().operations();
        let frozen = operations.iter().filter(cleaning);
        let frozen_ns: u64 = frozen.map(|o| times.cells_ns(o.action, o.purpose)).sum();
        self.counters.freezes += u64::from(frozen_ns > 0);
        self.counters.frozen_ns += frozen_ns;
    }

    /// Queues at the dies all operations that the drive has recorded. If `key` is given, the
    /// operations belong to the command with that key. If `is_write` is true, each operation that
    /// programs a page of the host occupies a page of the write cache until the operation
    /// completes.
    fn add_operations(&mut self, now_ns: u64, key: Option<usize>, is_write: bool) {
        for operation in self.drive.recorder().operations() {
            let mut tag = 0;
            if is_write && empties_cache(operation) {
                tag |= EMPTIES;
                self.cached_pages += 1;
            }
            if let Some(key) = key.filter(|_| holds_up(operation)) {
                tag |= WAITS | (key as u64) << KEY_SHIFT;
                self.in_flight[key].operations_left += 1;
            }
            self.schedule.add(now_ns, operation, tag);
        }
        self.drive.recorder().clear();
    }

    fn work_in_background(&mut self, now_ns: u64) {
        // No error is expected, because the drive was filled and overwritten without an error
        // before simulated time began. After an error, the model does no background work until the
        // next command.
        let worked = self.drive.work_in_background().unwrap_or(false);
        self.is_rested = !worked || !self.drive.wants_background_work();
        self.add_operations(now_ns, None, false);
    }

    fn start_read(&mut self, now_ns: u64, queued: &Queued) {
        for lpn in self.pages_of(&queued.command) {
            let read = self.drive.read(lpn);
            debug_assert!(read.is_ok(), "a page of the drive");
        }
        let key = self.in_flight.insert(InFlight {
            command: queued.command,
            arrival_seq: queued.arrival_seq,
            operations_left: 0,
            tail_ns: self.parameters.command_ns,
        });
        self.add_operations(now_ns, Some(key), false);
        if self.in_flight[key].operations_left == 0 {
            self.end_command(now_ns, key);
        }
    }
}

/// Returns true if the operation programs a page of the host, and so removes it from the write
/// cache.
fn empties_cache(operation: &Operation) -> bool {
    operation.action == Action::Program
        && matches!(operation.purpose, Purpose::Host | Purpose::Buffer)
}

/// Returns true if the command that caused an operation waits for the operation. A command does not
/// wait for cleaning or for writes of the mapping table; they delay the command only by occupying a
/// die before the command's own pages.
fn holds_up(operation: &Operation) -> bool {
    match operation.action {
        Action::Read => matches!(
            operation.purpose,
            Purpose::Host | Purpose::Buffer | Purpose::Map
        ),
        Action::Program => empties_cache(operation),
        Action::Erase => false,
    }
}

/// Brings a new drive into the initial state that the parameters describe.
fn age(drive: &mut Drive, parameters: &FlashParameters, seed: u64) -> Result<(), ModelError> {
    let filled = (f64::from(drive.logical_pages()) * parameters.filled_share) as u32;
    for lpn in 0..filled {
        drive.write(&[lpn])?;
    }
    if filled == 0 {
        return Ok(());
    }
    let mut draws = Draws::new(seed);
    let overwrites = (f64::from(filled) * parameters.overwritten_times) as u64;
    for _ in 0..overwrites {
        let lpn = draws.between(0, u64::from(filled - 1)) as u32;
        drive.write(&[lpn])?;
    }
    Ok(())
}

impl TimingModel for Flash {
    fn submit(&mut self, now_ns: u64, command: Command) {
        self.run_until(now_ns);
        let now_ns = self.clock_ns;
        let outstanding = self.in_flight.len() + self.others.len() + self.ending.len();
        assert!(
            outstanding < MAX_OUTSTANDING,
            "the layer above bounds its depth"
        );
        self.quiet_since_ns = None;
        self.counters.count(&command);
        let queued = Queued {
            command,
            arrival_seq: self.arrivals,
        };
        self.arrivals += 1;
        if command.kind == CommandKind::Read {
            self.start_read(now_ns, &queued);
        } else {
            self.others.push_back(queued);
            self.start_commands(now_ns);
        }
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
        let waiting = self.unreported.front().map(|(_, done_ns)| *done_ns);
        waiting.or_else(|| self.next_instant_ns())
    }

    fn counters(&self) -> ModelCounters {
        let flash = self.drive.counters() - self.before;
        ModelCounters {
            flash_programs: flash.programs + flash.programs_buffer,
            flash_copied_pages: flash.programs_copy,
            flash_padded_pages: flash.programs_padding,
            flash_map_programs: flash.programs_map,
            flash_erases: flash.erases + flash.erases_buffer,
            flash_merges: flash.merges(),
            flash_background_cleanings: flash.cleanings_background,
            ..self.counters
        }
    }
}
