//! Policies by name, so that a name means the same policy on a command line, in a configuration and
//! in an experiment.
//!
//! Dashes between the words of a plain name are ignored. The name of a pair of buffers is
//! `abm-READ-WRITE[-POINTER]`:
//!
//! - READ is any plain policy over pages.
//! - WRITE is `fab`, `clc`, `lru`, `cold`, `used`, `best` or `page`. All except `page` evict whole
//!   erase blocks or, as in `clc:8`, clusters of the given number of pages, or parts. `best` is the
//!   winner of a tournament of `clc`, `lru` and `used`. `fab+pad`, `clc+pad`, `lru+pad` and
//!   `best+pad` write whole erase blocks where that costs less; `used` is not in the tournament of
//!   `best+pad`, because it writes parts of blocks.
//! - POINTER is `ghost` (the paper's rule, the default), `cost`, `marginal`, or `fixedNN` to give
//!   NN percent of the pages to the write buffer.

use super::Replacement;
use super::abm::Abm;
use super::abm::pointer::{Pointer, PointerRule};
use super::arc::Arc;
use super::belady::Belady;
use super::clean_first::{CleanFirst, SparesDirty};
use super::clock_pro::ClockPro;
use super::clusters::{Choice, Clusters};
use super::frequent_pages::FrequentPages;
use super::lirs::Lirs;
use super::lrfu::Lrfu;
use super::lru_k::LruK;
use super::order::Order;
use super::queues::{Sieve, SingleList, Use};
use super::recently_evicted::RecentlyEvicted;
use super::s3_fifo::S3Fifo;
use super::segmented::Segmented;
use super::shells::{Clustered, Paged};
use super::tournament::{GroupCost, Tournament};
use super::two_q::TwoQ;
use super::w_tinylfu::WTinyLfu;
use super::write_order::WriteOrder;
use std::fmt;
use std::str::FromStr;

/// Decay rate lambda of LRFU. It is near 0, where LRFU acts like LFU, and in the range that the
/// authors of LRFU found best.
const LRFU_LAMBDA: f64 = 0.001;

/// A policy over single pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Fifo,
    Lru,
    Clock,
    Sieve,
    Slru,
    TwoQ,
    LruK,
    Lrfu,
    Arc,
    Lirs,
    ClockPro,
    WTinyLfu,
    S3Fifo,
    CfLru,
    LruWsr,
    Ref,
}

/// A row of a table of policies: the name, the policy, and the description with its source.
type Row<T> = (&'static str, T, &'static str);

const PAGES: &[Row<Page>] = &[
    ("fifo", Page::Fifo, "first in, first out"),
    ("lru", Page::Lru, "least recently used"),
    ("clock", Page::Clock, "CLOCK with one bit (Corbato 1968)"),
    ("sieve", Page::Sieve, "SIEVE (Zhang et al., NSDI 2024)"),
    (
        "slru",
        Page::Slru,
        "segmented LRU, 4 equal segments (Karedla et al. 1994)",
    ),
    (
        "2q",
        Page::TwoQ,
        "2Q, Ain 25 %, Aout 50 % (Johnson and Shasha, VLDB 1994)",
    ),
    ("lru-k", Page::LruK, "LRU-2 (O'Neil et al., SIGMOD 1993)"),
    ("lrfu", Page::Lrfu, "LRFU, lambda 0.001 (Lee et al. 2001)"),
    ("arc", Page::Arc, "ARC (Megiddo and Modha, FAST 2003)"),
    (
        "lirs",
        Page::Lirs,
        "LIRS, 1 % HIR (Jiang and Zhang, SIGMETRICS 2002)",
    ),
    (
        "clock-pro",
        Page::ClockPro,
        "CLOCK-Pro (Jiang et al., USENIX 2005)",
    ),
    (
        "w-tinylfu",
        Page::WTinyLfu,
        "W-TinyLFU, 1 % window (Einziger et al. 2017)",
    ),
    (
        "s3-fifo",
        Page::S3Fifo,
        "S3-FIFO, 10 % small (Yang et al., SOSP 2023)",
    ),
    (
        "cf-lru",
        Page::CfLru,
        "clean pages first in a window of 33 % (Park et al. 2004)",
    ),
    (
        "lru-wsr",
        Page::LruWsr,
        "dirty pages are spared once (Jung et al. 2008)",
    ),
    (
        "ref",
        Page::Ref,
        "recently evicted blocks first (Seo and Shin 2008)",
    ),
];

const CLUSTERED: &[Row<(Choice, bool)>] = &[
    (
        "fab",
        (Choice::Largest, false),
        "the block with most pages (Jo et al. 2006)",
    ),
    (
        "clc",
        (Choice::LargestCold, false),
        "the largest cold block (Park et al. 2008)",
    ),
    (
        "block-lru",
        (Choice::Oldest, false),
        "the least recently used block",
    ),
    (
        "bplru",
        (Choice::OldestOrSequential, true),
        "block LRU, padded, sequential blocks first (Kim and Ahn, FAST 2008)",
    ),
];

/// A policy specified by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    name: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Page(Page),
    Clustered(Choice, bool),
    Belady,
    /// The pair of policies that suits the write granularity of the device:
    /// [`Granularity::default_pair`].
    Bimetal,
    Abm(Pair),
}

/// A read buffer, a write buffer, and the pointer that divides the capacity between them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    read: Page,
    write: WriteSide,
    pointer: PointerRule,
}

/// The order in which dirty pages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteBy {
    Clusters(Choice),
    /// By the uses of single pages.
    Frequency,
    /// The order that a tournament selects.
    Tournament,
}

/// The way in which dirty pages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WriteSide {
    order: WriteBy,
    /// Number of pages in a cluster; `None` if a cluster is an erase block.
    cluster_pages: Option<u32>,
    /// True if a whole erase block is written when that costs less than writing only the buffered
    /// pages of the block.
    pads: bool,
}

/// The unit in which a device is written at the lowest cost. It depends on the internals of the
/// device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// Single pages. The cost of a write does not depend on which pages are written together.
    Page,
    /// Pages together with their neighbours. On a page-mapped SSD, garbage collection costs less if
    /// pages that are written together are also overwritten together. On a disk, writing neighbours
    /// together saves seeks.
    #[default]
    Cluster,
    /// Erase blocks. If only a part of an erase block is written, a log-block or block-mapped layer
    /// copies the rest of the erase block.
    Block,
}

/// The error for a name that is not the name of a granularity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownGranularity(String);

impl fmt::Display for UnknownGranularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no granularity `{}`; there are page, cluster and block",
            self.0
        )
    }
}

impl std::error::Error for UnknownGranularity {}

impl FromStr for Granularity {
    type Err = UnknownGranularity;

    fn from_str(text: &str) -> Result<Granularity, UnknownGranularity> {
        match text {
            "page" => Ok(Granularity::Page),
            "cluster" => Ok(Granularity::Cluster),
            "block" => Ok(Granularity::Block),
            _ => Err(UnknownGranularity(text.to_owned())),
        }
    }
}

impl Granularity {
    /// Returns the name of the pair that `bimetal` selects for a device of this granularity.
    pub fn default_pair(self) -> &'static str {
        match self {
            Granularity::Page => "abm-clockpro-best:1-marginal",
            Granularity::Cluster => "abm-clockpro-best-marginal",
            Granularity::Block => "abm-clockpro-best+pad-marginal",
        }
    }
}

/// The error for a name that is not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = catalogue().map(|(name, _)| name).collect();
        write!(
            f,
            "no policy `{}`; there are {}, and abm-READ-WRITE[-POINTER]",
            self.0,
            names.join(", ")
        )
    }
}

impl std::error::Error for UnknownPolicy {}

/// Returns the name of every plain policy, each with a description that names its publication.
pub fn catalogue() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pages = PAGES.iter().map(|(name, _, what)| (*name, *what));
    let clustered = CLUSTERED.iter().map(|(name, _, what)| (*name, *what));
    let own = [
        (
            "belady",
            "the optimum for misses, which knows the future (Belady 1966)",
        ),
        (
            "bimetal",
            "the default: the pair that suits the granularity of the device",
        ),
    ];
    pages.chain(clustered).chain(own)
}

/// Finds a name, ignoring dashes.
fn find<T: Copy>(rows: &[Row<T>], name: &str) -> Option<T> {
    let plain = |name: &str| name.replace('-', "");
    let wanted = plain(name);
    let row = rows.iter().find(|(name, _, _)| plain(name) == wanted);
    row.map(|(_, kind, _)| *kind)
}

fn parse_write(text: &str) -> Option<WriteSide> {
    if text == "page" {
        return Some(WriteSide {
            order: WriteBy::Clusters(Choice::Oldest),
            cluster_pages: Some(1),
            pads: false,
        });
    }
    let (name, pads) = match text.strip_suffix("+pad") {
        Some(name) => (name, true),
        None => (text, false),
    };
    let (name, cluster_pages) = match name.split_once(':') {
        Some((name, pages)) => (name, Some(pages.parse().ok().filter(|pages| *pages > 0)?)),
        None => (name, None),
    };
    let order = match name {
        "fab" => WriteBy::Clusters(Choice::Largest),
        "clc" => WriteBy::Clusters(Choice::LargestCold),
        "lru" => WriteBy::Clusters(Choice::Oldest),
        "cold" => WriteBy::Clusters(Choice::Cold),
        "used" => WriteBy::Frequency,
        "best" => WriteBy::Tournament,
        _ => return None,
    };
    // Padding is allowed only if all dirty pages of an erase block are evicted together: it writes
    // the whole erase block, so no dirty page of the block may remain in the buffer.
    let parts = [WriteBy::Clusters(Choice::Cold), WriteBy::Frequency];
    let whole = cluster_pages.is_none() && !parts.contains(&order);
    (whole || !pads).then_some(WriteSide {
        order,
        cluster_pages,
        pads,
    })
}

fn parse_pointer(text: &str) -> Option<PointerRule> {
    match text {
        "ghost" => Some(PointerRule::Ghost),
        "cost" => Some(PointerRule::Cost),
        "marginal" => Some(PointerRule::Marginal),
        _ => {
            let percent: u32 = text.strip_prefix("fixed")?.parse().ok()?;
            (percent <= 100).then(|| PointerRule::Fixed(f64::from(percent) / 100.0))
        }
    }
}

fn parse_pair(name: &str) -> Option<Pair> {
    let mut words = name.strip_prefix("abm-")?.split('-');
    let read = find(PAGES, words.next()?)?;
    let write = parse_write(words.next()?)?;
    let pointer = match words.next() {
        Some(word) => parse_pointer(word)?,
        None => PointerRule::Ghost,
    };
    words.next().is_none().then_some(Pair {
        read,
        write,
        pointer,
    })
}

impl FromStr for Spec {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Spec, UnknownPolicy> {
        let name = text.trim().to_ascii_lowercase();
        let kind = match name.as_str() {
            "belady" => Some(Kind::Belady),
            "bimetal" => Some(Kind::Bimetal),
            _ => find(PAGES, &name)
                .map(Kind::Page)
                .or_else(|| find(CLUSTERED, &name).map(|(c, pads)| Kind::Clustered(c, pads)))
                .or_else(|| parse_pair(&name).map(Kind::Abm)),
        };
        let unknown = || UnknownPolicy(text.to_owned());
        kind.map(|kind| Spec { name, kind }).ok_or_else(unknown)
    }
}

/// Parameters from which a policy is built.
#[derive(Clone, Debug)]
pub struct Build {
    /// Maximum number of pages that the policy keeps in the cache; 0 is treated as 1.
    pub capacity: usize,
    /// Number of pages in an erase block.
    pub pages_per_block: u32,
    /// The unit in which the device is written at the lowest cost. The default policy depends on
    /// it.
    pub granularity: Granularity,
    /// Cost of reading a page in microseconds, used until costs have been measured.
    pub read_us: f64,
    /// Cost of writing a page in microseconds, used until costs have been measured.
    pub flush_us: f64,
    /// True to count pages as the published tables do, even where a real cache could not hold these
    /// pages. Only for comparisons of hit ratios (see the head of the LIRS policy).
    pub as_tables: bool,
    /// The next use of each future access, as [`super::next_uses`] returns them, for Belady's
    /// optimum. Without them, that policy assumes that no page is used again.
    pub next_uses: Option<std::sync::Arc<[u32]>>,
}

impl Default for Build {
    /// Returns parameters for a capacity of one page, erase blocks of 64 pages, the page times of
    /// SLC flash, and no future accesses.
    fn default() -> Build {
        Build {
            capacity: 1,
            pages_per_block: 64,
            granularity: Granularity::default(),
            read_us: 25.0,
            flush_us: 200.0,
            as_tables: false,
            next_uses: None,
        }
    }
}

impl WriteSide {
    fn build(&self, build: &Build, capacity: usize, size: u32, block: u32) -> Box<dyn WriteOrder> {
        let clusters = |choice| Box::new(Clusters::new(choice, size, block)) as Box<dyn WriteOrder>;
        let used = || Box::new(FrequentPages::new(size, block)) as Box<dyn WriteOrder>;
        match self.order {
            WriteBy::Clusters(choice) => clusters(choice),
            WriteBy::Frequency => used(),
            WriteBy::Tournament => {
                let orders = || match (size, self.pads) {
                    (1, _) => vec![used(), clusters(Choice::Oldest)],
                    (_, true) => vec![clusters(Choice::LargestCold), clusters(Choice::Oldest)],
                    _ => vec![
                        clusters(Choice::LargestCold),
                        clusters(Choice::Oldest),
                        used(),
                    ],
                };
                let group_cost = match build.granularity {
                    Granularity::Page => GroupCost::Nothing,
                    Granularity::Cluster => GroupCost::Cleaning,
                    Granularity::Block => GroupCost::Flush,
                };
                Box::new(Tournament::new(capacity, group_cost, orders))
            }
        }
    }
}

impl Pair {
    fn build(&self, build: &Build) -> Box<dyn Replacement> {
        let (capacity, block) = (build.capacity.max(1), build.pages_per_block.max(1));
        let size = self.write.cluster_pages.unwrap_or(block).min(block);
        let write = self.write.build(build, capacity, size, block);
        let pointer = Pointer::new(self.pointer, capacity, size, build.read_us, build.flush_us);
        let read = order(self.read, capacity);
        Box::new(Abm::new(capacity, read, write, pointer, self.write.pads))
    }
}

impl Spec {
    /// Returns the name that was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the policy needs the future accesses.
    pub fn needs_future(&self) -> bool {
        self.kind == Kind::Belady
    }

    /// Builds the policy.
    pub fn build(&self, build: &Build) -> Box<dyn Replacement> {
        let capacity = build.capacity.max(1);
        match self.kind {
            Kind::Page(page) => page_policy(page, capacity, build.as_tables),
            Kind::Clustered(choice, pads) => {
                let block = build.pages_per_block;
                let clusters = Clusters::new(choice, block, block);
                Box::new(Clustered::new(capacity, clusters, pads))
            }
            Kind::Belady => {
                let next = build.next_uses.clone().unwrap_or_default();
                Box::new(Paged::new(capacity, Belady::new(next, capacity)))
            }
            Kind::Bimetal => {
                let pair = parse_pair(build.granularity.default_pair());
                pair.expect("the default is a pair").build(build)
            }
            Kind::Abm(pair) => pair.build(build),
        }
    }
}

/// Builds the policy `page` for a whole cache. The cache and the policy's order of pages are
/// compiled together, so calls between them are resolved at compile time.
fn page_policy(page: Page, capacity: usize, as_tables: bool) -> Box<dyn Replacement> {
    fn whole<O: Order + 'static>(capacity: usize, order: O) -> Box<dyn Replacement> {
        Box::new(Paged::new(capacity, order))
    }
    match page {
        Page::Fifo => whole(capacity, SingleList::new(Use::Nothing, capacity)),
        Page::Lru => whole(capacity, SingleList::new(Use::Refreshes, capacity)),
        Page::Clock => whole(capacity, SingleList::new(Use::Spares, capacity)),
        Page::Sieve => whole(capacity, Sieve::new(capacity)),
        Page::Slru => whole(capacity, Segmented::new(&[1; 4], capacity, as_tables)),
        Page::TwoQ => whole(capacity, TwoQ::new(capacity)),
        Page::LruK => whole(capacity, LruK::new(capacity)),
        Page::Lrfu => whole(capacity, Lrfu::new(LRFU_LAMBDA, capacity)),
        Page::Arc => whole(capacity, Arc::new(capacity)),
        Page::Lirs => whole(capacity, Lirs::new(capacity, as_tables)),
        Page::ClockPro => whole(capacity, ClockPro::new(capacity)),
        Page::WTinyLfu => whole(capacity, WTinyLfu::new(capacity)),
        Page::S3Fifo => whole(capacity, S3Fifo::new(capacity)),
        Page::CfLru => whole(capacity, CleanFirst::new(capacity)),
        Page::LruWsr => whole(capacity, SparesDirty::new(capacity)),
        Page::Ref => whole(capacity, RecentlyEvicted::new(capacity)),
    }
}

/// Builds a page policy as the read side of a pair.
fn order(page: Page, capacity: usize) -> Box<dyn Order> {
    match page {
        Page::Fifo => Box::new(SingleList::new(Use::Nothing, capacity)),
        Page::Lru => Box::new(SingleList::new(Use::Refreshes, capacity)),
        Page::Clock => Box::new(SingleList::new(Use::Spares, capacity)),
        Page::Sieve => Box::new(Sieve::new(capacity)),
        Page::Slru => Box::new(Segmented::new(&[1; 4], capacity, false)),
        Page::TwoQ => Box::new(TwoQ::new(capacity)),
        Page::LruK => Box::new(LruK::new(capacity)),
        Page::Lrfu => Box::new(Lrfu::new(LRFU_LAMBDA, capacity)),
        Page::Arc => Box::new(Arc::new(capacity)),
        Page::Lirs => Box::new(Lirs::new(capacity, false)),
        Page::ClockPro => Box::new(ClockPro::new(capacity)),
        Page::WTinyLfu => Box::new(WTinyLfu::new(capacity)),
        Page::S3Fifo => Box::new(S3Fifo::new(capacity)),
        Page::CfLru => Box::new(CleanFirst::new(capacity)),
        Page::LruWsr => Box::new(SparesDirty::new(capacity)),
        Page::Ref => Box::new(RecentlyEvicted::new(capacity)),
    }
}
