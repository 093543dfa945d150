//! What one side keeps, and how: every change goes to a log in sequence, and home later, sorted and
//! merged. The contract is in `docs/trust.md`, the format in `docs/format/mirror-side.md`.
//!
//! A store knows one side and nothing of its peers. It must never lose what it reported as durable,
//! never return content that is not what was written, and never let go of a log entry that somebody
//! may still need.

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
use super::superblock::{FIRST_CHANGE, Layout, Uuid};
use crate::BLOCK_BYTES;
use crate::device::{Device, Figure, FigureVisitor, LocalFuture};
use crate::error::IoError;
use crate::range_lock::RangeLock;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Of changes that are given many at once, at least so many are in an entry that is not full.
const RECORDS_TOGETHER: u64 = 16;

/// What a store is opened over.
#[derive(Clone)]
pub(super) struct StoreDevice {
    pub(super) device: Rc<dyn Device>,
    pub(super) side: Uuid,
    pub(super) layout: Layout,
    pub(super) digest: BlockDigest,
    pub(super) volume_bytes: u64,
    /// Blocks at the start of the data that had content when the side was formatted.
    pub(super) unknown_blocks: u64,
    /// Whether checksums of the home are kept.
    pub(super) integrity: bool,
    /// Of the changes of an epoch, given by its number, only those below a number count.
    pub(super) counts_below: Rc<dyn Fn(u64) -> u64>,
    /// Bytes of checksum pages kept in memory, at most.
    pub(super) checksum_cache_bytes: u64,
}

/// What was found in a store when it was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreFound {
    /// All changes below this number are on the side.
    pub(super) complete_below: u64,
    /// The lowest number that it has certainly never seen.
    pub(super) next_number: u64,
    /// When its last entry was written, in seconds since 1970.
    pub(super) written_s: Option<u64>,
    /// All changes below this number were durable on every member of its epoch.
    pub(super) shared_below: u64,
    /// Of the changes from this number on, none has left the log while a member of the epoch lacked
    /// it. 0: that is not known.
    pub(super) kept_from: u64,
    /// Changes that had been durable are gone, and nobody knows which.
    pub(super) damaged: bool,
}

/// Counts of a store since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreCounts {
    /// Bytes written home.
    pub(super) destaged_bytes: u64,
    /// Writes that this took.
    pub(super) destage_writes: u64,
    /// Bytes that were replaced before they went home.
    pub(super) replaced_bytes: u64,
}

/// Gives what a peer has of a range of the volume, if it can.
pub(super) type AskPeer = dyn Fn(Range<u64>) -> LocalFuture<'static, Option<Payload>>;

/// See the module.
pub(super) struct Store {
    rt: Rt,
    device: Rc<dyn Device>,
    data_offset: u64,
    digest: BlockDigest,
    volume_bytes: Cell<u64>,
    log: Rc<Log>,
    checksums: Option<Checksums>,
    regions: Regions,
    /// Which pages of these two were ever written; `None` when formatting has written all of them.
    written: Option<Rc<Written>>,
    /// The changed pages are made durable by one task at a time.
    writing_pages: Rc<Semaphore>,
    /// Ranges whose home is being written.
    home: Rc<RangeLock>,
    zeroes: Buf,
    found: StoreFound,
    epoch: Cell<u64>,
    /// Changes below this number are durable on all other members. Before the store is told of any,
    /// there are none.
    released_below: Cell<u64>,
    /// Bytes that were appended again for a late member since `released_below` last changed, and
    /// the tail of the log at that moment.
    relogged: Cell<(u64, u64)>,
    /// Somebody is missing who will need what is dropped.
    marks_all: Cell<bool>,
    /// The home may be a mixture: the side is being rebuilt, and marked so.
    mixes: Cell<bool>,
    /// Peers are late, so the side has better things to do.
    held: RefCell<Rc<dyn Fn() -> bool>>,
    /// Is told when more has become durable here, and when the log waits for what is durable on the
    /// other members.
    durability_moved: RefCell<Rc<dyn Fn()>>,
    /// The log has waited for the other members in vain, with changes waiting for its space: what
    /// they lack leaves it all the same, and is marked.
    let_go: Cell<bool>,
    /// Asks a peer for what it has of a range, if there is one that is better asked.
    peer: RefCell<Option<Rc<AskPeer>>>,
    /// How many wait for everything to go home.
    hurries: Cell<u32>,
    /// One chunk goes home at a time.
    destaging: Rc<Semaphore>,
    /// Nothing more goes home.
    ending: Cell<bool>,
    /// When somebody last wanted something.
    wanted: Cell<Instant>,
    /// Ranges of changes that were forgotten and may have gone home. Their records may still lie in
    /// the log, where a later opening finds them again.
    forgotten: RefCell<RangeSet>,
    /// Ranges whose home may hold something of which the checksums do not know: of changes that
    /// were forgotten, and of a rebuild that was cut short.
    unsettled: RefCell<RangeSet>,
    /// Ranges in which the side has been found wrong, for the mirror to repair.
    suspect: RefCell<RangeSet>,
    /// What a rebuild writes past the log.
    straight: straight::Straight,
    counts: Cell<StoreCounts>,
    /// Knows when the device last completed something for the store, and lets no change through
    /// when the store is over.
    noticed: Rc<Noticed>,
    tasks: TaskGroup,
}

/// Makes the areas of a new side: an empty log, and no page of the map or of the checksums written,
/// so that no region was ever changed and no block ever written. With `has_content` the data hold
/// what they hold, as change 1. Durable when this returns. Writes little, whatever the size of the
/// side.
///
/// # Errors
/// Those of the device; what the areas hold is then unknown.
///
/// # Panics
/// When the layout has no room for what says which pages were written.
pub(super) async fn initialise(
    rt: &Rt,
    device: &Rc<dyn Device>,
    side: Uuid,
    layout: &Layout,
    has_content: bool,
) -> Result<(), IoError> {
    let place = layout.written.expect("a new side says what was written");
    written::initialise(rt, &**device, place, layout.pages(), side).await?;
    // Content that was there before counts as the first change.
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

/// Bytes of changes that a side may be late with, at most, by the usable bytes of its log: there
/// must be room for them, their headers, what came before its turn, and what is written meanwhile.
fn backlog_share(usable_bytes: u64) -> u64 {
    usable_bytes / 4
}

/// Bytes of changes that a side with a log of `log_bytes` may be late with, at most, which bounds
/// the exposure of its volume. For a device without a bound on its transfers; others may have a
/// little more.
pub(super) fn backlog_bytes_max(log_bytes: u64) -> u64 {
    backlog_share(log::Area::new((0, log_bytes), u64::MAX).usable_bytes())
}

/// The areas of a side beside its log and its data.
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
        // The bits of the map come first.
        checksums.with_written(WrittenIn::new(bits(), map.pages()), on.unknown_blocks)
    });
    Ok(Areas {
        written,
        regions,
        checksums,
    })
}

impl Store {
    /// Reads what a side holds. Changes nothing on it.
    ///
    /// # Errors
    /// When it cannot be read. `Corrupt` when it is not known where its log begins.
    pub(super) async fn open(rt: &Rt, on: &StoreDevice) -> Result<Rc<Store>, IoError> {
        Store::open_telling(rt, on, &|_| ()).await
    }

    /// The same; tells how many bytes of the log were read, again and again.
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
            hurries: Cell::new(0),
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

    /// When the device last completed something for the store.
    pub(super) fn last_progress(&self) -> Instant {
        self.noticed.last()
    }

    /// What was found when it was opened.
    pub(super) fn found(&self) -> StoreFound {
        self.found
    }

    /// Makes the store ready for changes, and starts to bring them home: in a new run, so that
    /// nothing left over can interfere. What was read is durable when this returns. Makes space
    /// first if there is too little.
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

    /// Tells the store in which epoch it works, how to ask for the number below which
    /// it has been given everything, and when it should rather not bring things home.
    pub(super) fn attend(
        &self,
        epoch: u64,
        given_below: Rc<GivenBelow>,
        held: Rc<dyn Fn() -> bool>,
    ) {
        self.epoch.set(epoch);
        self.log.attend(epoch, given_below);
        *self.held.borrow_mut() = held;
    }

    /// Has `told` called when the destage of this side has made more durable, and whenever it waits
    /// for what is durable on the other members. Nobody may have asked for a flush of these, and
    /// with no room in the log no client comes to ask for one.
    pub(super) fn tell_of_durability(&self, told: Rc<dyn Fn()>) {
        *self.durability_moved.borrow_mut() = told;
    }

    /// Calls what [`tell_of_durability`](Store::tell_of_durability) has set.
    fn durability_has_moved(&self) {
        let told = Rc::clone(&self.durability_moved.borrow());
        told();
    }

    /// True when something is stored that no flush has covered.
    pub(super) fn has_unflushed(&self) -> bool {
        self.log.has_unflushed()
    }

    /// True when the log runs short of space and its oldest entry is kept for another member.
    pub(super) fn waits_for_peers(&self) -> bool {
        self.fill() >= choose::Fill::High && self.keeps_first()
    }

    /// Lets a side that seeks ask a peer that does not for what it brings home.
    pub(super) fn ask_for_content(&self, peer: Rc<AskPeer>) {
        if self.device.geometry().rotational {
            *self.peer.borrow_mut() = Some(peer);
        }
    }

    /// A new epoch has begun.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.log.set_epoch(epoch);
    }

    /// Says which changes nobody else needs any more: those below `released_below`, as far as the
    /// members of the epoch go; and whether somebody is missing, whose needs must be marked.
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

    /// From now on the log keeps what a member of the epoch lacks; all of them have every change
    /// below `number`. `None`: it has to let go of something that a member lacks. The log says so
    /// when it lets go of anything.
    pub(super) fn keep_from(&self, number: Option<u64>) {
        self.log.keep_from(number);
    }

    /// Makes what was found when the store was opened durable, as far as only a flush is missing.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn flush_what_was_found(&self) -> Result<(), IoError> {
        self.device.submit(Request::flush()).await?;
        self.log.read_is_durable();
        Ok(())
    }

    /// The side is going to be rebuilt, and is marked so: from now on its home may be a mixture of
    /// old and new. It has been no member since the epoch `member_until`, or may lack everything.
    pub(super) fn begin_mixing(&self, member_until: Option<u64>) {
        // Where an earlier rebuild was cut short the home may hold more than the checksums say.
        let since = member_until.map_or(0, |epoch| epoch + 1);
        let touched = self.stale_since(since);
        self.unsettled.borrow_mut().extend(touched);
        self.mixes.set(true);
        self.straight.allow(true);
        self.log.changed.notify();
    }

    /// The side holds everything again.
    pub(super) fn end_mixing(&self) {
        self.mixes.set(false);
        self.straight.allow(false);
        self.unsettled.borrow_mut().clear();
        self.log.changed.notify();
    }

    /// Keeps a change; see [`Log::append`].
    pub(super) fn append(&self, append: Append) -> Outcome {
        self.wanted.set(self.rt.now());
        self.log.append(append)
    }

    /// Makes everything stored durable, up to `number`; see [`Log::flush`].
    pub(super) async fn flush(&self, number: u64) -> Result<(), IoError> {
        self.log.flush(number).await
    }

    /// Has the log say durably that the side holds every change below `number`: an opening has
    /// given it all that counts of them. What is answered from then on must be found again when the
    /// side is started alone, where nothing counts beyond what is complete.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn become_complete(&self, number: u64) -> Result<(), IoError> {
        if self.complete_durable() >= number {
            return Ok(());
        }
        self.log
            .attend(self.epoch.get(), Rc::new(move |limit| number.min(limit)));
        self.log.flush(number).await
    }

    /// True when the side knows of each block what it should be.
    pub(super) fn has_checksums(&self) -> bool {
        self.checksums.is_some()
    }

    /// True when half of the log is in use: what is in it should become durable, so that it can go.
    pub(super) fn is_half_full(&self) -> bool {
        self.log.used_bytes() >= self.log.usable_bytes() / 2
    }

    /// Bytes of changes that the side may be late with, at most.
    pub(super) fn backlog_bytes_max(&self) -> u64 {
        backlog_share(self.log.usable_bytes())
    }

    /// True when so many bytes in so many records, given many at once, fit into the log before any
    /// of them goes home.
    pub(super) fn takes(&self, bytes: u64, records: u64) -> bool {
        self.log.takes(bytes, records, RECORDS_TOGETHER)
    }

    /// True when there is space for a change that comes before its turn: all that waits, in so many
    /// bytes and parts, or may come to wait, must still find room behind it, because nothing of it
    /// goes home before. Each part may become an entry of its own, since a side may be given one
    /// thing at a time.
    pub(super) fn may_overtake(&self, waiting_bytes: u64, waiting_parts: u64) -> bool {
        let bytes = waiting_bytes.max(self.backlog_bytes_max());
        let parts = waiting_parts.max(self.backlog_bytes_max() / BLOCK_BYTES);
        self.log.takes(bytes, parts, 1)
    }

    /// All changes below this number are durable here.
    pub(super) fn complete_durable(&self) -> u64 {
        self.log.complete_durable()
    }

    /// All changes below this number are stored here.
    pub(super) fn complete(&self) -> u64 {
        self.log.complete()
    }

    /// The ranges whose newest change in the log has a number from `first` on, with it.
    pub(super) fn changes_from(&self, first: u64) -> Vec<(Range<u64>, u64)> {
        self.log.index.borrow().since_number(first)
    }

    /// The number of the newest change in the log of each part of a range; parts that are not in
    /// the log are left out.
    pub(super) fn numbers_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, u64)> {
        let newest = self.log.index.borrow().newest_in(range).into_iter();
        newest.map(|(part, logged)| (part, logged.number)).collect()
    }

    /// Where on the device the newest content of a block is, for tests that look past the store.
    /// `None` for zeroes that have no place of their own.
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

    /// The ranges that a side whose current epoch has this number may lack, because log entries of
    /// them have been dropped.
    pub(super) fn stale_since(&self, epoch: u64) -> Vec<Range<u64>> {
        self.regions.stale_since(epoch, self.volume_bytes.get())
    }

    /// Takes nothing more; what waits fails with `error`.
    pub(super) fn halt(&self, error: IoError) {
        self.log.halt(error);
    }

    /// Brings nothing more home, waits until the device has ended what it was given, and ends
    /// everything else: the side is going to be opened anew, and nothing that is late may fall on
    /// what is written then. Whoever is still at work in the store, such as a stop that waits for
    /// what goes home, or a scrub, changes nothing on the side any more.
    pub(super) async fn end(&self) {
        self.ending.set(true);
        self.log.changed.notify();
        let _none = self.destaging.acquire(1).await;
        self.log.until_quiet().await;
        self.noticed.end_changes().await;
        self.stop().await;
    }

    /// Ends everything that the store does by itself.
    pub(super) async fn stop(&self) {
        self.tasks.cancel().await;
        self.log.cancel().await;
    }

    /// Ranges in which the side was found wrong since the last call.
    pub(super) fn take_suspects(&self) -> Vec<Range<u64>> {
        let suspect = std::mem::take(&mut *self.suspect.borrow_mut());
        suspect.iter().collect()
    }

    /// True while changes wait for space in the log.
    pub(super) fn is_full(&self) -> bool {
        self.log.is_full()
    }

    /// Bytes of the log in use, and all of them.
    pub(super) fn log_bytes(&self) -> (u64, u64) {
        (self.log.used_bytes(), self.log.area.bytes)
    }

    /// Bytes of the volume whose newest content is in the log.
    pub(super) fn logged_bytes(&self) -> u64 {
        self.log.index.borrow().bytes()
    }

    /// Counts so far.
    pub(super) fn counts(&self) -> (StoreCounts, LogCounts) {
        (self.counts.get(), self.log.counts())
    }

    /// The figures of the store of a side, which is a part of the mirror.
    pub(super) fn figures(&self, part: &str, out: &mut dyn FigureVisitor) {
        let ((used, all), (store, log)) = (self.log_bytes(), self.counts());
        let mut show = |name, value| out.figure(part, name, value);
        show("log_used_bytes", Figure::Gauge(used as f64));
        show("log_bytes", Figure::Gauge(all as f64));
        show("logged_bytes", Figure::Gauge(self.logged_bytes() as f64));
        show("log_entries", Figure::Counter(log.entries));
        show("log_records", Figure::Counter(log.records));
        show("log_written_bytes", Figure::Counter(log.bytes));
        show("log_full", Figure::Counter(log.full));
        show("home_writes", Figure::Counter(store.destage_writes));
        show("home_written_bytes", Figure::Counter(store.destaged_bytes));
        show("replaced_bytes", Figure::Counter(store.replaced_bytes));
        let damaged = self.regions.damaged().len() as u64;
        show("map_damaged_pages", Figure::Counter(damaged));
        if let Some(written) = &self.written {
            let damaged = written.damaged_sectors();
            show("written_damaged_sectors", Figure::Counter(damaged));
        }
        if let Some(checksums) = &self.checksums {
            checksums.figures(part, out);
        }
    }

    fn count(&self, add: impl FnOnce(&mut StoreCounts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// How the digests of its blocks are made.
    pub(super) fn digest(&self) -> BlockDigest {
        self.digest
    }
}

/// Waits until all parts are stored, or one of them could not be.
pub(super) async fn all_stored(outcomes: Vec<Outcome>) -> Result<(), IoError> {
    let mut stored = Ok(());
    for outcome in outcomes {
        stored = stored.and(outcome.wait().await);
    }
    stored
}
