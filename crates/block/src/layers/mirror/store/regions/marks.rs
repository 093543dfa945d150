//! The entries of the map in memory, compressed by page. Most pages of most maps have no mark, or
//! one value: a map of 20 TiB takes no memory where nothing is marked, and never more than 1.1 KB a
//! page, 46 MB in all, where an array of entries would always take 168 MB.

use std::collections::BTreeMap;
use std::ops::Range;

use super::PAGE_REGIONS;

/// All entries of a page, in order.
pub(super) type PageEntries = [u64; PAGE_REGIONS as usize];

/// Maximum number of different entries of a page in memory. In a page with more, the lowest entries
/// are raised: this marks more than was changed, never less. A history has as many epochs, so there
/// is hardly a side left that lower entries could tell apart.
const DIFFERENT_MAX: usize = 64;

/// A page with at least one mark.
enum Page {
    /// All entries have this value.
    One(u64),
    /// The different values in ascending order, and the index of its value for each region.
    Several(Vec<u64>, Box<[u8; PAGE_REGIONS as usize]>),
}

impl Page {
    /// Compresses a page; raises the lowest entries if there are too many different ones.
    fn of(entries: &PageEntries) -> Page {
        let mut different = entries.to_vec();
        different.sort_unstable();
        different.dedup();
        if let [one] = different[..] {
            return Page::One(one);
        }
        // 0 stands for regions that were never changed; these are never raised.
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

/// Entries of all regions of a volume.
pub(super) struct Marks {
    regions: u64,
    /// Pages with at least one entry other than 0.
    pages: BTreeMap<u64, Page>,
}

impl Marks {
    /// Creates the entries of a number of regions, none of which was ever changed.
    pub(super) fn new(regions: u64) -> Marks {
        Marks {
            regions,
            pages: BTreeMap::new(),
        }
    }

    /// Returns the number of regions.
    pub(super) fn regions(&self) -> u64 {
        self.regions
    }

    /// Returns the number of pages that describe the regions.
    pub(super) fn pages_end(&self) -> u64 {
        self.regions.div_ceil(PAGE_REGIONS)
    }

    /// Adds regions that were never changed, up to the number given.
    pub(super) fn grow(&mut self, regions: u64) {
        self.regions = self.regions.max(regions);
    }

    /// Returns the entries of a page.
    pub(super) fn entries(&self, page: u64) -> PageEntries {
        let page = self.pages.get(&page);
        page.map_or([0; PAGE_REGIONS as usize], |page| {
            std::array::from_fn(|at| page.entry(at))
        })
    }

    /// Sets the entries of a page, except those of regions beyond the end. Returns whether the page
    /// has exactly these entries now; some may be higher.
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

    /// Raises the entries of some regions of one page to at least `epoch`, and returns whether that
    /// changed one.
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

    /// Returns the regions whose entries are above `epoch`, in order, as runs that are not merged
    /// across pages.
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

    /// The expected values are computed by hand: with 504 different entries, 64 are kept; 0 stays,
    /// and the lowest of the others become the lowest that is kept.
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
