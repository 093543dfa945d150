//! The disks of the tester, and the fault model.
//!
//! The fault model is the behaviour that a volume must tolerate. Names in parentheses are classes
//! that can be switched on and off ([`classes`](super::classes)); all other behaviour is always on.
//!
//! - **Order.** Requests in flight complete in any order, because each has its own random duration.
//!   The blocks of a write change when the write arrives, when it completes, or some at its arrival
//!   and the others at its completion. While there is power, a block of 4 KiB changes as a whole.
//! - **Volatile cache.** Every later read sees a completed write. The write survives a power cut if
//!   it had FUA, or if a flush that arrived after the completion of the write has completed.
//!   Otherwise a power cut leaves each block with any one of its versions since the last durable
//!   one, independently of other blocks; with `torn`, each sector of 512 bytes can have a different
//!   version.
//! - **Errors.** A read, a write or a flush fails: once, several times, or permanently. A failed
//!   write may have changed any of its blocks.
//! - **Failed flushes.** A failed flush has made nothing durable, and the disk loses none, some or
//!   all of the blocks that are not durable, as the page cache of Linux does. No later flush makes
//!   a lost block durable, even if that flush succeeds. Until a lost block is written again, reads
//!   return its written content or, from some read on, an older version. Reads of lost blocks that
//!   an earlier program wrote return an older version immediately. To the next program, reads of
//!   every lost block return an older version. An older version that a read returns is not lost: it
//!   survives a power cut once a later flush has succeeded. Under a volume without superblocks,
//!   which has no checksums to detect the loss, no block is lost.
//! - **Discards.** A discarded block reads as zeroes. Of an advisory discard, the disk applies all,
//!   a part, or nothing.
//! - **Freezes.** For a while the disk accepts and answers no request. A write during the freeze
//!   may or may not have been applied, and every request is answered late. A freeze lasts up to 5
//!   s, 1 to 120 s (`long-hangs`), or forever.
//! - **Slowness.** For a while every request takes 10 or 100 times as long as normal.
//! - **Absence.** For a while every request fails with `Offline`, including the requests in flight.
//!   With `flapping`, the disk becomes absent many times in a row.
//! - **Power cut.** From one instant on, no request of the program reaches a medium.
//! - **Death of the program alone** (`kill`). No later request of the program reaches a medium, but
//!   requests in flight can still be applied, up to 5 s later. A disk answers the next program only
//!   after those requests have ended; with `unfenced`, it answers immediately.
//! - **Corruption.** A block changes at rest (`rot`), a write is acknowledged but never applied
//!   (`lost-writes`), a write changes blocks at another offset (`misdirected-writes`), or a read
//!   returns blocks from another offset (`misdirected-reads`). The rule in
//!   [`corruption`](super::corruption) decides which copies can be corrupted.
//!
//! A disk of the tester never acknowledges a flush that it has not performed, never tears a block
//! without a power cut, and never continues a request whose future was dropped while its program
//! lives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::ExtentList;
use bimetal_block::range_set::RangeSet;
use bimetal_block::request::{Extent, IoResult, Op, Reply, Request};
use bimetal_block::{BLOCK_BYTES, Device, Geometry, IoError, IoFuture};
use bimetal_rt::{Buf, Payload, Rng, Rt};

use super::boundaries::Boundaries;
use super::corruption::Rule;
use super::platter::{Platter, until_idle};
use super::report::Findings;
use super::switch::{Astray, Switch, class_of};

/// Range of the duration of a request.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Latency {
    /// Minimum in ns.
    pub ns_min: u64,
    /// Maximum in ns.
    pub ns_max: u64,
}

/// State that the disks of a run share.
pub struct Around {
    /// Findings of the run.
    pub findings: Rc<Findings>,
    /// I/O boundaries of the run.
    pub boundaries: Rc<Boundaries>,
    /// Rule that decides which copies can be corrupted.
    pub rule: Rc<Rule>,
    /// Whether requests in flight can still be applied after their program was killed.
    pub arrives_late: bool,
    /// Whether a disk answers a program only after the requests of the previous program have ended.
    pub fenced: bool,
    /// Whether a failed flush loses the writes that it should have made durable.
    pub flushes_lose: bool,
}

/// A write, discard or write-zeroes request in flight in the disk.
struct Queued {
    request: Request,
    /// For each block of the request, whether the write was applied as soon as the request arrived,
    /// before its completion.
    early: Vec<bool>,
}

/// Position of a disk: its side, and its number in the side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPosition {
    /// The side.
    pub side: usize,
    /// The disk of the side.
    pub disk: usize,
}

/// A disk in use by a program. See the module.
pub struct Disk {
    rt: Rt,
    name: String,
    place: DiskPosition,
    geometry: Geometry,
    platter: Rc<RefCell<Platter>>,
    /// Copy of the platter that serves the requests of a dead program. On this copy, the dead
    /// program sees a disk without faults.
    shadow: RefCell<Option<Rc<RefCell<Platter>>>>,
    switch: Rc<Switch>,
    latency: Latency,
    rng: RefCell<Rng>,
    /// Random stream that decides which writes a failed flush loses.
    losses: RefCell<Rng>,
    /// Number of changes to the platter before this program began to use the platter.
    inherited: u64,
    writing: Rc<RefCell<RangeSet>>,
    queue: Rc<RefCell<BTreeMap<u64, Queued>>>,
    zeroes: Buf,
    around: Rc<Around>,
}

/// A range that is being written. No other write is allowed to overlap this range.
struct Writing {
    map: Rc<RefCell<RangeSet>>,
    queue: Rc<RefCell<BTreeMap<u64, Queued>>>,
    range: Range<u64>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.map.borrow_mut().remove(self.range.clone());
        // Changes in flight do not overlap, so each has a unique start offset.
        self.queue.borrow_mut().remove(&self.range.start);
    }
}

/// Maximum time in ns that a request of a killed program stays in flight in a disk.
const LATE_NS_MAX: u64 = 5_000_000_000;

impl Disk {
    /// Creates a disk over a platter, with the latency of its requests and whether it says that it
    /// is rotational.
    pub fn new(
        rt: &Rt,
        place: DiskPosition,
        platter: Rc<RefCell<Platter>>,
        (latency, rotational): (Latency, bool),
        seed: u64,
        around: Rc<Around>,
    ) -> Disk {
        let size_bytes = platter.borrow().size_bytes();
        let name = format!("{}.{}", place.side, place.disk);
        let mut losses = Rng::labelled(seed, &format!("{name} failed flushes"));
        let inherited = platter.borrow().writes();
        evict_up_to(&platter, inherited, &mut losses);
        Disk {
            rt: rt.clone(),
            place,
            geometry: Geometry {
                rotational,
                ..Geometry::of_size(size_bytes)
            },
            platter,
            shadow: RefCell::default(),
            switch: Rc::new(Switch::default()),
            latency,
            rng: RefCell::new(Rng::labelled(seed, &name)),
            losses: losses.into(),
            inherited,
            writing: Rc::new(RefCell::new(RangeSet::new())),
            queue: Rc::default(),
            zeroes: rt.pool().zeroed(BLOCK_BYTES as usize),
            around,
            name,
        }
    }

    /// Returns the position of the disk.
    pub fn place(&self) -> DiskPosition {
        self.place
    }

    /// Returns the switch.
    pub fn switch(&self) -> Rc<Switch> {
        Rc::clone(&self.switch)
    }

    /// Returns the platter.
    pub fn platter(&self) -> &Rc<RefCell<Platter>> {
        &self.platter
    }

    /// Returns true if requests of the program no longer reach the medium.
    fn is_dead(&self) -> bool {
        self.switch.is_dead() || self.around.boundaries.is_cut()
    }

    /// Leaves the changes in flight in the disk. Called when the program is killed and the disk
    /// keeps its power. Each change is applied later, completely or in part, or never.
    pub fn leave_queue(&self) {
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        for queued in queue.into_values() {
            let (late_ns, part) = {
                let mut rng = self.rng.borrow_mut();
                let late_ns_max = [1_000_000, 100_000_000, LATE_NS_MAX][rng.below(3) as usize];
                let chance = [0.0, 0.5, 1.0, 1.0][rng.below(4) as usize];
                let late_ns = rng.below(late_ns_max);
                let part = queued.early.iter();
                let part = part.map(|&early| !early && rng.chance(chance));
                (late_ns, part.collect::<Vec<bool>>())
            };
            let (rt, platter) = (self.rt.clone(), Rc::clone(&self.platter));
            let old = platter.borrow_mut().leave();
            let landing = async move {
                rt.sleep(Duration::from_nanos(late_ns)).await;
                let arrives = platter.borrow_mut().end_old(old);
                if arrives {
                    apply(&platter, &queued.request, |block| part[block]);
                }
            };
            self.rt.spawn(landing).detach();
        }
    }

    fn duration(&self) -> Duration {
        let Latency { ns_min, ns_max } = self.latency;
        let mut rng = self.rng.borrow_mut();
        // Most durations are near the minimum. One in ten is drawn from the whole range up to the
        // maximum, so that later requests can overtake the slow ones.
        let top = if rng.chance(0.1) {
            ns_max
        } else {
            ns_min + (ns_max - ns_min) / 8
        };
        let slower_by = self.switch.slower_by();
        if slower_by > 0 {
            self.switch.count(|c| c.slowed += 1);
        }
        Duration::from_nanos(rng.between(ns_min, top) * (1 + slower_by))
    }

    /// Registers a change in flight. Adds a finding if the change overlaps another change in
    /// flight. A volume must never send such changes, because changes in flight are applied in any
    /// order.
    fn start_writing(&self, request: &Request) -> Option<Writing> {
        if !request.op.changes_content() {
            return None;
        }
        let range = request.offset..request.end();
        if !self.writing.borrow().is_clear(&range) {
            self.around.findings.add(format!(
                "disk {} was given overlapping writes at once, {range:?}",
                self.name
            ));
        }
        self.writing.borrow_mut().insert(range.clone());
        Some(Writing {
            map: Rc::clone(&self.writing),
            queue: Rc::clone(&self.queue),
            range,
        })
    }

    async fn run(&self, request: Request) -> IoResult {
        if self.around.fenced {
            until_idle(&self.platter).await;
        }
        let writing = self.start_writing(&request);
        self.switch.requests.set(self.switch.requests.get() + 1);
        let DiskPosition { side, disk } = self.place;
        if request.op == Op::Write && self.around.rule.is_record(side, disk, request.offset) {
            self.around.boundaries.note_record();
        }
        self.around.boundaries.pass();
        self.switch.until_answering().await;
        let (early, mark) = self.arrive(&request);
        let duration = self.duration();
        if !duration.is_zero() {
            self.rt.sleep(duration).await;
        }
        self.switch.until_answering().await;
        self.around.boundaries.pass();
        let result = self.complete(&request, early, mark);
        drop(writing);
        result
    }

    /// Handles the arrival of a request. Applies a random part of a change immediately. Returns two
    /// values: for each block of a change, whether the block was applied; and the number of changes
    /// to the platter before this request. These earlier changes are the changes that a flush makes
    /// durable.
    fn arrive(&self, request: &Request) -> (Vec<bool>, u64) {
        let count = (request.len / BLOCK_BYTES) as usize;
        let mark = self.platter.borrow().writes();
        if !request.op.changes_content() || self.is_dead() || self.switch.is_offline() {
            return (Vec::new(), mark);
        }
        let early: Vec<bool> = {
            let mut rng = self.rng.borrow_mut();
            match rng.below(8) {
                0 => (0..count).map(|_| rng.chance(0.5)).collect(),
                1 | 2 => vec![true; count],
                _ => vec![false; count],
            }
        };
        apply(&self.platter, request, |block| early[block]);
        let early = self.without_kept(request, early);
        if self.around.arrives_late {
            let queued = Queued {
                request: request.clone(),
                early: early.clone(),
            };
            self.queue.borrow_mut().insert(request.offset, queued);
        }
        (early, mark)
    }

    /// Counts the blocks as applied that an advisory discard leaves as they are.
    fn without_kept(&self, request: &Request, mut applied: Vec<bool>) -> Vec<bool> {
        if request.flags.advisory {
            let mut rng = self.rng.borrow_mut();
            let chance = [0.0, 0.0, 0.5, 1.0][rng.below(4) as usize];
            applied.iter_mut().for_each(|of| *of |= rng.chance(chance));
        }
        applied
    }

    fn complete(&self, request: &Request, early: Vec<bool>, mark: u64) -> IoResult {
        if self.is_dead() {
            self.switch.count(|c| c.after_death += 1);
            return Ok(self.answer_of_the_dead(request));
        }
        if self.switch.is_offline() {
            self.switch.count(|c| c.offline += 1);
            return Err(IoError::Offline);
        }
        let class = class_of(request.op);
        let surely = self.around.boundaries.fails(class);
        let fails = self
            .switch
            .strikes(class, surely, &mut self.rng.borrow_mut());
        let written = |block: usize| early.get(block).copied().unwrap_or(false);
        if fails {
            if request.op.changes_content() {
                let part: Vec<bool> = {
                    let mut rng = self.rng.borrow_mut();
                    let chance = rng.below(3) as f64 / 2.0;
                    let blocks = request.len / BLOCK_BYTES;
                    (0..blocks).map(|_| rng.chance(chance)).collect()
                };
                let chosen = |block: usize| part[block] && !written(block);
                apply(&self.platter, request, chosen);
            }
            if request.op == Op::Flush && self.around.flushes_lose {
                self.lose_unflushed();
            }
            return Err(IoError::Medium);
        }
        match request.op {
            Op::Read => {
                self.evict_some(request);
                let offset = self.misread(request).unwrap_or(request.offset);
                Ok(Reply::Data(self.content(
                    &self.platter,
                    offset,
                    request.len,
                )))
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                if !self.goes_astray(request, &written) {
                    apply(&self.platter, request, |block| !written(block));
                }
                if request.flags.fua {
                    let blocks = request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES;
                    self.platter.borrow_mut().flushed_blocks(blocks);
                }
                Ok(Reply::Done)
            }
            Op::Flush => {
                self.platter.borrow_mut().flushed(mark);
                Ok(Reply::Done)
            }
            Op::Extents => Ok(self.extents(request).into_reply()),
        }
    }

    /// Applies the effect of a failed flush: among the writes that are not durable, a random part
    /// is lost.
    fn lose_unflushed(&self) {
        let mut rng = self.losses.borrow_mut();
        let chance = [0.0, 0.5, 1.0, 1.0][rng.below(4) as usize];
        let blocks = self.platter.borrow_mut().fail_flush(&mut rng, chance);
        self.switch.count(|c| c.lost_by_flushes += blocks);
        evict_up_to(&self.platter, self.inherited, &mut rng);
        if rng.chance(0.5) {
            evict_up_to(&self.platter, u64::MAX, &mut rng);
        }
    }

    /// Evicts some blocks of the request from the cache, if a failed flush has lost their newest
    /// content. A real system can evict them at any time.
    fn evict_some(&self, request: &Request) {
        if !self.platter.borrow().has_lost() {
            return;
        }
        let mut rng = self.losses.borrow_mut();
        for index in blocks_of(request.offset, request.len) {
            if self.platter.borrow().is_lost(index) && rng.chance(0.3) {
                self.platter.borrow_mut().evict(index, &mut rng);
            }
        }
    }

    /// Returns the offset from which a misdirected read is served; `None` if the read is not
    /// misdirected.
    fn misread(&self, request: &Request) -> Option<u64> {
        if !self.switch.wants_astray(Astray::MisdirectedRead) {
            return None;
        }
        let DiskPosition { side, disk } = self.place;
        let may = |index| self.around.rule.may_misread(side, disk, index);
        let elsewhere = self.elsewhere(request)?;
        if !blocks_of(request.offset, request.len).all(may) {
            return None;
        }
        self.switch.went_astray(Astray::MisdirectedRead);
        Some(elsewhere)
    }

    /// Loses or misdirects a change, if such a fault is due and the rule for corruption permits it
    /// for all affected blocks. Returns true if the change was lost or misdirected.
    fn goes_astray(&self, request: &Request, written: &impl Fn(usize) -> bool) -> bool {
        let how = [Astray::LostWrite, Astray::MisdirectedWrite];
        let how = how.into_iter().find(|how| self.switch.wants_astray(*how));
        let Some(how) = how else { return false };
        if how == Astray::LostWrite && request.flags.advisory {
            // A disk may do nothing.
            return false;
        }
        let DiskPosition { side, disk } = self.place;
        let may = |index| self.around.rule.may_corrupt(side, disk, index);
        if !blocks_of(request.offset, request.len).all(may) {
            return false;
        }
        let target = if how == Astray::MisdirectedWrite {
            let target = self.elsewhere(request);
            let fits = |offset: &u64| {
                let range = *offset..*offset + request.len;
                self.writing.borrow().is_clear(&range) && blocks_of(*offset, request.len).all(may)
            };
            let Some(target) = target.filter(fits) else {
                return false;
            };
            Some(target)
        } else {
            None
        };
        let mut platter = self.platter.borrow_mut();
        let first = (request.offset / BLOCK_BYTES) as usize;
        for block in 0..(request.len / BLOCK_BYTES) as usize {
            if let Some(target) = target {
                let victim = (target / BLOCK_BYTES) as usize + block;
                platter.set_corrupt(victim, content_of(request, block));
            }
            if !written(block) {
                let kept = platter.block((first + block) as u64).cloned();
                platter.set_corrupt(first + block, kept);
            }
        }
        self.switch.went_astray(how);
        true
    }

    /// Returns the offset of another range of the same length, mostly near the range of the
    /// request.
    fn elsewhere(&self, request: &Request) -> Option<u64> {
        let mut rng = self.rng.borrow_mut();
        let blocks = (self.geometry.size_bytes - request.len) / BLOCK_BYTES + 1;
        let place = if rng.chance(0.7) {
            let near = (1 + rng.below(64)) * BLOCK_BYTES + request.len;
            match rng.chance(0.5) {
                true => request.offset.checked_sub(near)?,
                false => request.offset + near,
            }
        } else {
            rng.below(blocks) * BLOCK_BYTES
        };
        let apart = place + request.len <= request.offset || place >= request.end();
        (apart && place + request.len <= self.geometry.size_bytes).then_some(place)
    }

    /// Returns a copy of the content for a program that is being killed. From now on, that program
    /// reads and writes the copy. Changes of the platter do not affect the copy, because no real
    /// disk loses written data while its program runs.
    pub fn keep_shadow(&self) -> Rc<RefCell<Platter>> {
        let fork = || Rc::new(RefCell::new(self.platter.borrow().fork()));
        Rc::clone(self.shadow.borrow_mut().get_or_insert_with(fork))
    }

    fn answer_of_the_dead(&self, request: &Request) -> Reply {
        let shadow = self.keep_shadow();
        match request.op {
            Op::Read => Reply::Data(self.content(&shadow, request.offset, request.len)),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                apply(&shadow, request, |_| true);
                Reply::Done
            }
            Op::Extents => Reply::Extents(vec![Extent {
                len: request.len,
                data: true,
            }]),
            Op::Flush => Reply::Done,
        }
    }

    fn content(&self, platter: &RefCell<Platter>, offset: u64, len: u64) -> Payload {
        let platter = platter.borrow();
        let mut data = Payload::empty();
        for index in offset / BLOCK_BYTES..(offset + len) / BLOCK_BYTES {
            match platter.block(index) {
                Some(block) => data.append(block.clone()),
                None => data.push(self.zeroes.clone()),
            }
        }
        data
    }

    /// Returns at most two extents in each answer, so that the caller has to query repeatedly.
    fn extents(&self, request: &Request) -> ExtentList {
        let platter = self.platter.borrow();
        let mut extents = ExtentList::new(request.extents_max.min(2));
        for index in request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES {
            let data = platter.block(index).is_some();
            let len = BLOCK_BYTES;
            extents.push(Extent { len, data });
        }
        extents
    }
}

/// Evicts blocks from the cache if a failed flush has lost their newest content and that content is
/// one of the first `below` changes.
fn evict_up_to(platter: &RefCell<Platter>, below: u64, rng: &mut Rng) {
    let lost: Vec<usize> = platter.borrow().lost_blocks(below).collect();
    for index in lost {
        platter.borrow_mut().evict(index, rng);
    }
}

/// Applies the chosen blocks of a change to the platter.
fn apply(platter: &RefCell<Platter>, request: &Request, chosen: impl Fn(usize) -> bool) {
    let first = (request.offset / BLOCK_BYTES) as usize;
    let mut platter = platter.borrow_mut();
    for block in 0..(request.len / BLOCK_BYTES) as usize {
        if chosen(block) {
            platter.set(first + block, content_of(request, block));
        }
    }
}

/// Returns the content that a change writes to one of its blocks; `None` for zeroes.
fn content_of(request: &Request, block: usize) -> Option<Payload> {
    let start = block * BLOCK_BYTES as usize;
    let bytes = start..start + BLOCK_BYTES as usize;
    (request.op == Op::Write).then(|| request.payload.slice(bytes))
}

fn blocks_of(offset: u64, len: u64) -> impl Iterator<Item = usize> {
    (offset / BLOCK_BYTES..(offset + len) / BLOCK_BYTES).map(|index| index as usize)
}

impl Device for Disk {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(error) = self.geometry.check(&request) {
            self.around
                .findings
                .add(format!("disk {} was given {request:?}: {error}", self.name));
            return IoFuture::ready(Err(error));
        }
        IoFuture::new(self.run(request))
    }
}
