//! The eviction order of a write buffer. Pages are evicted in clusters (an erase block, a part of
//! an erase block, or a single page), and the victim cluster is chosen by size, by age, or by both.
//!
//! Sources: FAB, Jo et al., 2006, evicts the cluster with the most pages, and the oldest among
//! equals. CLC, Park et al., MASCOTS 2008, evicts the largest cluster that is not among the most
//! recently used ones (10 % of the clusters in this implementation). Block LRU evicts the least
//! recently used cluster. With the compensation of BPLRU, Kim and Ahn, FAST 2008, a cluster that
//! was written in sequence from its first to its last page becomes the next victim. The module does
//! not know which pages are dirty.

use super::write_order::WriteOrder;
use super::{Access, PageAddress, PageId};
use crate::lists::{Links, List, NONE, grow};

/// The choice of the victim cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// FAB: the largest cluster.
    Largest,
    /// CLC: the largest of the cold clusters.
    LargestCold,
    /// The least recently used cluster.
    Oldest,
    /// The least recently used cluster, except that a cluster written in sequence is evicted before
    /// all other clusters (BPLRU).
    OldestOrSequential,
    /// The least recently used page, together with the other cold pages of its cluster.
    Cold,
}

/// In CLC, one of this number of clusters is hot.
const HOT_SHARE: usize = 10;
/// Divides the time from the last use of the oldest page until now. A page is cold if it was last
/// used in the first 3/4 of that time.
const COLD_SHARE: (u64, u64) = (3, 4);

#[derive(Clone, Copy, Debug)]
struct Cluster {
    pages: List,
    /// True for a cluster in the list of recent clusters. Any other cluster with pages is in a list
    /// by size.
    is_recent: bool,
    /// The offset at which a write continues the sequence that began with the cluster's first page;
    /// [`NONE`] after a write out of sequence.
    next_in_sequence: u32,
    /// The value of `Clusters::left` after the last eviction of the cluster; `None` if the cluster
    /// was never evicted, or its eviction has been reported.
    left_at: Option<u64>,
}

/// Pages in clusters.
#[derive(Debug)]
pub(super) struct Clusters {
    choice: Choice,
    /// Maximum number of pages in a cluster.
    size: u32,
    clusters_per_block: u32,
    page_links: Links,
    /// The cluster of each page, and the page's offset in it.
    homes: Vec<(u32, u32)>,
    held: Vec<bool>,
    len: usize,
    clusters: Vec<Cluster>,
    cluster_links: Links,
    /// Clusters in order of recency: all clusters, or only the hot ones under CLC.
    recent: List,
    /// Lists of clusters, indexed by the number of pages of a cluster. Each list is in order of
    /// recency.
    by_count: Vec<List>,
    /// All lists of `by_count` above this index are empty.
    most: usize,
    /// Number of clusters with pages.
    count: usize,
    /// This field and the three fields below it are used only for [`Choice::Cold`]: pages in order
    /// of recency, and the time of each page's last use, counted in accesses.
    age_links: Links,
    by_age: List,
    used_at: Vec<u64>,
    now: u64,
    /// Number of pages that `evict` has evicted since the order was created.
    left: u64,
}

impl Clusters {
    /// Creates an order with clusters of `size` pages, but at most `pages_per_block` pages, the
    /// size of an erase block.
    pub(super) fn new(choice: Choice, size: u32, pages_per_block: u32) -> Clusters {
        let pages_per_block = pages_per_block.max(1);
        let size = size.clamp(1, pages_per_block);
        Clusters {
            choice,
            size,
            clusters_per_block: pages_per_block.div_ceil(size),
            page_links: Links::default(),
            homes: Vec::new(),
            held: Vec::new(),
            len: 0,
            clusters: Vec::new(),
            cluster_links: Links::default(),
            recent: List::default(),
            by_count: vec![List::default(); size as usize + 1],
            most: 0,
            count: 0,
            age_links: Links::default(),
            by_age: List::default(),
            used_at: Vec::new(),
            now: 0,
            left: 0,
        }
    }

    pub(super) fn reserve(&mut self, ids: usize) {
        self.page_links.reserve(ids);
        grow(&mut self.homes, ids, (0, 0));
        grow(&mut self.held, ids, false);
        if self.choice == Choice::Cold {
            self.age_links.reserve(ids);
            grow(&mut self.used_at, ids, 0);
        }
    }

    pub(super) fn place(&mut self, page: PageId, place: PageAddress) {
        let cluster = place.block * self.clusters_per_block + place.offset / self.size;
        self.homes[page as usize] = (cluster, place.offset % self.size);
        let empty = Cluster {
            pages: List::default(),
            is_recent: false,
            next_in_sequence: 0,
            left_at: None,
        };
        grow(&mut self.clusters, cluster as usize + 1, empty);
        self.cluster_links.reserve(cluster as usize + 1);
    }

    /// Returns the number of pages in the cache.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn holds(&self, page: PageId) -> bool {
        self.held[page as usize]
    }

    /// Appends all pages in the cache, in ascending order.
    pub(super) fn list_held(&self, out: &mut Vec<PageId>) {
        let held = self.held.iter().enumerate().filter(|(_, held)| **held);
        out.extend(held.map(|(page, _)| page as PageId));
    }

    /// Inserts `page`, which is not in the cache.
    pub(super) fn insert(&mut self, page: PageId, access: Access) {
        let (cluster, _) = self.homes[page as usize];
        self.unlist(cluster);
        let pages = &mut self.clusters[cluster as usize].pages;
        if pages.is_empty() {
            self.count += 1;
        }
        pages.push_front(&mut self.page_links, page);
        self.held[page as usize] = true;
        self.len += 1;
        if self.choice == Choice::Cold {
            self.by_age.push_front(&mut self.age_links, page);
        }
        self.list(cluster, page, access);
    }

    /// Records a use of `page`, which is in the cache.
    pub(super) fn hit(&mut self, page: PageId, access: Access) {
        let (cluster, _) = self.homes[page as usize];
        self.unlist(cluster);
        let pages = &mut self.clusters[cluster as usize].pages;
        pages.refresh(&mut self.page_links, page);
        if self.choice == Choice::Cold {
            self.by_age.refresh(&mut self.age_links, page);
        }
        self.list(cluster, page, access);
    }

    /// Removes `page` alone, if it is in the cache.
    pub(super) fn remove(&mut self, page: PageId) {
        if !self.holds(page) {
            return;
        }
        let (cluster, _) = self.homes[page as usize];
        let was_recent = self.clusters[cluster as usize].is_recent;
        // Removing a page does not move its cluster within the list of recent clusters.
        if !was_recent {
            self.unlist(cluster);
        }
        let state = &mut self.clusters[cluster as usize];
        state.pages.remove(&mut self.page_links, page);
        let left = state.pages.len();
        self.held[page as usize] = false;
        self.len -= 1;
        if self.choice == Choice::Cold {
            self.by_age.remove(&mut self.age_links, page);
        }
        if left == 0 {
            if was_recent {
                self.unlist(cluster);
            }
            self.emptied(cluster);
        } else if !was_recent {
            self.file_by_count(cluster);
        }
    }

    /// Evicts one cluster and appends its pages, the most recently used page first. Under
    /// [`Choice::Cold`], evicts only the cold pages of the cluster.
    pub(super) fn evict(&mut self, out: &mut Vec<PageId>) {
        let from = out.len();
        match self.choice {
            Choice::Cold => self.evict_cold(out),
            _ => self.evict_whole(out),
        }
        self.record_evicted(&out[from..]);
    }

    /// Removes `pages`, which are of one cluster, as if this order had evicted them.
    pub(super) fn leave(&mut self, pages: &[PageId]) {
        for page in pages {
            self.remove(*page);
        }
        self.record_evicted(pages);
    }

    fn record_evicted(&mut self, pages: &[PageId]) {
        self.left += pages.len() as u64;
        if let Some(page) = pages.first() {
            let (cluster, _) = self.homes[*page as usize];
            self.clusters[cluster as usize].left_at = Some(self.left);
        }
    }

    /// Returns the pages of the cluster of `page` that are in the cache, the least recently used
    /// page first.
    pub(super) fn neighbours(&self, page: PageId) -> impl Iterator<Item = PageId> + '_ {
        let (cluster, _) = self.homes[page as usize];
        let pages = &self.clusters[cluster as usize].pages;
        std::iter::successors(pages.back(), |page| {
            let next = self.page_links.prev(*page);
            (next != NONE).then_some(next)
        })
    }

    /// Returns the number of pages that have been evicted since the cluster of `page` was last
    /// evicted. Returns `None` if a page of the cluster is in the cache, if the cluster was never
    /// evicted, or if its last eviction has been reported before.
    pub(super) fn take_left_since(&mut self, page: PageId) -> Option<u64> {
        let (cluster, _) = self.homes[page as usize];
        let cluster = &mut self.clusters[cluster as usize];
        if !cluster.pages.is_empty() {
            return None;
        }
        cluster.left_at.take().map(|left_at| self.left - left_at)
    }

    fn evict_whole(&mut self, out: &mut Vec<PageId>) {
        let Some(cluster) = self.victim() else { return };
        self.unlist(cluster);
        let mut pages = self.clusters[cluster as usize].pages;
        let from = out.len();
        while let Some(page) = pages.pop_back(&mut self.page_links) {
            self.held[page as usize] = false;
            out.push(page);
        }
        out[from..].reverse();
        self.len -= out.len() - from;
        self.clusters[cluster as usize].pages = pages;
        self.emptied(cluster);
    }

    fn evict_cold(&mut self, out: &mut Vec<PageId>) {
        let Some(oldest) = self.by_age.back() else {
            return;
        };
        let (cluster, _) = self.homes[oldest as usize];
        let used_at = self.used_at[oldest as usize];
        let cold_before = used_at + (self.now - used_at) / COLD_SHARE.1 * COLD_SHARE.0;
        let from = out.len();
        while let Some(page) = self.clusters[cluster as usize].pages.back() {
            // The oldest page is evicted in any case.
            if page != oldest && self.used_at[page as usize] > cold_before {
                break;
            }
            self.remove(page);
            out.push(page);
        }
        out[from..].reverse();
    }

    fn emptied(&mut self, cluster: u32) {
        self.clusters[cluster as usize].next_in_sequence = 0;
        self.count -= 1;
    }

    fn victim(&mut self) -> Option<u32> {
        while self.most > 0 && self.by_count[self.most].is_empty() {
            self.most -= 1;
        }
        let by_count = self.by_count[self.most].back();
        by_count.or_else(|| self.recent.back())
    }

    /// Removes a cluster from its list. Does nothing for a cluster that is in no list.
    fn unlist(&mut self, cluster: u32) {
        let Cluster {
            pages, is_recent, ..
        } = self.clusters[cluster as usize];
        if pages.is_empty() && !is_recent {
            return;
        }
        if is_recent {
            self.recent.remove(&mut self.cluster_links, cluster);
            self.clusters[cluster as usize].is_recent = false;
        } else {
            self.by_count[pages.len()].remove(&mut self.cluster_links, cluster);
        }
    }

    /// Inserts a cluster into its list after an access to its page `page`.
    fn list(&mut self, cluster: u32, page: PageId, access: Access) {
        match self.choice {
            Choice::Largest => self.file_by_count(cluster),
            Choice::Oldest => self.file_recent(cluster),
            Choice::Cold => {
                self.now += 1;
                self.used_at[page as usize] = self.now;
                self.file_recent(cluster);
            }
            Choice::LargestCold => {
                self.file_recent(cluster);
                self.cool();
            }
            Choice::OldestOrSequential => {
                if access == Access::Write && self.ends_sequence(cluster, page) {
                    self.recent.push_back(&mut self.cluster_links, cluster);
                    self.clusters[cluster as usize].is_recent = true;
                } else {
                    self.file_recent(cluster);
                }
            }
        }
    }

    fn file_recent(&mut self, cluster: u32) {
        self.recent.push_front(&mut self.cluster_links, cluster);
        self.clusters[cluster as usize].is_recent = true;
    }

    fn file_by_count(&mut self, cluster: u32) {
        let count = self.clusters[cluster as usize].pages.len();
        self.by_count[count].push_front(&mut self.cluster_links, cluster);
        self.clusters[cluster as usize].is_recent = false;
        self.most = self.most.max(count);
    }

    /// Moves the least recently used hot clusters of CLC to the lists by size while the hot
    /// clusters exceed their share.
    fn cool(&mut self) {
        while self.recent.len() > (self.count / HOT_SHARE).max(1) {
            let Some(cluster) = self.recent.pop_back(&mut self.cluster_links) else {
                return;
            };
            self.file_by_count(cluster);
        }
    }

    /// Tracks whether the pages of a cluster are written in sequence. Returns true if `page`
    /// completes a sequence from the first to the last page of the cluster.
    fn ends_sequence(&mut self, cluster: u32, page: PageId) -> bool {
        let (_, offset) = self.homes[page as usize];
        let next = &mut self.clusters[cluster as usize].next_in_sequence;
        *next = if offset == 0 || offset == *next {
            offset + 1
        } else {
            NONE
        };
        *next == self.size
    }
}

impl WriteOrder for Clusters {
    fn reserve(&mut self, ids: usize) {
        Clusters::reserve(self, ids);
    }
    fn place(&mut self, page: PageId, place: PageAddress) {
        Clusters::place(self, page, place);
    }
    fn len(&self) -> usize {
        Clusters::len(self)
    }
    fn holds(&self, page: PageId) -> bool {
        Clusters::holds(self, page)
    }
    fn list_held(&self, out: &mut Vec<PageId>) {
        Clusters::list_held(self, out);
    }
    fn insert(&mut self, page: PageId, access: Access) {
        Clusters::insert(self, page, access);
    }
    fn hit(&mut self, page: PageId, access: Access) {
        Clusters::hit(self, page, access);
    }
    fn remove(&mut self, page: PageId) {
        Clusters::remove(self, page);
    }
    fn leave(&mut self, pages: &[PageId]) {
        Clusters::leave(self, pages);
    }
    fn evict(&mut self, out: &mut Vec<PageId>) {
        Clusters::evict(self, out);
    }
    fn take_left_since(&mut self, page: PageId) -> Option<u64> {
        Clusters::take_left_since(self, page)
    }
}
