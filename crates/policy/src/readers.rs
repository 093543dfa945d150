//! The readers of a device, distinguished by their positions: a request that starts where the last
//! request of a reader ended continues that reader.
//!
//! [`ReadAhead`] is the state of one reader of one file, but a device knows no files: one
//! connection carries many readers, and one reader can use several connections. So a request
//! belongs to the reader whose last request ended where the new request begins, whichever
//! connection sends it. If there is no such reader, the request starts a new reader. If there are
//! already [`READERS_MAX`] readers, the new reader replaces the least recently active one.
//!
//! This module must never do I/O. The pages of a request are read in any case, so this module must
//! never return one of them.

use std::ops::Range;

use crate::read_ahead::{ReadAhead, Window};

/// Maximum number of readers. The number is small because each request searches all readers.
pub const READERS_MAX: usize = 64;

/// The readers of a device; see the module.
#[derive(Clone, Debug)]
pub struct Readers {
    /// Maximum length of a window in pages, at least 1.
    pages_max: u64,
    readers: Vec<Reader>,
    /// Number of requests so far.
    requests: u64,
}

#[derive(Clone, Debug)]
struct Reader {
    /// The first page of the reader's next request if the reader continues sequentially.
    next_page: u64,
    /// Number of the reader's last request. The requests of all readers are counted together.
    last_request: u64,
    windows: ReadAhead,
    /// The marked page: when the reader reaches this page of its last window, the next window is
    /// requested. The mark is stored in the reader and not with the page in memory, so a reader
    /// never finds the mark of another reader.
    marked_page: Option<u64>,
}

impl Readers {
    /// Creates the state without readers, with windows of up to `pages_max` pages.
    ///
    /// # Panics
    /// When `pages_max` is 0. A device without read-ahead must not create a `Readers`.
    pub fn new(pages_max: u64) -> Readers {
        assert!(pages_max > 0, "a window has a page");
        Readers {
            pages_max,
            readers: Vec::new(),
            requests: 0,
        }
    }

    /// Returns the pages after the range `pages` that should be read now, although no request waits
    /// for them. Some of these pages might already be in memory. `is_here` returns true for a page
    /// that is in memory or being read.
    pub fn read(&mut self, pages: Range<u64>, is_here: impl Fn(u64) -> bool) -> Option<Range<u64>> {
        if pages.is_empty() {
            return None;
        }
        self.requests += 1;
        let at = self.at(pages.start);
        let reader = &mut self.readers[at];
        (reader.next_page, reader.last_request) = (pages.end, self.requests);
        let ahead = reader.ahead(&pages, is_here);
        reader.windows.has_read(pages.end - 1);
        ahead
    }

    /// Returns the index of the reader whose next page is `page`. If there is no such reader, adds
    /// a new reader and returns its index.
    fn at(&mut self, page: u64) -> usize {
        if let Some(at) = self.readers.iter().position(|of| of.next_page == page) {
            return at;
        }
        let new = Reader {
            next_page: page,
            last_request: 0,
            windows: ReadAhead::new(self.pages_max),
            marked_page: None,
        };
        if self.readers.len() < READERS_MAX {
            self.readers.push(new);
            return self.readers.len() - 1;
        }
        let oldest = (0..READERS_MAX).min_by_key(|&at| self.readers[at].last_request);
        let oldest = oldest.expect("there are readers");
        self.readers[oldest] = new;
        oldest
    }
}

impl Reader {
    /// Applies the kernel's read-ahead rules, which are defined for single pages, to all pages of a
    /// request. The reader requests a window at the first page that is not in memory, and at every
    /// mark. A mark is the page of a window at which the reader requests the next window. Returns
    /// the pages to read ahead.
    fn ahead(&mut self, pages: &Range<u64>, is_here: impl Fn(u64) -> bool) -> Option<Range<u64>> {
        let mut ahead = None;
        let missed = pages.clone().find(|&page| !is_here(page));
        let before_it = |mark: u64| mark >= pages.start && missed.is_none_or(|page| mark <= page);
        if let Some(page) = missed
            && !self.marked_page.is_some_and(before_it)
        {
            let window = self.windows.missed(page, pages.end - page);
            self.note(window, &mut ahead);
        }
        // Each mark is behind the previous one.
        while let Some(mark) = self.marked_page.take_if(|mark| pages.contains(mark)) {
            let Some(window) = self.windows.marked(mark, pages.end - mark, |_, _| None) else {
                break;
            };
            self.note(window, &mut ahead);
        }
        let Range { start, end } = ahead?;
        let rest = start.max(pages.end)..end;
        (!rest.is_empty()).then_some(rest)
    }

    fn note(&mut self, window: Window, ahead: &mut Option<Range<u64>>) {
        // A random read keeps the previous window and its mark.
        self.marked_page = window.marked_page.or(self.marked_page);
        let end = window.first_page + window.pages;
        let start = ahead.as_ref().map_or(window.first_page, |of| of.start);
        *ahead = Some(start..end);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// 128 KiB of pages of 4 KiB.
    const MAX: u64 = 32;

    /// The readers under test, and the set of pages in memory. No page is ever evicted.
    struct Memory {
        readers: Readers,
        here: BTreeSet<u64>,
    }

    impl Memory {
        fn new() -> Memory {
            Memory {
                readers: Readers::new(MAX),
                here: BTreeSet::new(),
            }
        }

        fn read(&mut self, pages: Range<u64>) -> Option<Range<u64>> {
            let here = &self.here;
            let ahead = self
                .readers
                .read(pages.clone(), |page| here.contains(&page));
            self.here.extend(pages);
            self.here.extend(ahead.clone().into_iter().flatten());
            ahead
        }
    }

    /// One reader reads page by page from the start of a device. The first window has 4 pages, of
    /// which the reader waits for one. The next windows have 8, 16, 32 and 32 pages; each is
    /// requested when the reader reaches the first page of the previous window.
    #[test]
    fn windows_grow_behind_a_reader_who_goes_on() {
        let mut memory = Memory::new();
        let expected = [
            (0, 1..4),
            (1, 4..12),
            (4, 12..28),
            (12, 28..60),
            (28, 60..92),
            (60, 92..124),
        ];
        for page in 0..64 {
            let found = expected.iter().find(|(at, _)| *at == page);
            let ahead = found.map(|(_, ahead)| ahead.clone());
            assert_eq!(memory.read(page..page + 1), ahead, "at page {page}");
        }
    }

    /// In the middle of a device, the first request might be a random read, so nothing is read
    /// ahead. The second request continues the first.
    #[test]
    fn the_second_request_in_a_row_makes_a_reader_in_the_middle() {
        let mut memory = Memory::new();
        assert_eq!(memory.read(1000..1001), None);
        // The window is the four pages from 1001 on. The first of these pages is the requested one,
        // and the other three are read ahead.
        assert_eq!(memory.read(1001..1002), Some(1002..1005));
    }

    #[test]
    fn a_random_reader_gets_no_read_ahead() {
        let mut memory = Memory::new();
        for page in [700, 90, 800, 41, 705, 88] {
            assert_eq!(memory.read(page..page + 2), None);
        }
    }

    /// Two readers whose requests alternate have separate windows.
    #[test]
    fn readers_in_turns_do_not_disturb_each_other() {
        let mut memory = Memory::new();
        assert_eq!(memory.read(0..1), Some(1..4));
        assert_eq!(memory.read(5000..5001), None);
        assert_eq!(memory.read(1..2), Some(4..12));
        assert_eq!(memory.read(5001..5002), Some(5002..5005));
        assert_eq!(memory.read(2..3), None);
        assert_eq!(memory.read(5002..5003), Some(5005..5013));
    }

    /// A request for 128 pages covers four windows of 32 pages. The reader passes the marks of
    /// three windows (the pages at which the next window is requested), and the next request finds
    /// the pages of the fourth window being read.
    #[test]
    fn a_request_longer_than_a_window_is_followed_by_one() {
        let mut memory = Memory::new();
        assert_eq!(memory.read(0..128), Some(128..160));
        assert_eq!(memory.read(128..256), Some(256..288));
    }

    /// A request has 8 pages. The first window has 16 pages. The mark of a window is the page at
    /// which the reader requests the next window. Here it is the first page after the first
    /// request. The next window has 32 pages.
    #[test]
    fn a_mark_is_found_inside_a_request() {
        let mut memory = Memory::new();
        assert_eq!(memory.read(0..8), Some(8..16));
        assert_eq!(memory.read(8..16), Some(16..48));
        assert_eq!(memory.read(16..24), Some(48..80));
        assert_eq!(memory.read(24..48), None);
        assert_eq!(memory.read(48..49), Some(80..112));
    }

    #[test]
    fn what_is_in_memory_asks_for_nothing() {
        let mut memory = Memory::new();
        memory.here.extend(2000..2100);
        for page in 2000..2099 {
            assert_eq!(memory.read(page..page + 1), None);
        }
    }

    /// With one reader more than the maximum number, the least recently active reader is forgotten,
    /// and the other readers continue.
    #[test]
    fn the_reader_not_heard_of_for_longest_is_forgotten() {
        let mut memory = Memory::new();
        let start = |number: u64| 10_000 * (number + 1);
        for number in 0..=READERS_MAX as u64 {
            assert_eq!(memory.read(start(number)..start(number) + 1), None);
        }
        let second = |number: u64| start(number) + 1..start(number) + 2;
        let ahead = |number: u64| start(number) + 2..start(number) + 5;
        assert_eq!(memory.read(second(1)), Some(ahead(1)));
        // The first reader was forgotten, so its second request starts a new reader. The new reader
        // replaces the third reader, which is now the least recently active.
        assert_eq!(memory.read(second(0)), None);
        assert_eq!(memory.read(second(2)), None);
        let newest = READERS_MAX as u64;
        assert_eq!(memory.read(second(newest)), Some(ahead(newest)));
    }
}
