//! Requests of one kind, indexed both by sector and by age. The deadline schedulers, Anticipatory,
//! CFQ and BFQ dispatch by sector, and by age if the oldest request has expired.

use super::Tag;
use super::sorted::Sorted;
use crate::lists::{Links, List};

/// The expiry time of each request, and the list links of the FIFOs, shared by all lanes of a
/// scheduler.
#[derive(Clone, Debug)]
pub(super) struct Expiries {
    links: Links,
    expires_ns: Vec<u64>,
}

impl Expiries {
    pub(super) fn new(tags: usize) -> Expiries {
        let mut links = Links::default();
        links.reserve(tags);
        Expiries {
            links,
            expires_ns: vec![0; tags],
        }
    }

    pub(super) fn expires_ns(&self, tag: Tag) -> u64 {
        self.expires_ns[tag as usize]
    }
}

/// Requests of one kind, by sector and by age.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub(super) sorted: Sorted,
    /// The requests by age, the newest in front.
    fifo: List,
}

impl Lane {
    pub(super) fn new(tags: usize) -> Lane {
        Lane {
            sorted: Sorted::with_capacity(tags),
            fifo: List::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the oldest request.
    pub(super) fn oldest(&self) -> Option<Tag> {
        self.fifo.back()
    }

    /// Returns the oldest request, if it has expired.
    pub(super) fn expired(&self, expiries: &Expiries, now_ns: u64) -> Option<Tag> {
        let oldest = self.oldest();
        oldest.filter(|tag| now_ns > expiries.expires_ns(*tag))
    }

    pub(super) fn add(&mut self, tag: Tag, start_sector: u64, e: &mut Expiries, expires_ns: u64) {
        self.sorted.insert(start_sector, tag);
        self.fifo.push_front(&mut e.links, tag);
        e.expires_ns[tag as usize] = expires_ns;
    }

    pub(super) fn remove(&mut self, tag: Tag, start_sector: u64, expiries: &mut Expiries) {
        let was_here = self.sorted.remove(start_sector, tag);
        assert!(was_here, "request {tag} is filed under another sector");
        self.fifo.remove(&mut expiries.links, tag);
    }

    pub(super) fn moved(&mut self, tag: Tag, old_start_sector: u64, start_sector: u64) {
        let was_here = self.sorted.remove(old_start_sector, tag);
        assert!(was_here, "request {tag} is filed under another sector");
        self.sorted.insert(start_sector, tag);
    }

    /// Removes the request `absorbed`. If `absorbed` would have expired sooner than `survivor`, the
    /// survivor takes over the expiry time and the FIFO position of `absorbed`.
    pub(super) fn absorbed(&mut self, survivor: Tag, absorbed: Tag, at: u64, e: &mut Expiries) {
        if e.expires_ns(absorbed) < e.expires_ns(survivor) {
            self.fifo.remove(&mut e.links, survivor);
            self.fifo.replace(&mut e.links, absorbed, survivor);
            e.expires_ns[survivor as usize] = e.expires_ns[absorbed as usize];
            let was_here = self.sorted.remove(at, absorbed);
            assert!(was_here, "request {absorbed} is filed under another sector");
        } else {
            self.remove(absorbed, at, e);
        }
    }
}
