//! On-demand read-ahead: the decision which pages are read before they are requested.
//!
//! One [`ReadAhead`] belongs to one reader of one file (or of one device). The caller reports pages
//! that were not in memory, and pages with a mark that an earlier window has set. `ReadAhead`
//! returns the window of pages to read next. Windows start small and double while the reader
//! continues sequentially. A window is read before the reader has reached the end of the previous
//! one, so that a sequential reader never waits. A `ReadAhead` must never do I/O, and never return
//! a window longer than the maximum, except for two windows that are read as one.
//!
//! Source: `mm/readahead.c` of Linux 2.6.31 (`ondemand_readahead`), whose window rules are those of
//! 2.6.26. The rules are in `docs/schedulers.md`.

/// A range of consecutive pages to read. Pages of the range that are already in memory are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first page.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
    /// The page of the window that the caller marks. When the reader reaches the marked page, the
    /// caller requests the next window with [`ReadAhead::marked`].
    pub marked_page: Option<u64>,
}

/// The read-ahead state of one reader.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    /// Maximum length of a window in pages; 0 disables read-ahead.
    pages_max: u64,
    /// First page of the last window.
    first_page: u64,
    pages: u64,
    /// Number of pages at the end of the last window that the reader had not requested at the time
    /// when the window was read.
    ahead_pages: u64,
    /// The last page read; `None` before the first read.
    previous_page: Option<u64>,
}

impl ReadAhead {
    /// Creates the state of a reader that has not read yet.
    pub fn new(pages_max: u64) -> ReadAhead {
        ReadAhead {
            pages_max,
            first_page: 0,
            pages: 0,
            ahead_pages: 0,
            previous_page: None,
        }
    }

    /// Records that the reader has read up to `page`, whether the page was in memory or not.
    pub fn has_read(&mut self, page: u64) {
        self.previous_page = Some(page);
    }

    /// Returns the window to read now. A reader calls this when `page` is not in memory, and waits
    /// for the read of this page. The reader requested `requested` pages from `page` on.
    pub fn missed(&mut self, page: u64, requested: u64) -> Window {
        let requested = requested.max(1);
        if self.pages_max == 0 {
            return Window {
                first_page: page,
                pages: 1,
                marked_page: None,
            };
        }
        if self.is_expected(page) {
            self.push_on();
        } else if self.is_sequential(page) || requested > self.pages_max {
            self.begin(page, requested);
        } else {
            // For a random reader only the requested pages are read, and the state does not change.
            return Window {
                first_page: page,
                pages: requested,
                marked_page: None,
            };
        }
        self.window(page)
    }

    /// Returns the window to read when the reader reaches the marked page `page`. The caller has
    /// cleared the mark. `hole(page, max)` returns the first page after `page` that is not in
    /// memory; `None` if there is no such page among the next `max` pages.
    pub fn marked(
        &mut self,
        page: u64,
        requested: u64,
        hole: impl FnOnce(u64, u64) -> Option<u64>,
    ) -> Option<Window> {
        if self.pages_max == 0 {
            return None;
        }
        if self.is_expected(page) {
            self.push_on();
            return Some(self.window(page));
        }
        // The mark was set by another reader, or by this reader before it moved to another
        // position. The number of pages in memory from the mark on shows how far the reader that
        // set the mark had read.
        let first = hole(page, self.pages_max + 1)?;
        let come = first
            .checked_sub(page)
            .filter(|pages| (1..=self.pages_max).contains(pages))?;
        self.first_page = first;
        self.pages = self.next_size(come.saturating_add(requested.max(1)));
        self.ahead_pages = self.pages;
        Some(self.window(page))
    }

    /// Returns true if `page` is the next page at which a sequential reader needs this policy: the
    /// mark of the last window, or the first page after the window.
    fn is_expected(&self, page: u64) -> bool {
        let end = self.first_page + self.pages;
        page != 0 && (page == end - self.ahead_pages || page == end)
    }

    fn is_sequential(&self, page: u64) -> bool {
        match self.previous_page {
            None => page == 0,
            Some(previous) => page == previous || Some(page) == previous.checked_add(1),
        }
    }

    /// Sets the next window of a sequential reader.
    fn push_on(&mut self) {
        self.first_page += self.pages;
        self.pages = self.next_size(self.pages);
        self.ahead_pages = self.pages;
    }

    /// Sets the first window of a reader that might be sequential. `requested` is the number of
    /// requested pages from `page` on.
    fn begin(&mut self, page: u64, requested: u64) {
        self.first_page = page;
        self.pages = self.first_size(requested);
        self.ahead_pages = if self.pages > requested {
            self.pages - requested
        } else {
            self.pages
        };
    }

    fn first_size(&self, requested: u64) -> u64 {
        let max = self.pages_max;
        let size = requested.checked_next_power_of_two().unwrap_or(max);
        let size = if size <= max / 32 {
            size * 4
        } else if size <= max / 4 {
            size * 2
        } else {
            max
        };
        size.min(max)
    }

    fn next_size(&self, pages: u64) -> u64 {
        let larger = if pages < self.pages_max / 16 { 4 } else { 2 };
        pages.saturating_mul(larger).min(self.pages_max)
    }

    /// Returns the window to read for a reader at `page`. A read of the window's marked page
    /// requests the next window. If `page` itself would be the marked page, the next window is
    /// included.
    fn window(&mut self, page: u64) -> Window {
        if page == self.first_page && self.pages == self.ahead_pages {
            self.ahead_pages = self.next_size(self.pages);
            self.pages += self.ahead_pages;
        }
        Window {
            first_page: self.first_page,
            pages: self.pages,
            marked_page: Some(self.first_page + self.pages - self.ahead_pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// 128 KiB in pages of 4 KiB, the kernel's default.
    const MAX: u64 = 32;

    fn window(first_page: u64, pages: u64, marked_page: u64) -> Window {
        Window {
            first_page,
            pages,
            marked_page: Some(marked_page),
        }
    }

    fn none_missing(_: u64, _: u64) -> Option<u64> {
        panic!("the memory is not asked where the window says enough")
    }

    /// The reader reads page after page. The first window has 4 pages, 3 of them ahead. The next
    /// windows have 8, 16, 32 and 32 pages, each requested at the mark of the previous window.
    #[test]
    fn windows_grow_while_the_reader_goes_on() {
        let mut reader = ReadAhead::new(MAX);
        assert_eq!(reader.missed(0, 1), window(0, 4, 1));
        for (mark, expected) in [
            (1, window(4, 8, 4)),
            (4, window(12, 16, 12)),
            (12, window(28, 32, 28)),
            (28, window(60, 32, 60)),
        ] {
            assert_eq!(reader.marked(mark, 1, none_missing), Some(expected));
        }
        // If the mark was lost with its page, reaching the end of the window also triggers the next
        // window.
        assert_eq!(reader.missed(92, 1), window(92, 64, 124));
    }

    /// A request for 8 pages at the start of a file gets a window of twice that length. A request
    /// longer than the maximum window gets the maximum window and, together with it, the next
    /// window.
    #[test]
    fn the_first_window_is_as_long_as_the_request_promises() {
        assert_eq!(ReadAhead::new(MAX).missed(0, 8), window(0, 16, 8));
        assert_eq!(ReadAhead::new(MAX).missed(0, 9), window(0, 32, 9));
        assert_eq!(ReadAhead::new(MAX).missed(500, 64), window(500, 64, 532));
    }

    /// A random read gets only the requested pages. The previous window is still known when the
    /// reader returns to it.
    #[test]
    fn a_jump_reads_what_is_asked_for_and_nothing_is_forgotten() {
        let mut reader = ReadAhead::new(MAX);
        assert_eq!(reader.missed(0, 1), window(0, 4, 1));
        reader.has_read(0);
        let alone = Window {
            first_page: 100,
            pages: 2,
            marked_page: None,
        };
        assert_eq!(reader.missed(100, 2), alone);
        reader.has_read(101);
        assert_eq!(reader.marked(1, 1, none_missing), Some(window(4, 8, 4)));
        // A read of the page after the last page read is sequential, even if this page is outside
        // the earlier windows.
        assert_eq!(reader.missed(102, 1), window(102, 4, 103));
    }

    /// The reader finds a marked page that does not belong to its last window. The 8 pages from
    /// that page on are in memory, and 1 page is requested, so the next window has 2 * (8 + 1)
    /// pages.
    #[test]
    fn the_mark_of_another_reader_goes_on_where_that_one_had_come() {
        let mut reader = ReadAhead::new(MAX);
        let hole = |page, within| {
            assert_eq!((page, within), (1000, MAX + 1));
            Some(1008)
        };
        assert_eq!(reader.marked(1000, 1, hole), Some(window(1008, 18, 1008)));
        // All pages within the maximum are in memory.
        assert_eq!(reader.marked(5000, 1, |_, _| None), None);
        assert_eq!(reader.marked(5000, 1, |page, _| Some(page + MAX + 1)), None);
    }

    #[test]
    fn none_reads_page_by_page() {
        let mut reader = ReadAhead::new(0);
        for page in [0, 1, 2, 77] {
            let alone = Window {
                first_page: page,
                pages: 1,
                marked_page: None,
            };
            assert_eq!(reader.missed(page, 8), alone);
            assert_eq!(reader.marked(page, 8, none_missing), None);
        }
    }

    /// The reader reads 32 MiB sequentially, page by page. Each page is read from the device once,
    /// in windows of 4, 8, 16, and then 32 pages.
    #[test]
    fn a_file_in_sequence_takes_as_many_requests_as_it_has_windows() {
        let (mut reader, mut there, mut marks, mut requests) =
            (ReadAhead::new(MAX), BTreeSet::new(), BTreeSet::new(), 0);
        let pages = 8192;
        for page in 0..pages {
            let found = if marks.remove(&page) {
                reader.marked(page, 1, none_missing)
            } else if there.contains(&page) {
                None
            } else {
                Some(reader.missed(page, 1))
            };
            if let Some(found) = found {
                requests += 1;
                marks.extend(found.marked_page);
                let read = found.first_page..found.first_page + found.pages;
                assert!(
                    read.clone().all(|page| there.insert(page)),
                    "read twice: {read:?}"
                );
            }
            assert!(there.contains(&page));
            reader.has_read(page);
        }
        // The first three windows have 28 pages; the other 8164 pages are read in windows of 32,
        // rounded up. One more window is in flight at the end.
        assert_eq!(requests, 3 + 8164_u64.div_ceil(MAX) + 1);
    }
}
