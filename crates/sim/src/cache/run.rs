//! One run: a policy with a cache of one size above a device processes a trace.

use super::flash::{Costs, Flash, Work};
use super::geometry::Geometry;
use bimetal_policy::replacement::{
    Access, DeviceCost, Evictions, Group, Outcome as Found, PageId, Replacement,
};
use bimetal_trace::{Accesses, Kind};

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Outcome {
    /// Number of page accesses: reads and writes.
    pub accesses: u64,
    /// Number of accesses that were reads.
    pub reads: u64,
    /// Number of accesses to pages that were not in the cache.
    pub misses: u64,
    /// Number of misses that were reads.
    pub read_misses: u64,
    /// Number of pages that the cache read from the device: for read misses, and for the missing
    /// pages of erase blocks that it wrote completely.
    pub host_reads: u64,
    /// Number of pages that the cache wrote to the device.
    pub host_writes: u64,
    /// Number of write requests to the device.
    pub host_write_groups: u64,
    /// Flash operations of the device.
    pub work: Work,
    /// Total time of the flash operations in microseconds, if each operation starts after the
    /// previous one has ended.
    pub device_time_us: f64,
}

impl Outcome {
    /// Returns the number of misses per access; 0 without accesses.
    pub fn miss_ratio(&self) -> f64 {
        ratio(self.misses, self.accesses)
    }

    /// Returns an estimate for the whole trace, from the result of a run over a sample. `seen`
    /// contains the numbers of reads, writes and trims in the whole trace. All other counters are
    /// divided by the sampling rate.
    ///
    /// The miss ratio is thus relative to the number of accesses expected in the sample, not to the
    /// actual number. Whether the sample contains the few hottest pages changes the number of its
    /// accesses a lot, but hardly changes the number of its misses (the correction of SHARDS-adj,
    /// Waldspurger et al., FAST 2015, section 3).
    pub fn of_whole(self, seen: [u64; 3], rate: f64) -> Outcome {
        let whole = |count: u64| (count as f64 / rate).round() as u64;
        let [reads, writes, _] = seen;
        let accesses = reads.saturating_add(writes);
        Outcome {
            accesses,
            reads,
            misses: whole(self.misses).min(accesses),
            read_misses: whole(self.read_misses).min(reads),
            host_reads: whole(self.host_reads),
            host_writes: whole(self.host_writes),
            host_write_groups: whole(self.host_write_groups),
            work: Work {
                reads: whole(self.work.reads),
                programs: whole(self.work.programs),
                erases: whole(self.work.erases),
            },
            device_time_us: self.device_time_us / rate,
        }
    }

    /// Returns the number of pages programmed per page written by the cache; 0 without writes.
    pub fn write_amplification(&self) -> f64 {
        ratio(self.work.programs, self.host_writes)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// A run in progress.
pub struct Run<'a> {
    policy: Box<dyn Replacement>,
    flash: Box<dyn Flash>,
    geometry: &'a Geometry,
    costs: Costs,
    weighs_costs: bool,
    introduced: PageId,
    evictions: Evictions,
    lpns: Vec<u32>,
    outcome: Outcome,
}

/// Runs `policy` over all `accesses`, writes the remaining dirty pages to `flash`, and returns the
/// result.
pub fn run(
    policy: Box<dyn Replacement>,
    flash: Box<dyn Flash>,
    accesses: &Accesses,
    geometry: &Geometry,
    costs: Costs,
) -> Outcome {
    let mut run = Run::new(policy, flash, geometry, costs);
    run.reserve(accesses.pages().len());
    for (page, kind) in accesses.iter() {
        match kind {
            Kind::Read => run.access(page, Access::Read),
            Kind::Write => run.access(page, Access::Write),
            Kind::Trim => run.trim(page),
        }
    }
    run.finish()
}

impl<'a> Run<'a> {
    /// Creates a run that has processed no access.
    pub fn new(
        policy: Box<dyn Replacement>,
        flash: Box<dyn Flash>,
        geometry: &'a Geometry,
        costs: Costs,
    ) -> Run<'a> {
        let weighs_costs = policy.weighs_costs();
        Run {
            policy,
            flash,
            geometry,
            costs,
            weighs_costs,
            introduced: 0,
            evictions: Evictions::new(),
            lpns: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// Reserves the policy's memory for pages with numbers below `pages`.
    pub fn reserve(&mut self, pages: usize) {
        self.policy.reserve(pages);
    }

    /// Processes an access to a page. Pages must be numbered in the order of their first access.
    pub fn access(&mut self, page: PageId, access: Access) {
        self.introduce(page);
        self.outcome.accesses += 1;
        let is_read = access == Access::Read;
        self.outcome.reads += u64::from(is_read);
        let found = self.policy.access(page, access, &mut self.evictions);
        if found == Found::Miss {
            self.outcome.misses += 1;
            if is_read {
                self.outcome.read_misses += 1;
                self.read(page);
            }
        }
        if !self.evictions.is_empty() {
            self.write_back();
        }
    }

    /// Processes a trim, which discards the content of a page.
    pub fn trim(&mut self, page: PageId) {
        self.introduce(page);
        self.policy.remove(page);
        let work = self.flash.trim(self.geometry.lpn(page));
        self.outcome.work += work;
    }

    fn introduce(&mut self, page: PageId) {
        while self.introduced <= page {
            let place = self.geometry.place(self.introduced);
            self.policy.introduce(self.introduced, place);
            self.introduced += 1;
        }
    }

    fn read(&mut self, page: PageId) {
        let work = self.flash.read(self.geometry.lpn(page));
        self.outcome.host_reads += 1;
        self.outcome.work += work;
        if self.weighs_costs {
            self.policy.cost(DeviceCost::Read {
                pages: 1,
                time_us: self.costs.time_us(work),
            });
        }
    }

    /// Writes the dirty pages among the evicted pages to the device.
    fn write_back(&mut self) {
        let mut evictions = std::mem::take(&mut self.evictions);
        for group in evictions.groups() {
            let dirty = group.pages.iter().filter(|leaving| leaving.write);
            let geometry = self.geometry;
            self.lpns.clear();
            self.lpns
                .extend(dirty.map(|leaving| geometry.lpn(leaving.page)));
            if group.padded {
                self.pad(&group);
            }
            self.write();
        }
        evictions.clear();
        self.evictions = evictions;
    }

    /// Prepares the write of a whole erase block: the pages of `group` and all other pages of their
    /// block. Reads from the device those pages of the block that are not in the cache.
    fn pad(&mut self, group: &Group<'_>) {
        let Some(first) = group.pages.first() else {
            return;
        };
        let pages_per_block = self.geometry.pages_per_block();
        let block = self.geometry.place(first.page).block;
        let here: Vec<u32> = (group.pages.iter())
            .map(|leaving| self.geometry.lpn(leaving.page))
            .collect();
        let all = block * pages_per_block..(block + 1) * pages_per_block;
        for lpn in all.clone().filter(|lpn| !here.contains(lpn)) {
            let page = self.geometry.page_at(lpn);
            if page.is_some_and(|page| page < self.introduced && self.policy.holds(page)) {
                continue;
            }
            let work = self.flash.read(lpn);
            self.outcome.host_reads += 1;
            self.outcome.work += work;
        }
        self.lpns.clear();
        self.lpns.extend(all);
    }

    /// Writes the collected pages to the device as one request.
    fn write(&mut self) {
        if self.lpns.is_empty() {
            return;
        }
        self.lpns.sort_unstable();
        let work = self.flash.write(&self.lpns);
        self.outcome.host_writes += self.lpns.len() as u64;
        self.outcome.host_write_groups += 1;
        self.outcome.work += work;
        if self.weighs_costs {
            self.policy.cost(DeviceCost::Flush {
                pages: self.lpns.len() as u32,
                time_us: self.costs.time_us(work),
            });
        }
    }

    /// Writes all dirty pages to the device, one request for each erase block, and returns the
    /// result of the run.
    pub fn finish(mut self) -> Outcome {
        let mut dirty = Vec::new();
        self.policy.dirty_pages(&mut dirty);
        let mut lpns: Vec<u32> = dirty.iter().map(|page| self.geometry.lpn(*page)).collect();
        lpns.sort_unstable();
        let pages_per_block = self.geometry.pages_per_block();
        for block in lpns.chunk_by(|a, b| a / pages_per_block == b / pages_per_block) {
            self.lpns.clear();
            self.lpns.extend(block);
            self.write();
        }
        self.outcome.device_time_us = self.costs.time_us(self.outcome.work);
        self.outcome
    }
}
