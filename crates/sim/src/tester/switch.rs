//! The switch of a disk, which turns its faults on and off and counts the affected requests.

use std::cell::Cell;

use bimetal_block::request::Op;
use bimetal_rt::Rng;
use bimetal_rt::sync::Event;

/// Number of requests and blocks that each kind of fault has affected.
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
    /// Requests that failed because the disk was absent.
    pub offline: u64,
    /// Requests of a program that had died.
    pub after_death: u64,
    /// Blocks that lost their newest version in a power cut.
    pub lost_blocks: u64,
    /// Blocks that lost versions in a failed flush.
    pub lost_by_flushes: u64,
    /// Blocks torn by a power cut.
    pub torn_blocks: u64,
    /// Writes that were applied after their program was killed.
    pub arrived_late: u64,
    /// Writes that were acknowledged but never applied.
    pub lost_writes: u64,
    /// Writes that changed blocks at another offset.
    pub misdirected_writes: u64,
    /// Reads that returned blocks from another offset.
    pub misdirected_reads: u64,
    /// Blocks that changed at rest.
    pub corrupt_blocks: u64,
}

impl FaultCounts {
    /// Returns every counter with its name.
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
            ("landed late", self.arrived_late),
            ("lost writes", self.lost_writes),
            ("misdirected writes", self.misdirected_writes),
            ("misdirected reads", self.misdirected_reads),
            ("rotten blocks", self.corrupt_blocks),
        ]
    }

    /// Adds other counters to these.
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
        self.arrived_late += other.arrived_late;
        self.lost_writes += other.lost_writes;
        self.misdirected_writes += other.misdirected_writes;
        self.misdirected_reads += other.misdirected_reads;
        self.corrupt_blocks += other.corrupt_blocks;
    }
}

/// Way in which an operation silently goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Astray {
    /// A write is acknowledged but never applied.
    LostWrite,
    /// A write changes blocks at another offset.
    MisdirectedWrite,
    /// A read returns blocks from another offset.
    MisdirectedRead,
}

/// Present faults of a disk; see the module.
#[derive(Default)]
pub struct Switch {
    frozen: Cell<bool>,
    offline: Cell<bool>,
    dead: Cell<bool>,
    /// Additional duration of a request, as a multiple of its normal duration; 0 means normal
    /// speed.
    slower_by: Cell<u64>,
    /// Chances that reads, writes and flushes fail.
    error_chances: Cell<[f64; 3]>,
    fail_next: Cell<[u32; 3]>,
    astray_next: Cell<[u32; 3]>,
    changed: Event,
    /// Number of requests and blocks that each kind of fault has affected.
    pub counts: Cell<FaultCounts>,
    /// Number of requests so far.
    pub requests: Cell<u64>,
}

/// Returns the class of an operation: 0 reads, 1 writes, 2 flushes.
pub fn class_of(op: Op) -> usize {
    match op {
        Op::Read | Op::Extents => 0,
        Op::Write | Op::Discard | Op::WriteZeroes => 1,
        Op::Flush => 2,
    }
}

impl Switch {
    /// Freezes the disk, or ends a freeze.
    pub fn set_frozen(&self, frozen: bool) {
        self.frozen.set(frozen);
        self.changed.notify();
    }

    /// Makes the disk absent or present.
    pub fn set_offline(&self, offline: bool) {
        self.offline.set(offline);
        self.changed.notify();
    }

    /// Makes every request take `factor` times its normal duration.
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

    /// Makes the next `count` operations fail silently in the way `how`: they are lost or
    /// misdirected. An operation that the rule in [`corruption`](super::corruption) protects from
    /// this fault is not counted and not affected.
    pub fn astray_next(&self, how: Astray, count: u32) {
        let mut left = self.astray_next.get();
        left[how as usize] += count;
        self.astray_next.set(left);
    }

    /// Marks the program as dead: its requests no longer reach the medium, and no request of the
    /// program waits for the end of a freeze.
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

    /// Updates the counters with `change`.
    pub fn count(&self, change: impl FnOnce(&mut FaultCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// Returns the additional duration of a request, as a multiple of its normal duration. A disk
    /// whose program has died runs at normal speed, because the task that would end the slowness
    /// died with the program.
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

    /// Decides whether an operation of this class fails now. If `surely` is true, the operation
    /// always fails. Counts the failure.
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

    /// Returns true if a fault of the kind `how` is still pending, so that another operation must
    /// be lost or misdirected.
    pub(super) fn wants_astray(&self, how: Astray) -> bool {
        self.astray_next.get()[how as usize] > 0
    }

    /// Records that an operation was lost or misdirected, in the way `how`. One fewer such fault is
    /// then pending.
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
