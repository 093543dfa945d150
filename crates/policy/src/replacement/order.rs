//! The inside of a policy over single pages: in which order pages leave, without a word about
//! dirtiness or groups.
//!
//! A shell asks it ([`super::shells`] for one buffer, [`super::abm`] for the read side of two), so
//! every policy over pages can be a whole cache or a part of one. An order must never hold more
//! pages than its capacity when a call returns; what leaves is appended to `out`.

use super::PageId;
use super::dirty::Dirty;

/// In which order pages leave.
pub(super) trait Order: Send {
    /// Knows ids below `ids`.
    fn reserve(&mut self, ids: usize);

    /// Pages held.
    fn len(&self) -> usize;

    /// True if `page` is held.
    fn holds(&self, page: PageId) -> bool;

    /// True if `page` is held or remembered.
    fn remembers(&self, page: PageId) -> bool;

    /// Where a page lies, for orders that look at erase blocks.
    fn place(&mut self, _page: PageId, _place: super::Place) {}

    /// A held page is used.
    fn hit(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>);

    /// A page that is not held comes in; when the order is full, another leaves first. Nothing
    /// leaves for a page that is not remembered while there is room.
    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>);

    /// A held page became clean or dirty without being used.
    fn dirtiness_changed(&mut self, _page: PageId, _dirty: bool) {}

    /// One page leaves on account of somebody else; nothing happens when none is held.
    fn evict(&mut self, dirty: &Dirty, out: &mut Vec<PageId>);

    /// A page that is not held comes in where the next victim is taken from (write eviction delay).
    /// There must be room.
    fn insert_cold(&mut self, page: PageId);

    /// How many pages it may hold from now on: at least 1, and no fewer than it holds.
    fn resize(&mut self, capacity: usize);

    /// `page` is neither held nor remembered from now on.
    fn remove(&mut self, page: PageId);

    /// `page` is about to be accessed; offline orders count accesses here.
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
    fn place(&mut self, page: PageId, place: super::Place) {
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
