//! The core of a policy over single pages: the order in which pages are evicted, one page at a
//! time.
//!
//! Two kinds of caller, the shells, use an order: [`super::shells`] for a cache of one buffer, and
//! [`super::abm`] for the read side of two buffers. So every policy over pages can be a whole cache
//! or a part of one. An order must never hold more pages than its capacity when a call returns. It
//! appends evicted pages to `out`.

use super::PageId;
use super::dirty::Dirty;

/// The order in which pages are evicted.
pub(super) trait Order: Send {
    /// Allocates state for ids below `ids`.
    fn reserve(&mut self, ids: usize);

    /// Returns the number of pages in the order.
    fn len(&self) -> usize;

    /// Returns true if `page` is in the order.
    fn holds(&self, page: PageId) -> bool;

    /// Returns true if `page` is in the order or remembered.
    fn remembers(&self, page: PageId) -> bool;

    /// Sets the location of a page. Only orders that consider erase blocks use the location.
    fn place(&mut self, _page: PageId, _place: super::PageAddress) {}

    /// Records a use of a page in the order.
    fn hit(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>);

    /// Inserts a page that is not in the order. If the order is full, evicts another page first. If
    /// the order has room, a page can be evicted only if the order remembers the inserted page.
    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>);

    /// Records that a page in the order became clean or dirty without being used.
    fn dirtiness_changed(&mut self, _page: PageId, _dirty: bool) {}

    /// Evicts one page, because the caller needs space for pages that are not in this order. Does
    /// nothing if the order is empty.
    fn evict(&mut self, dirty: &Dirty, out: &mut Vec<PageId>);

    /// Evicts `page`, which is in the order, if the order considers it cold, and returns true then.
    /// Only orders that a write buffer can use distinguish cold pages from others.
    fn evict_if_cold(&mut self, _page: PageId, _out: &mut Vec<PageId>) -> bool {
        false
    }

    /// Inserts `page`, which is not in the order, at the position of the next victim (write
    /// eviction delay). The order must not be full.
    fn insert_cold(&mut self, page: PageId);

    /// Sets the maximum number of pages, which must be at least 1 and not below the number of pages
    /// in the order.
    fn resize(&mut self, capacity: usize);

    /// Removes `page`. The page is then neither in the order nor remembered.
    fn remove(&mut self, page: PageId);

    /// Announces that the next access is to `page`. An order that knows the future counts accesses
    /// by these calls.
    fn tick(&mut self, _page: PageId) {}
}

impl Order for Box<dyn Order> {
    fn reserve(&mut self, ids: usize) {
        (**self).reserve(ids);
    }
    fn len(&self) -> usize {
        (**self).len()
    }
    fn holds(&self, page: PageId) -> bool {
        (**self).holds(page)
    }
    fn remembers(&self, page: PageId) -> bool {
        (**self).remembers(page)
    }
    fn place(&mut self, page: PageId, place: super::PageAddress) {
        (**self).place(page, place);
    }
    fn hit(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        (**self).hit(page, dirty, out);
    }
    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        (**self).insert(page, dirty, out);
    }
    fn dirtiness_changed(&mut self, page: PageId, dirty: bool) {
        (**self).dirtiness_changed(page, dirty);
    }
    fn evict(&mut self, dirty: &Dirty, out: &mut Vec<PageId>) {
        (**self).evict(dirty, out);
    }
    fn evict_if_cold(&mut self, page: PageId, out: &mut Vec<PageId>) -> bool {
        (**self).evict_if_cold(page, out)
    }
    fn insert_cold(&mut self, page: PageId) {
        (**self).insert_cold(page);
    }
    fn resize(&mut self, capacity: usize) {
        (**self).resize(capacity);
    }
    fn remove(&mut self, page: PageId) {
        (**self).remove(page);
    }
    fn tick(&mut self, page: PageId) {
        (**self).tick(page);
    }
}
