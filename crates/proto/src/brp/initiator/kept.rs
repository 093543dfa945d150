//! Changes that a volatile target has answered and no flush has covered: what is lost with the
//! target, and kept here so that it can be sent again.

use std::collections::BTreeMap;

use super::Data;
use crate::brp::command::Request;

/// What keeping one change costs beside its data.
const OVERHEAD_BYTES: u64 = 64;

/// A change and its data.
#[derive(Debug)]
pub(super) struct Change<D> {
    pub(super) request: Request,
    pub(super) data: D,
    /// How many changes had been answered when this one was.
    answered: u64,
}

/// The changes by the order in which they were asked for.
#[derive(Debug)]
pub(super) struct Kept<D> {
    changes: BTreeMap<u64, Change<D>>,
    bytes: u64,
    bytes_max: u64,
}

/// What a change counts for.
pub(super) fn cost_bytes(request: &Request) -> u64 {
    OVERHEAD_BYTES + u64::from(request.data_bytes())
}

impl<D: Data> Kept<D> {
    /// Nothing; 0 bytes mean that nothing is ever kept.
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

    /// Whether a change of this cost may be sent, with changes of `admitted_bytes` under way
    /// already. One alone always may.
    pub(super) fn has_room(&self, admitted_bytes: u64, cost_bytes: u64) -> bool {
        let used = self.bytes + admitted_bytes;
        !self.keeps() || used == 0 || used + cost_bytes <= self.bytes_max
    }

    /// True when a flush would be well timed: it is then done before anything has to wait for it.
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

    /// Forgets what a flush has covered that was sent when so many changes had been answered.
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

    /// Gives all of them, to be sent again.
    pub(super) fn take(&mut self) -> BTreeMap<u64, Change<D>> {
        self.bytes = 0;
        std::mem::take(&mut self.changes)
    }
}
