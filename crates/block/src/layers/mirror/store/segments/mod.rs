//! Segments: the storage of a logged side, which has no home for any block. Everything is appended
//! to segments, in sequence, and a map says where each block is. Segments that hold little are
//! cleaned: what is live in them is appended again, and they are filled anew.
//!
//! [`Segments`] is a device with *virtual* addresses for the rest of the store: a write to a
//! virtual address appends the data and changes the map, a read looks the places up. A change that
//! is in the log is never copied: the map is made to refer to its place in the log. Requests to
//! other addresses go to the device as they are.
//!
//! The map on the device changes only with a commit. A crash takes back everything since the last
//! commit, except for the log. So this module must never fill a segment to which the last committed
//! map refers.

mod chain;
mod clean;
mod content;
mod description;
mod discarding;
mod from_peer;
mod journal;
mod journaling;
mod lengthening;
mod map_pages;
mod order;
mod pace;
mod places;
mod reading;
mod record;
mod sealed;
mod search;
mod streams;
mod summaries;
mod tables;
mod usage;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::Event;
use bimetal_rt::turn::{count_entries, give_way};
use bimetal_rt::{Buf, Payload, Rt};

pub(super) use self::chain::Chain;
use self::chain::Listed;
pub(super) use self::clean::{Batch, Live};
pub(super) use self::description::Birth;
use self::discarding::Discards;
pub(super) use self::from_peer::FromPeer;
use self::journal::{Journal, Replayed};
pub(super) use self::journaling::{ChecksumChanges, ReplayedChecksums, commit_bytes_of};
pub(super) use self::order::Window;
use self::order::Windows;
use self::pace::Pace;
use self::places::{Place, Places, runs};
use self::record::{Record, TableEntry};
pub(super) use self::search::{Found, take_some};
use self::streams::{Filled, STREAMS, Stream};
use self::summaries::Summaries;
use self::tables::Tables;
use self::usage::{State, Usage};
use super::pages::{self, PageBits};
use crate::BLOCK_BYTES;
use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::IoError;
use crate::extents::ExtentList;
use crate::geometry::Geometry;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::superblock::segmented::{
    RUNS_MAX, SEGMENTS_RESERVED, VIRTUAL_START, all_table_pages, place_pages,
};
use crate::layers::mirror::superblock::{SegmentLayout, SideLayout, Uuid};
use crate::request::{Extent, Flags, IoResult, Op, Origin, Reply, Request};

/// Number of free segments that only the pages of the map and of the checksums may fill. Without
/// them, a commit that frees other segments would be impossible.
const SPARED_FOR_PAGES: usize = 3;
/// Number of free segments that a rebuild does not fill.
const SPARED_FOR_CLEANING: usize = SEGMENTS_RESERVED as usize * 3 / 4;

/// Counters of the segments since the side was opened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    moved_blocks: u64,
    cleaned_segments: u64,
    ordered_blocks: u64,
    map_searches: u64,
    map_pages_written: u64,
    map_pages_read: u64,
    map_pages_damaged: u64,
    table_pages_damaged: u64,
    commits: u64,
}

/// Function that returns the age of content that a rebuild writes now.
type Born = dyn Fn() -> Birth;

/// The storage of a logged side; see the module documentation.
pub(super) struct Segments {
    rt: Rt,
    device: Rc<dyn Device>,
    side: Uuid,
    digest: BlockDigest,
    layout: SegmentLayout,
    log_bytes: u64,
    /// Virtual addresses from [`VIRTUAL_START`] on: their number of bytes, and the number of bytes
    /// before the first block of the volume.
    virtual_bytes: u64,
    pages_bytes: u64,
    geometry: Geometry,
    places: RefCell<Places>,
    /// Pages of the map that were lost since [`take_newly_lost`](Self::take_newly_lost).
    newly_lost: RefCell<Vec<u64>>,
    usage: RefCell<Usage>,
    filled: RefCell<[Option<Filled>; STREAMS]>,
    /// Windows of the volume whose order on the device is to be judged.
    unjudged: RefCell<Windows>,
    summaries: RefCell<Summaries>,
    /// Function that returns the age of content that a rebuild writes now.
    born: RefCell<Rc<Born>>,
    /// The page table: where the last written version of each page of the map is.
    tables: RefCell<Tables>,
    journal: RefCell<Journal>,
    /// Number of bytes that a copy of the journal is to have.
    journal_bytes: u64,
    /// Whether the next commit writes all pages of which the journal has entries, because a block
    /// of the journal is damaged.
    empties_journal: Cell<bool>,
    /// What the opening found in the journal about the checksums.
    replayed: RefCell<Replayed>,
    /// Segments of the log.
    chain: Rc<Chain>,
    pace: Rc<Pace>,
    /// Position up to which the log will be dropped after the next commit.
    dropping_to: Cell<u64>,
    /// The record that was written last.
    recorded: RefCell<Record>,
    /// Number of the record that was begun last.
    sequence: Cell<u64>,
    older_copy: Cell<usize>,
    /// Whether this program has written a checkpoint of the log. The checkpoint that it read may be
    /// in one slot only, or not durable; the other slot may need earlier segments.
    log_has_begun: Cell<bool>,
    /// Whether all places of the map count as live. No segment is dead before.
    is_counted: Cell<bool>,
    /// Whether both copies of the record hold what was read when the side was opened, or something
    /// newer. Nothing is appended before.
    is_begun: Cell<bool>,
    /// Notified when segments have become free.
    pub(super) freed: Event,
    discards: Discards,
    counts: Cell<Counts>,
    zeroes: Buf,
}

/// Guard that protects segments from becoming free while requests read or write them.
struct Pins<'s> {
    of: &'s Segments,
    segments: Vec<u32>,
}

impl Pins<'_> {
    /// Unpins some of the segments before the others.
    fn unpin(&mut self, some: &[u32]) {
        let mut usage = self.of.usage.borrow_mut();
        some.iter().for_each(|segment| usage.unpin(*segment));
        self.segments.retain(|segment| !some.contains(segment));
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let mut usage = self.of.usage.borrow_mut();
        self.segments
            .iter()
            .for_each(|segment| usage.unpin(*segment));
    }
}

/// Writes the first segment record of a new side. It is durable when this returns.
///
/// # Errors
/// Errors of the device.
pub(super) async fn initialise(
    rt: &Rt,
    device: &Rc<dyn Device>,
    side: Uuid,
    (layout, segments): (&SideLayout, &SegmentLayout),
) -> Result<(), IoError> {
    let of_log = (layout.log.1 / segments.segment_bytes) as u32;
    let pages = place_pages(layout.checksums.1 + layout.data.1);
    let tables = all_table_pages(pages, segments.segments());
    let first = Record {
        sequence: 1,
        log: Listed {
            first: 0,
            segments: (0..of_log).collect(),
        },
        pages,
        segments: segments.segments(),
        free: (of_log..segments.segments() as u32).collect(),
        tables: vec![TableEntry::default(); tables as usize],
        runs: Vec::new(),
        next_run: 1,
    };
    record::write(rt, device, &side, segments, (&first, &Cell::new(0))).await
}

impl Segments {
    /// Opens the segments of a side by reading the record, the tables, the journal and the start of
    /// the map, of which at most `map_bytes_max` bytes stay in memory. `is_watched` is for tests,
    /// see [`Places::watch`]. Writes nothing.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks; `Corrupt` when no copy of the record
    /// is valid. A damaged page of the map is no error: the places of its blocks are lost.
    pub(super) async fn open(
        rt: &Rt,
        device: &Rc<dyn Device>,
        (side, digest): (Uuid, BlockDigest),
        (layout, segments): (&SideLayout, &SegmentLayout),
        (map_bytes_max, is_watched): (u64, bool),
    ) -> Result<Rc<Segments>, IoError> {
        let virtual_bytes = layout.checksums.1 + layout.data.1;
        let pages = place_pages(virtual_bytes);
        let found = record::read(&**device, &side, segments, pages).await?;
        let record = found.newest;
        let recorded = RefCell::new(record.clone());
        let all_pages = pages + layout.checksums.1 / BLOCK_BYTES;
        let segment_blocks = segments.segment_blocks() as u32;
        let usage = Usage::of_record(&record, segment_blocks);
        let pace = Rc::new(Pace::new(segments, layout.log.1));
        let chain = Chain::new(
            (side, segments),
            layout.checksums.1 / BLOCK_BYTES,
            record.log,
            Rc::clone(&pace),
        );
        let opened = Segments {
            rt: rt.clone(),
            device: Rc::clone(device),
            side,
            digest,
            layout: *segments,
            log_bytes: layout.log.1,
            virtual_bytes,
            pages_bytes: layout.checksums.1,
            geometry: Geometry {
                size_bytes: VIRTUAL_START + virtual_bytes,
                rotational: false,
                discard_zeroes: true,
                ..*device.geometry()
            },
            places: RefCell::new(Places::new(
                virtual_bytes / BLOCK_BYTES,
                layout.checksums.1 / BLOCK_BYTES,
                (map_bytes_max / BLOCK_BYTES) as usize,
            )),
            newly_lost: RefCell::default(),
            usage: RefCell::new(usage),
            filled: RefCell::default(),
            unjudged: RefCell::new(Windows::of(device.geometry(), segments, layout)),
            summaries: RefCell::default(),
            born: RefCell::new(Rc::new(Birth::default)),
            tables: RefCell::new(Tables::new(pages, record.tables)),
            journal: RefCell::new(Journal::beginning_with(record.next_run)),
            journal_bytes: journaling::journal_bytes(segments, layout.log.1, all_pages),
            empties_journal: Cell::new(false),
            replayed: RefCell::default(),
            chain: Rc::new(chain),
            pace,
            dropping_to: Cell::new(0),
            recorded,
            sequence: Cell::new(record.sequence),
            older_copy: Cell::new(found.older_copy),
            log_has_begun: Cell::new(false),
            is_counted: Cell::new(false),
            is_begun: Cell::new(false),
            freed: Event::new(),
            discards: Discards::on(device.geometry()),
            counts: Cell::default(),
            zeroes: rt.pool().zeroed(1 << 20),
        };
        opened.load_tables().await?;
        opened.load_journal(&record.runs).await?;
        opened.load_map().await?;
        if is_watched {
            opened.watch_map().await?;
        }
        Ok(Rc::new(opened))
    }

    /// Makes the segments ready to be filled: durably writes what was read to both copies of the
    /// record, and frees the segments to which neither refers. Does nothing when this was done.
    /// `log_floor` is the position before which the log needs nothing.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn begin(&self, log_floor: u64) -> Result<(), IoError> {
        if self.is_begun.get() {
            return Ok(());
        }
        self.device.submit(Request::flush()).await?;
        // What is in the segments that the record calls free was appended after the last commit, or
        // is dead.
        let unused = self.usage.borrow().unused();
        let unused = match unused.len() as u64 <= SEGMENTS_RESERVED {
            // What is free has no room for long, so segments must be cleaned soon.
            true => {
                self.count_map(&|_, _| ()).await?;
                self.dead()
            }
            false => unused,
        };
        self.commit(&unused, log_floor, 0).await?;
        self.is_begun.set(true);
        if self.log_is_short(log_floor) {
            self.commit(&[], log_floor, 0).await?;
        }
        Ok(())
    }

    /// Records that this program has written a checkpoint of the log to both slots, so that nothing
    /// before the start of the log is needed any more.
    pub(super) fn log_has_begun(&self) {
        self.log_has_begun.set(true);
    }

    /// Returns the number of copies of the record that are not as they were written. No commit may
    /// be under way.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn check_record(&self) -> Result<u64, IoError> {
        let record = self.recorded.borrow().clone();
        record::wrong_copies(&*self.device, &self.side, &self.layout, &record).await
    }

    /// Returns true when cleaning must free segments before the log may be folded: a commit takes
    /// space, and folding alone frees little.
    pub(super) fn must_clean_first(&self) -> bool {
        let few = self.usage.borrow().free_count() <= SPARED_FOR_PAGES + 1;
        few && self.pace.can_clean()
    }

    /// Returns true when less space is free, or coming, than cleaning aims for.
    pub(super) fn is_below_target(&self) -> bool {
        self.pace.is_below_target()
    }

    /// Waits until cleaning has freed segments.
    pub(super) async fn until_freed(&self) {
        self.pace.request();
        let waiting = self.pace.wait_for_space();
        self.freed.until(|| !self.must_clean_first()).await;
        drop(waiting);
    }

    /// Returns the segments of the log.
    pub(super) fn chain(&self) -> &Rc<Chain> {
        &self.chain
    }

    /// Makes the map refer to the content of a block range in the log: `at` is the offset of the
    /// content on the device.
    ///
    /// # Panics
    /// When the content crosses the end of a segment.
    pub(super) fn refer(&self, virtual_offset: u64, bytes: u64, at: u64) {
        let first = ((at - self.layout.area.0) / BLOCK_BYTES) as u32;
        let blocks = (bytes / BLOCK_BYTES) as u32;
        let segment_blocks = self.layout.segment_blocks() as u32;
        assert_eq!(
            first / segment_blocks,
            (first + blocks - 1) / segment_blocks,
            "an entry lies in one segment"
        );
        let block = (virtual_offset - VIRTUAL_START) / BLOCK_BYTES;
        for index in 0..blocks {
            self.set_place(block + u64::from(index), Place::At(first + index));
        }
    }

    fn set_place(&self, block: u64, place: Place) {
        self.change_place(block, place, None);
    }

    /// Sets the place of a block, and counts which blocks are live. `before` is the place that the
    /// block has, if the caller knows it. The order of the window of the block is judged again.
    fn change_place(&self, block: u64, place: Place, before: Option<Place>) {
        if let Some(volume_block) = block.checked_sub(self.first_volume_block()) {
            self.note_unjudged(volume_block);
        }
        self.exchange_place(block, place, before);
    }

    /// Sets the place of a block as [`change_place`](Self::change_place) does, but its window is
    /// not judged again.
    fn exchange_place(&self, block: u64, place: Place, before: Option<Place>) {
        let mut places = self.places.borrow_mut();
        let before = places.set(block, place, before);
        if before == Some(place) {
            return;
        }
        let mut usage = self.usage.borrow_mut();
        if let Place::At(at) = place {
            if usage.is_live(at) {
                // After a crash, the log is folded again: the page on the device may say already
                // that the block is here.
                assert!(places.settle(block), "block {at} has one owner");
            } else {
                usage.add_live(at);
            }
        }
        if let Some(Place::At(at)) = before {
            usage.remove_live(at);
        }
    }

    /// Returns the offset on the device of a block at a virtual address; `None` when it has none,
    /// or its place is not in memory.
    pub(super) fn offset_of(&self, virtual_offset: u64) -> Option<u64> {
        let block = (virtual_offset - VIRTUAL_START) / BLOCK_BYTES;
        match self.places.borrow().peek(block)? {
            Place::At(at) => Some(self.offset_at(at)),
            Place::Nowhere | Place::Lost => None,
        }
    }

    fn offset_at(&self, block: u32) -> u64 {
        self.layout.area.0 + u64::from(block) * BLOCK_BYTES
    }

    /// Announces that the log will be dropped up to a position after the next commit, so that the
    /// commit lengthens the log by as much.
    pub(super) fn announce_drop(&self, position: u64) {
        self.dropping_to.set(self.dropping_to.get().max(position));
    }

    /// Returns the segments that the next commit frees, if it is preceded by writing all pages of
    /// the map that have changed by now.
    pub(super) fn dead(&self) -> Vec<u32> {
        match self.knows_dead() {
            true => self.usage.borrow().dead(),
            false => Vec::new(),
        }
    }

    fn dead_count(&self) -> usize {
        match self.knows_dead() {
            true => self.usage.borrow().dead_count(),
            false => 0,
        }
    }

    fn knows_dead(&self) -> bool {
        self.is_counted() || is_planted(Bug::FreesUncounted)
    }

    /// Returns true when the log waits for segments that the next commit frees.
    pub(super) fn log_waits_for_dead(&self) -> bool {
        self.pace.is_limited_by_space() && self.has_dead()
    }

    /// Returns the number of free segments.
    pub(super) fn free(&self) -> usize {
        self.usage.borrow().free_count()
    }

    /// Returns true when the next commit frees a segment.
    pub(super) fn has_dead(&self) -> bool {
        self.dead_count() > 0
    }

    /// Commits the map: durably writes a record with the pages that were written before, and with
    /// the segments of the log. `dead` are segments that were dead before these pages were written;
    /// they become free. `log_floor` is the position before which the log needs nothing, and
    /// `runs_floor` the number of the run of the journal before which no run is needed.
    ///
    /// # Errors
    /// Errors of the device. The map as it was committed before is intact then, or this one is.
    pub(super) async fn commit(
        &self,
        dead: &[u32],
        log_floor: u64,
        runs_floor: u64,
    ) -> Result<(), IoError> {
        let appended = self.usage.borrow().appended_blocks;
        let released_below = self.released_below(log_floor);
        for released in self.chain.release_before(released_below) {
            let segment = released.segment;
            let mut usage = self.usage.borrow_mut();
            usage.set_state(segment, State::Sealed(appended));
            usage.appended_blocks += self.layout.segment_blocks();
            usage.set_summary(segment, released.summary);
            drop(usage);
            self.keep_described(segment, released.described);
        }
        let more = self.take_for_log(log_floor);
        let mut log = self.chain.listed();
        log.segments.extend(&more);
        let record = Record {
            sequence: self.sequence.get() + 1,
            log,
            pages: self.places.borrow().pages(),
            segments: self.layout.segments(),
            free: self.usage.borrow().free_with(dead),
            tables: self.tables.borrow().written(),
            runs: self.journal.borrow().listed(runs_floor),
            next_run: self.journal.borrow().next,
        };
        if record.runs.len() as u64 > RUNS_MAX {
            return Err(IoError::NoSpace);
        }
        self.discard_early(dead).await;
        // The number is not used again, even if the write fails: the record may be on the device.
        self.sequence.set(record.sequence);
        let to = (&record, &self.older_copy);
        let written = record::write(&self.rt, &self.device, &self.side, &self.layout, to).await;
        if let Err(error) = written {
            let mut usage = self.usage.borrow_mut();
            more.iter().for_each(|segment| usage.give_back(*segment));
            return Err(error);
        }
        self.chain.append(&more);
        self.take_over_runs(runs_floor);
        *self.recorded.borrow_mut() = record;
        self.usage.borrow_mut().release(dead);
        self.note_freed(dead);
        let mut summaries = self.summaries.borrow_mut();
        dead.iter().for_each(|segment| summaries.forget(*segment));
        drop(summaries);
        self.count(|counts| counts.commits += 1);
        self.tell_pace();
        self.freed.notify();
        Ok(())
    }

    /// Returns the position before which a commit releases segments of the log.
    fn released_below(&self, log_floor: u64) -> u64 {
        match self.log_has_begun.get() {
            _ if is_planted(Bug::ReleasesBeforeDrop) => self.dropping_to.get().max(log_floor),
            true => log_floor,
            false => 0,
        }
    }

    /// Sets the function that returns the age of content that a rebuild writes.
    pub(super) fn set_born(&self, born: Rc<Born>) {
        *self.born.borrow_mut() = born;
    }

    fn pin(&self, found: &[(Place, u64)]) -> Pins<'_> {
        let mut usage = self.usage.borrow_mut();
        let mut segments = Vec::new();
        for (place, _) in found {
            if let Place::At(at) = place {
                let segment = usage.segment_of(*at);
                usage.pin(segment);
                segments.push(segment);
            }
        }
        Pins { of: self, segments }
    }

    /// Appends the data of a write to a virtual address, and makes the map refer to it.
    async fn write(&self, request: Request) -> IoResult {
        let (offset, blocks) = (request.offset, request.len / BLOCK_BYTES);
        let first = (offset - VIRTUAL_START) / BLOCK_BYTES;
        let (stream, birth) = match offset - VIRTUAL_START < self.pages_bytes {
            true => (Stream::Pages, self.birth_of_pages()),
            false => (Stream::Copied, (self.born.borrow())()),
        };
        let blocks = Segments::of_age(first, blocks, birth);
        let as_asked = (request.flags, request.origin);
        self.append(stream, &blocks, &request.payload, as_asked)
            .await?;
        Ok(Reply::Done)
    }

    /// Appends content that a rebuild writes: consecutive blocks of each of some ranges of virtual
    /// addresses. All of it is written together, so that few blocks are needed to describe it.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free for it.
    pub(super) async fn append_copies(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        data: &Payload,
    ) -> Result<(), IoError> {
        let birth = (self.born.borrow())();
        let number = |offset: u64| (offset - VIRTUAL_START) / BLOCK_BYTES;
        let blocks = ranges.into_iter().flat_map(|range| {
            let count = (range.end - range.start) / BLOCK_BYTES;
            Segments::of_age(number(range.start), count, birth)
        });
        let blocks: Vec<_> = blocks.collect();
        let as_asked = (Flags::NONE, Origin::NONE);
        self.append(Stream::Copied, &blocks, data, as_asked).await
    }

    /// Appends blocks to a stream, each of which is given by its number and its age, and makes the
    /// map refer to them.
    async fn append(
        &self,
        stream: Stream,
        blocks: &[(u64, Birth)],
        data: &Payload,
        (flags, origin): (Flags, Origin),
    ) -> Result<(), IoError> {
        let mut done = 0;
        while done < blocks.len() {
            let data = data.slice(done * BLOCK_BYTES as usize..data.len());
            let chunk = match stream {
                Stream::Copied => self.take_for_copies(&blocks[done..], &data)?,
                _ => self.take_chunk(stream, &blocks[done..], &data)?,
            };
            self.write_chunk(&chunk, flags, origin).await?;
            for (at, (block, _)) in (chunk.at..).zip(&blocks[done..][..chunk.blocks as usize]) {
                self.set_place(*block, Place::At(at));
            }
            done += chunk.blocks as usize;
        }
        Ok(())
    }

    /// Makes a range of virtual addresses read as zeroes.
    async fn clear(&self, request: &Request) -> IoResult {
        let first = (request.offset - VIRTUAL_START) / BLOCK_BYTES;
        let blocks = first..first + request.len / BLOCK_BYTES;
        for block in blocks {
            if block.is_multiple_of(CLEARED_PER_TURN) {
                give_way().await;
            }
            self.set_place(block, Place::Nowhere);
        }
        Ok(Reply::Done)
    }

    async fn extents(&self, request: &Request) -> IoResult {
        let first = (request.offset - VIRTUAL_START) / BLOCK_BYTES;
        let end = first + (request.len / BLOCK_BYTES).min(CLEARED_PER_TURN);
        let segment_blocks = self.layout.segment_blocks() as u32;
        let _known = self.know(first..end).await?;
        let mut list = ExtentList::new(request.extents_max);
        for (place, blocks) in runs(&self.places.borrow(), first..end, segment_blocks) {
            let len = blocks * BLOCK_BYTES;
            let data = place != Place::Nowhere;
            list.push(Extent { len, data });
        }
        Ok(list.into_reply())
    }

    /// Reports the statistics under `part`, the name of the side.
    pub(super) fn statistics(&self, part: &str, out: &mut dyn StatisticVisitor) {
        let usage = self.usage.borrow();
        let counts = self.counts.get();
        let mut show = |name, value| out.statistic(part, name, value);
        let gauge = |count: usize| Statistic::Gauge(count as f64);
        let retired = usage.all().filter(|(_, s)| s.state == State::Retired);
        show("segments", gauge(usage.count()));
        let free = usage.free_count() + usage.withheld_count();
        show("segments_free", gauge(free));
        show("segments_retired", gauge(retired.count()));
        show("map_cached_pages", gauge(self.places.borrow().resident()));
        let uncounted = self.places.borrow().uncounted();
        show("map_uncounted_pages", gauge(uncounted));
        let live: u64 = usage.all().map(|(_, s)| u64::from(s.live)).sum();
        show("live_bytes", Statistic::Gauge((live * BLOCK_BYTES) as f64));
        let unjudged = self.unjudged.borrow().bytes() as f64;
        show("unjudged_bytes", Statistic::Gauge(unjudged));
        for (name, count) in [
            ("moved_bytes", counts.moved_blocks * BLOCK_BYTES),
            ("segments_cleaned", counts.cleaned_segments),
            ("segments_discarded", self.discards.count()),
            ("ordered_bytes", counts.ordered_blocks * BLOCK_BYTES),
            ("map_pages_written", counts.map_pages_written),
            ("map_pages_read", counts.map_pages_read),
            ("map_pages_damaged", counts.map_pages_damaged),
            ("map_tables_damaged", counts.table_pages_damaged),
            ("map_searches", counts.map_searches),
            ("map_commits", counts.commits),
        ] {
            show(name, Statistic::Counter(count));
        }
        let debt = self.pace.debt_blocks() * BLOCK_BYTES;
        show("cleaning_debt_bytes", Statistic::Gauge(debt as f64));
    }

    /// Sets whether the segment is filled first that became free last, not the next one on the
    /// device.
    pub(super) fn fill_newest_first(&self, newest_first: bool) {
        self.usage.borrow_mut().newest_first = newest_first;
    }

    /// Returns the number of commits since the side was opened.
    pub(super) fn commits(&self) -> u64 {
        self.counts.get().commits
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }
}

impl Segments {
    /// Returns the place of a page of the checksums. The pages of the map with these places stay in
    /// memory.
    fn place_of_page(&self, page: u64) -> Place {
        let place = self.places.borrow().get(page);
        place.expect("the start of the map is in memory")
    }
}

/// The pages of the checksums: one was written if it has a place.
impl PageBits for Segments {
    fn is_written(&self, page: u64) -> bool {
        self.place_of_page(page) != Place::Nowhere
    }

    fn first_written(&self, pages: Range<u64>) -> u64 {
        let mut pages_left = pages.clone();
        count_entries((pages.end - pages.start) as usize);
        let first = pages_left.find(|page| self.is_written(*page));
        first.unwrap_or(pages.end)
    }

    fn note(&self, _: u64) {}

    fn forget(&self, _: u64) {}
}

/// Number of blocks that one step of a long change of the map processes.
const CLEARED_PER_TURN: u64 = 1 << 16;

impl Device for Segments {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if request.op == Op::Flush || request.offset < VIRTUAL_START {
            return self.device.submit(request);
        }
        debug_assert!(request.offset + request.len <= VIRTUAL_START + self.virtual_bytes);
        match request.op {
            Op::Read => IoFuture::new(async move { self.read(&request).await }),
            Op::Write => IoFuture::new(async move { self.write(request).await }),
            Op::Discard | Op::WriteZeroes => {
                IoFuture::new(async move { self.clear(&request).await })
            }
            Op::Extents => IoFuture::new(async move { self.extents(&request).await }),
            Op::Flush => unreachable!("a flush has no address"),
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.device.close()
    }
}
