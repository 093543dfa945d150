//! Storage of one side: every change is appended to a log sequentially, and is destaged to its home
//! location later, sorted and merged. The contract is in `docs/trust.md`, the format in
//! `docs/format/mirror-side.md`.
//!
//! A store knows one side and no other. It must never lose a change that it reported as durable,
//! never return content other than the content written, and never drop a log entry that another
//! side may still need.

mod again;
mod append;
mod areas;
mod by_place;
mod changes;
mod check;
mod checkpoint;
pub(super) mod checksums;
mod choose;
mod cleaning;
mod committing;
mod content;
mod deltas;
mod destage;
pub(super) mod digests;
mod dropping;
mod entry;
mod extents;
mod flying;
mod folding;
mod forgetting;
mod giving_way;
mod growing;
mod headers;
mod index;
mod late;
mod log;
mod log_area;
mod open_areas;
mod ordering;
mod outdated;
mod overtaking;
mod pacing;
pub(super) mod pages;
mod progress;
mod reading;
mod recover;
pub(super) mod regions;
mod relog;
mod restoring;
mod room;
mod runs;
mod segments;
mod statistics;
mod straight;
mod superseded;
#[cfg(test)]
mod tests;
mod turns;
mod withheld;
pub(super) mod written;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::pacing::Pacing;
use bimetal_rt::sync::{Semaphore, TaskGroup};
use bimetal_rt::{Buf, Instant, Payload, Rt};

pub(super) use self::append::Append;
pub(super) use self::by_place::{Listed, Piece, Run};
pub(super) use self::check::Checked;
use self::checksums::Checksums;
pub(super) use self::entry::Space;
pub(super) use self::flying::{LogCounts, Outcome};
use self::index::Content;
use self::late::Overtaking;
use self::log::{GivenBelow, Log};
use self::log_area::Area;
use self::open_areas::open_areas;
use self::ordering::Idle;
use self::outdated::AskOutdated;
pub(super) use self::outdated::Outdated;
use self::progress::Noticed;
use self::regions::Regions;
use self::segments::{Birth, Segments};
pub(super) use self::straight::Unsettled;
pub(super) use self::superseded::Superseded;
use self::written::Written;
use super::digest::BlockDigest;
use super::superblock::{FIRST_CHANGE, SideLayout, Uuid};
use crate::BLOCK_BYTES;
use crate::device::{Device, LocalFuture};
use crate::error::IoError;
use crate::range_lock::RangeLock;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Assumed minimum number of records in a log entry that is not full, when many changes are
/// appended together. The space that the log needs for entry headers is computed from this number.
const RECORDS_TOGETHER: u64 = 16;

/// The device of a side, with the parameters for opening its store.
#[derive(Clone)]
pub(super) struct StoreDevice {
    pub(super) device: Rc<dyn Device>,
    pub(super) side: Uuid,
    pub(super) layout: SideLayout,
    pub(super) digest: BlockDigest,
    pub(super) volume_bytes: u64,
    /// Number of blocks at the start of the data area that already had content when the side was
    /// formatted.
    pub(super) unknown_blocks: u64,
    /// Whether the side keeps checksums of the blocks at their home locations.
    pub(super) integrity: bool,
    /// Function that maps the number of an epoch to the sequence number below which the changes of
    /// that epoch are valid.
    pub(super) counts_below: Rc<dyn Fn(u64) -> u64>,
    /// Maximum number of bytes of checksum pages that a side with a home keeps in memory.
    pub(super) checksum_cache_bytes: u64,
    /// Maximum number of bytes of pages that a logged side keeps in memory, half of them pages of
    /// its map, half of them pages of its checksums.
    pub(super) map_memory_bytes: u64,
    /// Whether tests ask for the places of blocks on a logged side at any time.
    pub(super) watches_map: bool,
    /// Time without requests of clients after which a logged disk is put in order; `None` if it
    /// never is.
    pub(super) order_after: Option<Duration>,
    /// Whether a logged side cleans segments whenever one of them has a dead block.
    pub(super) cleans_always: bool,
    /// Whether a logged side fills the segment first that became free last.
    pub(super) fills_newest_first: bool,
}

/// State of a side as found when its store was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreFound {
    /// Sequence number below which the side has every change.
    pub(super) complete_below: u64,
    /// Lowest sequence number that is higher than the sequence numbers of all changes that the side
    /// possibly received.
    pub(super) next_number: u64,
    /// Time at which the newest log entry was written, in seconds since 1970; `None` when there is
    /// none.
    pub(super) written_s: Option<u64>,
    /// Sequence number below which every change was durable on every member of the epoch.
    pub(super) shared_below: u64,
    /// Sequence number from which the log has kept every change that a member of the epoch lacked;
    /// 0 when unknown.
    pub(super) kept_from: u64,
    /// True when the log has lost changes that had been durable. It is then unknown which changes
    /// are missing.
    pub(super) damaged: bool,
}

/// Counters of a store since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreCounts {
    /// Number of bytes written to their home locations.
    pub(super) destaged_bytes: u64,
    /// Number of writes to home locations.
    pub(super) destage_writes: u64,
    /// Number of bytes in the log that newer changes replaced before they were destaged.
    pub(super) replaced_bytes: u64,
}

/// Function that reads a range of the volume from another side; its result is `None` if no other
/// side can supply the content. With `true`, a side that is stuck is asked, too.
pub(super) type AskPeer = dyn Fn(Range<u64>, bool) -> LocalFuture<'static, Option<Payload>>;

/// The store of one side; see the module documentation.
pub(super) struct Store {
    rt: Rt,
    /// The device of the side. On a logged side, the addresses of the data area and of the
    /// checksums are virtual, and `segments` translates them.
    device: Rc<dyn Device>,
    /// The segments of a logged side; `None` for a side whose blocks have a home.
    segments: Option<Rc<Segments>>,
    data_offset: u64,
    digest: BlockDigest,
    volume_bytes: Cell<u64>,
    log: Rc<Log>,
    checksums: Option<Checksums>,
    regions: Regions,
    /// Record of the pages of the bitmap and the checksums that were ever written; `None` when
    /// formatting wrote all of these pages.
    written: Option<Rc<Written>>,
    /// Semaphore that lets one task at a time make the changed pages durable, which takes all of
    /// its permits; see [`turns`].
    writing_pages: Rc<Semaphore>,
    /// Locks of the ranges whose home locations are being written.
    home: Rc<RangeLock>,
    zeroes: Buf,
    found: StoreFound,
    epoch: Cell<u64>,
    /// Sequence number below which every change is durable on all other members. It is `u64::MAX`
    /// until the store is told of other members.
    released_below: Cell<u64>,
    /// Number of bytes relogged for a lagging member since `released_below` last changed, and the
    /// tail of the log at the time of that change.
    relogged: Cell<(u64, u64)>,
    /// Whether a missing side will need the changes that the log drops. The regions of these
    /// changes must then be marked in the dirty-region bitmap.
    marks_all: Cell<bool>,
    /// Whether the data area may be a mixture of old and new content, because the side is being
    /// rebuilt (and is marked so in its superblock).
    mixes: Cell<bool>,
    /// Callback that returns true while the destager should pause, because other sides lag and this
    /// side has more urgent work.
    held: RefCell<Rc<dyn Fn() -> bool>>,
    /// Callback that is called in two cases: when more changes have become durable on this side,
    /// and when the log waits until changes become durable on the other members.
    durability_moved: RefCell<Rc<dyn Fn()>>,
    /// Whether the log drops changes that other members lack, and marks the regions of these
    /// changes in the dirty-region bitmap. This is set when the log is full and has waited too long
    /// for these members to make the changes durable.
    let_go: Cell<bool>,
    /// Function with which the destager of a rotational side reads content from a non-rotational
    /// side instead of from its own log; `None` when no function was set.
    peer: RefCell<Option<Rc<AskPeer>>>,
    /// Function that says which content of the side is outdated; `None` when no function was set.
    outdated: RefCell<Option<Rc<AskOutdated>>>,
    /// Number of tasks that need the log destaged without delay. While there is such a task, the
    /// destager does not wait until the side is idle.
    escalations: Cell<u32>,
    /// Semaphore that lets one chunk at a time be destaged.
    destaging: Rc<Semaphore>,
    /// Whether the destager must end, because the store is being closed.
    ending: Cell<bool>,
    /// Time of the last request to the store, for the detection of an idle side.
    wanted: Cell<Instant>,
    /// When idle time is used to put a logged disk in order.
    idle: Idle,
    /// Ranges of discarded changes that may have been destaged. The records of these changes may
    /// still be in the log, where a later opening finds them again.
    forgotten: RefCell<RangeSet>,
    /// Ranges where the data area may hold content that the checksums do not describe, left by
    /// discarded changes or an interrupted rebuild.
    unsettled: RefCell<RangeSet>,
    /// Ranges in which blocks of the side were found corrupt, for the mirror to repair.
    suspect: RefCell<RangeSet>,
    /// State of the writes of a rebuild that go directly to home locations.
    straight: straight::Straight,
    counts: Cell<StoreCounts>,
    /// Pace at which the log takes new changes while it is being destaged.
    pacing: RefCell<Pacing>,
    /// Wrapper of the device. It records when the device last completed a request of the store, and
    /// refuses every change once the store has ended.
    noticed: Rc<Noticed>,
    tasks: TaskGroup,
}

/// Initializes the areas of a new side. The log is empty, and no page of the bitmap or of the
/// checksums is recorded as written. This means that no region was ever changed, and no block was
/// ever written. With `has_content`, the data area keeps its content, which is treated as change 1.
/// The areas are durable when this returns. Few bytes are written, regardless of the size of the
/// side.
///
/// # Errors
/// Errors of the device; the content of the areas is then unknown.
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
    // Content from before the formatting is treated as the first change.
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
    if let Some(of_side) = &layout.segments {
        segments::initialise(rt, device, side, (layout, of_side)).await?;
    }
    checkpoint::write(rt, device, &side, &first, &Cell::new(0)).await
}

/// Returns the maximum number of bytes of changes by which a side may lag, given the usable bytes
/// of its log. The rest of the log is for the headers of these changes, for new writes, and for
/// newer changes that are logged before these changes.
fn backlog_share(usable_bytes: u64) -> u64 {
    usable_bytes / 4
}

/// Returns the maximum number of bytes of changes by which a side with a log of `log_bytes` may
/// lag. This maximum also bounds the exposure of the volume. The result assumes a device without a
/// limit on the length of transfers; for other devices, the maximum can be slightly higher.
pub(super) fn backlog_bytes_max(log_bytes: u64) -> u64 {
    backlog_share(Area::new((0, log_bytes), u64::MAX).usable_bytes())
}

impl Store {
    /// Opens a store by reading the side. Writes nothing.
    ///
    /// # Errors
    /// When the side cannot be read. `Corrupt` when no checkpoint is valid, so that the start of
    /// the log is unknown.
    pub(super) async fn open(rt: &Rt, on: &StoreDevice) -> Result<Rc<Store>, IoError> {
        Store::open_telling(rt, on, &|_| ()).await
    }

    /// Opens the store of a side that was just formatted, and begins its rebuild.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`begin`](Self::begin).
    pub(super) async fn begin_new(rt: &Rt, on: &StoreDevice) -> Result<Rc<Store>, IoError> {
        let store = Store::open(rt, on).await?;
        store.begin_mixing(None);
        store.begin().await?;
        Ok(store)
    }

    /// Opens a store as [`open`](Self::open) does, and repeatedly calls `told` with the number of
    /// bytes of the log read so far.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(super) async fn open_telling(
        rt: &Rt,
        on: &StoreDevice,
        told: &dyn Fn(u64),
    ) -> Result<Rc<Store>, IoError> {
        let transfer_max = u64::from(on.device.geometry().transfer_bytes_max);
        let noticed = Noticed::over(rt, &on.device);
        let raw = Rc::clone(&noticed) as Rc<dyn Device>;
        let segments = match &on.layout.segments {
            Some(of_side) => {
                let segments = Segments::open(
                    rt,
                    &raw,
                    (on.side, on.digest),
                    (&on.layout, of_side),
                    (on.map_memory_bytes / 2, on.watches_map),
                )
                .await?;
                segments.clean_always(on.cleans_always);
                segments.fill_newest_first(on.fills_newest_first);
                Some(segments)
            }
            None => None,
        };
        let (device, area) = match &segments {
            Some(segments) => {
                let chain = Rc::clone(segments.chain());
                let area = Area::in_segments(chain, on.layout.log.1, transfer_max);
                (Rc::clone(segments) as Rc<dyn Device>, area)
            }
            None => (raw, Area::new(on.layout.log, transfer_max)),
        };
        let pacing = pacing::of(area.bytes);
        let recovered = recover::recover(&device, on, area.clone(), told);
        let areas = open_areas(rt, (&device, segments.as_ref()), on);
        let (mut recovered, areas) = futures_util::future::try_join(recovered, areas).await?;
        recovered.start.overtaking = Overtaking::of(&on.layout, &noticed);
        if let Some(segments) = &segments {
            segments.log_begins_at(recovered.start.checkpoint.tail);
        }
        let found = StoreFound {
            complete_below: recovered.start.complete,
            next_number: recovered.next_number(),
            written_s: recovered.written_s,
            shared_below: recovered.shared_below,
            kept_from: recovered.start.checkpoint.kept_from,
            damaged: recovered.damaged,
        };
        let mut suspect = RangeSet::new();
        if let Some(segments) = &segments {
            suspect.extend(segments.lost_ranges(on.volume_bytes).iter());
        }
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
        if let Some(segments) = &segments {
            let log = Rc::downgrade(&log);
            segments.set_born(Rc::new(move || {
                log.upgrade().map_or(Birth::default(), |log| log.newest())
            }));
        }
        Ok(Rc::new(Store {
            rt: rt.clone(),
            device: Rc::clone(&device),
            segments,
            data_offset: on.layout.data.0,
            digest: on.digest,
            volume_bytes: on.volume_bytes.into(),
            log,
            checksums: areas.checksums,
            regions: areas.regions,
            written: areas.written,
            writing_pages: Semaphore::new(turns::ALL),
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
            outdated: RefCell::default(),
            escalations: Cell::new(0),
            destaging: Semaphore::new(1),
            ending: Cell::new(false),
            wanted: Cell::new(rt.now()),
            idle: Idle::after(on.order_after),
            unsettled: RefCell::new(forgotten.clone()),
            forgotten: RefCell::new(forgotten),
            suspect: RefCell::new(suspect),
            straight: straight::Straight::default(),
            counts: Cell::default(),
            pacing,
            noticed,
            tasks: TaskGroup::new(rt),
        }))
    }

    /// Returns the time at which the device last completed a request of the store.
    pub(super) fn last_progress(&self) -> Instant {
        self.noticed.last()
    }

    /// Returns the state of the side as found when the store was opened.
    pub(super) fn found(&self) -> StoreFound {
        self.found
    }

    /// Makes the store ready for changes, and starts the destager. The log begins a new
    /// incarnation, so that no late write of an earlier incarnation can interfere. If the log has
    /// too little space for this, entries are destaged first. All content that the opening has read
    /// is durable when this returns.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) async fn begin(self: &Rc<Self>) -> Result<(), IoError> {
        if let Some(segments) = &self.segments {
            segments.begin(self.log.floor()).await?;
        }
        while let Err(error) = self.log.begin_run().await {
            if error != IoError::NoSpace {
                return Err(error);
            }
            self.device.submit(Request::flush()).await?;
            self.log.read_is_durable();
            let is_short = |segments: &Rc<Segments>| segments.log_is_short(self.log.floor());
            if self.segments.as_ref().is_some_and(is_short) {
                self.write_pages().await?;
            } else if !self.make_space().await? {
                self.log.begin_run_again().await?;
            }
        }
        let store = Rc::clone(self);
        self.tasks
            .spawn(async move { store.destage_for_ever().await });
        match &self.segments {
            Some(segments) => {
                segments.log_has_begun();
                self.begin_cleaning(segments);
            }
            None => self.release_withheld(),
        }
        Ok(())
    }

    /// Sets the number of the epoch, the function that returns the sequence number below which the
    /// side was given every change, and the function that says when the destager should pause.
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

    /// Registers `told`. It is called when destaging has made more changes durable on this side,
    /// and whenever the destager waits for changes to become durable on the other members. The
    /// second call is needed because possibly no flush of these members was requested. While the
    /// log has no room, clients cannot request one.
    pub(super) fn tell_of_durability(&self, told: Rc<dyn Fn()>) {
        *self.durability_moved.borrow_mut() = told;
    }

    /// Calls the function that was registered with
    /// [`tell_of_durability`](Store::tell_of_durability).
    fn durability_has_moved(&self) {
        let told = Rc::clone(&self.durability_moved.borrow());
        told();
    }

    /// Returns true when the log has a stored change that no flush has covered.
    pub(super) fn has_unflushed(&self) -> bool {
        self.log.has_unflushed()
    }

    /// Returns true when the log is short of space and keeps its oldest entry for another member.
    pub(super) fn waits_for_peers(&self) -> bool {
        (self.fill() >= choose::Fill::High || self.log.is_paced()) && self.keeps_first()
    }

    /// Registers the function with which a rotational side, while it destages, reads the content
    /// from a non-rotational side instead of from its own log. Has no effect on a side that is not
    /// rotational.
    pub(super) fn ask_for_content(&self, peer: Rc<AskPeer>) {
        if self.noticed.geometry().rotational {
            *self.peer.borrow_mut() = Some(peer);
        }
    }

    /// Returns true when blocks have a home on the device, so that a disk seeks between blocks that
    /// are written there; false on a logged side, which appends them.
    pub(super) fn has_homes(&self) -> bool {
        self.segments.is_none()
    }

    /// Registers the function with which cleaning asks which content of the side is outdated.
    pub(super) fn ask_for_outdated(&self, ask: Rc<AskOutdated>) {
        *self.outdated.borrow_mut() = Some(ask);
    }

    /// Sets the number of the epoch, after a new epoch has begun.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.log.set_epoch(epoch);
    }

    /// Records that every other member of the epoch durably has the changes below `released_below`,
    /// so that the log can drop them. `marks_all` says whether a side is missing, so that the
    /// regions of dropped changes must be marked in the dirty-region bitmap.
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

    /// Records that, from now on, the log keeps every change that a member of the epoch lacks, and
    /// that all members have every change below `number`. `None` records that the log has to drop a
    /// change although a member lacks it. The log stores this record whenever it drops entries.
    pub(super) fn keep_from(&self, number: Option<u64>) {
        self.log.keep_from(number);
    }

    /// Flushes the device, so that the content that was read when the store was opened is durable.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn flush_what_was_found(&self) -> Result<(), IoError> {
        self.device.submit(Request::flush()).await?;
        self.log.read_is_durable();
        Ok(())
    }

    /// Begins the rebuild of a side that is marked inconsistent: from now on, its data area can be
    /// a mixture of old and new content. The side was last a member in the epoch `member_until`;
    /// with `None`, it may lack everything.
    pub(super) fn begin_mixing(&self, member_until: Option<u64>) {
        // An earlier rebuild may have been interrupted. In the ranges changed since the side was
        // last a member, the data area may then hold content that the checksums do not describe.
        let since = member_until.map_or(0, |epoch| epoch + 1);
        let touched = self.out_of_sync_since(since);
        self.unsettled.borrow_mut().extend(touched);
        self.mixes.set(true);
        self.straight.allow(true);
        self.log.changed.notify();
    }

    /// Ends the rebuild, after which the side holds everything.
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

    /// Makes all stored changes durable. If the log is complete up to the sequence number `number`,
    /// a durable entry of the log states so after the call; see [`Log::flush`].
    pub(super) async fn flush(&self, number: u64) -> Result<(), IoError> {
        self.log.flush(number).await
    }

    /// Makes the log durably state that the side holds every change below `number`. Before this
    /// call, the opening must have given the side all valid changes below `number`. After the call,
    /// readers can get the content of these changes, so the side must keep them even if it is
    /// started alone later. A side that is started alone keeps only the changes up to which its log
    /// states that it is complete.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn become_complete(&self, number: u64) -> Result<(), IoError> {
        if self.complete_durable() >= number {
            return Ok(());
        }
        self.log
            .monitor(self.epoch.get(), Rc::new(move |limit| number.min(limit)));
        self.log.flush(number).await
    }

    /// Returns true when the side keeps checksums of its blocks.
    pub(super) fn has_checksums(&self) -> bool {
        self.checksums.is_some()
    }

    /// Returns true when at least half of the log is in use. The entries of the log should then
    /// become durable and be destaged.
    pub(super) fn is_half_full(&self) -> bool {
        self.log.used_bytes() >= self.log.usable_bytes() / 2
    }

    /// Returns the maximum number of bytes of changes by which the side may lag.
    pub(super) fn backlog_bytes_max(&self) -> u64 {
        backlog_share(self.log.usable_bytes())
    }

    /// Returns true when `bytes` in `records` records, appended together, fit into the log before
    /// any of them is destaged.
    pub(super) fn takes(&self, bytes: u64, records: u64) -> bool {
        self.log.takes(bytes, records, RECORDS_TOGETHER)
    }

    /// Returns true when the log has space for a change that overtakes waiting changes. None of the
    /// waiting changes can be destaged before all of them are in the log. So the log must have
    /// space for all waiting changes, which have `waiting_bytes` bytes in `waiting_parts` parts,
    /// and for all changes that can still join them. Each part may need a log entry of its own,
    /// since a side can be given one part at a time.
    pub(super) fn may_overtake(&self, waiting_bytes: u64, waiting_parts: u64) -> bool {
        let bytes = waiting_bytes.max(self.backlog_bytes_max());
        let parts = waiting_parts.max(self.backlog_bytes_max() / BLOCK_BYTES);
        self.log.takes(bytes, parts, 1)
    }

    /// Returns the sequence number below which every change is durable on this side.
    pub(super) fn complete_durable(&self) -> u64 {
        self.log.complete_durable()
    }

    /// Returns the sequence number below which every change is stored on this side, durably or not.
    pub(super) fn complete(&self) -> u64 {
        self.log.complete()
    }

    /// Returns the ranges whose newest change in the log has a sequence number of at least `first`,
    /// each with that number.
    pub(super) fn changes_from(&self, first: u64) -> Vec<(Range<u64>, u64)> {
        self.log.index.borrow().since_number(first)
    }

    /// Returns the parts of a range that are in the log, each with the sequence number of its
    /// newest change.
    pub(super) fn numbers_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        let newest = self.log.index.borrow().newest_in(range).into_iter();
        newest.map(|(part, logged)| (part, logged.number)).collect()
    }

    /// Returns the ranges that a side with this epoch number may lack, because the log has dropped
    /// entries with changes of these ranges.
    pub(super) fn out_of_sync_since(&self, epoch: u64) -> Vec<Range<u64>> {
        self.regions
            .out_of_sync_since(epoch, self.volume_bytes.get())
    }

    /// Refuses further changes, and fails the waiting ones with `error`.
    pub(super) fn halt(&self, error: IoError) {
        self.log.halt(error);
    }

    /// Ends the destager, waits until the device has completed its requests, and ends all other
    /// tasks. Called before the side is opened again, so that no late write can overwrite content
    /// of the new store. A scrub, or a stop that waits for the destager, may still run in this
    /// store, but can no longer change anything on the side.
    pub(super) async fn end(&self) {
        self.ending.set(true);
        self.log.changed.notify();
        if let Some(segments) = &self.segments {
            segments.wake();
        }
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

    /// Returns the ranges in which blocks were found corrupt since the last call.
    pub(super) fn take_suspects(&self) -> Vec<Range<u64>> {
        let mut suspect = std::mem::take(&mut *self.suspect.borrow_mut());
        if let Some(segments) = &self.segments {
            let lost = segments.take_newly_lost(self.volume_bytes.get());
            suspect.extend(lost.iter());
        }
        suspect.iter().collect()
    }

    /// Returns true while changes wait for space in the log.
    pub(super) fn is_full(&self) -> bool {
        self.log.is_full()
    }

    /// Returns the number of bytes in use in the log, and the length of the log.
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

    fn count(&self, add: impl FnOnce(&mut StoreCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Returns the algorithm that computes the digests of the blocks of this side.
    pub(super) fn digest(&self) -> BlockDigest {
        self.digest
    }
}

/// Waits until all appends have ended, and returns the first error among them.
pub(super) async fn all_stored(outcomes: Vec<Outcome>) -> Result<(), IoError> {
    let mut stored = Ok(());
    for outcome in outcomes {
        stored = stored.and(outcome.wait().await);
    }
    stored
}
