//! The state of a log that overtakes entries which the device is late with; see
//! [`overtaking`](super::overtaking).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::overtaking::Lateness;

use super::append::Append;
use super::flying::{Flying, Outcome, Pending};
use super::progress::{LateWrite, LateWrites, Noticed};
use crate::device::Device;
use crate::error::IoError;
use crate::layers::mirror::superblock::SideLayout;

/// The entries that are late, and what overtakes them; see the module documentation.
#[derive(Default)]
pub(super) struct Overtaking {
    /// Whether entries may be overtaken: the format of the side allows it, and the device is one
    /// that stalls with single commands.
    is_allowed: bool,
    /// Content of the overtaken entries that is not in an entry again.
    pub(super) waiting: RefCell<VecDeque<Pending>>,
    /// Whether nothing of it is in an entry again.
    is_whole: Cell<bool>,
    /// Outcomes of the appends of the overtaken entries: those whose last part is in one of them,
    /// and all of them.
    last_parts: RefCell<Vec<Outcome>>,
    parts: RefCell<Vec<Outcome>>,
    /// Positions of entries that are stored in other places, and are still being written.
    passed: RefCell<BTreeSet<u64>>,
    lateness: Cell<Lateness>,
    /// Flushes of the side wait for these writes.
    late_writes: Rc<LateWrites>,
}

impl Overtaking {
    /// Creates the state of a log without late entries, on a side with a layout and a device.
    pub(super) fn of(layout: &SideLayout, device: &Noticed) -> Overtaking {
        let overtakes = layout.segments.is_some_and(|of| of.log_overtakes);
        Overtaking {
            // A disk serves one request after the other.
            is_allowed: overtakes && !device.geometry().rotational,
            late_writes: Rc::clone(&device.late_writes),
            ..Overtaking::default()
        }
    }

    /// Returns true when entries may be overtaken.
    pub(super) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Returns the time after which an entry is late.
    pub(super) fn late_after(&self) -> Duration {
        Duration::from_nanos(self.lateness.get().late_after_ns())
    }

    fn change_lateness(&self, change: impl FnOnce(&mut Lateness)) {
        let mut lateness = self.lateness.get();
        change(&mut lateness);
        self.lateness.set(lateness);
    }

    /// Records that an entry that is not late took `time`.
    pub(super) fn note_time(&self, time: Duration) {
        self.change_lateness(|lateness| lateness.note(time.as_nanos() as u64));
    }

    /// Counts the write of an entry as late until the returned guard is dropped.
    pub(super) fn begin_late(&self) -> LateWrite<'_> {
        self.late_writes.begin()
    }

    /// Records that entries are overtaken whose content is [repeated](Self::repeat) next.
    pub(super) fn begin(&self) {
        self.is_whole.set(true);
        self.change_lateness(Lateness::note_overtaken);
    }

    /// Adds the content of an overtaken entry to what is to be put into an entry again.
    pub(super) fn repeat(&self, late: &Flying, appends: Vec<Append>) {
        let pending = |append| Pending {
            append,
            outcome: Outcome::default(),
        };
        self.waiting
            .borrow_mut()
            .extend(appends.into_iter().map(pending));
        let (mut parts, mut last) = (self.parts.borrow_mut(), self.last_parts.borrow_mut());
        parts.extend(late.parts.iter().cloned());
        last.extend(late.last_parts.iter().cloned());
    }

    /// Records the end of the write of an entry that is stored elsewhere.
    ///
    /// # Panics
    /// When there is no such write.
    pub(super) fn is_over(&self, position: u64) {
        let was_there = self.passed.borrow_mut().remove(&position);
        assert!(was_there, "an entry is written once");
    }

    /// Returns true when content of overtaken entries is to be put into an entry.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Returns the lowest position at which an overtaken entry is still being written although it
    /// is stored elsewhere.
    pub(super) fn lowest(&self) -> Option<u64> {
        self.passed.borrow().first().copied()
    }

    /// Returns true when the entry that is being formed is the first one with content of overtaken
    /// entries.
    pub(super) fn begins(&self) -> bool {
        self.is_whole.replace(false)
    }

    /// Adds the outcomes of the overtaken entries to those of the entry that repeats the last of
    /// their content.
    pub(super) fn join(&self, parts: &mut Vec<Outcome>, last_parts: &mut Vec<Outcome>) {
        parts.append(&mut self.parts.borrow_mut());
        last_parts.append(&mut self.last_parts.borrow_mut());
    }

    /// Removes the entries from those in flight that a stored entry has overtaken. Returns false
    /// when there are none.
    pub(super) fn pass(&self, flying: &mut VecDeque<Flying>) -> bool {
        let Some(first) = flying.front().map(|first| first.header.position) else {
            return false;
        };
        let overtakes = |entry: &Flying| {
            let of = &entry.header;
            entry.outcome == Some(Ok(())) && of.follows < of.position && of.follows <= first
        };
        let Some(at) = flying.iter().position(overtakes) else {
            return false;
        };
        let mut was_of_use = false;
        for entry in flying.drain(..at) {
            if entry.outcome.is_none() {
                was_of_use = true;
                self.passed.borrow_mut().insert(entry.header.position);
            }
        }
        if was_of_use {
            self.change_lateness(Lateness::note_use);
        }
        true
    }

    /// Fails what is to be put into an entry again.
    pub(super) fn fail(&self, error: IoError) {
        self.waiting.borrow_mut().clear();
        let (mut parts, mut last_parts) = (Vec::new(), Vec::new());
        self.join(&mut parts, &mut last_parts);
        for part in parts {
            part.set(Err(error));
        }
    }
}
