//! State of the cache: the policy, the pages, and the destage jobs for the device below. This
//! module does no I/O, and none of its calls waits.
//!
//! The policy and the pages are changed only in this module, and always together. The newest
//! content of a page must stay in memory until it is on the device, even if the policy has already
//! evicted the page.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bimetal_policy::replacement::{Access, DeviceCost, Evictions, Outcome, PageId, Replacement};
use bimetal_rt::Buf;
use bimetal_rt::turn::count_steps;

use super::table::Table;
use crate::error::IoError;

/// A destage job: the pages that one group of evictions, one cleaning of a cluster, or one retry of
/// failed pages writes to the device.
pub(super) struct Job {
    pub(super) number: u64,
    /// Pages in ascending order of their page numbers.
    pub(super) pages: Vec<PageId>,
}

/// Result of looking up a page.
pub(super) enum Found {
    /// The page is in memory, with this content.
    Content(Buf),
    /// Another request is reading the page from the device. The value is the number of the fill,
    /// which is the read of this page by that request.
    Filling(u64),
    /// The caller has to read the page from the device. The value is the number of the fill (a read
    /// of this page from the device).
    Missing(u64),
}

/// Counters since the cache was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheCounters {
    pub(super) read_hits: u64,
    pub(super) read_misses: u64,
    /// Pages read ahead of a request; they count neither as hits nor as misses.
    pub(super) ahead_pages: u64,
    pub(super) write_hits: u64,
    pub(super) write_misses: u64,
    pub(super) evicted_pages: u64,
    pub(super) destaged_pages: u64,
    pub(super) destage_writes: u64,
    pub(super) replaced_pages: u64,
    pub(super) errors: u64,
}

/// Pages written to the device since its last successful flush.
#[derive(Default)]
struct Unflushed {
    /// Current flush epoch; each flush begins a new epoch.
    epoch: u64,
    /// Written pages in the order of writing, as (epoch, id, page). Outdated entries are skipped.
    pages: VecDeque<(u64, PageId, u64)>,
    /// Number of pages in memory that no flush has covered since they were written to the device.
    held_pages: usize,
    /// Newest flush epoch among the unflushed pages that have been dropped from memory;
    /// `gone_pages` is the number of these pages.
    gone_in: u64,
    gone_pages: usize,
}

impl Unflushed {
    /// Removes and returns the oldest entry, if it belongs to `epoch` or an earlier epoch.
    fn pop_up_to(&mut self, epoch: u64) -> Option<(u64, PageId, u64)> {
        self.pages
            .pop_front_if(|(written_in, _, _)| *written_in <= epoch)
    }

    fn forget_what_is_gone(&mut self) {
        self.gone_in = 0;
        self.gone_pages = 0;
    }
}

/// State of a cache; see the module.
pub(super) struct CacheState {
    policy: Box<dyn Replacement>,
    pub(super) table: Table,
    pages_per_block: u64,
    evictions: Evictions,
    jobs: VecDeque<Job>,
    next_job: u64,
    /// Number of unfinished parts of each job, by job number.
    outstanding: BTreeMap<u64, usize>,
    /// Number of the last fill. A fill is the read of one page from the device; fills are numbered
    /// from 1.
    fills: u64,
    /// Pages in the order in which they became dirty, as (time, id, page). Outdated entries are
    /// skipped.
    dirty: VecDeque<(u64, PageId, u64)>,
    /// Number of pages that have a version to be destaged.
    leaving_pages: usize,
    /// Pages that have to be written again because a write or a flush failed; `error` is the most
    /// recent reason.
    failed: BTreeSet<PageId>,
    /// Number of the job that retries the failed pages.
    retry: u64,
    pub(super) error: IoError,
    unflushed: Unflushed,
    /// Set when a flush has failed and pages that the flush should have made durable are no longer
    /// in memory, so that the cache cannot write them again. While this error is set, every flush
    /// fails with it.
    pub(super) lost: Option<IoError>,
    pub(super) counts: CacheCounters,
}

impl CacheState {
    /// Creates the state of an empty cache.
    pub(super) fn new(policy: Box<dyn Replacement>, pages_per_block: u32) -> CacheState {
        CacheState {
            policy,
            table: Table::new(pages_per_block),
            pages_per_block: u64::from(pages_per_block),
            evictions: Evictions::new(),
            jobs: VecDeque::new(),
            next_job: 1,
            outstanding: BTreeMap::new(),
            fills: 0,
            dirty: VecDeque::new(),
            leaving_pages: 0,
            failed: BTreeSet::new(),
            retry: 0,
            error: IoError::Medium,
            unflushed: Unflushed {
                epoch: 1,
                ..Unflushed::default()
            },
            lost: None,
            counts: CacheCounters::default(),
        }
    }

    /// Looks up a page for a read.
    pub(super) fn read(&mut self, page: u64) -> Found {
        let (outcome, found) = self.access(page);
        match outcome {
            Outcome::Hit => self.counts.read_hits += 1,
            Outcome::Miss => self.counts.read_misses += 1,
        }
        found
    }

    /// Looks up a page for read-ahead. Returns the number of a new fill (the read of one page from
    /// the device) that the caller has to execute, or `None` if the page is in memory or being
    /// read. For the policy, the lookup is an access like any other (as in the kernel), so the
    /// later read of the page is its second access.
    pub(super) fn read_ahead(&mut self, page: u64) -> Option<u64> {
        if self.is_here(page) {
            return None;
        }
        match self.access(page).1 {
            Found::Missing(fill) => {
                self.counts.ahead_pages += 1;
                Some(fill)
            }
            Found::Content(_) | Found::Filling(_) => None,
        }
    }

    /// Returns true for a page that is in memory or being read.
    pub(super) fn is_here(&self, page: u64) -> bool {
        self.peek(page).is_some() || self.is_filling(page)
    }

    fn access(&mut self, page: u64) -> (Outcome, Found) {
        let id = self.table.intern(page, &mut *self.policy);
        let outcome = self.policy.access(id, Access::Read, &mut self.evictions);
        self.let_go();
        let slot = &mut self.table[id];
        if slot.content.is_none() {
            // A page that is being destaged is still found.
            slot.content = slot.leaving.clone();
        }
        let found = match (&slot.content, slot.filling) {
            (Some(content), _) => Found::Content(content.clone()),
            (None, Some(fill)) => Found::Filling(fill),
            (None, None) => {
                self.fills += 1;
                slot.filling = Some(self.fills);
                Found::Missing(self.fills)
            }
        };
        (outcome, found)
    }

    /// Returns the newest content of a page if it is in memory. The policy is not informed of the
    /// lookup.
    pub(super) fn peek(&self, page: u64) -> Option<&Buf> {
        self.table[self.table.find(page)?].newest()
    }

    /// Returns true while a request is reading the page from the device.
    fn is_filling(&self, page: u64) -> bool {
        let id = self.table.find(page);
        id.is_some_and(|id| self.table[id].filling.is_some())
    }

    /// Returns true while the fill with the number `fill` is reading the page from the device. A
    /// fill is the read of one page.
    pub(super) fn is_filled_by(&self, page: u64, fill: u64) -> bool {
        let id = self.table.find(page);
        id.is_some_and(|id| self.table[id].filling == Some(fill))
    }

    /// Ends the fill of a page; `content` is `None` if the read failed. Keeps the content if the
    /// policy still holds the page and no write has replaced the content meanwhile.
    pub(super) fn filled(&mut self, page: u64, fill: u64, content: Option<Buf>) {
        let Some(id) = self.table.find(page) else {
            return;
        };
        let holds = self.policy.holds(id);
        let slot = &mut self.table[id];
        if slot.filling != Some(fill) {
            return;
        }
        slot.filling = None;
        if holds && slot.content.is_none() {
            match content {
                Some(content) => slot.content = Some(content),
                // The policy must hold only pages with content.
                None => self.policy.remove(id),
            }
        }
    }

    /// Stores new content of a page. `dirty` is true if the device does not have this content yet.
    pub(super) fn write(&mut self, page: u64, content: Buf, dirty: bool, now_ns: u64) {
        let id = self.table.intern(page, &mut *self.policy);
        match self.policy.access(id, Access::Write, &mut self.evictions) {
            Outcome::Hit => self.counts.write_hits += 1,
            Outcome::Miss => self.counts.write_misses += 1,
        }
        self.let_go();
        if !dirty || self.table[id].failed {
            // An older version need not be written any more.
            self.withdraw(id);
        }
        let slot = &mut self.table[id];
        slot.content = Some(content);
        slot.version = slot.version.wrapping_add(1);
        slot.filling = None;
        if !dirty {
            slot.dirty_since_ns = None;
            self.policy.cleaned(id);
            self.note_written(id);
        } else if slot.dirty_since_ns.is_none() {
            slot.dirty_since_ns = Some(now_ns);
            self.dirty.push_back((now_ns, id, page));
            self.sweep_dirty();
        }
    }

    /// Removes outdated entries of the dirty list if the list has more than 64 entries plus two
    /// entries for each dirty page. So the length of the list is limited.
    fn sweep_dirty(&mut self) {
        if self.dirty.len() > 64 + 2 * self.policy.occupancy().dirty {
            let mut dirty = std::mem::take(&mut self.dirty);
            dirty.retain(|entry| self.is_dirty_since(entry));
            self.dirty = dirty;
        }
    }

    fn is_dirty_since(&self, (since_ns, id, page): &(u64, PageId, u64)) -> bool {
        let slot = &self.table[*id];
        slot.page == *page && slot.dirty_since_ns == Some(*since_ns)
    }

    /// Carries out the evictions that the policy has decided.
    fn let_go(&mut self) {
        if self.evictions.is_empty() {
            return;
        }
        let evictions = std::mem::take(&mut self.evictions);
        for group in evictions.groups() {
            let mut pages = Vec::new();
            for leaving in group.pages {
                if leaving.write {
                    self.hand_out(leaving.page);
                    pages.push(leaving.page);
                }
                if !leaving.stays {
                    self.counts.evicted_pages += 1;
                    self.drop_content(leaving.page);
                }
            }
            self.begin_job(pages);
        }
        self.evictions = evictions;
        self.evictions.clear();
    }

    /// Makes the current content of a dirty page the version to be destaged. If an older version is
    /// still waiting to be written, the new version replaces it.
    fn hand_out(&mut self, id: PageId) {
        let slot = &mut self.table[id];
        let content = slot.content.clone();
        let content = content.expect("a dirty page has content");
        slot.dirty_since_ns = None;
        slot.leaving_version = slot.version;
        if slot.leaving.replace(content).is_some() {
            self.counts.replaced_pages += 1;
        } else {
            self.leaving_pages += 1;
        }
    }

    fn drop_content(&mut self, id: PageId) {
        let slot = &mut self.table[id];
        slot.content = None;
        if slot.leaving.is_none() && slot.unflushed_in > 0 {
            self.unflushed.gone_in = self.unflushed.gone_in.max(slot.unflushed_in);
            self.unflushed.gone_pages += 1;
            self.forget_unflushed(id);
        }
    }

    fn forget_unflushed(&mut self, id: PageId) {
        if std::mem::take(&mut self.table[id].unflushed_in) > 0 {
            self.unflushed.held_pages -= 1;
        }
    }

    /// Queues a job that destages `pages`. Returns the number of the job, or 0 if `pages` is empty.
    fn begin_job(&mut self, mut pages: Vec<PageId>) -> u64 {
        if pages.is_empty() {
            return 0;
        }
        pages.sort_unstable_by_key(|id| self.table[*id].page);
        pages.dedup();
        let number = self.next_job;
        self.next_job += 1;
        self.outstanding.insert(number, 1);
        self.jobs.push_back(Job { number, pages });
        number
    }

    /// Returns true if a job waits to be executed.
    pub(super) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Removes the oldest waiting job from the queue and returns it.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        self.jobs.pop_front()
    }

    /// Adds `parts` to the unfinished parts of a job.
    pub(super) fn split(&mut self, job: u64, parts: usize) {
        *self.outstanding.get_mut(&job).expect("it has not ended") += parts;
    }

    /// Records that a part of a job has ended, successfully or not. Returns the lowest number of an
    /// unfinished job, or the number of the next job if none is unfinished.
    pub(super) fn part_ended(&mut self, job: u64) -> u64 {
        let parts = self.outstanding.get_mut(&job).expect("it has not ended");
        *parts -= 1;
        if *parts == 0 {
            self.outstanding.remove(&job);
        }
        let first = self.outstanding.keys().next();
        first.copied().unwrap_or(self.next_job)
    }

    /// Returns true if all jobs below this number have ended.
    pub(super) fn ended_below(&self, number: u64) -> bool {
        let first = self.outstanding.keys().next();
        first.is_none_or(|first| *first >= number)
    }

    fn clean(&mut self, id: PageId) {
        self.hand_out(id);
        self.policy.cleaned(id);
    }

    /// Starts destaging all dirty pages, and retries failed pages. All of these pages have been
    /// written, or have failed, when all jobs with numbers below the returned number have ended.
    pub(super) fn clean_all(&mut self) -> u64 {
        while self.clean_oldest(u64::MAX) {}
        self.retry_failed();
        self.next_job
    }

    /// Starts destaging the oldest dirty page, together with the other dirty pages of its cluster,
    /// if that page became dirty at `until_ns` or earlier. Returns false if there is no such page.
    pub(super) fn clean_oldest(&mut self, until_ns: u64) -> bool {
        loop {
            let Some(oldest) = self.dirty.front().copied() else {
                return false;
            };
            if !self.is_dirty_since(&oldest) {
                self.dirty.pop_front();
                continue;
            }
            let (since_ns, _, page) = oldest;
            if since_ns > until_ns {
                return false;
            }
            self.clean_cluster(page);
            return true;
        }
    }

    fn clean_cluster(&mut self, page: u64) {
        let first = page - page % self.pages_per_block;
        let mut pages = Vec::new();
        for page in first..first + self.pages_per_block {
            let dirty = self.table.find(page).filter(|id| self.policy.is_dirty(*id));
            if let Some(id) = dirty {
                self.clean(id);
                pages.push(id);
            }
        }
        self.begin_job(pages);
    }

    /// Records that a version of a page is on the device. The page then no longer has a version to
    /// be destaged, unless a newer version has replaced the written one.
    pub(super) fn written(&mut self, id: PageId, version: u32) {
        self.counts.destaged_pages += 1;
        self.note_written(id);
        let slot = &mut self.table[id];
        if slot.leaving.is_some() && slot.leaving_version == version {
            slot.leaving = None;
            slot.failed = false;
            self.leaving_pages -= 1;
            self.failed.remove(&id);
            let held = slot.content.is_some();
            if !held {
                self.drop_content(id);
            }
        }
    }

    /// Records that a page was written to the device and is not yet covered by a flush.
    fn note_written(&mut self, id: PageId) {
        let (epoch, slot) = (self.unflushed.epoch, &mut self.table[id]);
        if slot.unflushed_in == epoch {
            return;
        }
        self.unflushed.held_pages += usize::from(slot.unflushed_in == 0);
        slot.unflushed_in = epoch;
        self.unflushed.pages.push_back((epoch, id, slot.page));
        // If no flush occurs, the entries of pages that were written and then dropped stay in the
        // list. They are removed here, so that the length of the list is limited.
        if self.unflushed.pages.len() > 64 + 2 * self.unflushed.held_pages {
            let mut pages = std::mem::take(&mut self.unflushed.pages);
            pages.retain(|entry| self.is_unflushed_in(entry));
            self.unflushed.pages = pages;
        }
    }

    fn is_unflushed_in(&self, (written_in, id, page): &(u64, PageId, u64)) -> bool {
        let slot = &self.table[*id];
        slot.page == *page && slot.unflushed_in == *written_in
    }

    /// Records that a version of a page could not be written.
    pub(super) fn not_written(&mut self, id: PageId, version: u32, error: IoError) {
        self.counts.errors += 1;
        self.error = error;
        let slot = &mut self.table[id];
        if slot.leaving.is_some() && slot.leaving_version == version {
            slot.failed = true;
            self.failed.insert(id);
        }
    }

    fn withdraw(&mut self, id: PageId) {
        let slot = &mut self.table[id];
        slot.failed = false;
        if slot.leaving.take().is_some() {
            self.leaving_pages -= 1;
            self.failed.remove(&id);
        }
    }

    /// Records that the device's content of a page is unknown. If the cache has the page in memory,
    /// the page is queued to be written again.
    pub(super) fn unsettled(&mut self, page: u64) {
        if let Some(id) = self.table.find(page) {
            self.write_again(id);
        }
    }

    fn write_again(&mut self, id: PageId) {
        let slot = &mut self.table[id];
        // If the page is dirty or being destaged, it will be written anyway. Otherwise, queue its
        // content to be written again.
        if slot.dirty_since_ns.is_none()
            && slot.leaving.is_none()
            && let Some(content) = slot.content.clone()
        {
            slot.leaving = Some(content);
            slot.leaving_version = slot.version;
            slot.failed = true;
            self.leaving_pages += 1;
            self.failed.insert(id);
        }
    }

    /// Queues a job that writes the failed pages again. Does nothing if the previous job of this
    /// kind is still queued or running.
    pub(super) fn retry_failed(&mut self) {
        // Only one job at a time writes the failed pages again. Otherwise a device that hangs would
        // receive the same writes repeatedly.
        if !self.outstanding.contains_key(&self.retry) {
            let pages = self.failed.iter().copied().collect();
            self.retry = self.begin_job(pages);
        }
    }

    /// Returns true while a page waits to be written again after a failure.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Drops a page whose content was discarded or zeroed on the device.
    pub(super) fn remove(&mut self, page: u64) {
        let Some(id) = self.table.find(page) else {
            return;
        };
        self.policy.remove(id);
        let slot = &mut self.table[id];
        slot.version = slot.version.wrapping_add(1);
        slot.content = None;
        slot.filling = None;
        slot.dirty_since_ns = None;
        self.forget_unflushed(id);
        self.withdraw(id);
    }

    /// Begins a new flush epoch, and returns the last epoch that the next flush of the device
    /// covers. The flush does not cover writes of the new epoch.
    pub(super) fn begin_flush(&mut self) -> u64 {
        self.unflushed.epoch += 1;
        self.unflushed.epoch - 1
    }

    /// Records that a flush of the device succeeded. All writes of the flush epoch `epoch` and of
    /// earlier epochs are durable.
    pub(super) fn flushed(&mut self, epoch: u64) {
        while let Some(entry) = self.unflushed.pop_up_to(epoch) {
            if self.is_unflushed_in(&entry) {
                self.forget_unflushed(entry.1);
            }
        }
        if self.unflushed.gone_in <= epoch {
            self.unflushed.forget_what_is_gone();
        }
    }

    /// Records that a flush of the device failed. It is then unknown whether writes of the flush
    /// epoch `epoch` and of earlier epochs are durable. Pages that are still in memory are queued
    /// to be written again. Pages that are no longer in memory are lost.
    pub(super) fn not_flushed(&mut self, epoch: u64, error: IoError) {
        self.error = error;
        if self.unflushed.gone_in > 0 {
            self.lost = Some(error);
            self.unflushed.forget_what_is_gone();
        }
        while let Some(entry) = self.unflushed.pop_up_to(epoch) {
            if self.is_unflushed_in(&entry) {
                self.forget_unflushed(entry.1);
                self.write_again(entry.1);
            }
        }
    }

    /// Reports the cost of a device operation to the policy.
    pub(super) fn cost(&mut self, cost: DeviceCost) {
        if self.policy.weighs_costs() {
            self.policy.cost(cost);
        }
    }

    /// Returns the number of unwritten pages: pages that are dirty or have a version to be
    /// destaged.
    pub(super) fn unwritten_pages(&self) -> usize {
        self.policy.occupancy().dirty + self.leaving_pages
    }

    /// Returns the number of pages that have a version to be destaged.
    pub(super) fn leaving_pages(&self) -> usize {
        self.leaving_pages
    }

    /// Returns the number of pages that wait to be written again after a failure.
    pub(super) fn failed_pages(&self) -> usize {
        self.failed.len()
    }

    /// Returns the number of pages on the device that no flush has covered. A page that was written
    /// and dropped from memory twice is counted twice.
    pub(super) fn unflushed_pages(&self) -> usize {
        self.unflushed.held_pages + self.unflushed.gone_pages
    }

    /// Returns how many pages the policy holds, and the target size of its write buffer.
    pub(super) fn occupancy(&self) -> bimetal_policy::replacement::Occupancy {
        self.policy.occupancy()
    }

    /// Returns the pages of a range that are dirty or being destaged, in order.
    pub(super) fn unwritten_in(&self, pages: Range<u64>) -> Vec<u64> {
        if self.unwritten_pages() == 0 {
            return Vec::new();
        }
        count_steps(pages.end - pages.start);
        let is_unwritten = |page: &u64| {
            let id = self.table.find(*page);
            id.is_some_and(|id| self.policy.is_dirty(id) || self.table[id].leaving.is_some())
        };
        pages.filter(is_unwritten).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use bimetal_policy::replacement::{Build, Spec};
    use bimetal_rt::BufPool;

    use super::*;

    /// Capacity in pages of the caches of these tests.
    const PAGES: usize = 32;

    fn state() -> CacheState {
        let spec = Spec::from_str("lru").expect("it exists");
        let build = Build {
            capacity: PAGES,
            pages_per_block: 4,
            ..Build::default()
        };
        CacheState::new(spec.build(&build), 4)
    }

    fn content() -> Buf {
        BufPool::unregistered().zeroed(1)
    }

    /// Executes all waiting jobs; if `works` is false, each write fails.
    fn write_what_leaves(state: &mut CacheState, works: bool) {
        while let Some(job) = state.next_job() {
            for id in job.pages {
                let version = state.table[id].leaving_version;
                if works {
                    state.written(id, version);
                } else {
                    state.not_written(id, version, IoError::Medium);
                }
            }
            state.part_ended(job.number);
        }
    }

    /// A page that was dropped from memory needs no entry in the list of unflushed pages: after a
    /// failed flush, the cache cannot write the page again, and only reports that some data is
    /// lost. So the list has at most one entry for each page in memory, plus some outdated entries.
    #[test]
    fn what_no_flush_has_covered_is_remembered_in_bounded_space() {
        let written: u64 = 10_000;
        for dirty in [false, true] {
            let mut state = state();
            for page in 0..written {
                state.write(page, content(), dirty, page);
                write_what_leaves(&mut state, true);
                assert!(state.unflushed.pages.len() <= 64 + 2 * PAGES + 1);
            }
            state.clean_all();
            write_what_leaves(&mut state, true);
            assert_eq!(state.unflushed_pages() as u64, written, "none is forgotten");
            let covers = state.begin_flush();
            state.not_flushed(covers, IoError::Offline);
            assert_eq!(state.lost, Some(IoError::Offline));
            assert_eq!(state.failed_pages(), PAGES, "what is held is written again");
            assert_eq!(state.unflushed_pages(), 0);
        }
    }

    #[test]
    fn a_page_that_is_written_again_and_again_is_remembered_once() {
        let mut state = state();
        for round in 0..1000 {
            state.write(7, content(), false, round);
        }
        assert_eq!(state.unflushed.pages.len(), 1);
        // The page is written in each of many epochs before a flush of the device ends.
        for _ in 0..1000 {
            state.begin_flush();
            state.write(7, content(), false, 0);
        }
        assert!(state.unflushed.pages.len() <= 64 + 2 + 1);
        assert_eq!(state.unflushed_pages(), 1);
    }

    /// Failed pages are retried only when the last attempt has ended, whether the timer (each
    /// second) or a flush requests the retry.
    #[test]
    fn there_is_one_attempt_at_a_time_to_write_what_has_failed() {
        let mut state = state();
        for page in 0..8 {
            state.write(page, content(), true, 0);
        }
        state.clean_all();
        write_what_leaves(&mut state, false);
        assert_eq!((state.failed_pages(), state.outstanding.len()), (8, 0));
        for _ in 0..100 {
            state.retry_failed();
            state.clean_all();
        }
        assert_eq!((state.jobs.len(), state.outstanding.len()), (1, 1));
        // The job leaves the queue but does not end, as when the device has accepted the writes but
        // not completed them. Until the job has ended, no further retry is queued.
        let hangs = state.next_job().expect("there is one");
        assert_eq!(hangs.pages.len(), 8);
        for _ in 0..100 {
            state.retry_failed();
            state.clean_all();
        }
        assert_eq!((state.jobs.len(), state.outstanding.len()), (0, 1));
        state.part_ended(hangs.number);
        state.retry_failed();
        write_what_leaves(&mut state, true);
        assert!(!state.has_failed(), "the next attempt wrote all of it");
    }
}
