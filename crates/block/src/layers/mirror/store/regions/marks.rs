//! The entries of the dirty-region bitmap (map) in memory, compressed by page. Most pages of most
//! maps have no mark, or only one value: pages without a mark take no memory, and any other page
//! takes at most 1.1 KB. For 20 TiB this is at most 46 MB, where an array of entries would always
//! take 168 MB.

use std::collections::BTreeMap;
use std::ops::Range;

use super::PAGE_REGIONS;

/// All entries of a page, in order.
pub(super) type PageEntries = [u64; PAGE_REGIONS as usize];

/// Maximum number of different entry values of a page in memory. If a page has more, the lowest
/// entries other than 0 are raised: more regions are then marked than were changed, never fewer.
/// The maximum is equal to the maximum number of epochs in a history, so the raised entries hardly
/// matter for any side.
const DIFFERENT_MAX: usize = 64;

/// A compressed page with at least one mark.
enum Page {
    /// All entries have this value.
    One(u64),
    /// The different values in ascending order, and for each region the index of its value.
    Several(Vec<u64>, Box<[u8; PAGE_REGIONS as usize]>),
}

impl Page {
    /// Compresses a page. If it has too many different entries, the lowest of them are raised.
    fn of(entries: &PageEntries) -> Page {
        let mut different = entries.to_vec();
        different.sort_unstable();
        different.dedup();
        if let [one] = different[..] {
            return Page::One(one);
        }
        // The entry 0 means that a region was never changed. If the page has too many different
        // entries, the lowest entries except 0 are raised.
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
    /// Creates the entries of `regions` regions that were never changed.
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

    /// Adds regions that were never changed, up to a total of `regions`.
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

    /// Sets the entries of a page, except for regions beyond the last one. Returns true when the
    /// page now has exactly these entries, and false when the compressed form of the page had to
    /// round some entries up.
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

    /// Raises the entries of some regions of one page to at least `epoch`, and returns true when
    /// this changed an entry.
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

    /// Returns the regions below `regions_end` whose entries are above `epoch`, in ascending order,
    /// as runs that are not merged across pages.
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

    /// The expected values are computed by hand. There are 504 different entries, but only 64
    /// values can be kept: the value 0, if it is among the entries, and the highest other values.
    /// Every other entry is raised to the lowest kept value except 0.
    #[test]
    fn too_many_different_entries_are_raised_and_never_lowered() {
        for lowest in [0, 1000] {
            let mut marks = Marks::new(PAGE_REGIONS);
            let entries: PageEntries = std::array::from_fn(|at| lowest + at as u64);
            assert!(!marks.set(0, &entries), "not exactly");
            let found = marks.entries(0);
            let kept = |at: u64| match (lowest, at) {
                // Of the 504 entries, entry 0 and the 63 highest entries (441 to 503) are kept.
                (0, 0) => 0,
                (0, at) => at.max(441),
                // The 64 highest entries, 1440 to 1503, are kept.
                (lowest, at) => (lowest + at).max(1440),
            };
            assert_eq!(found, std::array::from_fn(|at| kept(at as u64)));
            assert!(marks.set(0, &found), "what is kept stays as it is");
        }
    }
}
