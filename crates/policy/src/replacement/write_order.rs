//! The eviction order of a write buffer, as the asymmetric buffer uses it.
//!
//! An implementation decides which dirty pages are written together. It must never lose a page that
//! was inserted and not yet evicted or removed.

use super::{Access, PageAddress, PageId};

/// The order in which groups of dirty pages are evicted.
pub(super) trait WriteOrder: Send {
    /// Allocates state for ids below `ids`.
    fn reserve(&mut self, ids: usize);

    /// Sets the location of a page.
    fn place(&mut self, page: PageId, place: PageAddress);

    /// Returns the number of pages in the order.
    fn len(&self) -> usize;

    /// Returns true if `page` is in the order.
    fn holds(&self, page: PageId) -> bool;

    /// Returns true if `page` is in the order or remembered.
    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    /// Appends all pages in the order, in ascending order of ids.
    fn list_held(&self, out: &mut Vec<PageId>);

    /// Announces an access to any page of the cache or outside of it, before its effect. An order
    /// that compares itself with others sees by these calls what it could have served.
    fn observe(&mut self, _page: PageId, _access: Access) {}

    /// Inserts `page`, which is not in the order.
    fn insert(&mut self, page: PageId, access: Access);

    /// Records a use of `page`, which is in the order.
    fn hit(&mut self, page: PageId, access: Access);

    /// Removes `page` alone, if it is in the order. The page is then not remembered.
    fn remove(&mut self, page: PageId);

    /// Records that `pages`, which are of one cluster, are evicted by a decision of another order.
    fn leave(&mut self, pages: &[PageId]);

    /// Evicts pages of one cluster and appends them, the most recently used page first. Does
    /// nothing if the order is empty.
    fn evict(&mut self, out: &mut Vec<PageId>);

    /// Returns the number of pages that have been evicted since the cluster of `page` was last
    /// evicted. Returns `None` if a page of the cluster is in the order, if the cluster was never
    /// evicted, or if its last eviction has been reported before.
    fn take_left_since(&mut self, page: PageId) -> Option<u64>;

    /// Sets the number of pages that the order is expected to hold. It may hold more.
    fn resize(&mut self, _pages: usize) {}

    /// Sets the measured costs of the device, in microseconds: that of a page alone in a flush, the
    /// mean for each page of all flushes, and what a flush takes beside its pages.
    fn set_costs(&mut self, _page_us: f64, _mean_us: f64, _beside_us: f64) {}
}
