//! Store of the changes that a volatile target has answered and that no flush has covered yet. If
//! the target dies, these changes are lost, so the initiator keeps them, in order, to send them
//! again.

use std::collections::BTreeMap;

use super::Data;
use crate::brp::command::Request;

/// Memory cost of keeping one change, in bytes, besides its data.
const OVERHEAD_BYTES: u64 = 64;

/// A change and its data.
#[derive(Debug)]
pub(super) struct Change<D> {
    pub(super) request: Request,
    pub(super) data: D,
    /// Total number of changes that had been answered when this change was answered. A flush covers
    /// this change if at least this number of changes had been answered when the flush was sent.
    answered: u64,
}

/// The kept changes, in the order in which they were submitted.
#[derive(Debug)]
pub(super) struct Kept<D> {
    changes: BTreeMap<u64, Change<D>>,
    bytes: u64,
    bytes_max: u64,
}

/// Returns the cost of keeping a change, in bytes: its data and a fixed overhead.
pub(super) fn cost_bytes(request: &Request) -> u64 {
    OVERHEAD_BYTES + u64::from(request.data_bytes())
}

impl<D: Data> Kept<D> {
    /// Creates an empty store; with `bytes_max` 0 no change is ever kept.
    pub(super) fn new(bytes_max: u64) -> Kept<D> {
        Kept {
            changes: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    pub(super) fn keeps(&self) -> bool {
        self.bytes_max > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns true if the store has room for a change with this cost, so that the change is
    /// allowed to be sent. `admitted_bytes` is the total cost of the changes that are queued or in
    /// flight. There is always room if no change is kept, queued or in flight, or if the store
    /// never keeps changes.
    pub(super) fn has_room(&self, admitted_bytes: u64, cost_bytes: u64) -> bool {
        let used = self.bytes + admitted_bytes;
        !self.keeps() || used == 0 || used + cost_bytes <= self.bytes_max
    }

    /// Returns true when more than half of the room in the store is used. A flush that starts now
    /// can complete before a change has to wait for room.
    pub(super) fn is_half_full(&self) -> bool {
        self.bytes * 2 > self.bytes_max
    }

    pub(super) fn insert(&mut self, order: u64, request: Request, data: D, answered: u64) {
        self.bytes += cost_bytes(&request);
        let change = Change {
            request,
            data,
            answered,
        };
        self.changes.insert(order, change);
    }

    /// Drops the changes that a successful flush has covered. `answered` is the total number of
    /// changes that had been answered when the flush was sent.
    pub(super) fn flushed(&mut self, answered: u64) {
        let bytes = &mut self.bytes;
        self.changes.retain(|_, change| {
            let covered = change.answered <= answered;
            if covered {
                *bytes -= cost_bytes(&change.request);
            }
            !covered
        });
    }

    /// Takes all kept changes, to be sent again.
    pub(super) fn take(&mut self) -> BTreeMap<u64, Change<D>> {
        self.bytes = 0;
        std::mem::take(&mut self.changes)
    }
}
