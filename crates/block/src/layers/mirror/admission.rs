//! Admission: the one order of all changes. Every change gets the next sequence number, holds the
//! lock of its range until it is acknowledged, and is undecided until it is stored.
//!
//! Two changes of one block must never be under way without a lock between them, and a number is
//! never given twice.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore};

use super::undecided::Undecided;
use crate::range_lock::RangeLock;

/// See the module.
pub(super) struct Admission {
    /// One change at a time per range, so that every side sees overlapping ones in one order.
    pub(super) ranges: Rc<RangeLock>,
    /// The paper's operation queue served one by one, when asked for.
    pub(super) serial: Option<Rc<Semaphore>>,
    /// Admitted writes of which it is open whether they are stored.
    pub(super) undecided: Undecided,
    next_number: Cell<u64>,
    /// A change was admitted.
    pub(super) admitted: Event,
}

impl Admission {
    /// Numbers begin with `next_number`. With `serial`, one change is under way at a time.
    pub(super) fn new(next_number: u64, serial: bool) -> Admission {
        Admission {
            ranges: RangeLock::new(),
            serial: serial.then(|| Semaphore::new(1)),
            undecided: Undecided::default(),
            next_number: Cell::new(next_number),
            admitted: Event::new(),
        }
    }

    /// The number that the next change gets; all below it are taken.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.get()
    }

    /// Takes a number for a change.
    pub(super) fn take_number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    /// Tells those who wait for a change that there is one.
    pub(super) fn tell(&self) {
        if self.admitted.waiting() > 0 {
            self.admitted.notify();
        }
    }
}
