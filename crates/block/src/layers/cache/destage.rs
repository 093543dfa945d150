//! The destager: writes dirty pages to the device below, both pages that the policy evicts and
//! pages that stay in memory. Adjacent pages are written together, several writes are in flight at
//! a time, and failed writes are retried.
//!
//! Every write to the device, whatever its origin, holds the lock of its range (`below_lock`). The
//! version of a page to write is selected under that lock, so an older version of a page never
//! replaces a newer version on the device.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::replacement::{DeviceCost, PageId};
use bimetal_rt::Payload;
use bimetal_rt::sync::Permit;

use super::Shared;
use super::state::Job;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::{Flags, Request};

/// Interval after which failed writes are retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum size of one write of adjacent pages.
const WRITE_BYTES_MAX: u64 = 1 << 20;

/// Adjacent pages that are written in one operation.
struct Run {
    first_page: u64,
    data: Payload,
    /// The pages of the run, each with the version that is being written.
    pages: Vec<(PageId, u32)>,
}

impl Shared {
    /// Executes destage jobs forever: splits each job into parts of adjacent pages and starts a
    /// write of each part.
    pub(super) async fn destage_for_ever(self: Rc<Self>) {
        loop {
            let next = || self.state.borrow_mut().next_job();
            let job = self.waits.jobs.until_some(next).await;
            let parts = self.parts_of(&job);
            self.state.borrow_mut().split(job.number, parts.len());
            for part in parts {
                let permit = self.depth.acquire(1).await;
                let (shared, number) = (Rc::clone(&self), job.number);
                self.tasks.spawn(async move {
                    shared.write_part(part).await;
                    drop(permit);
                    shared.part_ended(number);
                });
            }
            self.part_ended(job.number);
        }
    }

    fn part_ended(&self, job: u64) {
        let first = self.state.borrow_mut().part_ended(job);
        self.waits.ended.wake_through(first);
    }

    /// Splits a job into ranges of adjacent pages.
    fn parts_of(&self, job: &Job) -> Vec<Range<u64>> {
        let state = self.state.borrow();
        let pages_max = self.run_pages_max();
        let mut parts: Vec<Range<u64>> = Vec::new();
        for &id in &job.pages {
            let page = state.table[id].page;
            match parts.last_mut() {
                Some(last) if last.end == page && last.end - last.start < pages_max => {
                    last.end += 1;
                }
                _ => parts.push(page..page + 1),
            }
        }
        parts
    }

    fn run_pages_max(&self) -> u64 {
        let most = u64::from(self.below.geometry().transfer_bytes_max);
        (most.min(WRITE_BYTES_MAX) / BLOCK_BYTES).max(1)
    }

    /// Writes the pages in the range `pages`, except pages that no longer have a version to be
    /// destaged.
    async fn write_part(self: &Rc<Self>, pages: Range<u64>) {
        let bytes = pages.start * BLOCK_BYTES..pages.end * BLOCK_BYTES;
        let _in_turn = self.below_lock.lock(bytes).await;
        for run in self.runs_of(pages) {
            self.write_run(run).await;
        }
    }

    fn runs_of(&self, pages: Range<u64>) -> Vec<Run> {
        let state = self.state.borrow();
        let mut runs: Vec<Run> = Vec::new();
        for page in pages {
            let Some(id) = state.table.find(page) else {
                continue;
            };
            let slot = &state.table[id];
            let Some(content) = &slot.leaving else {
                continue;
            };
            let follows = |run: &Run| run.first_page + run.pages.len() as u64 == page;
            if !runs.last().is_some_and(follows) {
                runs.push(Run {
                    first_page: page,
                    data: Payload::empty(),
                    pages: Vec::new(),
                });
            }
            let run = runs.last_mut().expect("one was pushed");
            run.data.push(content.clone());
            run.pages.push((id, slot.leaving_version));
        }
        runs
    }

    async fn write_run(&self, run: Run) {
        let count = run.pages.len() as u32;
        let began = self.rt.now();
        let request = Request::write(run.first_page * BLOCK_BYTES, run.data, Flags::NONE);
        let result = self.below.submit(request).await;
        let mut state = self.state.borrow_mut();
        state.counts.destage_writes += 1;
        match result {
            Ok(_) => {
                state.cost(DeviceCost::Flush {
                    pages: count,
                    time_us: self.rt.now().ns_since(began) as f64 / 1e3,
                });
                for (id, version) in run.pages {
                    state.written(id, version);
                }
            }
            Err(error) => {
                for (id, version) in run.pages {
                    state.not_written(id, version, error);
                }
            }
        }
        drop(state);
        self.waits.room_changed();
    }

    /// Runs forever. At regular intervals, starts destaging the pages that have been dirty for too
    /// long, and queues retries of failed pages.
    pub(super) async fn look_after_dirty_pages(self: Rc<Self>) {
        let look_every = (self.dirty_age / 8).clamp(Duration::from_millis(10), RETRY_AFTER);
        let mut retry_at = self.rt.now() + RETRY_AFTER;
        loop {
            self.rt.sleep(look_every).await;
            let now = self.rt.now();
            let mut state = self.state.borrow_mut();
            let age_ns = self.dirty_age.as_nanos() as u64;
            if let Some(until_ns) = now.as_ns().checked_sub(age_ns) {
                while state.clean_oldest(until_ns) {}
            }
            if now >= retry_at {
                retry_at = now + RETRY_AFTER;
                state.retry_failed();
            }
            drop(state);
            self.wake_destaging();
        }
    }

    /// Starts destaging the oldest dirty pages while more than 7/8 of the maximum number of pages
    /// are dirty.
    pub(super) fn keep_dirty_low(&self) {
        self.clean_down_to(self.dirty_pages_max / 8 * 7);
        self.wake_destaging();
    }

    /// Starts destaging the oldest dirty pages until at most `pages` pages are dirty, not counting
    /// pages that are already being destaged. Returns true if it has started to destage any page.
    fn clean_down_to(&self, pages: usize) -> bool {
        let (mut state, mut any) = (self.state.borrow_mut(), false);
        while state.unwritten_pages() - state.leaving_pages() > pages
            && state.clean_oldest(u64::MAX)
        {
            any = true;
        }
        any
    }

    /// Wakes the destager after an access that might have evicted pages.
    pub(super) fn wake_destaging(&self) {
        if self.state.borrow().has_jobs() {
            self.waits.jobs.notify();
        }
    }

    /// Waits, in order of arrival, until the limit on unwritten pages permits `pages` more
    /// unwritten pages. The caller holds the returned permit until it has stored its pages. When
    /// the permit is dropped, the next write checks the limit.
    ///
    /// # Errors
    /// If pages cannot be written, the reason of the failure.
    pub(super) async fn until_there_is_room(&self, pages: usize) -> Result<Permit, IoError> {
        let turn = self.waits.write_turn.acquire(1).await;
        loop {
            let room = || {
                let room = self.room_for(pages);
                if room.is_none() && self.clean_down_to(self.dirty_pages_max.saturating_sub(pages))
                {
                    self.wake_destaging();
                }
                room
            };
            self.waits.room.until_some(room).await?;
            self.until_unchoked().await?;
            // A flush that failed during the wait might have made pages unwritten again. So the
            // limit on unwritten pages is checked again.
            if let Some(room) = self.room_for(pages) {
                return room.map(|()| turn);
            }
        }
    }

    /// Returns `Ok` if there is room for `pages` more unwritten pages, an error if failed writes
    /// prevent it, and `None` if the caller has to wait.
    fn room_for(&self, pages: usize) -> Option<Result<(), IoError>> {
        let state = self.state.borrow();
        if state.unwritten_pages() + pages <= self.dirty_pages_max || state.unwritten_pages() == 0 {
            return Some(Ok(()));
        }
        state.has_failed().then_some(Err(state.error))
    }
}
