//! The entries of the map in memory. Most pages of most maps say nothing, or one thing, so a page
//! is kept by what it says: a map of 20 TiB takes nothing where nothing is marked, and never more
//! than 1.1 KB a page, 46 MB in all, where an array of entries would always take 168 MB.

use std::collections::BTreeMap;
use std::ops::Range;

use super::PAGE_REGIONS;

/// The entries of a page, as they lie in it.
pub(super) type PageEntries = [u64; PAGE_REGIONS as usize];

/// Different entries that a page may have. A page with more gets higher ones in the place of its
/// lowest: that marks more than was changed, never less. A history has as many epochs, so of lower
/// entries hardly any side is left that could be told apart by them.
const DIFFERENT_MAX: usize = 64;

/// A page that says something.
enum Page {
    /// All entries are this one.
    One(u64),
    /// The entries that there are, in order, and which of them each region has.
    Several(Vec<u64>, Box<[u8; PAGE_REGIONS as usize]>),
}

impl Page {
    /// A page with these entries; raises the lowest of them where there are too many.
    fn of(entries: &PageEntries) -> Page {
        let mut different = entries.to_vec();
        different.sort_unstable();
        different.dedup();
        if let [one] = different[..] {
            return Page::One(one);
        }
        // 0 stands for regions that were never changed, which are never raised.
        let zero = usize::from(different[0] == 0);
        let excess = different.len().saturating_sub(DIFFERENT_MAX);
        different.drain(zero..zero + excess);
        let place_of = |entry: u64| different.partition_point(|known| *known < entry) as u8;
        Page::Several(
            different.clone(),
            Box::new(std::array::from_fn(|at| place_of(entries[at]))),
        )
    }

    fn entry(&self, at: usize) -> u64 {
        match self {
            Page::One(entry) => *entry,
            Page::Several(different, places) => different[usize::from(places[at])],
        }
    }
}

/// The entries of a volume's regions.
pub(super) struct Marks {
    regions: u64,
    /// Pages of which not all entries are 0.
    pages: BTreeMap<u64, Page>,
}

impl Marks {
    /// Of a number of regions, none of which was ever changed.
    pub(super) fn new(regions: u64) -> Marks {
        Marks {
            regions,
            pages: BTreeMap::new(),
        }
    }

    /// The number of regions.
    pub(super) fn regions(&self) -> u64 {
        self.regions
    }

    /// The number of pages that describe them.
    pub(super) fn pages_end(&self) -> u64 {
        self.regions.div_ceil(PAGE_REGIONS)
    }

    /// There may be more regions from now on, none of which was ever changed.
    pub(super) fn grow(&mut self, regions: u64) {
        self.regions = self.regions.max(regions);
    }

    /// The entries of a page.
    pub(super) fn entries(&self, page: u64) -> PageEntries {
        let page = self.pages.get(&page);
        page.map_or([0; PAGE_REGIONS as usize], |page| {
            std::array::from_fn(|at| page.entry(at))
        })
    }

    /// Sets the entries of a page, without those of regions that are beyond the end. Says whether
    /// the page has exactly these now: some may be higher.
    pub(super) fn set(&mut self, page: u64, entries: &PageEntries) -> bool {
        let mut entries = *entries;
        let inside = self.regions.saturating_sub(page * PAGE_REGIONS);
        entries[inside.min(PAGE_REGIONS) as usize..].fill(0);
        let set = Page::of(&entries);
        let exactly = (0..entries.len()).all(|at| set.entry(at) == entries[at]);
        match set {
            Page::One(0) => drop(self.pages.remove(&page)),
            set => drop(self.pages.insert(page, set)),
        }
        exactly
    }

    /// Raises the entries of regions of one page to at least `epoch`, and says whether that changed
    /// one.
    pub(super) fn raise(&mut self, page: u64, within: Range<usize>, epoch: u64) -> bool {
        let found = self.pages.get(&page);
        let entry = |at| found.map_or(0, |found| found.entry(at));
        if within.clone().all(|at| entry(at) >= epoch) {
            return false;
        }
        let mut entries = self.entries(page);
        for entry in &mut entries[within] {
            *entry = epoch.max(*entry);
        }
        self.set(page, &entries);
        true
    }

    /// The regions whose entries are above `epoch`, in order, as runs that are not merged over the
    /// ends of pages.
    pub(super) fn above(&self, epoch: u64, regions_end: u64) -> impl Iterator<Item = Range<u64>> {
        let pages_end = regions_end.div_ceil(PAGE_REGIONS);
        self.pages
            .range(..pages_end)
            .flat_map(move |(page, found)| {
                let first = page * PAGE_REGIONS;
                let count = PAGE_REGIONS.min(regions_end - first);
                let is_above = move |at: u64| found.entry(at as usize) > epoch;
                let mut next = 0;
                std::iter::from_fn(move || {
                    let start = (next..count).find(|at| is_above(*at))?;
                    next = (start..count).find(|at| !is_above(*at)).unwrap_or(count);
                    Some(first + start..first + next)
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: with 504 different entries, 64 are kept; 0 stays, and the lowest of the others
    /// become the lowest that is kept.
    #[test]
    fn too_many_different_entries_are_raised_and_never_lowered() {
        for lowest in [0, 1000] {
            let mut marks = Marks::new(PAGE_REGIONS);
            let entries: PageEntries = std::array::from_fn(|at| lowest + at as u64);
            assert!(!marks.set(0, &entries), "not exactly");
            let found = marks.entries(0);
            let kept = |at: u64| match (lowest, at) {
                // 0, and 441 to 503, the 63 highest.
                (0, 0) => 0,
                (0, at) => at.max(441),
                // The 64 highest are 1440 to 1503.
                (lowest, at) => (lowest + at).max(1440),
            };
            assert_eq!(found, std::array::from_fn(|at| kept(at as u64)));
            assert!(marks.set(0, &found), "what is kept stays as it is");
        }
    }
}
