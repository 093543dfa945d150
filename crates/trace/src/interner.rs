//! Dense numbers for the pages of a trace, in the order of their first appearance.
//!
//! Neighbouring pages share an entry of the hash table, so a request over many pages costs one
//! look-up for each such run.

use hashbrown::HashMap;

/// Binary logarithm of the number of pages that share an entry (a run).
const RUN_BITS: u32 = 6;
const NONE: u32 = u32::MAX;

/// An assignment of dense numbers to pages.
#[derive(Debug, Default)]
pub struct Interner {
    run_bits: u32,
    runs: HashMap<u64, u32, foldhash::fast::FixedState>,
    /// The numbers of the pages of each run.
    ids: Vec<u32>,
    /// The page of each number.
    pages: Vec<u64>,
    last: Option<(u64, u32)>,
}

impl Interner {
    /// Creates an empty interner for pages, which tend to have neighbours.
    pub fn for_pages() -> Interner {
        Interner {
            run_bits: RUN_BITS,
            ..Interner::default()
        }
    }

    /// Creates an empty interner for scattered keys.
    pub fn for_keys() -> Interner {
        Interner::default()
    }

    /// Returns the number of `page`; `None` if the page is new and `limit` pages are already
    /// numbered.
    pub fn intern(&mut self, page: u64, limit: usize) -> Option<u32> {
        let mut found = None;
        self.intern_all(page, page, limit, |id| found = Some(id));
        found
    }

    /// Passes the numbers of the pages from `first` to `last` to `tell`, in order, and returns how
    /// many it passed: fewer than all when `limit` pages are numbered and another page is new.
    pub fn intern_all(
        &mut self,
        first: u64,
        last: u64,
        limit: usize,
        mut tell: impl FnMut(u32),
    ) -> u64 {
        let mask = (1 << self.run_bits) - 1;
        let mut page = first;
        loop {
            let run = page >> self.run_bits;
            let start = match self.last {
                Some((known, start)) if known == run => start,
                _ => self.start_of(run),
            };
            self.last = Some((run, start));
            let end = last.min(page | mask);
            let in_run = |page: u64| start as usize + (page & mask) as usize;
            for id in &mut self.ids[in_run(page)..=in_run(end)] {
                if *id == NONE {
                    if self.pages.len() >= limit {
                        return page - first;
                    }
                    *id = self.pages.len() as u32;
                    self.pages.push(page);
                }
                tell(*id);
                page = page.wrapping_add(1);
            }
            if end == last {
                return last - first + 1;
            }
        }
    }

    /// Returns the index at which the numbers of a run start. A new run is added.
    fn start_of(&mut self, run: u64) -> u32 {
        let (ids, length) = (&mut self.ids, 1 << self.run_bits);
        let number = *self.runs.entry(run).or_insert_with(|| {
            let number = ids.len() >> self.run_bits;
            ids.resize(ids.len() + length, NONE);
            number as u32
        });
        number << self.run_bits
    }

    /// Returns the page of each number.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Returns the page of each number, and drops the rest.
    pub fn into_pages(self) -> Vec<u64> {
        self.pages
    }
}
