//! FIFO, LRU and CLOCK as in a textbook, written without regard to speed.

use super::*;
use proptest::prelude::*;

/// A queue of pages with the next victim at the front. Each page has a used bit.
struct Naive {
    kind: &'static str,
    capacity: usize,
    queue: Vec<(PageId, bool)>,
}

impl Naive {
    /// Accesses `page`. Returns whether the page was in the cache, and the page that was evicted,
    /// if any.
    fn access(&mut self, page: PageId) -> (bool, Option<PageId>) {
        if let Some(at) = self.queue.iter().position(|(held, _)| *held == page) {
            match self.kind {
                "lru" => {
                    let entry = self.queue.remove(at);
                    self.queue.push(entry);
                }
                "clock" => self.queue[at].1 = true,
                _ => {}
            }
            return (true, None);
        }
        let mut left = None;
        if self.queue.len() == self.capacity {
            while self.queue[0].1 {
                let (spared, _) = self.queue.remove(0);
                self.queue.push((spared, false));
            }
            left = Some(self.queue.remove(0).0);
        }
        self.queue.push((page, false));
        (false, left)
    }
}

proptest! {
    #[test]
    fn the_simple_ones_are_those_of_the_textbook(
        pages in proptest::collection::vec(0..30u32, 1..400),
        capacity in 1..20usize,
    ) {
        for kind in ["fifo", "lru", "clock"] {
            let mut naive = Naive { kind, capacity, queue: Vec::new() };
            let mut driven = Driven::new(built(kind, capacity, 30, &[]));
            for page in &pages {
                let (hit, left) = naive.access(*page);
                let (outcome, groups) = driven.access(*page, Access::Read);
                prop_assert_eq!(hit, outcome == Outcome::Hit);
                let gone: Vec<PageId> = groups.iter().flatten().map(|l| l.page).collect();
                prop_assert_eq!(gone, left.into_iter().collect::<Vec<_>>());
            }
        }
    }
}
