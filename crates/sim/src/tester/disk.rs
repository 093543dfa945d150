//! The disks of the tester, and the fault model.
//!
//! What a disk of the tester does, and so what a volume has to live with:
//!
//! - **Order.** Requests in flight complete in any order: each has its own random duration. The
//!   blocks of a write change when it arrives, when it completes, or some of them then and the rest
//!   now. A block of 4 KiB changes as a whole.
//! - **Volatile cache.** A completed write is seen by every later read. It survives a power cut when
//!   it had FUA or when a flush that arrived after its completion has completed. Of the other
//!   writes each block keeps any one of its versions since then, independently of other blocks.
//! - **Errors.** A read, a write or a flush fails: once, several times, or from now on. A write that
//!   failed has changed any of its blocks. A flush that failed has made nothing durable, and takes
//!   nothing away.
//! - **Freezes.** For a while nothing is taken and nothing is answered, writes of that time may
//!   have happened or not, and all are answered late. A disk may freeze for ever.
//! - **Slowness.** Everything takes 10 or 100 times as long for a while.
//! - **Absence.** For a while everything fails with `Offline`, what is inside too.
//! - **Death of the program.** From one instant on, nothing that the program does reaches a medium.
//!
//! What a disk of the tester does not do (yet): tear a block, lose or misdirect a write, return
//! rotten data, lie about a flush.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::extent_map::ExtentMap;
use bimetal_block::request::{Extent, IoResult, Op, Reply, Request, push_extent};
use bimetal_block::{BLOCK_BYTES, Device, Geometry, IoError, IoFuture};
use bimetal_rt::sync::Event;
use bimetal_rt::{Buf, Payload, Rng, Rt};

use super::report::Findings;

type Block = Option<Payload>;

/// What a disk holds. It outlives the program that uses the disk.
pub struct Platter {
    blocks: Vec<Block>,
    /// The versions a power cut may leave of each block: first the durable one.
    versions: BTreeMap<usize, Vec<(u64, Block)>>,
    writes: u64,
}

impl Platter {
    /// An empty platter: all zeroes, durable.
    pub fn new(size_bytes: u64) -> Rc<RefCell<Platter>> {
        Rc::new(RefCell::new(Platter {
            blocks: vec![None; (size_bytes / BLOCK_BYTES) as usize],
            versions: BTreeMap::new(),
            writes: 0,
        }))
    }

    /// The block at an offset; `None` is zeroes.
    pub fn block_at(&self, offset: u64) -> Option<&Payload> {
        self.blocks[(offset / BLOCK_BYTES) as usize].as_ref()
    }

    fn set(&mut self, index: usize, content: Block) {
        self.writes += 1;
        let durable = self.blocks[index].clone();
        let versions = self.versions.entry(index);
        let versions = versions.or_insert_with(|| vec![(0, durable)]);
        versions.push((self.writes, content.clone()));
        self.blocks[index] = content;
    }

    /// Makes everything durable that was written up to `mark`.
    fn flushed(&mut self, mark: u64) {
        self.versions.retain(|_, versions| {
            let newest = versions.iter().rposition(|(write, _)| *write <= mark);
            versions.drain(..newest.unwrap_or(0));
            versions.len() > 1
        });
    }

    /// Cuts the power; says how many blocks lost their newest version.
    pub fn cut_power(&mut self, rng: &mut Rng) -> u64 {
        let mut lost = 0;
        for (index, versions) in std::mem::take(&mut self.versions) {
            let kept = rng.below(versions.len() as u64) as usize;
            lost += u64::from(kept + 1 < versions.len());
            self.blocks[index] = versions.into_iter().nth(kept).and_then(|(_, block)| block);
        }
        lost
    }
}

/// How long the disk takes for a request.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Latency {
    /// At least.
    pub ns_min: u64,
    /// At most.
    pub ns_max: u64,
}

/// Faults that were hit, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FaultCounts {
    /// Requests held up by a freeze.
    pub frozen: u64,
    /// Requests slowed down.
    pub slowed: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Flushes that failed.
    pub failed_flushes: u64,
    /// Requests that met an absent disk.
    pub offline: u64,
    /// Requests given to a disk whose program had died.
    pub after_death: u64,
}

/// The switch of a disk: what is wrong with it now.
#[derive(Default)]
pub struct Switch {
    frozen: Cell<bool>,
    offline: Cell<bool>,
    dead: Cell<bool>,
    /// 0 is as fast as ever.
    slower_by: Cell<u64>,
    /// Chances of reads, writes and flushes to fail.
    error_chances: Cell<[f64; 3]>,
    fail_next: Cell<[u32; 3]>,
    changed: Event,
    /// Faults that were hit.
    pub counts: Cell<FaultCounts>,
    /// Requests so far.
    pub requests: Cell<u64>,
}

/// The class of an operation, for errors.
pub fn class_of(op: Op) -> usize {
    match op {
        Op::Read | Op::Extents => 0,
        Op::Write | Op::Discard | Op::WriteZeroes => 1,
        Op::Flush => 2,
    }
}

impl Switch {
    /// Freezes or thaws.
    pub fn set_frozen(&self, frozen: bool) {
        self.frozen.set(frozen);
        self.changed.notify();
    }

    /// Takes the disk away or brings it back.
    pub fn set_offline(&self, offline: bool) {
        self.offline.set(offline);
        self.changed.notify();
    }

    /// Makes everything take `factor` times as long.
    pub fn set_slowness(&self, factor: u64) {
        self.slower_by.set(factor - 1);
    }

    /// Makes a class of operations fail with this chance.
    pub fn set_error_chance(&self, class: usize, chance: f64) {
        let mut chances = self.error_chances.get();
        chances[class] = chance;
        self.error_chances.set(chances);
    }

    /// Makes the next `count` operations of a class fail.
    pub fn fail_next(&self, class: usize, count: u32) {
        let mut left = self.fail_next.get();
        left[class] += count;
        self.fail_next.set(left);
    }

    /// The program has died: nothing reaches the medium any more, and nothing waits.
    pub fn die(&self) {
        self.dead.set(true);
        self.changed.notify();
    }

    /// Ends every fault.
    pub fn heal(&self) {
        self.frozen.set(false);
        self.offline.set(false);
        self.slower_by.set(0);
        self.error_chances.set([0.0; 3]);
        self.fail_next.set([0; 3]);
        self.changed.notify();
    }

    fn count(&self, change: impl FnOnce(&mut FaultCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    async fn until_answering(&self) {
        if self.frozen.get() && !self.dead.get() {
            self.count(|c| c.frozen += 1);
        }
        let answering = || !self.frozen.get() || self.offline.get() || self.dead.get();
        self.changed.until(answering).await;
    }

    /// True when an operation of this class fails now.
    fn strikes(&self, class: usize, rng: &mut Rng) -> bool {
        let mut left = self.fail_next.get();
        let struck = if left[class] > 0 {
            left[class] -= 1;
            self.fail_next.set(left);
            true
        } else {
            let chance = self.error_chances.get()[class];
            chance > 0.0 && rng.chance(chance)
        };
        if struck {
            self.count(|c| match class {
                0 => c.failed_reads += 1,
                1 => c.failed_writes += 1,
                _ => c.failed_flushes += 1,
            });
        }
        struck
    }
}

/// A disk in use by a program. See the module.
pub struct Disk {
    rt: Rt,
    name: String,
    geometry: Geometry,
    platter: Rc<RefCell<Platter>>,
    switch: Rc<Switch>,
    latency: Latency,
    rng: RefCell<Rng>,
    writing: Rc<RefCell<ExtentMap<()>>>,
    zeroes: Buf,
    findings: Rc<Findings>,
}

/// A range that is being written; nobody else may write there.
struct Writing {
    map: Rc<RefCell<ExtentMap<()>>>,
    range: Range<u64>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.map.borrow_mut().remove(self.range.clone());
    }
}

impl Disk {
    /// A disk over a platter.
    pub fn new(
        rt: &Rt,
        name: String,
        platter: Rc<RefCell<Platter>>,
        latency: Latency,
        seed: u64,
        findings: Rc<Findings>,
    ) -> Disk {
        let size_bytes = platter.borrow().blocks.len() as u64 * BLOCK_BYTES;
        Disk {
            rt: rt.clone(),
            geometry: Geometry::of_size(size_bytes),
            platter,
            switch: Rc::new(Switch::default()),
            latency,
            rng: RefCell::new(Rng::labelled(seed, &name)),
            writing: Rc::new(RefCell::new(ExtentMap::new())),
            zeroes: rt.pool().zeroed(BLOCK_BYTES as usize),
            findings,
            name,
        }
    }

    /// The switch.
    pub fn switch(&self) -> Rc<Switch> {
        Rc::clone(&self.switch)
    }

    /// What it holds.
    pub fn platter(&self) -> &Rc<RefCell<Platter>> {
        &self.platter
    }

    fn duration(&self) -> Duration {
        let Latency { ns_min, ns_max } = self.latency;
        let mut rng = self.rng.borrow_mut();
        // Most requests take about the least; a few take the most, and are overtaken.
        let top = if rng.chance(0.1) {
            ns_max
        } else {
            ns_min + (ns_max - ns_min) / 8
        };
        let slower_by = self.switch.slower_by.get();
        if slower_by > 0 {
            self.switch.count(|c| c.slowed += 1);
        }
        Duration::from_nanos(rng.between(ns_min, top) * (1 + slower_by))
    }

    /// Overlapping writes in flight would land in any order: a volume must never send them.
    fn start_writing(&self, request: &Request) -> Option<Writing> {
        if !request.op.changes_content() {
            return None;
        }
        let range = request.offset..request.end();
        if !self.writing.borrow().is_clear(&range) {
            self.findings.add(format!(
                "disk {} was given overlapping writes at once, {range:?}",
                self.name
            ));
        }
        self.writing.borrow_mut().insert(range.clone(), ());
        Some(Writing {
            map: Rc::clone(&self.writing),
            range,
        })
    }

    async fn run(&self, request: Request) -> IoResult {
        let writing = self.start_writing(&request);
        self.switch.requests.set(self.switch.requests.get() + 1);
        self.switch.until_answering().await;
        let (early, mark) = self.arrive(&request);
        let duration = self.duration();
        if !duration.is_zero() {
            self.rt.sleep(duration).await;
        }
        self.switch.until_answering().await;
        let result = self.complete(&request, early, mark);
        drop(writing);
        result
    }

    /// What happens on arrival: any part of a write. Says which blocks are written, and for a flush
    /// what it covers.
    fn arrive(&self, request: &Request) -> (Vec<bool>, u64) {
        let count = (request.len / BLOCK_BYTES) as usize;
        let mark = self.platter.borrow().writes;
        if !request.op.changes_content() || self.switch.dead.get() || self.switch.offline.get() {
            return (Vec::new(), mark);
        }
        let early = {
            let mut rng = self.rng.borrow_mut();
            match rng.below(8) {
                0 => (0..count).map(|_| rng.chance(0.5)).collect(),
                1 | 2 => vec![true; count],
                _ => vec![false; count],
            }
        };
        self.apply(request, |block| early[block]);
        (early, mark)
    }

    fn complete(&self, request: &Request, early: Vec<bool>, mark: u64) -> IoResult {
        if self.switch.dead.get() {
            self.switch.count(|c| c.after_death += 1);
            return Ok(self.answer_of_the_dead(request));
        }
        if self.switch.offline.get() {
            self.switch.count(|c| c.offline += 1);
            return Err(IoError::Offline);
        }
        let fails = self
            .switch
            .strikes(class_of(request.op), &mut self.rng.borrow_mut());
        let written = |block: usize| early.get(block).copied().unwrap_or(false);
        if fails {
            if request.op.changes_content() {
                let part: Vec<bool> = {
                    let mut rng = self.rng.borrow_mut();
                    let chance = rng.below(3) as f64 / 2.0;
                    let blocks = request.len / BLOCK_BYTES;
                    (0..blocks).map(|_| rng.chance(chance)).collect()
                };
                self.apply(request, |block| part[block] && !written(block));
            }
            return Err(IoError::Medium);
        }
        match request.op {
            Op::Read => Ok(Reply::Data(self.content(request))),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                self.apply(request, |block| !written(block));
                if request.flags.fua {
                    let mut platter = self.platter.borrow_mut();
                    for index in request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES {
                        platter.versions.remove(&(index as usize));
                    }
                }
                Ok(Reply::Done)
            }
            Op::Flush => {
                self.platter.borrow_mut().flushed(mark);
                Ok(Reply::Done)
            }
            Op::Extents => Ok(Reply::Extents(self.extents(request))),
        }
    }

    fn zeroes(&self, len: u64) -> Payload {
        let mut zeroes = Payload::empty();
        for _ in 0..len / BLOCK_BYTES {
            zeroes.push(self.zeroes.clone());
        }
        zeroes
    }

    fn answer_of_the_dead(&self, request: &Request) -> Reply {
        match request.op {
            Op::Read => Reply::Data(self.zeroes(request.len)),
            Op::Extents => Reply::Extents(vec![Extent {
                len: request.len,
                data: true,
            }]),
            _ => Reply::Done,
        }
    }

    /// Writes the chosen blocks of a change.
    fn apply(&self, request: &Request, chosen: impl Fn(usize) -> bool) {
        let first = (request.offset / BLOCK_BYTES) as usize;
        let mut platter = self.platter.borrow_mut();
        for block in 0..(request.len / BLOCK_BYTES) as usize {
            if chosen(block) {
                let start = block * BLOCK_BYTES as usize;
                let bytes = start..start + BLOCK_BYTES as usize;
                let content = (request.op == Op::Write).then(|| request.payload.slice(bytes));
                platter.set(first + block, content);
            }
        }
    }

    fn content(&self, request: &Request) -> Payload {
        let platter = self.platter.borrow();
        let mut data = Payload::empty();
        for index in request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES {
            data.append(match &platter.blocks[index as usize] {
                Some(block) => block.clone(),
                None => self.zeroes(BLOCK_BYTES),
            });
        }
        data
    }

    fn extents(&self, request: &Request) -> Vec<Extent> {
        let platter = self.platter.borrow();
        let mut extents = Vec::new();
        for index in request.offset / BLOCK_BYTES..request.end() / BLOCK_BYTES {
            let data = platter.blocks[index as usize].is_some();
            let len = BLOCK_BYTES;
            push_extent(&mut extents, Extent { len, data });
        }
        extents
    }
}

impl Device for Disk {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(error) = self.geometry.check(&request) {
            self.findings
                .add(format!("disk {} was given {request:?}: {error}", self.name));
            return IoFuture::ready(Err(error));
        }
        IoFuture::new(self.run(request))
    }
}
