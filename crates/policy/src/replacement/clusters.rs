//! The eviction order of a write buffer: pages are evicted in clusters (an erase block, a part of
//! one, or a page), and the victim cluster is chosen by size, by age, or by both.
//!
//! Sources: FAB, Jo et al., 2006 (the cluster with most pages; among equals the oldest); CLC, Park
//! et al., MASCOTS 2008 (the largest among the clusters that are not the most recent, here 10 %);
//! block LRU with the compensation of BPLRU, Kim and Ahn, FAST 2008 (a cluster written from its
//! first to its last page in sequence moves to the old end). This code does not know dirtiness.

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
    /// The least recently used cluster, but a sequentially written one before all others (BPLRU).
    OldestOrSequential,
    /// A part of a cluster: the least recently used page, and the cold pages of its cluster.
    Cold,
}

/// The inverse of the share of hot clusters in CLC: one in 10.
const HOT_SHARE: usize = 10;
/// Cold pages are those last used in the older 3/4 of the time since the last use of the oldest
/// page.
const COLD_SHARE: (u64, u64) = (3, 4);

#[derive(Clone, Copy, Debug)]
struct Cluster {
    pages: List,
    /// True for a cluster in the list of recent clusters; other clusters are in a list by size. A
    /// cluster without pages is in neither.
    is_recent: bool,
    /// The offset that would continue a sequence of writes from the first page; [`NONE`] after a
    /// write out of sequence.
    next_in_sequence: u32,
    /// The value of `Clusters::left` after the last eviction of this cluster; `None` if it was
    /// never evicted, or the value was taken since.
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
    /// Clusters by recency: all of them, or the hot ones of CLC.
    recent: List,
    /// Clusters by their number of pages, each list by recency.
    by_count: Vec<List>,
    /// All lists of `by_count` above this index are empty.
    most: usize,
    /// Number of clusters with pages.
    count: usize,
    /// For [`Choice::Cold`]: pages by recency, and the time of each page's last use, in accesses.
    age_links: Links,
    by_age: List,
    used_at: Vec<u64>,
    now: u64,
    /// Number of pages evicted in clusters so far.
    left: u64,
}

impl Clusters {
    /// Creates an order with clusters of `size` pages, limited to the erase block of
    /// `pages_per_block`.
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

    /// Returns the number of pages held.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn holds(&self, page: PageId) -> bool {
        self.held[page as usize]
    }

    /// Appends all pages held, in ascending order.
    pub(super) fn list_held(&self, out: &mut Vec<PageId>) {
        let held = self.held.iter().enumerate().filter(|(_, held)| **held);
        out.extend(held.map(|(page, _)| page as PageId));
    }

    /// Inserts `page`, which is not held.
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

    /// Records a use of `page`, which is held.
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

    /// Removes `page` alone, if it is held.
    pub(super) fn remove(&mut self, page: PageId) {
        if !self.holds(page) {
            return;
        }
        let (cluster, _) = self.homes[page as usize];
        let was_recent = self.clusters[cluster as usize].is_recent;
        // A cluster in the recent list keeps its position there.
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

    /// Evicts all pages of one cluster and appends them, the most recently used first; under
    /// [`Choice::Cold`] only the cold pages of the cluster.
    pub(super) fn evict(&mut self, out: &mut Vec<PageId>) {
        let from = out.len();
        match self.choice {
            Choice::Cold => self.evict_cold(out),
            _ => self.evict_whole(out),
        }
        self.left += (out.len() - from) as u64;
        if let Some(page) = out.get(from) {
            let (cluster, _) = self.homes[*page as usize];
            self.clusters[cluster as usize].left_at = Some(self.left);
        }
    }

    /// Returns the number of pages evicted in clusters since the cluster of `page` was, if no page
    /// of that cluster is held. Each eviction is reported once.
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

    /// Removes a cluster from its list; does nothing for one without pages.
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

    /// Moves CLC's hot clusters to the lists by size while they exceed their share.
    fn cool(&mut self) {
        while self.recent.len() > (self.count / HOT_SHARE).max(1) {
            let Some(cluster) = self.recent.pop_back(&mut self.cluster_links) else {
                return;
            };
            self.file_by_count(cluster);
        }
    }

    /// Follows the sequence of writes into a cluster; returns true when `page` is the last page of
    /// the sequence.
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
