//! LRU stack distances: for each access to a page, the number of distinct other pages used since
//! the last use of that page. The distances give the miss ratio of LRU for every cache size in a
//! single run.
//!
//! Source: Mattson et al. 1970, with Olken's counting tree (1981) over the times of last use. Times
//! are renumbered when the tree is full, so memory depends on the number of distinct pages and not
//! on the length of the trace.

/// A counter of stack distances.
#[derive(Debug, Default)]
pub struct StackDistances {
    /// Time of the last use of each page; 0 for a page that has not been used.
    last: Vec<u32>,
    /// A Fenwick tree over times: 1 at each time that is the last use of some page.
    tree: Vec<u32>,
    now: usize,
    pages: usize,
    /// Number of accesses at each distance. An access at distance `d` is a hit in a cache of more
    /// than `d` pages.
    counts: Vec<u64>,
    /// Number of first uses.
    pub cold: u64,
}

impl StackDistances {
    /// Creates a counter without accesses.
    pub fn new() -> StackDistances {
        StackDistances::default()
    }

    /// Counts an access to the page `id`. Returns the stack distance of the access; `None` for the
    /// first use of the page.
    pub fn access(&mut self, id: u32) -> Option<usize> {
        let at = id as usize;
        if at >= self.last.len() {
            self.last.resize((at + 1).next_power_of_two(), 0);
        }
        if self.now + 1 >= self.tree.len() {
            self.pack();
        }
        let before = self.last[at] as usize;
        let distance = (before > 0).then(|| {
            let later = self.pages - self.sum(before);
            self.add(before, -1);
            self.pages -= 1;
            later
        });
        self.now += 1;
        self.add(self.now, 1);
        self.pages += 1;
        self.last[at] = self.now as u32;
        match distance {
            Some(distance) => {
                if distance >= self.counts.len() {
                    self.counts.resize((distance + 1).next_power_of_two(), 0);
                }
                self.counts[distance] += 1;
            }
            None => self.cold += 1,
        }
        distance
    }

    /// Returns the number of misses of an LRU cache with a capacity of `pages` pages.
    pub fn misses(&self, pages: usize) -> u64 {
        let far = self.counts.iter().skip(pages).sum::<u64>();
        self.cold + far
    }

    /// Renumbers the times of last use as 1, 2, 3 and so on, and makes the tree at least twice as
    /// long as the number of pages.
    fn pack(&mut self) {
        let mut used: Vec<(u32, usize)> = (self.last.iter().enumerate())
            .filter(|(_, time)| **time > 0)
            .map(|(page, time)| (*time, page))
            .collect();
        used.sort_unstable();
        self.tree.clear();
        self.tree.resize((2 * used.len() + 1).max(1 << 16), 0);
        for (time, (_, page)) in (1..).zip(&used) {
            self.last[*page] = time;
            self.add(time as usize, 1);
        }
        self.now = used.len();
    }

    fn add(&mut self, mut at: usize, step: i32) {
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add_signed(step);
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the number of pages whose last use was at time `at` or before.
    fn sum(&self, mut at: usize) -> usize {
        let mut sum = 0;
        while at > 0 {
            sum += self.tree[at] as usize;
            at -= at & at.wrapping_neg();
        }
        sum
    }
}
