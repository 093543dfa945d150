//! The switch of a disk: what is wrong with it now, and how often that was met.

use std::cell::Cell;

use bimetal_block::request::Op;
use bimetal_rt::Rng;
use bimetal_rt::sync::Event;

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
    /// Blocks whose newest version a power cut took.
    pub lost_blocks: u64,
    /// Blocks that a flush gave up which failed.
    pub lost_by_flushes: u64,
    /// Blocks that a power cut tore.
    pub torn_blocks: u64,
    /// Writes that landed after their program was killed.
    pub landed_late: u64,
    /// Writes that were acknowledged and not done.
    pub lost_writes: u64,
    /// Writes that landed elsewhere.
    pub misdirected_writes: u64,
    /// Reads of elsewhere.
    pub misdirected_reads: u64,
    /// Blocks that changed at rest.
    pub rotten_blocks: u64,
}

impl FaultCounts {
    /// Every count under its name.
    pub fn named(&self) -> [(&'static str, u64); 15] {
        [
            ("frozen", self.frozen),
            ("slowed", self.slowed),
            ("failed reads", self.failed_reads),
            ("failed writes", self.failed_writes),
            ("failed flushes", self.failed_flushes),
            ("offline", self.offline),
            ("after death", self.after_death),
            ("lost blocks", self.lost_blocks),
            ("blocks lost by failed flushes", self.lost_by_flushes),
            ("torn blocks", self.torn_blocks),
            ("landed late", self.landed_late),
            ("lost writes", self.lost_writes),
            ("misdirected writes", self.misdirected_writes),
            ("misdirected reads", self.misdirected_reads),
            ("rotten blocks", self.rotten_blocks),
        ]
    }

    /// Adds what another disk has met.
    pub fn add(&mut self, other: &FaultCounts) {
        self.frozen += other.frozen;
        self.slowed += other.slowed;
        self.failed_reads += other.failed_reads;
        self.failed_writes += other.failed_writes;
        self.failed_flushes += other.failed_flushes;
        self.offline += other.offline;
        self.after_death += other.after_death;
        self.lost_blocks += other.lost_blocks;
        self.lost_by_flushes += other.lost_by_flushes;
        self.torn_blocks += other.torn_blocks;
        self.landed_late += other.landed_late;
        self.lost_writes += other.lost_writes;
        self.misdirected_writes += other.misdirected_writes;
        self.misdirected_reads += other.misdirected_reads;
        self.rotten_blocks += other.rotten_blocks;
    }
}

/// What goes astray next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Astray {
    /// A write is acknowledged and not done.
    LostWrite,
    /// A write lands elsewhere.
    MisdirectedWrite,
    /// A read answers with what lies elsewhere.
    MisdirectedRead,
}

/// See the module.
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
    astray_next: Cell<[u32; 3]>,
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

    /// Makes the next `count` operations go astray that may.
    pub fn astray_next(&self, how: Astray, count: u32) {
        let mut left = self.astray_next.get();
        left[how as usize] += count;
        self.astray_next.set(left);
    }

    /// The program has died: nothing that it does reaches the medium any more, and nothing waits.
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
        self.astray_next.set([0; 3]);
        self.changed.notify();
    }

    /// Changes the counts.
    pub fn count(&self, change: impl FnOnce(&mut FaultCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// How many times longer than ever a request takes, beyond the time that it took before. A disk
    /// whose program has died is as fast as ever: what would end its slowness has died with the
    /// program.
    pub(super) fn slower_by(&self) -> u64 {
        match self.dead.get() {
            true => 0,
            false => self.slower_by.get(),
        }
    }

    pub(super) fn is_offline(&self) -> bool {
        self.offline.get()
    }

    pub(super) async fn until_answering(&self) {
        if self.frozen.get() && !self.dead.get() {
            self.count(|c| c.frozen += 1);
        }
        let answering = || !self.frozen.get() || self.offline.get() || self.dead.get();
        self.changed.until(answering).await;
    }

    /// True when an operation of this class fails now; `surely` says that it does in any case.
    pub(super) fn strikes(&self, class: usize, surely: bool, rng: &mut Rng) -> bool {
        let mut left = self.fail_next.get();
        let struck = if left[class] > 0 {
            left[class] -= 1;
            self.fail_next.set(left);
            true
        } else {
            let chance = self.error_chances.get()[class];
            chance > 0.0 && rng.chance(chance)
        };
        let struck = struck || surely;
        if struck {
            self.count(|c| match class {
                0 => c.failed_reads += 1,
                1 => c.failed_writes += 1,
                _ => c.failed_flushes += 1,
            });
        }
        struck
    }

    /// True when an operation is to go astray in this way.
    pub(super) fn wants_astray(&self, how: Astray) -> bool {
        self.astray_next.get()[how as usize] > 0
    }

    /// It has.
    pub(super) fn went_astray(&self, how: Astray) {
        let mut left = self.astray_next.get();
        left[how as usize] -= 1;
        self.astray_next.set(left);
        self.count(|c| match how {
            Astray::LostWrite => c.lost_writes += 1,
            Astray::MisdirectedWrite => c.misdirected_writes += 1,
            Astray::MisdirectedRead => c.misdirected_reads += 1,
        });
    }
}
