//! Noop: requests are issued in order of arrival, after merging.
//!
//! Source: `block/noop-iosched.c` of Linux 2.6.26. Noop is for devices that sort requests better
//! than the host can, and for devices on which the order does not matter.

use super::{DispatchList, Requests, Scheduler, Tag};
use crate::lists::{Links, List, NONE};

/// A FIFO.
#[derive(Clone, Debug)]
pub struct Noop {
    links: Links,
    /// The queue, the newest request in front.
    queue: List,
}

impl Noop {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize) -> Noop {
        let mut links = Links::default();
        links.reserve(tags);
        Noop {
            links,
            queue: List::default(),
        }
    }
}

impl Scheduler for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    fn add(&mut self, tag: Tag, _: &Requests, _: u64) {
        self.queue.push_front(&mut self.links, tag);
    }

    fn former(&self, tag: Tag, _: &Requests) -> Option<Tag> {
        let older = self.links.next(tag);
        (older != NONE).then_some(older)
    }

    fn latter(&self, tag: Tag, _: &Requests) -> Option<Tag> {
        let newer = self.links.prev(tag);
        (newer != NONE).then_some(newer)
    }

    fn absorbed(&mut self, _: Tag, absorbed: Tag, _: &Requests) {
        self.queue.remove(&mut self.links, absorbed);
    }

    fn dispatch(&mut self, requests: &Requests, _: u64, list: &mut DispatchList) -> bool {
        let oldest = self.queue.pop_back(&mut self.links);
        if let Some(tag) = oldest {
            list.push_sorted(tag, requests);
        }
        oldest.is_some()
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}
