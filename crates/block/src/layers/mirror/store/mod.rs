//! Storage of one side: every change is appended to a log in sequence, and is destaged to its home
//! location later, sorted and merged. The contract is in `docs/trust.md`, the format in
//! `docs/format/mirror-side.md`.
//!
//! A store knows one side and none of its peers. It must never lose a change that it reported as
//! durable, never return content other than the content written, and never drop a log entry that a
//! peer may still need.

mod again;
mod append;
mod areas;
mod check;
mod checkpoint;
pub(super) mod checksums;
mod choose;
mod destage;
pub(super) mod digests;
mod dropping;
mod entry;
mod extents;
mod forgetting;
mod growing;
mod headers;
mod index;
mod log;
pub(super) mod pages;
mod progress;
mod reading;
mod recover;
pub(super) mod regions;
mod relog;
mod runs;
mod straight;
mod superseded;
#[cfg(test)]
mod tests;
pub(super) mod written;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::{Semaphore, TaskGroup};
use bimetal_rt::{Buf, Instant, Payload, Rt};

pub(super) use self::append::Append;
pub(super) use self::check::Checked;
use self::checksums::Checksums;
pub(super) use self::entry::Space;
use self::index::Content;
use self::log::GivenBelow;
use self::log::Log;
pub(super) use self::log::{LogCounts, Outcome};
use self::pages::{PageBits, WrittenIn};
use self::progress::Noticed;
use self::regions::Regions;
pub(super) use self::straight::Unsettled;
pub(super) use self::superseded::Superseded;
use self::written::Written;
use super::digest::BlockDigest;
use super::superblock::{FIRST_CHANGE, SideLayout, Uuid};
use crate::BLOCK_BYTES;
use crate::device::{Device, LocalFuture, Statistic, StatisticVisitor};
use crate::error::IoError;
use crate::range_lock::RangeLock;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Lowest number of records per log entry when many changes are given at once, except in entries
/// that are full.
const RECORDS_TOGETHER: u64 = 16;

/// The device of a side and the parameters with which its store is opened.
#[derive(Clone)]
pub(super) struct StoreDevice {
    pub(super) device: Rc<dyn Device>,
    pub(super) side: Uuid,
    pub(super) layout: SideLayout,
    pub(super) digest: BlockDigest,
    pub(super) volume_bytes: u64,
    /// Number of blocks at the start of the data area that had content when the side was formatted.
    pub(super) unknown_blocks: u64,
    /// Whether checksums of the blocks in their home locations are kept.
    pub(super) integrity: bool,
    /// Maps the number of an epoch to the sequence number below which the changes of that epoch
    /// count.
    pub(super) counts_below: Rc<dyn Fn(u64) -> u64>,
    /// Maximum number of bytes of checksum pages cached in memory.
    pub(super) checksum_cache_bytes: u64,
}

/// State of a store as found when it was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreFound {
    /// All changes below this sequence number are on the side.
    pub(super) complete_below: u64,
    /// Lowest sequence number that the side has certainly never seen.
    pub(super) next_number: u64,
    /// Time at which the last log entry was written, in seconds since 1970.
    pub(super) written_s: Option<u64>,
    /// All changes below this sequence number were durable on every member of the epoch.
    pub(super) shared_below: u64,
    /// No change from this sequence number on has left the log while a member of the epoch lacked
    /// it. 0: this is not known.
    pub(super) kept_from: u64,
    /// Changes that had been durable are lost, and it is not known which.
    pub(super) damaged: bool,
}

/// Counters of a store since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreCounts {
    /// Bytes written to their home locations.
    pub(super) destaged_bytes: u64,
    /// Writes that the destage took.
    pub(super) destage_writes: u64,
    /// Bytes that newer changes replaced before they were destaged.
    pub(super) replaced_bytes: u64,
}

/// Returns a peer's content of a range of the volume, or `None` if the peer cannot supply it.
pub(super) type AskPeer = dyn Fn(Range<u64>) -> LocalFuture<'static, Option<Payload>>;

/// The store of one side; see the module documentation.
pub(super) struct Store {
    rt: Rt,
    device: Rc<dyn Device>,
    data_offset: u64,
    digest: BlockDigest,
    volume_bytes: Cell<u64>,
    log: Rc<Log>,
    checksums: Option<Checksums>,
    regions: Regions,
    /// Records which pages of the map and of the checksums were ever written; `None` when
    /// formatting wrote all of them.
    written: Option<Rc<Written>>,
    /// Lets one task at a time make the changed pages durable.
    writing_pages: Rc<Semaphore>,
    /// Locks of the ranges whose home location is being written.
    home: Rc<RangeLock>,
    zeroes: Buf,
    found: StoreFound,
    epoch: Cell<u64>,
    /// Changes below this sequence number are durable on all other members. Until the store is told
    /// of other members, it assumes that there are none.
    released_below: Cell<u64>,
    /// Bytes relogged for a late member since `released_below` last changed, and the tail of the
    /// log at that moment.
    relogged: Cell<(u64, u64)>,
    /// A side is missing that will need the changes that are dropped, so their regions must be
    /// marked.
    marks_all: Cell<bool>,
    /// The home may be a mixture of old and new content: the side is being rebuilt, and its
    /// superblock says so.
    mixes: Cell<bool>,
    /// Returns true while the destage should hold back because peers are late and the side has more
    /// urgent work.
    held: RefCell<Rc<dyn Fn() -> bool>>,
    /// Called when more has become durable on this side, and when the log waits for changes to
    /// become durable on the other members.
    durability_moved: RefCell<Rc<dyn Fn()>>,
    /// The log has waited for the other members in vain while changes waited for its space: the
    /// changes that the members lack are dropped from it anyway, and their regions are marked.
    let_go: Cell<bool>,
    /// Asks a peer for its content of a range, if there is a peer that is cheaper to read.
    peer: RefCell<Option<Rc<AskPeer>>>,
    /// Number of callers that wait until everything is destaged.
    escalations: Cell<u32>,
    /// Lets one chunk at a time be destaged.
    destaging: Rc<Semaphore>,
    /// The destage has ended and will not start again.
    ending: Cell<bool>,
    /// Time of the last request to the store.
    wanted: Cell<Instant>,
    /// Ranges of changes that were forgotten and may have been destaged. Their records may still be
    /// in the log, where a later opening finds them again.
    forgotten: RefCell<RangeSet>,
    /// Ranges whose home may hold content that the checksums do not describe: from changes that
    /// were forgotten, and from a rebuild that was cut short.
    unsettled: RefCell<RangeSet>,
    /// Ranges in which corrupt blocks were found on the side, for the mirror to repair.
    suspect: RefCell<RangeSet>,
    /// State of the writes with which a rebuild bypasses the log.
    straight: straight::Straight,
    counts: Cell<StoreCounts>,
    /// Wrapper of the device that records when the device last completed a request of the store,
    /// and that lets no change through once the store has ended.
    noticed: Rc<Noticed>,
    tasks: TaskGroup,
}

/// Initialises the areas of a new side: an empty log, and no page of the map or of the checksums
/// written, so that no region was ever changed and no block ever written. With `has_content`, the
/// data area keeps its content, which counts as change 1. The areas are durable when this returns.
/// It writes little, whatever the size of the side.
///
/// # Errors
/// Those of the device; the content of the areas is then unknown.
///
/// # Panics
/// When the layout has no area that records which pages were written.
pub(super) async fn initialise(
    rt: &Rt,
    device: &Rc<dyn Device>,
    side: Uuid,
    layout: &SideLayout,
    has_content: bool,
) -> Result<(), IoError> {
    let place = layout.written.expect("a new side says what was written");
    written::initialise(rt, &**device, place, layout.pages(), side).await?;
    // Content from before the format counts as the first change.
    let complete_below = match has_content {
        false => 0,
        true => FIRST_CHANGE + 1,
    };
    let first = checkpoint::Checkpoint {
        complete_below,
        shared_below: complete_below,
        kept_from: FIRST_CHANGE,
        ..checkpoint::Checkpoint::default()
    };
    checkpoint::write(rt, device, &side, &first, &Cell::new(0)).await
}

/// Returns the maximum number of bytes of changes by which a side may be late, given the usable
/// bytes of its log: there must be room for these changes, for their headers, for changes that
/// overtook them, and for new writes.
fn backlog_share(usable_bytes: u64) -> u64 {
    usable_bytes / 4
}

/// Returns the maximum number of bytes of changes by which a side with a log of `log_bytes` may be
/// late, which bounds the exposure of its volume. The result is for a device without a bound on its
/// transfers; other devices may allow a little more.
pub(super) fn backlog_bytes_max(log_bytes: u64) -> u64 {
    backlog_share(log::Area::new((0, log_bytes), u64::MAX).usable_bytes())
}

/// The areas of a side other than its log and its data.
struct Areas {
    written: Option<Rc<Written>>,
    regions: Regions,
    checksums: Option<Checksums>,
}

async fn open_areas(rt: &Rt, device: &Rc<dyn Device>, on: &StoreDevice) -> Result<Areas, IoError> {
    let pages = |(offset, len): (u64, u64)| pages::Area {
        offset,
        len,
        side: on.side,
        numbered_from: 0,
    };
    let (map, of_checksums) = (pages(on.layout.map), pages(on.layout.checksums));
    let written = match on.layout.written {
        Some(place) => Some(Written::load(rt, device, place, on.layout.pages(), on.side).await?),
        None => None,
    };
    let bits = || written.clone().map(|written| written as Rc<dyn PageBits>);
    let of_map = WrittenIn::new(bits(), 0);
    let regions = Regions::load(rt, device, map, on.volume_bytes, of_map).await?;
    let checksums = on.integrity.then(|| {
        let blocks = on.layout.data.1 / BLOCK_BYTES;
        let cached = (on.checksum_cache_bytes / BLOCK_BYTES).max(16) as usize;
        let checksums = Checksums::new(rt, device, of_checksums, blocks, cached);
        // The bits of the map's pages come before those of the checksum pages.
        checksums.with_written(WrittenIn::new(bits(), map.pages()), on.unknown_blocks)
    });
    Ok(Areas {
        written,
        regions,
        checksums,
    })
}

impl Store {
    /// Opens a store by reading the side. Changes nothing on it.
    ///
    /// # Errors
    /// When the side cannot be read. `Corrupt` when the start of its log is not known.
    pub(super) async fn open(rt: &Rt, on: &StoreDevice) -> Result<Rc<Store>, IoError> {
        Store::open_telling(rt, on, &|_| ()).await
    }

    /// Does the same as [`open`](Self::open), and calls `told` repeatedly with the number of bytes
    /// of the log read so far.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) async fn open_telling(
        rt: &Rt,
        on: &StoreDevice,
        told: &dyn Fn(u64),
    ) -> Result<Rc<Store>, IoError> {
        let transfer_max = u64::from(on.device.geometry().transfer_bytes_max);
        let noticed = Noticed::over(rt, &on.device);
        let device = Rc::clone(&noticed) as Rc<dyn Device>;
        let area = log::Area::new(on.layout.log, transfer_max);
        let recovered = recover::recover(&device, on, area, told);
        let areas = open_areas(rt, &device, on);
        let (recovered, areas) = futures_util::future::try_join(recovered, areas).await?;
        let found = StoreFound {
            complete_below: recovered.start.complete,
            next_number: recovered.next_number(),
            written_s: recovered.written_s,
            shared_below: recovered.shared_below,
            kept_from: recovered.start.checkpoint.kept_from,
            damaged: recovered.damaged,
        };
        let mut forgotten = RangeSet::new();
        forgotten.extend(recovered.given_up);
        let log = Log::new(
            rt,
            Rc::clone(&device),
            on.side,
            on.digest,
            area,
            recovered.start,
        );
        Ok(Rc::new(Store {
            rt: rt.clone(),
            device: Rc::clone(&device),
            data_offset: on.layout.data.0,
            digest: on.digest,
            volume_bytes: on.volume_bytes.into(),
            log,
            checksums: areas.checksums,
            regions: areas.regions,
            written: areas.written,
            writing_pages: Semaphore::new(1),
            home: RangeLock::new(),
            zeroes: rt.pool().zeroed(1 << 20),
            found,
            epoch: Cell::new(0),
            released_below: Cell::new(u64::MAX),
            relogged: Cell::default(),
            marks_all: Cell::new(true),
            mixes: Cell::new(false),
            held: RefCell::new(Rc::new(|| false)),
            let_go: Cell::new(false),
            durability_moved: RefCell::new(Rc::new(|| {})),
            peer: RefCell::default(),
            escalations: Cell::new(0),
            destaging: Semaphore::new(1),
            ending: Cell::new(false),
            wanted: Cell::new(rt.now()),
            unsettled: RefCell::new(forgotten.clone()),
            forgotten: RefCell::new(forgotten),
            suspect: RefCell::default(),
            straight: straight::Straight::default(),
            counts: Cell::default(),
            noticed,
            tasks: TaskGroup::new(rt),
        }))
    }

    /// Returns when the device last completed a request of the store.
    pub(super) fn last_progress(&self) -> Instant {
        self.noticed.last()
    }

    /// Returns the state found when the store was opened.
    pub(super) fn found(&self) -> StoreFound {
        self.found
    }

    /// Makes the store ready for changes, and starts the destage. The log begins a new incarnation,
    /// so that no late write of an earlier one can interfere. All content that the opening read is
    /// durable when this returns. If the log has too little space, this makes space first.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) async fn begin(self: &Rc<Self>) -> Result<(), IoError> {
        while let Err(error) = self.log.begin_run().await {
            if error != IoError::NoSpace {
                return Err(error);
            }
            self.device.submit(Request::flush()).await?;
            self.log.read_is_durable();
            if !self.make_space().await? {
                self.log.begin_run_again().await?;
            }
        }
        let store = Rc::clone(self);
        self.tasks
            .spawn(async move { store.destage_for_ever().await });
        Ok(())
    }

    /// Tells the store its epoch, how to ask for the sequence number below which it has been given
    /// every change, and when it should hold back the destage.
    pub(super) fn monitor(
        &self,
        epoch: u64,
        given_below: Rc<GivenBelow>,
        held: Rc<dyn Fn() -> bool>,
    ) {
        self.epoch.set(epoch);
        self.log.monitor(epoch, given_below);
        *self.held.borrow_mut() = held;
    }

    /// Has `told` called when the destage of this side has made more durable, and whenever the
    /// destage waits for changes to become durable on the other members. These may not have been
    /// asked for a flush, and while the log has no room no client comes to ask for one.
    pub(super) fn tell_of_durability(&self, told: Rc<dyn Fn()>) {
        *self.durability_moved.borrow_mut() = told;
    }

    /// Calls the function that [`tell_of_durability`](Store::tell_of_durability) has set.
    fn durability_has_moved(&self) {
        let told = Rc::clone(&self.durability_moved.borrow());
        told();
    }

    /// Returns true when a stored change has been covered by no flush.
    pub(super) fn has_unflushed(&self) -> bool {
        self.log.has_unflushed()
    }

    /// Returns true when the log runs short of space and its oldest entry is kept for another
    /// member.
    pub(super) fn waits_for_peers(&self) -> bool {
        self.fill() >= choose::Fill::High && self.keeps_first()
    }

    /// Lets a rotational side ask a non-rotational peer for the content that it destages.
    pub(super) fn ask_for_content(&self, peer: Rc<AskPeer>) {
        if self.device.geometry().rotational {
            *self.peer.borrow_mut() = Some(peer);
        }
    }

    /// Sets the number of the epoch, once a new one has begun.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.log.set_epoch(epoch);
    }

    /// Releases the changes below `released_below`, which every other member of the epoch has.
    /// `marks_all` says whether a side is missing, so that the regions of dropped changes must be
    /// marked.
    pub(super) fn release(&self, released_below: u64, marks_all: bool) {
        let more = released_below > self.released_below.get() || marks_all != self.marks_all.get();
        if released_below != self.released_below.get() {
            self.relogged.set((0, self.log.tail()));
        }
        self.released_below.set(released_below);
        let shared_below = released_below.min(self.log.complete_durable());
        if !marks_all {
            self.log.set_shared_below(shared_below);
        }
        self.marks_all.set(marks_all);
        if more {
            self.log.changed.notify();
        }
    }

    /// Makes the log keep, from now on, every change that a member of the epoch lacks; all members
    /// have every change below `number`. `None`: the log has to drop a change that a member lacks.
    /// The log records this whenever it drops entries.
    pub(super) fn keep_from(&self, number: Option<u64>) {
        self.log.keep_from(number);
    }

    /// Makes the content found at the opening durable, as far as only a flush is missing.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn flush_what_was_found(&self) -> Result<(), IoError> {
        self.device.submit(Request::flush()).await?;
        self.log.read_is_durable();
        Ok(())
    }

    /// Begins the rebuild of a side that is marked as inconsistent: from now on its home may be a
    /// mixture of old and new content. The side has been no member since the epoch `member_until`;
    /// `None`: it may lack everything.
    pub(super) fn begin_mixing(&self, member_until: Option<u64>) {
        // Where an earlier rebuild was cut short, the home may hold content that the checksums do
        // not describe.
        let since = member_until.map_or(0, |epoch| epoch + 1);
        let touched = self.out_of_sync_since(since);
        self.unsettled.borrow_mut().extend(touched);
        self.mixes.set(true);
        self.straight.allow(true);
        self.log.changed.notify();
    }

    /// Ends the rebuild: the side holds everything again.
    pub(super) fn end_mixing(&self) {
        self.mixes.set(false);
        self.straight.allow(false);
        self.unsettled.borrow_mut().clear();
        self.log.changed.notify();
    }

    /// Appends a change to the log; see [`Log::append`].
    pub(super) fn append(&self, append: Append) -> Outcome {
        self.wanted.set(self.rt.now());
        self.log.append(append)
    }

    /// Makes all stored changes up to `number` durable; see [`Log::flush`].
    pub(super) async fn flush(&self, number: u64) -> Result<(), IoError> {
        self.log.flush(number).await
    }

    /// Makes the log say durably that the side holds every change below `number`, once an opening
    /// has given the side all of these that count. Content returned to readers from then on must be
    /// found again if the side is started alone, where no change counts beyond the complete ones.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn become_complete(&self, number: u64) -> Result<(), IoError> {
        if self.complete_durable() >= number {
            return Ok(());
        }
        self.log
            .monitor(self.epoch.get(), Rc::new(move |limit| number.min(limit)));
        self.log.flush(number).await
    }

    /// Returns true when the side has a checksum of each block.
    pub(super) fn has_checksums(&self) -> bool {
        self.checksums.is_some()
    }

    /// Returns true when at least half of the log is in use: its entries should then become
    /// durable, so that they can be destaged.
    pub(super) fn is_half_full(&self) -> bool {
        self.log.used_bytes() >= self.log.usable_bytes() / 2
    }

    /// Returns the maximum number of bytes of changes by which the side may be late.
    pub(super) fn backlog_bytes_max(&self) -> u64 {
        backlog_share(self.log.usable_bytes())
    }

    /// Returns true when `bytes` in `records` records, given many at once, fit into the log before
    /// any of them is destaged.
    pub(super) fn takes(&self, bytes: u64, records: u64) -> bool {
        self.log.takes(bytes, records, RECORDS_TOGETHER)
    }

    /// Returns true when the log has space for a change that overtakes others. All waiting changes,
    /// of the given bytes and parts, and all that may still join them, must find room behind it,
    /// because none of these is destaged before. Each part may need an entry of its own, since a
    /// side may be given one part at a time.
    pub(super) fn may_overtake(&self, waiting_bytes: u64, waiting_parts: u64) -> bool {
        let bytes = waiting_bytes.max(self.backlog_bytes_max());
        let parts = waiting_parts.max(self.backlog_bytes_max() / BLOCK_BYTES);
        self.log.takes(bytes, parts, 1)
    }

    /// Returns the sequence number below which all changes are durable here.
    pub(super) fn complete_durable(&self) -> u64 {
        self.log.complete_durable()
    }

    /// Returns the sequence number below which all changes are stored here.
    pub(super) fn complete(&self) -> u64 {
        self.log.complete()
    }

    /// Returns the ranges whose newest change in the log has a sequence number of `first` or more,
    /// with that number.
    pub(super) fn changes_from(&self, first: u64) -> Vec<(Range<u64>, u64)> {
        self.log.index.borrow().since_number(first)
    }

    /// Returns the sequence number of the newest change in the log for each part of a range; parts
    /// that are not in the log are left out.
    pub(super) fn numbers_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        let newest = self.log.index.borrow().newest_in(range).into_iter();
        newest.map(|(part, logged)| (part, logged.number)).collect()
    }

    /// Returns the offset on the device of the newest content of a block, for tests that bypass the
    /// store. `None` for zeroes and lost blocks in the log, which have no content on the device.
    pub(super) fn place_of(&self, offset: u64) -> Option<u64> {
        let newest = self
            .log
            .index
            .borrow()
            .newest_in(&(offset..offset + BLOCK_BYTES));
        match newest.first().map(|(_, record)| &record.content) {
            Some(Content::Data { position, .. }) => Some(self.log.area.at(*position)),
            Some(Content::Zeroes(_) | Content::Lost) => None,
            None => Some(self.data_offset + offset),
        }
    }

    /// Returns the ranges that a side whose current epoch has this number may lack, because log
    /// entries of them have been dropped.
    pub(super) fn out_of_sync_since(&self, epoch: u64) -> Vec<Range<u64>> {
        self.regions
            .out_of_sync_since(epoch, self.volume_bytes.get())
    }

    /// Takes no more changes; waiting ones fail with `error`.
    pub(super) fn halt(&self, error: IoError) {
        self.log.halt(error);
    }

    /// Ends the destage, waits until the device has completed its requests, and ends everything
    /// else: the side is about to be opened anew, and no late write may fall on what the new store
    /// writes. A task that still works in the store, such as a stop that waits for the destage, or
    /// a scrub, can change nothing on the side any more.
    pub(super) async fn end(&self) {
        self.ending.set(true);
        self.log.changed.notify();
        let _none = self.destaging.acquire(1).await;
        self.log.until_idle().await;
        self.noticed.end_changes().await;
        self.stop().await;
    }

    /// Ends all background tasks of the store.
    pub(super) async fn stop(&self) {
        self.tasks.cancel().await;
        self.log.cancel().await;
    }

    /// Returns the ranges in which corrupt blocks were found since the last call.
    pub(super) fn take_suspects(&self) -> Vec<Range<u64>> {
        let suspect = std::mem::take(&mut *self.suspect.borrow_mut());
        suspect.iter().collect()
    }

    /// Returns true while changes wait for space in the log.
    pub(super) fn is_full(&self) -> bool {
        self.log.is_full()
    }

    /// Returns the number of bytes of the log in use, and its length.
    pub(super) fn log_bytes(&self) -> (u64, u64) {
        (self.log.used_bytes(), self.log.area.bytes)
    }

    /// Returns the number of bytes of the volume whose newest content is in the log.
    pub(super) fn logged_bytes(&self) -> u64 {
        self.log.index.borrow().bytes()
    }

    /// Returns the counters of the store and of its log.
    pub(super) fn counts(&self) -> (StoreCounts, LogCounts) {
        (self.counts.get(), self.log.counts())
    }

    /// Reports the statistics of the store under the name `part` of its side.
    pub(super) fn statistics(&self, part: &str, out: &mut dyn StatisticVisitor) {
        let ((used, all), (store, log)) = (self.log_bytes(), self.counts());
        let mut show = |name, value| out.statistic(part, name, value);
        show("log_used_bytes", Statistic::Gauge(used as f64));
        show("log_bytes", Statistic::Gauge(all as f64));
        show("logged_bytes", Statistic::Gauge(self.logged_bytes() as f64));
        show("log_entries", Statistic::Counter(log.entries));
        show("log_records", Statistic::Counter(log.records));
        show("log_written_bytes", Statistic::Counter(log.bytes));
        show("log_full", Statistic::Counter(log.full));
        show("destage_writes", Statistic::Counter(store.destage_writes));
        show("destaged_bytes", Statistic::Counter(store.destaged_bytes));
        show("replaced_bytes", Statistic::Counter(store.replaced_bytes));
        let damaged = self.regions.damaged().len() as u64;
        show("bitmap_damaged_pages", Statistic::Counter(damaged));
        if let Some(written) = &self.written {
            let damaged = written.damaged_sectors();
            show("written_damaged_sectors", Statistic::Counter(damaged));
        }
        if let Some(checksums) = &self.checksums {
            checksums.statistics(part, out);
        }
    }

    fn count(&self, add: impl FnOnce(&mut StoreCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Returns the digest function for the blocks of this side.
    pub(super) fn digest(&self) -> BlockDigest {
        self.digest
    }
}

/// Waits for all appends, and returns the first error among them.
pub(super) async fn all_stored(outcomes: Vec<Outcome>) -> Result<(), IoError> {
    let mut stored = Ok(());
    for outcome in outcomes {
        stored = stored.and(outcome.wait().await);
    }
    stored
}
