//! The boundaries of I/O of a run: each request that reaches a disk, and each that it completes.
//!
//! At any of them the power can be cut, and any operation can be made to fail, so that a run can be
//! repeated once for each. The count is over all disks and all lives; nothing here decides what a
//! cut or a failure does, that is up to the disks.

use std::cell::Cell;

use bimetal_rt::sync::Event;

/// One operation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailAt {
    /// Its class: 0 reads, 1 writes, 2 flushes.
    pub class: usize,
    /// Which of its class, from 1.
    pub number: u64,
}

/// Where a run is interfered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interference {
    /// The power is cut at these boundaries, counted from 1; 0 is none.
    pub cuts: [u64; 2],
    /// This operation fails.
    pub fail_at: Option<FailAt>,
}

/// See the module.
#[derive(Default)]
pub struct Boundaries {
    interference: Interference,
    begun: Cell<bool>,
    passed: Cell<u64>,
    by_class: [Cell<u64>; 3],
    is_cut: Cell<bool>,
    struck: Cell<bool>,
    /// Where the power is cut for an ambush; 0 is nowhere.
    ambush_at: Cell<u64>,
    /// The power was cut.
    pub cut: Event,
    /// One is passed.
    pub passing: Event,
}

impl Boundaries {
    /// Boundaries with an interference.
    pub fn new(interference: Interference) -> Boundaries {
        Boundaries {
            interference,
            ..Boundaries::default()
        }
    }

    /// From here on boundaries count: what formats the sides comes before.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// A request has come to a boundary. The power may be off afterwards.
    pub fn pass(&self) {
        if self.is_cut.get() || !self.begun.get() {
            return;
        }
        self.passed.set(self.passed.get() + 1);
        self.passing.notify();
        let interfered = self.interference.cuts.contains(&self.passed.get());
        if interfered || self.is_ambushed() {
            self.struck.set(self.struck.get() || interfered);
            self.is_cut.set(true);
            self.cut.notify();
        }
    }

    /// The power will be cut after so many more.
    pub fn cut_after(&self, count: u64) {
        self.ambush_at.set(self.passed.get() + count);
    }

    /// True from a cut that was asked for by [`cut_after`](Self::cut_after), to the next program.
    pub fn is_ambushed(&self) -> bool {
        self.ambush_at.get() > 0 && self.ambush_at.get() == self.passed.get()
    }

    /// An operation of a class is about to complete: true when it must fail.
    pub fn fails(&self, class: usize) -> bool {
        if !self.begun.get() {
            return false;
        }
        let count = &self.by_class[class];
        count.set(count.get() + 1);
        let number = count.get();
        let fails = self.interference.fail_at == Some(FailAt { class, number });
        self.struck.set(self.struck.get() || fails);
        fails
    }

    /// True from the cut until the next program.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// The power is back, and nobody waits for the next program.
    pub fn restore(&self) {
        self.ambush_at.set(0);
        self.is_cut.set(false);
    }

    /// How many have been passed.
    pub fn passed(&self) -> u64 {
        self.passed.get()
    }

    /// Operations of each class.
    pub fn by_class(&self) -> [u64; 3] {
        self.by_class.each_ref().map(Cell::get)
    }

    /// True when the one thing that happens to this run is that an operation fails.
    pub fn one_fails(&self) -> bool {
        self.interference.fail_at.is_some()
    }

    /// True when the interference has happened.
    pub fn struck(&self) -> bool {
        self.struck.get()
    }
}
