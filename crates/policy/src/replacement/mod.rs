//! Replacement policies of a buffer cache: which pages it holds, which of them are dirty, and what
//! leaves, together with what, when room is needed.
//!
//! One object drives a trace simulator and the live cache; both must see the same sequence, so the
//! contract is narrow:
//!
//! - **Pages are dense ids.** The driver interns addresses. It calls [`Replacement::introduce`]
//!   once for every id before its first access and says where the page lies (erase block and
//!   offset). Arrays grow only there; no other call allocates, apart from the driver's own
//!   [`Evictions`]. Any other call about an id that was never introduced is a bug of the driver,
//!   and panics.
//! - **`access` decides at once.** It answers hit or miss and appends to the list what had to
//!   leave. Afterwards the page is held, and dirty if the access was a write. A write is of a whole
//!   page.
//! - **A group is one unit of writing.** Pages of a group marked `write` are dirty data of one
//!   erase block (or one page) and go to the device together, in ascending order of address. A page
//!   marked `stays` is still held, clean from now on; the others are no longer held. A `padded`
//!   group is a whole erase block: what neither the group nor the cache has is read first and
//!   written with it.
//! - **Dirtiness belongs to the policy.** A page is dirty from a write access until it is handed
//!   out with `write`, or the driver calls [`Replacement::cleaned`] (it wrote the page for a flush)
//!   or [`Replacement::remove`] (its content is discarded). Work in flight is the driver's: it
//!   keeps a page handed out until it is on the device, and serves reads of it from there.
//! - **Ids are used again** only after `remove` said so, or while [`Replacement::remembers`] is
//!   false.
//! - **Costs are told, not known.** [`Replacement::cost`] reports what the device took; policies
//!   that weigh reads against writes use it, the others ignore it. Time is never read here.
//!
//! A policy must never do I/O, read a clock, hash with a random seed, or keep more pages than its
//! capacity.

mod abm;
mod arc;
mod belady;
mod clean_first;
mod clock_pro;
mod clusters;
mod dirty;
mod heap;
mod lirs;
mod lrfu;
mod lru_k;
mod named;
mod order;
mod queues;
mod recently_evicted;
mod s3_fifo;
mod segmented;
mod shells;
mod two_q;
mod victim_blocks;
mod w_tinylfu;

pub use abm::pointer::{Pointer, PointerRule};
pub use belady::next_uses;
pub use named::{Build, Granularity, Spec, UnknownGranularity, UnknownPolicy, catalogue};

/// A page's dense id, given by the driver's interner.
pub type PageId = u32;

/// What is done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its content is wanted.
    Read,
    /// All of it is overwritten.
    Write,
}

/// Whether the page was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was.
    Hit,
    /// It was not; a read has to go to the device.
    Miss,
}

/// Where a page lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Dense number of its erase block.
    pub block: u32,
    /// Its place in the block, in pages.
    pub offset: u32,
}

/// What a device operation took, as measured or as a model says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceCost {
    /// Reading.
    Read {
        /// Pages read.
        pages: u32,
        /// Time for all of them.
        time_us: f64,
    },
    /// Writing what the policy handed out, with what the device did on account of it.
    Flush {
        /// Pages written.
        pages: u32,
        /// Time for all of them.
        time_us: f64,
    },
}

/// A page in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Which page.
    pub page: PageId,
    /// It is dirty and must be written.
    pub write: bool,
    /// It is still held, clean.
    pub stays: bool,
}

/// Pages that leave or are written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// Its pages, in no particular order.
    pub pages: &'a [Leaving],
    /// The whole erase block is to be written, what is missing read first (BPLRU's page padding).
    pub padded: bool,
}

/// A caller-owned list of groups, appended to by the policy.
#[derive(Clone, Debug, Default)]
pub struct Evictions {
    pages: Vec<Leaving>,
    /// Where each group ends in `pages`, and whether it is padded.
    ends: Vec<(usize, bool)>,
}

impl Evictions {
    /// An empty list.
    pub fn new() -> Evictions {
        Evictions::default()
    }

    /// Forgets all groups and keeps the memory.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.ends.clear();
    }

    /// True without a group.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The groups, in the order of decision.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(end, _)| *end));
        starts.zip(&self.ends).map(|(start, (end, padded))| Group {
            pages: &self.pages[start..*end],
            padded: *padded,
        })
    }

    /// Adds a page to the group that is being built.
    pub(crate) fn page(&mut self, page: PageId, write: bool, stays: bool) {
        self.pages.push(Leaving { page, write, stays });
    }

    /// Ends the group that is being built; without a page there is no group.
    pub(crate) fn end(&mut self, padded: bool) {
        if self.pages.len() > self.ends.last().map_or(0, |(end, _)| *end) {
            self.ends.push((self.pages.len(), padded));
        }
    }
}

/// What a policy holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Occupancy {
    /// Pages held.
    pub held: usize,
    /// Those of them that are dirty.
    pub dirty: usize,
    /// Pages that the write buffer may hold, of a policy with two buffers.
    pub write_target: Option<f64>,
    /// Pages that the write buffer holds, of a policy with two buffers.
    pub write_held: Option<usize>,
}

/// A replacement policy. The contract is at the head of the module.
pub trait Replacement: Send {
    /// Pages that it may hold, at least 1.
    fn capacity(&self) -> usize;

    /// A hint that ids stay below `ids`, so that arrays are made once.
    fn reserve(&mut self, ids: usize);

    /// Makes `page` known before its first access. `place` matters to policies with erase blocks.
    fn introduce(&mut self, page: PageId, place: Place);

    /// Accesses an introduced page, and appends to `out` what had to leave for it.
    fn access(&mut self, page: PageId, access: Access, out: &mut Evictions) -> Outcome;

    /// `page` was written to the device on the driver's own account and is clean, held or not.
    fn cleaned(&mut self, page: PageId);

    /// The content of `page` is discarded: it is neither held nor remembered from now on.
    fn remove(&mut self, page: PageId);

    /// Tells what the device took.
    fn cost(&mut self, cost: DeviceCost) {
        // Most policies know pages, not time.
        let _ = cost;
    }

    /// True if the policy uses what [`Replacement::cost`] tells.
    fn weighs_costs(&self) -> bool {
        false
    }

    /// True if `page` is held.
    fn holds(&self, page: PageId) -> bool;

    /// True if `page` is held and dirty.
    fn is_dirty(&self, page: PageId) -> bool;

    /// True if `page` is held, or remembered after it left.
    fn remembers(&self, page: PageId) -> bool;

    /// Appends every dirty page, in ascending order of ids.
    fn dirty_pages(&self, out: &mut Vec<PageId>);

    /// What is held now.
    fn occupancy(&self) -> Occupancy;
}

#[cfg(test)]
mod tests;
