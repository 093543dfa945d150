//! The timers of one executor: a heap of deadlines, and a slab of wakers. When a timer is
//! cancelled, its entry stays in the heap. The entry is removed when its deadline has passed, or
//! earlier if most entries of the heap belong to cancelled timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

use slab::Slab;

use crate::time::Instant;

/// Handle to a timer that is set: an index into the slab, and a sequence number. If the slab entry
/// has been reused for another timer, the sequence numbers differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerKey {
    index: usize,
    seq: u64,
}

struct Entry {
    seq: u64,
    waker: Waker,
}

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    entries: Slab<Entry>,
    next_seq: u64,
}

impl Timers {
    /// Sets a timer. Timers with the same deadline fire in the order in which they were set.
    pub(crate) fn set(&mut self, at: Instant, waker: Waker) -> TimerKey {
        let seq = self.next_seq;
        self.next_seq += 1;
        let index = self.entries.insert(Entry { seq, waker });
        self.heap.push(Reverse((at, seq, index)));
        self.sweep_if_mostly_cancelled();
        TimerKey { index, seq }
    }

    /// Replaces the waker of a timer that has not fired; returns false when it has fired.
    pub(crate) fn update(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.entries.get_mut(key.index) {
            Some(entry) if entry.seq == key.seq => {
                entry.waker.clone_from(waker);
                true
            }
            _ => false,
        }
    }

    /// Cancels a timer; does nothing when it has fired.
    pub(crate) fn cancel(&mut self, key: TimerKey) {
        if self
            .entries
            .get(key.index)
            .is_some_and(|e| e.seq == key.seq)
        {
            self.entries.remove(key.index);
        }
    }

    /// Returns the earliest deadline of a timer that is not cancelled.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, seq, index))) = self.heap.peek() {
            if self.is_live(index, seq) {
                return Some(at);
            }
            self.heap.pop();
        }
        None
    }

    /// Removes the earliest timer that is due at `now`, and returns its waker; `None` when no timer
    /// is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Waker> {
        while let Some(&Reverse((at, seq, index))) = self.heap.peek() {
            if at > now {
                return None;
            }
            self.heap.pop();
            if self.is_live(index, seq) {
                return Some(self.entries.remove(index).waker);
            }
        }
        None
    }

    /// Returns the number of timers that are set.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn is_live(&self, index: usize, seq: u64) -> bool {
        self.entries.get(index).is_some_and(|e| e.seq == seq)
    }

    /// Removes the heap entries of cancelled timers when the heap has more than 64 entries and more
    /// than twice the number of live timers.
    fn sweep_if_mostly_cancelled(&mut self) {
        if self.heap.len() > 64 && self.heap.len() > 2 * self.entries.len() {
            let entries = &self.entries;
            self.heap.retain(|Reverse((_, seq, index))| {
                entries.get(*index).is_some_and(|e| e.seq == *seq)
            });
        }
    }
}
