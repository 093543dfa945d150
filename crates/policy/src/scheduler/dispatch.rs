//! The list of requests between a scheduler and the device.
//!
//! Source: `block/elevator.c` of Linux 2.6.26 (`elv_dispatch_sort`, `elv_dispatch_add_tail`,
//! `elv_next_request`).

use super::{Requests, Tag};
use std::collections::VecDeque;

/// Requests that a scheduler has dispatched and that the device has not received yet.
#[derive(Clone, Debug)]
pub struct DispatchList {
    list: VecDeque<Tag>,
    /// The requests of the list that the request queue has not marked as dispatched yet.
    new: Vec<Tag>,
    /// Expected position of the disk's head. The sort order begins at this sector and wraps once.
    boundary_sector: u64,
    /// The last request appended at the tail of the list, until it is issued. During this time the
    /// boundary sector stays at the end of this request: issuing an earlier request does not move
    /// it.
    at_tail: Option<Tag>,
}

impl DispatchList {
    pub(super) fn new(tags: usize) -> DispatchList {
        DispatchList {
            list: VecDeque::with_capacity(tags),
            new: Vec::with_capacity(tags),
            boundary_sector: 0,
            at_tail: None,
        }
    }

    /// Returns the number of requests in the list.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns true when the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Appends `tag`.
    pub fn push(&mut self, tag: Tag, requests: &Requests) {
        self.boundary_sector = requests[tag].bio.end_sector();
        self.at_tail = Some(tag);
        self.list.push_back(tag);
        self.new.push(tag);
    }

    /// Inserts `tag` in the order of one ascending sweep, which starts at the boundary sector and
    /// then continues at the lowest sector. The request is never inserted ahead of a request of the
    /// other direction.
    pub fn push_sorted(&mut self, tag: Tag, requests: &Requests) {
        let bio = requests[tag].bio;
        let place = |sector: u64| (sector < self.boundary_sector, sector);
        let goes_before = |other: &Tag| {
            let other = requests[*other].bio;
            other.direction == bio.direction && place(bio.start_sector) < place(other.start_sector)
        };
        let passed = self
            .list
            .iter()
            .rev()
            .take_while(|o| goes_before(o))
            .count();
        self.list.insert(self.list.len() - passed, tag);
        self.new.push(tag);
    }

    /// Takes one request from the list of new requests. These are the requests that were added and
    /// that this function has not returned yet.
    pub(super) fn take_new(&mut self) -> Option<Tag> {
        self.new.pop()
    }

    /// Removes and returns the first request, to be issued to the device.
    pub(super) fn pop(&mut self, requests: &Requests) -> Option<Tag> {
        let tag = self.list.pop_front()?;
        if self.at_tail.is_none_or(|tail| tail == tag) {
            self.boundary_sector = requests[tag].bio.end_sector();
            self.at_tail = None;
        }
        Some(tag)
    }
}
