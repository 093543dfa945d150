//! An admitted write, and its progress on each side.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Instant;
use bimetal_rt::sync::Event;

use crate::error::IoError;

/// Progress of one write on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Progress {
    /// The side was not given the write: the side was absent, or its rebuild copies the content
    /// later.
    Absent,
    /// The side has yet to store this number of bytes.
    Left(u64),
    /// The side has stored the write.
    Done,
    /// The side could not store the write, or has become absent since.
    Failed(IoError),
}

/// One admitted write, shared by the request that waits for it and the sides that store it.
pub(in super::super) struct Ticket {
    pub(in super::super) seq: u64,
    pub(in super::super) admitted: Instant,
    pub(in super::super) range: Range<u64>,
    sides: Vec<Cell<Progress>>,
    /// Sides that decide whether the write is stored: the sides that were healthy and not out of
    /// sync in the range when the write was admitted, and the sides that have joined since. On any
    /// other side, the write would not survive a crash.
    decides: Vec<Cell<bool>>,
    pub(in super::super) acknowledged: Cell<Option<Instant>>,
    pub(in super::super) first_done: Cell<Option<Instant>>,
    pub(in super::super) changed: Event,
}

impl Ticket {
    pub(in super::super) fn new(
        seq: u64,
        range: Range<u64>,
        admitted: Instant,
        sides: Vec<Progress>,
        decides: Vec<bool>,
    ) -> Rc<Ticket> {
        Rc::new(Ticket {
            seq,
            admitted,
            range,
            sides: sides.into_iter().map(Cell::new).collect(),
            decides: decides.into_iter().map(Cell::new).collect(),
            acknowledged: Cell::new(None),
            first_done: Cell::new(None),
            changed: Event::new(),
        })
    }

    pub(in super::super) fn progress(&self, side: usize) -> Progress {
        // A side that was added after the write was admitted is not in the list: the side was never
        // given this write.
        self.sides.get(side).map_or(Progress::Absent, Cell::get)
    }

    /// Records that the side has stored `bytes` more of the write.
    pub(in super::super) fn stored(&self, side: usize, bytes: u64, now: Instant) {
        if let Progress::Left(left) = self.sides[side].get() {
            assert!(bytes <= left, "no more is stored than was asked for");
            if bytes < left {
                self.sides[side].set(Progress::Left(left - bytes));
                return;
            }
            self.sides[side].set(Progress::Done);
            if self.decides[side].get() && self.first_done.get().is_none() {
                self.first_done.set(Some(now));
            }
            self.changed.notify();
        }
    }

    /// Makes a joined side one of the sides that decide whether the write is stored. If this side
    /// already has the write, the write is stored from now on.
    pub(in super::super) fn decides_from_now(&self, side: usize, now: Instant) {
        let Some(decides) = self.decides.get(side) else {
            return;
        };
        decides.set(true);
        if self.progress(side) == Progress::Done && self.first_done.get().is_none() {
            self.first_done.set(Some(now));
            self.changed.notify();
        }
    }

    /// Records that the side will not store the write.
    pub(in super::super) fn give_up(&self, side: usize, error: IoError) {
        if let Progress::Left(_) = self.sides[side].get() {
            self.sides[side].set(Progress::Failed(error));
            self.changed.notify();
        }
    }

    /// Returns true when the write is stored on at least one of the sides that decide its outcome.
    pub(in super::super) fn any_done(&self) -> bool {
        self.first_done.get().is_some()
    }

    /// Returns true when no side still has to store a part of the write.
    pub(in super::super) fn settled(&self) -> bool {
        !self
            .sides
            .iter()
            .any(|p| matches!(p.get(), Progress::Left(_)))
    }

    /// Returns the error of a write that no side has stored.
    pub(in super::super) fn error(&self) -> IoError {
        let failed = self.sides.iter().find_map(|p| match p.get() {
            Progress::Failed(error) => Some(error),
            _ => None,
        });
        failed.unwrap_or(IoError::Offline)
    }
}
