//! Replacement policies of a buffer cache. A policy decides which pages are held, which of them are
//! dirty, and which pages are evicted together when room is needed.
//!
//! One object drives a trace simulator and the live cache; both must see the same sequence, so the
//! contract is narrow:
//!
//! - **Pages are dense ids.** The driver interns addresses. It calls [`Replacement::introduce`]
//!   once for every id before its first access and passes the location of the page (erase block and
//!   offset). Arrays grow only there; no other call allocates, apart from the driver's own
//!   [`Evictions`]. Any other call about an id that was never introduced is a bug of the driver,
//!   and panics.
//! - **`access` decides at once.** It returns hit or miss and appends the evicted pages to the
//!   list. Afterwards the page is held, and dirty if the access was a write. A write covers a whole
//!   page.
//! - **A group is one unit of writing.** Pages of a group marked `write` are dirty data of one
//!   erase block (or one page) and are written to the device together, in ascending order of
//!   address. A page marked `stays` is still held and clean from now on; the others are no longer
//!   held. A `padded` group is a whole erase block: pages that are neither in the group nor in the
//!   cache are read first and written with it.
//! - **The policy owns dirtiness.** A page is dirty from a write access until it is handed out with
//!   `write`, or the driver calls [`Replacement::cleaned`] (it wrote the page for a flush) or
//!   [`Replacement::remove`] (its content is discarded). The driver is responsible for writes in
//!   flight: it keeps a page that was handed out until it is on the device, and serves reads of it
//!   from there.
//! - **Ids are reused** only after `remove`, or while [`Replacement::remembers`] returns false.
//! - **Costs are reported, not known.** [`Replacement::cost`] reports measured costs of the device;
//!   policies that weigh reads against writes use them, the others ignore them. No policy reads the
//!   time.
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
    /// The page was held.
    Hit,
    /// The page was not held; a read must go to the device.
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
        /// Time for all of them.
        time_us: f64,
    },
    /// A write of pages that the policy handed out, including the work that the device did because
    /// of it.
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
    /// The page's id.
    pub page: PageId,
    /// True when the page is dirty and must be written.
    pub write: bool,
    /// True when the page is still held, clean.
    pub stays: bool,
}

/// Pages that are evicted or written together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The pages of the group, in no particular order.
    pub pages: &'a [Leaving],
    /// True when the whole erase block must be written and its missing pages read first (BPLRU's
    /// page padding).
    pub padded: bool,
}

/// A caller-owned list of groups, appended to by the policy.
#[derive(Clone, Debug, Default)]
pub struct Evictions {
    pages: Vec<Leaving>,
    /// The end of each group in `pages`, and whether the group is padded.
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

    /// Ends the group that is being built; without a page there is no group.
    pub(crate) fn end(&mut self, padded: bool) {
        if self.pages.len() > self.ends.last().map_or(0, |(end, _)| *end) {
            self.ends.push((self.pages.len(), padded));
        }
    }
}

/// Numbers of pages that a policy holds, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Occupancy {
    /// Number of pages held.
    pub held: usize,
    /// Number of dirty pages among them.
    pub dirty: usize,
    /// Number of pages that the write buffer may hold, for a policy with two buffers.
    pub write_target: Option<f64>,
    /// Number of pages that the write buffer holds, for a policy with two buffers.
    pub write_held: Option<usize>,
}

/// A replacement policy. The contract is at the head of the module.
pub trait Replacement: Send {
    /// Returns the number of pages that the policy may hold, at least 1.
    fn capacity(&self) -> usize;

    /// Announces that ids stay below `ids`, so that arrays are allocated once.
    fn reserve(&mut self, ids: usize);

    /// Makes `page` known before its first access. `place` matters to policies with erase blocks.
    fn introduce(&mut self, page: PageId, place: PageAddress);

    /// Accesses an introduced page, and appends the pages evicted for it to `out`.
    fn access(&mut self, page: PageId, access: Access, out: &mut Evictions) -> Outcome;

    /// Records that the driver wrote `page` to the device by its own decision; the page is clean,
    /// held or not.
    fn cleaned(&mut self, page: PageId);

    /// Discards the content of `page`, which is then neither held nor remembered.
    fn remove(&mut self, page: PageId);

    /// Reports a cost of the device.
    fn cost(&mut self, cost: DeviceCost) {
        // Most policies consider pages, not time.
        let _ = cost;
    }

    /// Returns true if the policy uses the costs that [`Replacement::cost`] reports.
    fn weighs_costs(&self) -> bool {
        false
    }

    /// Returns true if `page` is held.
    fn holds(&self, page: PageId) -> bool;

    /// Returns true if `page` is held and dirty.
    fn is_dirty(&self, page: PageId) -> bool;

    /// Returns true if `page` is held, or remembered after its eviction.
    fn remembers(&self, page: PageId) -> bool;

    /// Appends every dirty page, in ascending order of ids.
    fn dirty_pages(&self, out: &mut Vec<PageId>);

    /// Returns the current numbers of pages.
    fn occupancy(&self) -> Occupancy;
}

#[cfg(test)]
mod tests;
