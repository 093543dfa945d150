//! Read-ahead inside a drive: after two sequential reads, the next pages are read into memory.
//!
//! Only a window of page numbers is modelled: the pages that a read would find in memory. A write
//! or trim of a page in the window closes the window, so that no read returns an old version.

/// The window of pages that have been read ahead.
#[derive(Debug)]
pub(crate) struct Prefetch {
    pages: u32,
    /// The page after the host's last read. A read of this page is sequential.
    expected: Option<u32>,
    from: u32,
    to: u32,
}

impl Prefetch {
    /// Creates a closed window. `pages` is the number of pages of each read-ahead.
    pub fn new(pages: u32) -> Self {
        Prefetch {
            pages,
            expected: None,
            from: 0,
            to: 0,
        }
    }

    /// Returns whether the page has been read ahead and is in memory.
    pub fn holds(&self, lpn: u32) -> bool {
        (self.from..self.to).contains(&lpn)
    }

    /// Records a read of the host. Returns the range of pages to read ahead now; it ends at or
    /// before `end`.
    pub fn after_read(&mut self, lpn: u32, end: u32) -> std::ops::Range<u32> {
        let continues = self.expected == Some(lpn);
        self.expected = lpn.checked_add(1);
        if !continues {
            return 0..0;
        }
        let next = lpn.saturating_add(1);
        if !self.holds(lpn) {
            (self.from, self.to) = (next, next);
        } else if self.to > next {
            return 0..0;
        }
        let first = self.to.max(next);
        self.from = next;
        self.to = first.saturating_add(self.pages).min(end).max(first);
        first..self.to
    }

    /// Discards the read-ahead window if it contains the page, which is about to change.
    pub fn forget(&mut self, lpn: u32) {
        if self.holds(lpn) {
            self.clear();
        }
    }

    /// Closes the window: no page is in memory.
    pub fn clear(&mut self) {
        (self.from, self.to) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Prefetch;

    #[test]
    fn a_second_read_in_a_row_reads_ahead_until_the_end() {
        let mut ahead = Prefetch::new(3);
        assert_eq!(ahead.after_read(4, 9), 0..0);
        assert_eq!(ahead.after_read(5, 9), 6..9);
        assert!(ahead.holds(6) && ahead.holds(8) && !ahead.holds(5));
        assert_eq!(ahead.after_read(6, 9), 0..0);
        assert_eq!(ahead.after_read(7, 9), 0..0);
        assert!(ahead.after_read(8, 9).is_empty());
    }

    #[test]
    fn a_write_closes_the_window() {
        let mut ahead = Prefetch::new(8);
        ahead.after_read(0, 100);
        assert_eq!(ahead.after_read(1, 100), 2..10);
        ahead.forget(50);
        assert!(ahead.holds(3));
        ahead.forget(3);
        assert!(!ahead.holds(2));
    }
}
