//! Replacement policies of a buffer cache. A policy decides which pages are in the cache, which of
//! them are dirty, and which pages are evicted together when room is needed.
//!
//! The same policy drives a trace simulator and the live cache. Both must make the same sequence of
//! decisions, so the contract is narrow:
//!
//! - **Pages are dense ids.** The driver assigns an id to each address. It calls
//!   [`Replacement::introduce`] once for every id before its first access and passes the location
//!   of the page (erase block and offset). Arrays grow only in that call; no other call allocates,
//!   apart from the driver's own [`Evictions`]. Any other call with an id that was never introduced
//!   is a bug of the driver, and panics.
//! - **`access` decides immediately.** It returns hit or miss and appends the evicted pages to the
//!   list. Afterwards the page is in the cache, and dirty if the access was a write. A write covers
//!   a whole page.
//! - **A group is one unit of writing.** Pages of a group marked `write` are dirty data of one
//!   erase block (or one page) and are written to the device together, in ascending order of
//!   address. A page marked `stays` is still in the cache, and is clean from then on; the other
//!   pages of the group are no longer in the cache. A `padded` group is a whole erase block: the
//!   driver reads the pages that are neither in the group nor in the cache, and writes them with
//!   the group.
//! - **The policy owns dirtiness.** A page is dirty from a write access until it is evicted with
//!   the mark `write`, or the driver calls [`Replacement::cleaned`] (the driver wrote the page for
//!   a flush) or [`Replacement::remove`] (the content is discarded). The driver is responsible for
//!   writes in flight: it keeps the content of an evicted dirty page until the content is on the
//!   device, and serves reads from that copy.
//! - **Ids are reused** only after `remove`, or while [`Replacement::remembers`] returns false.
//! - **Costs are reported, not known.** The driver reports measured costs of the device with
//!   [`Replacement::cost`]. Policies that weigh reads against writes use these costs, other
//!   policies ignore them. No policy reads a clock.
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
mod frequent_pages;
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
mod tournament;
mod two_q;
mod victim_blocks;
mod w_tinylfu;
mod write_order;

pub use abm::pointer::{Pointer, PointerRule};
pub use belady::next_uses;
pub use named::{Build, Granularity, Spec, UnknownGranularity, UnknownPolicy, catalogue};

/// A page's dense id, assigned by the driver's interner.
pub type PageId = u32;

/// A kind of access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The content of the page is read.
    Read,
    /// The whole page is overwritten.
    Write,
}

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page was in the cache.
    Hit,
    /// The page was not in the cache; a read must go to the device.
    Miss,
}

/// The location of a page on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAddress {
    /// Dense number of the page's erase block.
    pub block: u32,
    /// Offset of the page in its block, in pages.
    pub offset: u32,
}

/// The time of a device operation, as measured or as computed by a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceCost {
    /// A read.
    Read {
        /// Pages read.
        pages: u32,
        /// Time of the whole operation, in microseconds.
        time_us: f64,
    },
    /// A write of pages that the policy evicted. The time includes the internal work that the write
    /// caused in the device.
    Flush {
        /// Pages written.
        pages: u32,
        /// Time of the whole operation, in microseconds.
        time_us: f64,
    },
}

/// A page in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The page's id.
    pub page: PageId,
    /// True when the page is dirty and must be written.
    pub write: bool,
    /// True when the page is still in the cache, clean.
    pub stays: bool,
}

/// Pages that are evicted or written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The pages of the group, in no particular order.
    pub pages: &'a [Leaving],
    /// True when the driver must read the missing pages of the erase block and write the whole
    /// block (the page padding of BPLRU).
    pub padded: bool,
}

/// A list of groups of evicted pages. The caller owns the list, and the policy appends to it.
#[derive(Clone, Debug, Default)]
pub struct Evictions {
    pages: Vec<Leaving>,
    /// For each group, the end of its pages in `pages`, and whether the group is padded.
    ends: Vec<(usize, bool)>,
}

impl Evictions {
    /// Creates an empty list.
    pub fn new() -> Evictions {
        Evictions::default()
    }

    /// Removes all groups and keeps the memory.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.ends.clear();
    }

    /// Returns true when there is no group.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the groups, in the order of decision.
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

    /// Ends the group that is being built. A group without pages is dropped.
    pub(crate) fn end(&mut self, padded: bool) {
        if self.pages.len() > self.ends.last().map_or(0, |(end, _)| *end) {
            self.ends.push((self.pages.len(), padded));
        }
    }
}

/// Numbers of pages that a policy keeps in the cache, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Occupancy {
    /// Number of pages in the cache.
    pub held: usize,
    /// Number of dirty pages among the pages in the cache.
    pub dirty: usize,
    /// Target number of pages of the write buffer; `None` for a policy with a single buffer.
    pub write_target: Option<f64>,
    /// Number of pages that the write buffer contains; `None` for a policy with a single buffer.
    pub write_held: Option<usize>,
}

/// A replacement policy. The documentation of the module contains the contract.
pub trait Replacement: Send {
    /// Returns the maximum number of pages that the policy keeps in the cache, at least 1.
    fn capacity(&self) -> usize;

    /// Announces that all ids will be below `ids`, so that arrays are allocated only once.
    fn reserve(&mut self, ids: usize);

    /// Introduces `page` before its first access. Policies that consider erase blocks use its
    /// location `place`.
    fn introduce(&mut self, page: PageId, place: PageAddress);

    /// Accesses a page for which `introduce` was called before. If pages are evicted to make room
    /// for the page, they are appended to `out`.
    fn access(&mut self, page: PageId, access: Access, out: &mut Evictions) -> Outcome;

    /// Records that the driver wrote `page` to the device by its own decision. The page is clean
    /// then, whether it is in the cache or not.
    fn cleaned(&mut self, page: PageId);

    /// Discards `page` and its content. The page is then neither in the cache nor remembered.
    fn remove(&mut self, page: PageId);

    /// Reports a cost of the device.
    fn cost(&mut self, cost: DeviceCost) {
        // By default a cost is ignored, since most policies do not consider time.
        let _ = cost;
    }

    /// Returns true if the policy uses the costs that [`Replacement::cost`] reports to it.
    fn weighs_costs(&self) -> bool {
        false
    }

    /// Returns true if `page` is in the cache.
    fn holds(&self, page: PageId) -> bool;

    /// Returns true if `page` is in the cache and dirty.
    fn is_dirty(&self, page: PageId) -> bool;

    /// Returns true if `page` is in the cache, or remembered after its eviction.
    fn remembers(&self, page: PageId) -> bool;

    /// Appends every dirty page, in ascending order of ids.
    fn dirty_pages(&self, out: &mut Vec<PageId>);

    /// Returns the current numbers of pages.
    fn occupancy(&self) -> Occupancy;
}

#[cfg(test)]
mod tests;
