//! The I/O boundaries of a run: each arrival of a request at a disk, and each completion of a
//! request.
//!
//! The power can be cut at any boundary, and any operation can be made to fail, so that a run can
//! be repeated once for each boundary and each operation. Boundaries are counted over all disks and
//! all lives. This module only injects a power cut or a failure; the disks decide the effect.

use std::cell::Cell;

use bimetal_rt::sync::Event;

/// A failing operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailAt {
    /// Class of the operation: 0 reads, 1 writes, 2 flushes.
    pub class: usize,
    /// Number of the operation in its class, from 1.
    pub number: u64,
}

/// Faults to inject at chosen boundaries and operations of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interference {
    /// Numbers of the I/O boundaries (arrivals and completions of requests), counted from 1, at
    /// which the power is cut; 0 means no cut.
    pub cuts: [u64; 2],
    /// Operation that fails.
    pub fail_at: Option<FailAt>,
}

/// Counter of I/O boundaries, with fault injection.
#[derive(Default)]
pub struct Boundaries {
    interference: Interference,
    begun: Cell<bool>,
    passed: Cell<u64>,
    by_class: [Cell<u64>; 3],
    records: Cell<u64>,
    is_cut: Cell<bool>,
    struck: Cell<bool>,
    /// Number of the boundary at which an ambush cuts the power; 0 means no ambush.
    ambush_at: Cell<u64>,
    /// Signalled when the power is cut.
    pub cut: Event,
    /// Signalled when a boundary is passed.
    pub passing: Event,
}

impl Boundaries {
    /// Creates a counter that injects the faults of `interference`.
    pub fn new(interference: Interference) -> Boundaries {
        Boundaries {
            interference,
            ..Boundaries::default()
        }
    }

    /// Starts counting. The caller has formatted the sides before, so the boundaries of formatting
    /// are not counted.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// Counts a boundary, and cuts the power if a cut is due there.
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

    /// Counts a write of a segment record, which arrives at a disk.
    pub fn note_record(&self) {
        self.records.set(self.records.get() + 1);
    }

    /// Returns the number of writes of segment records so far.
    pub fn records(&self) -> u64 {
        self.records.get()
    }

    /// Cuts the power after `count` more boundaries.
    pub fn cut_after(&self, count: u64) {
        self.ambush_at.set(self.passed.get() + count);
    }

    /// Returns true from the power cut that [`cut_after`](Self::cut_after) requested until
    /// [`restore`](Self::restore) is called.
    pub fn is_ambushed(&self) -> bool {
        self.ambush_at.get() > 0 && self.ambush_at.get() == self.passed.get()
    }

    /// Counts an operation of the class that is about to complete. Returns true if the operation
    /// must fail.
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

    /// Returns true if the power is cut and has not been restored.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Restores the power for the next program.
    pub fn restore(&self) {
        self.ambush_at.set(0);
        self.is_cut.set(false);
    }

    /// Returns the number of boundaries passed.
    pub fn passed(&self) -> u64 {
        self.passed.get()
    }

    /// Returns the number of operations of each class.
    pub fn by_class(&self) -> [u64; 3] {
        self.by_class.each_ref().map(Cell::get)
    }

    /// Returns true if the run injects a failing operation.
    pub fn one_fails(&self) -> bool {
        self.interference.fail_at.is_some()
    }

    /// Returns true if the injected fault has occurred.
    pub fn struck(&self) -> bool {
        self.struck.get()
    }
}
