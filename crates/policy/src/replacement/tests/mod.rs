//! Tests of the policies against examples computed by hand, textbook models, and common invariants.

mod examples;
mod invariants;
mod textbook;

use super::*;
use std::collections::BTreeSet;

/// Number of pages in an erase block in these tests.
pub(super) const BLOCK: u32 = 4;

/// Returns the names of all plain policies, and the names of pairs of a read buffer and a write
/// buffer of every kind.
pub(super) fn all_names() -> Vec<String> {
    let mut names: Vec<String> = catalogue().map(|(name, _)| name.to_owned()).collect();
    for read in [
        "lru", "arc", "lirs", "s3fifo", "2q", "slru", "wtinylfu", "clockpro", "cflru", "ref",
    ] {
        for write in [
            "fab", "clc", "lru", "cold", "page", "clc:2", "clc+pad", "used", "best", "best:1",
            "best+pad",
        ] {
            names.push(format!("abm-{read}-{write}"));
        }
    }
    for pointer in ["cost", "marginal", "fixed0", "fixed25", "fixed100"] {
        names.push(format!("abm-lru-clc-{pointer}"));
        names.push(format!("abm-clockpro-best-{pointer}"));
    }
    names
}

/// Builds the policy `name` with a capacity of `capacity` pages, and introduces the pages below
/// `pages` in ascending order. `future` contains the pages of all accesses to come, for Belady's
/// optimum.
pub(super) fn built(
    name: &str,
    capacity: usize,
    pages: u32,
    future: &[PageId],
) -> Box<dyn Replacement> {
    let spec: Spec = name.parse().expect("a known policy");
    let mut policy = spec.build(&Build {
        capacity,
        pages_per_block: BLOCK,
        next_uses: Some(next_uses(future.iter().copied()).into()),
        ..Build::default()
    });
    for page in 0..pages {
        let place = PageAddress {
            block: page / BLOCK,
            offset: page % BLOCK,
        };
        policy.introduce(page, place);
    }
    policy
}

/// A policy under test, and the sets of pages in the cache and of dirty pages that follow from its
/// results.
pub(super) struct Driven {
    pub(super) policy: Box<dyn Replacement>,
    pub(super) held: BTreeSet<PageId>,
    pub(super) dirty: BTreeSet<PageId>,
    out: Evictions,
}

impl Driven {
    pub(super) fn new(policy: Box<dyn Replacement>) -> Driven {
        Driven {
            policy,
            held: BTreeSet::new(),
            dirty: BTreeSet::new(),
            out: Evictions::new(),
        }
    }

    /// Accesses a page and checks that the policy's evictions are consistent with the expected
    /// state. Applies the evictions to that state.
    pub(super) fn access(&mut self, page: PageId, access: Access) -> (Outcome, Vec<Vec<Leaving>>) {
        let outcome = self.policy.access(page, access, &mut self.out);
        let was_held = self.held.contains(&page);
        assert_eq!(outcome == Outcome::Hit, was_held, "a hit is of a page held");
        let mut groups = Vec::new();
        for group in self.out.groups() {
            let blocks: BTreeSet<u32> = group.pages.iter().map(|l| l.page / BLOCK).collect();
            assert_eq!(blocks.len(), 1, "a group is of one block");
            for leaving in group.pages {
                assert!(self.held.contains(&leaving.page), "what leaves was held");
                let was_dirty = self.dirty.remove(&leaving.page);
                assert_eq!(
                    leaving.write, was_dirty,
                    "dirty pages are written, and only they"
                );
                assert!(
                    leaving.write || !leaving.stays,
                    "staying is news of dirty pages only"
                );
                if !leaving.stays {
                    self.held.remove(&leaving.page);
                }
            }
            groups.push(group.pages.to_vec());
        }
        self.out.clear();
        self.held.insert(page);
        if access == Access::Write {
            self.dirty.insert(page);
        }
        (outcome, groups)
    }

    pub(super) fn read(&mut self, page: PageId) -> Outcome {
        self.access(page, Access::Read).0
    }

    pub(super) fn write(&mut self, page: PageId) -> Outcome {
        self.access(page, Access::Write).0
    }

    pub(super) fn cleaned(&mut self, page: PageId) {
        self.policy.cleaned(page);
        self.dirty.remove(&page);
    }

    pub(super) fn remove(&mut self, page: PageId) {
        self.policy.remove(page);
        self.held.remove(&page);
        self.dirty.remove(&page);
    }

    /// Checks that the state that the policy reports agrees with its decisions so far.
    pub(super) fn check(&self, pages: u32) {
        assert!(
            self.held.len() <= self.policy.capacity(),
            "more pages than frames"
        );
        let occupancy = self.policy.occupancy();
        assert_eq!(occupancy.held, self.held.len());
        assert_eq!(occupancy.dirty, self.dirty.len());
        for page in 0..pages {
            assert_eq!(
                self.policy.holds(page),
                self.held.contains(&page),
                "page {page}"
            );
            assert_eq!(
                self.policy.is_dirty(page),
                self.dirty.contains(&page),
                "page {page}"
            );
            assert!(!self.held.contains(&page) || self.policy.remembers(page));
        }
        let mut dirty = Vec::new();
        self.policy.dirty_pages(&mut dirty);
        assert!(dirty.iter().eq(&self.dirty));
    }
}
