//! Page cache: the pages of each file that are in memory, and their states.
//!
//! A page represents 4 KiB but has no content, because experiments need only times and counts. The
//! cache has a fixed number of slots. A new page uses a free slot, or else evicts the least
//! recently used clean page. Dirty pages, and pages being read or written, are never evicted. The
//! cache must never hold more pages than it has slots, and must never lose a dirty page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bimetal_policy::lists::{Links, List};
use bimetal_policy::write_back::Pages;

/// Number of a file.
pub type FileId = u32;

/// File number that represents the metadata: page n of this file is block n of the device.
pub(crate) const METADATA: FileId = 0;

/// State of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Being read from the device.
    Reading,
    /// Equal to the content on the device.
    Clean,
    /// Changed in memory.
    Dirty,
    /// Changed in memory; must not be written before the journal has committed the change.
    Held,
    /// Being written to the device. `again` tells that the page was changed after the write began.
    Writing { again: bool },
    /// Being written to the device, and changed after the write began, as in `Writing { again: true
    /// }`. The page becomes `Held` when the write completes.
    WritingHeld,
}

#[derive(Clone, Copy, Debug)]
struct PageFrame {
    file: FileId,
    page: u32,
    state: PageState,
    /// Whether an access to the page triggers the next read-ahead.
    marked: bool,
}

/// The pages of one file.
#[derive(Default)]
struct FilePages {
    places: BTreeMap<u32, u32>,
    dirty: BTreeSet<u32>,
    /// Time at which the file last changed from having no dirty page to having one.
    dirty_since_ns: u64,
    /// Page at which the next pass that writes dirty pages starts.
    next_page: u32,
    /// Number of pages being read or written.
    under_way: u32,
}

/// Page cache; see the module.
pub(crate) struct PageCache {
    places: Vec<PageFrame>,
    free: Vec<u32>,
    links: Links,
    /// Clean pages in the order of their last use, the most recently used at the front.
    clean: List,
    files: BTreeMap<FileId, FilePages>,
    /// Files with dirty pages, oldest first. Each entry begins with the time since which the file
    /// has had dirty pages.
    dirty_files: BTreeSet<(u64, FileId)>,
    dirty_pages: u64,
    under_way_pages: u64,
}

impl PageCache {
    /// Creates a cache with `pages` free slots.
    pub(crate) fn new(pages: u32) -> PageCache {
        let nothing = PageFrame {
            file: METADATA,
            page: 0,
            state: PageState::Clean,
            marked: false,
        };
        let mut links = Links::default();
        links.reserve(pages as usize);
        PageCache {
            places: vec![nothing; pages as usize],
            free: (0..pages).rev().collect(),
            links,
            clean: List::default(),
            files: BTreeMap::new(),
            dirty_files: BTreeSet::new(),
            dirty_pages: 0,
            under_way_pages: 0,
        }
    }

    /// Returns the page counts on which the write-back policy bases its decisions.
    pub(crate) fn counts(&self) -> Pages {
        Pages {
            available: self.places.len() as u64,
            dirty: self.dirty_pages,
            under_way: self.under_way_pages,
        }
    }

    /// Returns the state of a page, if it is in the cache.
    pub(crate) fn state(&self, file: FileId, page: u32) -> Option<PageState> {
        self.place(file, page)
            .map(|place| self.places[place as usize].state)
    }

    fn place(&self, file: FileId, page: u32) -> Option<u32> {
        self.files.get(&file)?.places.get(&page).copied()
    }

    /// Records an access to a page. Returns true if the page was marked as a trigger of read-ahead,
    /// and removes the mark.
    pub(crate) fn touch(&mut self, file: FileId, page: u32) -> bool {
        let Some(place) = self.place(file, page) else {
            return false;
        };
        if self.places[place as usize].state == PageState::Clean {
            self.clean.remove(&mut self.links, place);
            self.clean.push_front(&mut self.links, place);
        }
        std::mem::take(&mut self.places[place as usize].marked)
    }

    /// Marks a page as a trigger of read-ahead, if it is in the cache.
    pub(crate) fn mark(&mut self, file: FileId, page: u32) {
        if let Some(place) = self.place(file, page) {
            self.places[place as usize].marked = true;
        }
    }

    /// Returns the first page that is not in the cache among the `within` pages after `page`.
    pub(crate) fn hole(&self, file: FileId, page: u64, within: u64) -> Option<u64> {
        let of = self.files.get(&file);
        let is_here = |at: u64| {
            let at = u32::try_from(at).ok()?;
            of?.places.get(&at)
        };
        (page + 1..=page + within).find(|at| is_here(*at).is_none())
    }

    /// Adds a page in the given state. Returns false if no slot is free and no page can be evicted.
    ///
    /// # Panics
    /// If the page is in the cache already, or the state is neither clean nor reading.
    pub(crate) fn insert(&mut self, file: FileId, page: u32, state: PageState) -> bool {
        let Some(place) = self.take_place() else {
            return false;
        };
        self.places[place as usize] = PageFrame {
            file,
            page,
            state,
            marked: false,
        };
        let of = self.files.entry(file).or_default();
        assert!(
            of.places.insert(page, place).is_none(),
            "a page has one place"
        );
        match state {
            PageState::Clean => self.clean.push_front(&mut self.links, place),
            PageState::Reading => of.under_way += 1,
            _ => panic!("a page comes clean, or is read"),
        }
        true
    }

    fn take_place(&mut self) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        let place = self.clean.pop_back(&mut self.links)?;
        let PageFrame { file, page, .. } = self.places[place as usize];
        let of = self.file_mut(file);
        of.places.remove(&page);
        if of.places.is_empty() {
            self.files.remove(&file);
        }
        Some(place)
    }

    /// Marks a page as clean after its read has completed.
    pub(crate) fn has_been_read(&mut self, file: FileId, page: u32) {
        let Some(place) = self.place(file, page) else {
            return;
        };
        let state = &mut self.places[place as usize].state;
        assert_eq!(*state, PageState::Reading, "a page is read once");
        *state = PageState::Clean;
        self.clean.push_front(&mut self.links, place);
        self.file_mut(file).under_way -= 1;
    }

    fn file_mut(&mut self, file: FileId) -> &mut FilePages {
        self.files.get_mut(&file).expect("a page's file is known")
    }

    /// Marks a page as changed. The page must be in the cache, and must not be in the state
    /// `Reading`. If `held` is true, the page must not be written before
    /// [`release`](Self::release). Returns true if the page was clean before.
    pub(crate) fn change(&mut self, file: FileId, page: u32, now_ns: u64, held: bool) -> bool {
        let place = self.place(file, page).expect("what changes is here");
        let old = self.places[place as usize].state;
        let new = match (old, held) {
            (PageState::Reading, _) => panic!("a page is changed when it has been read"),
            (PageState::Clean, _) => {
                self.clean.remove(&mut self.links, place);
                if held {
                    PageState::Held
                } else {
                    PageState::Dirty
                }
            }
            (PageState::Dirty | PageState::Held, true) => PageState::Held,
            (PageState::Dirty, false) => PageState::Dirty,
            (PageState::Held, false) => PageState::Held,
            (PageState::Writing { .. } | PageState::WritingHeld, true)
            | (PageState::WritingHeld, false) => PageState::WritingHeld,
            (PageState::Writing { .. }, false) => PageState::Writing { again: true },
        };
        self.places[place as usize].state = new;
        if old == PageState::Dirty && new == PageState::Held {
            self.forget_dirty(file, page);
        }
        if old != PageState::Dirty && new == PageState::Dirty {
            self.note_dirty(file, page, now_ns);
        }
        old == PageState::Clean
    }

    fn note_dirty(&mut self, file: FileId, page: u32, now_ns: u64) {
        let of = self.files.get_mut(&file).expect("a page's file is known");
        if of.dirty.is_empty() {
            of.dirty_since_ns = now_ns;
            self.dirty_files.insert((now_ns, file));
        }
        if of.dirty.insert(page) {
            self.dirty_pages += 1;
        }
    }

    fn forget_dirty(&mut self, file: FileId, page: u32) {
        let of = self.files.get_mut(&file).expect("a page's file is known");
        if of.dirty.remove(&page) {
            self.dirty_pages -= 1;
        }
        if of.dirty.is_empty() {
            self.dirty_files.remove(&(of.dirty_since_ns, file));
        }
    }

    /// Allows a held page to be written, after its change has been committed.
    pub(crate) fn release(&mut self, file: FileId, page: u32, now_ns: u64) {
        let Some(place) = self.place(file, page) else {
            return;
        };
        match self.places[place as usize].state {
            PageState::Held => {
                self.places[place as usize].state = PageState::Dirty;
                self.note_dirty(file, page, now_ns);
            }
            PageState::WritingHeld => {
                self.places[place as usize].state = PageState::Writing { again: true };
            }
            _ => {}
        }
    }

    /// Marks up to `pages` dirty pages of a file as being written, and returns them. Starts where
    /// the last pass ended, and wraps around to the start of the file.
    pub(crate) fn take_dirty(&mut self, file: FileId, pages: u64) -> Vec<u32> {
        let Some(of) = self.files.get_mut(&file) else {
            return Vec::new();
        };
        let from = of.next_page;
        let around = of.dirty.range(from..).chain(of.dirty.range(..from));
        let taken: Vec<u32> = around
            .copied()
            .take(usize::try_from(pages).unwrap_or(usize::MAX))
            .collect();
        if let Some(last) = taken.last() {
            of.next_page = last.wrapping_add(1);
        }
        for page in &taken {
            self.start_write(file, *page);
        }
        taken
    }

    /// Marks the dirty pages of a file in this range as being written, and returns them in order.
    pub(crate) fn take_dirty_in(&mut self, file: FileId, pages: Range<u32>) -> Vec<u32> {
        let dirty = self.files.get(&file).map(|of| of.dirty.range(pages));
        let taken: Vec<u32> = dirty.into_iter().flatten().copied().collect();
        for page in &taken {
            self.start_write(file, *page);
        }
        taken
    }

    fn start_write(&mut self, file: FileId, page: u32) {
        let place = self.place(file, page).expect("a dirty page is here");
        self.places[place as usize].state = PageState::Writing { again: false };
        self.forget_dirty(file, page);
        self.file_mut(file).under_way += 1;
        self.under_way_pages += 1;
    }

    /// Records that the write of a page has completed.
    pub(crate) fn has_been_written(&mut self, file: FileId, page: u32, now_ns: u64) {
        self.under_way_pages -= 1;
        self.file_mut(file).under_way -= 1;
        let place = self.place(file, page).expect("a page under way stays");
        let new = match self.places[place as usize].state {
            PageState::Writing { again: false } => PageState::Clean,
            PageState::Writing { again: true } => PageState::Dirty,
            PageState::WritingHeld => PageState::Held,
            other => panic!("{other:?} is not under way"),
        };
        self.places[place as usize].state = new;
        match new {
            PageState::Clean => self.clean.push_front(&mut self.links, place),
            PageState::Dirty => self.note_dirty(file, page, now_ns),
            _ => {}
        }
    }

    /// Returns the files with dirty pages. The file that has had dirty pages for the longest time
    /// is the first. Each element consists of the time at which the file began to have dirty pages,
    /// and of the file.
    pub(crate) fn oldest_dirty(&self) -> impl Iterator<Item = (u64, FileId)> + '_ {
        self.dirty_files.iter().copied()
    }

    /// Returns true if a page of the file is being read or written.
    pub(crate) fn is_under_way(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|of| of.under_way > 0)
    }

    /// Drops the pages of a file, including dirty pages. Pages being read or written stay in the
    /// cache, and become clean on completion.
    pub(crate) fn drop_file(&mut self, file: FileId) {
        let Some(of) = self.files.get(&file) else {
            return;
        };
        let pages: Vec<u32> = of.places.keys().copied().collect();
        for page in pages {
            self.drop_page(file, page);
        }
    }

    /// Drops a page, even if it is dirty. A page being read or written stays in the cache, and
    /// becomes clean on completion.
    pub(crate) fn drop_page(&mut self, file: FileId, page: u32) {
        let Some(place) = self.place(file, page) else {
            return;
        };
        let state = &mut self.places[place as usize].state;
        match state {
            PageState::Writing { .. } | PageState::WritingHeld => {
                *state = PageState::Writing { again: false };
                return;
            }
            PageState::Reading => return,
            PageState::Clean => self.clean.remove(&mut self.links, place),
            PageState::Dirty => self.forget_dirty(file, page),
            PageState::Held => {}
        }
        self.free.push(place);
        let of = self.file_mut(file);
        of.places.remove(&page);
        if of.places.is_empty() {
            self.files.remove(&file);
        }
    }

    /// Drops every clean page from the cache, as between two phases of a benchmark.
    pub(crate) fn drop_clean(&mut self) {
        while let Some(place) = self.clean.pop_back(&mut self.links) {
            let PageFrame { file, page, .. } = self.places[place as usize];
            self.free.push(place);
            let of = self.file_mut(file);
            of.places.remove(&page);
            if of.places.is_empty() {
                self.files.remove(&file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(cache: &PageCache, file: FileId) -> Vec<u32> {
        let of = cache.files.get(&file);
        of.into_iter()
            .flat_map(|of| of.places.keys().copied())
            .collect()
    }

    #[test]
    fn the_clean_page_used_longest_ago_leaves() {
        let mut cache = PageCache::new(3);
        for page in 0..3 {
            assert!(cache.insert(1, page, PageState::Clean));
        }
        cache.touch(1, 0);
        assert!(cache.insert(1, 9, PageState::Clean));
        assert_eq!(here(&cache, 1), [0, 2, 9]);
    }

    #[test]
    fn what_must_stay_stays() {
        let mut cache = PageCache::new(3);
        assert!(cache.insert(1, 0, PageState::Clean));
        assert!(cache.change(1, 0, 5, false));
        assert!(cache.insert(1, 1, PageState::Reading));
        assert!(cache.insert(METADATA, 7, PageState::Clean));
        cache.change(METADATA, 7, 5, true);
        assert!(!cache.insert(1, 2, PageState::Clean));
        cache.has_been_read(1, 1);
        assert!(cache.insert(1, 2, PageState::Clean));
        assert_eq!(here(&cache, 1), [0, 2]);
    }

    /// Of the dirty pages 1, 2, 8 and 9, the first pass writes two. The second pass starts after
    /// these two pages, and wraps around.
    #[test]
    fn passes_go_round_a_file() {
        let mut cache = PageCache::new(9);
        for page in [8, 1, 9, 2] {
            cache.insert(1, page, PageState::Clean);
            cache.change(1, page, 3, false);
        }
        assert_eq!(cache.take_dirty(1, 2), [1, 2]);
        assert_eq!(
            cache.counts(),
            Pages {
                available: 9,
                dirty: 2,
                under_way: 2
            }
        );
        cache.change(1, 1, 4, false);
        for page in [1, 2] {
            cache.has_been_written(1, page, 6);
        }
        assert_eq!(
            cache.counts(),
            Pages {
                available: 9,
                dirty: 3,
                under_way: 0
            }
        );
        assert_eq!(cache.take_dirty(1, 9), [8, 9, 1]);
    }

    #[test]
    fn a_file_is_dirty_since_its_first_page() {
        let mut cache = PageCache::new(9);
        for (file, page, at_ns) in [(2, 0, 10), (1, 0, 20), (2, 1, 30)] {
            cache.insert(file, page, PageState::Clean);
            cache.change(file, page, at_ns, false);
        }
        assert_eq!(cache.oldest_dirty().collect::<Vec<_>>(), [(10, 2), (20, 1)]);
        cache.drop_file(2);
        assert_eq!(cache.oldest_dirty().collect::<Vec<_>>(), [(20, 1)]);
        assert_eq!(cache.counts().dirty, 1);
    }

    /// A held page (a metadata page whose change waits for the journal) is not included in the
    /// number of dirty pages until it is released. If a page is changed while it is being written,
    /// the page is held again when the write completes.
    #[test]
    fn held_pages_wait_for_the_journal() {
        let mut cache = PageCache::new(2);
        cache.insert(METADATA, 5, PageState::Clean);
        cache.change(METADATA, 5, 1, true);
        assert_eq!(cache.counts().dirty, 0);
        cache.release(METADATA, 5, 2);
        assert_eq!(cache.take_dirty(METADATA, 1), [5]);
        cache.change(METADATA, 5, 3, true);
        cache.has_been_written(METADATA, 5, 4);
        assert_eq!(cache.state(METADATA, 5), Some(PageState::Held));
        assert_eq!(
            cache.counts(),
            Pages {
                available: 2,
                dirty: 0,
                under_way: 0
            }
        );
    }

    #[test]
    fn a_mark_is_found_once_and_holes_are_found() {
        let mut cache = PageCache::new(4);
        for page in [3, 4, 6] {
            cache.insert(1, page, PageState::Clean);
        }
        cache.mark(1, 4);
        assert_eq!(
            (cache.touch(1, 3), cache.touch(1, 4), cache.touch(1, 4)),
            (false, true, false)
        );
        assert_eq!((cache.hole(1, 3, 5), cache.hole(1, 3, 1)), (Some(5), None));
    }
}
