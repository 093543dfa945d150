//! Dense numbers for the pages of a trace, in the order of their first appearance.
//!
//! An entry of the hash table is shared by a run of neighbouring pages, so a request over many
//! pages needs only one look-up for each run.

use hashbrown::HashMap;

/// Binary logarithm of the number of neighbouring pages (a run) that share an entry of the hash
/// table.
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
    /// Creates an empty interner for pages, which usually have neighbours in the same trace.
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

    /// Returns the dense number of `page`, which is assigned if the page is new; `None` if the page
    /// is new and `limit` pages already have numbers.
    pub fn intern(&mut self, page: u64, limit: usize) -> Option<u32> {
        let mut found = None;
        self.intern_all(page, page, limit, |id| found = Some(id));
        found
    }

    /// Passes the dense numbers of the pages from `first` to `last` to `tell`, in order. Stops at a
    /// new page if `limit` pages already have numbers. Returns the count of numbers passed.
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

    /// Returns the index in `ids` at which the page numbers of the run `run` start. Adds the run if
    /// it is new.
    fn start_of(&mut self, run: u64) -> u32 {
        let (ids, length) = (&mut self.ids, 1 << self.run_bits);
        let number = *self.runs.entry(run).or_insert_with(|| {
            let number = ids.len() >> self.run_bits;
            ids.resize(ids.len() + length, NONE);
            number as u32
        });
        number << self.run_bits
    }

    /// Returns the pages, indexed by their dense numbers.
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// Returns the pages, indexed by their dense numbers, and drops the interner.
    pub fn into_pages(self) -> Vec<u64> {
        self.pages
    }
}
