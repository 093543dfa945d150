//! The policy of when dirty pages are written out, and by which task: the writer, the flusher, or
//! the timer.
//!
//! Tasks that dirty pages and tasks that write them out call a [`WriteBack`], which knows the
//! number of pages but not which pages. A writer is allowed to continue until a given share of
//! memory is dirty, and must then write pages out itself. A page cache with this policy is as fast
//! as memory in bursts and as fast as the device in the long run. The policy must never do I/O or
//! read a clock. It must never let a writer continue if the writer is over its limit and has not
//! written out its chunk.
//!
//! Source: `mm/page-writeback.c` of Linux 2.6.27 (`get_dirty_limits`, `balance_dirty_pages`,
//! `background_writeout`, `wb_kupdate`), with a single device, which gets the whole limit. The
//! rules are in `docs/lab.md`.

use std::collections::BTreeMap;

const MS_NS: u64 = 1_000_000;

/// The way in which a page that a program has written reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Write-back: the page stays dirty until the policy decides to write it out.
    Back,
    /// Write-through: the write completes when the page and the metadata that changed with the page
    /// are on the device (`O_SYNC`, `mount -o sync`).
    Through,
}

/// Parameters of the policy. [`WriteBackParameters::for_memory`] returns those of Linux 2.6.26.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBackParameters {
    /// Percentage of the available pages that can be dirty before the flusher writes pages out.
    pub background_percent: u64,
    /// Percentage of the available pages that can be dirty before writers must write pages out
    /// themselves; at least 5.
    pub dirty_percent: u64,
    /// Maximum number of pages that a writer dirties between two checks of its limit.
    pub check_pages: u64,
    /// Interval of the timer's flushes, in ns.
    pub interval_ns: u64,
    /// Age in ns of a file's dirty data from which the timer writes the file out.
    pub expire_ns: u64,
    /// Number of pages that a flusher writes out in one pass.
    pub pass_pages: u64,
}

impl WriteBackParameters {
    /// Returns the defaults for a machine with `pages` pages and `processors` processors: 5 %
    /// (background) and 10 % (dirty), a timer every 5 s with an expiry age of 30 s, 1024 pages in a
    /// pass, and a check every pages / (32 x processors) pages, at least 16 and at most 1024 (4
    /// MiB).
    pub fn for_memory(pages: u64, processors: u64) -> WriteBackParameters {
        WriteBackParameters {
            background_percent: 5,
            dirty_percent: 10,
            check_pages: (pages / (32 * processors.max(1))).clamp(16, 1024),
            interval_ns: 5_000 * MS_NS,
            expire_ns: 30_000 * MS_NS,
            pass_pages: 1024,
        }
    }

    /// Returns the number of pages that a writer over its limit must write out itself.
    fn chunk_pages(&self) -> u64 {
        self.check_pages + self.check_pages / 2
    }
}

/// The current number of pages in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages that are free or in the page cache.
    pub available: u64,
    /// Pages that are dirty and not being written.
    pub dirty: u64,
    /// Pages that are being written to the device.
    pub under_way: u64,
}

/// Limits in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of pages above which the flusher works.
    pub background: u64,
    /// Number of dirty pages above which writers must write pages out themselves.
    pub dirty: u64,
}

/// Progress of a writer that is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Number of pages that the writer has written out itself.
    pub written_pages: u64,
    told_to_write: bool,
}

/// The next step of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The writer continues. The flusher must be woken if the flusher has work.
    Go {
        /// True when the flusher has work.
        wake_flusher: bool,
    },
    /// The writer starts the writes of the given number of dirty pages. It then requests its next
    /// step, without waiting until these writes have completed.
    Write {
        /// Number of pages to write.
        pages: u64,
    },
    /// The writer waits until the device accepts more requests, but at most the given time, and
    /// then requests its next step.
    Wait {
        /// Maximum time to wait, in ns.
        ns: u64,
    },
}

/// The write-back policy; see the module.
#[derive(Clone, Debug)]
pub struct WriteBack {
    parameters: WriteBackParameters,
    /// Set when a writer is found over its limit, and cleared when a writer is found within its
    /// limit. While it is set, all writers are checked more often.
    exceeded: bool,
    /// For each task, two counts of the pages that it dirtied: `unchecked` counts them since the
    /// last check of the task; `of_late` counts the recent ones, and is halved with time.
    tasks: BTreeMap<u32, Dirtied>,
    /// Number of pages that all tasks have dirtied recently; old counts are halved with time.
    of_late: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Dirtied {
    unchecked: u64,
    of_late: u64,
}

/// Maximum number of pages between two checks of a writer while any writer is over its limit.
const EXCEEDED_CHECK_PAGES: u64 = 8;

/// Maximum time that a writer waits for a congested device.
const CONGESTION_WAIT_NS: u64 = 100 * MS_NS;

impl WriteBack {
    /// Creates the policy without any writers.
    pub fn new(parameters: WriteBackParameters) -> WriteBack {
        WriteBack {
            parameters,
            exceeded: false,
            tasks: BTreeMap::new(),
            of_late: 0,
        }
    }

    /// Records that a task has dirtied `pages` more pages. Returns true if the caller must now
    /// check the task with [`next_step`](Self::next_step).
    pub fn dirtied(&mut self, task: u32, pages: u64, now: &Pages) -> bool {
        let every = match self.exceeded {
            true => EXCEEDED_CHECK_PAGES.min(self.parameters.check_pages),
            false => self.parameters.check_pages,
        };
        let of = self.tasks.entry(task).or_default();
        of.unchecked += pages;
        of.of_late += pages;
        let is_due = of.unchecked >= every;
        if is_due {
            of.unchecked = 0;
        }
        self.of_late += pages;
        if self.of_late > self.limits(now).dirty.max(1) {
            self.forget_half();
        }
        is_due
    }

    /// Halves the recent counts of all tasks, so that older activity has less weight.
    fn forget_half(&mut self) {
        for of in self.tasks.values_mut() {
            of.of_late /= 2;
        }
        self.tasks
            .retain(|_, of| of.of_late > 0 || of.unchecked > 0);
        self.of_late /= 2;
    }

    /// Returns the limits on dirty pages for the current number of available pages.
    pub fn limits(&self, pages: &Pages) -> Limits {
        let dirty_percent = self.parameters.dirty_percent.clamp(5, 100);
        let background_percent = match self.parameters.background_percent {
            smaller if smaller < dirty_percent => smaller,
            _ => dirty_percent / 2,
        };
        Limits {
            background: pages.available * background_percent / 100,
            dirty: pages.available * dirty_percent / 100,
        }
    }

    /// Returns the limit of one task in dirty pages, given the global limit `dirty`. The limit of a
    /// task is below `dirty` by the product of two numbers: an eighth of `dirty`, and the task's
    /// share of the recently dirtied pages. It is at least half of `dirty`.
    fn limit_of(&self, task: u32, dirty: u64) -> u64 {
        let of_late = self.tasks.get(&task).map_or(0, |of| of.of_late);
        let lower = match self.of_late {
            0 => 0,
            all => dirty / 8 * of_late.min(all) / all,
        };
        (dirty - lower).max(dirty / 2)
    }

    /// Returns the next step of a writer whose limit must be checked. The writer repeats the call,
    /// always with the same `throttle`, until the step is [`Step::Go`]. Before each repeated call,
    /// the writer adds the number of pages that it has written out to `throttle`.
    pub fn next_step(&mut self, task: u32, pages: &Pages, throttle: &mut Throttle) -> Step {
        let limits = self.limits(pages);
        let all = pages.dirty + pages.under_way;
        let go = Step::Go {
            wake_flusher: pages.dirty > limits.background,
        };
        if all <= self.limit_of(task, limits.dirty) {
            self.exceeded = false;
            return go;
        }
        if all < (limits.background + limits.dirty) / 2 {
            return go;
        }
        self.exceeded = true;
        let chunk = self.parameters.chunk_pages();
        if throttle.written_pages >= chunk {
            return go;
        }
        if pages.dirty > 0 && !throttle.told_to_write {
            throttle.told_to_write = true;
            return Step::Write {
                pages: chunk - throttle.written_pages,
            };
        }
        throttle.told_to_write = false;
        Step::Wait {
            ns: CONGESTION_WAIT_NS,
        }
    }

    /// Returns the number of pages that the woken flusher must write out next; `None` if the number
    /// of dirty pages is low enough.
    pub fn background_pages(&self, pages: &Pages) -> Option<u64> {
        let is_enough = pages.dirty == 0 || pages.dirty < self.limits(pages).background;
        (!is_enough).then_some(self.parameters.pass_pages)
    }

    /// Returns the number of pages that a flusher writes out in one pass.
    pub fn pass_pages(&self) -> u64 {
        self.parameters.pass_pages
    }

    /// Returns the time before which a file must have become dirty for the timer to write it out
    /// now. Returns `None` if no file can be old enough.
    pub fn expired_before_ns(&self, now_ns: u64) -> Option<u64> {
        now_ns.checked_sub(self.parameters.expire_ns)
    }

    /// Returns the time at which the timer fires next, after a run that began at `rung_at_ns` and
    /// ended at `now_ns`: one interval after the beginning, but at least one second after the end.
    pub fn next_timer_ns(&self, rung_at_ns: u64, now_ns: u64) -> u64 {
        (rung_at_ns + self.parameters.interval_ns).max(now_ns + 1_000 * MS_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a policy for 1000 available pages: limits of 50 (background) and 100 (dirty), a
    /// check every 16 pages, and a chunk of 24 pages.
    fn policy() -> WriteBack {
        WriteBack::new(WriteBackParameters::for_memory(1000, 2))
    }

    fn pages(dirty: u64, under_way: u64) -> Pages {
        Pages {
            available: 1000,
            dirty,
            under_way,
        }
    }

    #[test]
    fn limits_are_shares_and_background_is_the_smaller_one() {
        let limits = |background_percent, dirty_percent| {
            let parameters = WriteBackParameters {
                background_percent,
                dirty_percent,
                ..WriteBackParameters::for_memory(1000, 2)
            };
            let limits = WriteBack::new(parameters).limits(&pages(0, 0));
            (limits.background, limits.dirty)
        };
        assert_eq!(limits(5, 10), (50, 100));
        assert_eq!(limits(10, 10), (50, 100));
        // The dirty percentage of 2 % is raised to the minimum of 5 %. The background percentage of
        // 40 % is not below 5 %, so it is replaced by half of 5 %, rounded down to 2 %.
        assert_eq!(limits(40, 2), (20, 50));
    }

    #[test]
    fn checks_depend_on_memory_and_are_more_frequent_over_a_limit() {
        let every = |pages, processors| {
            let parameters = WriteBackParameters::for_memory(pages, processors);
            parameters.check_pages
        };
        assert_eq!((every(1000, 2), every(64_000, 2)), (16, 1000));
        assert_eq!(every(1 << 20, 4), 1024);
        let mut policy = policy();
        let due: Vec<bool> = (0..4).map(|_| policy.dirtied(1, 8, &pages(0, 0))).collect();
        assert_eq!(due, [false, true, false, true]);
        let step = policy.next_step(1, &pages(200, 0), &mut Throttle::default());
        assert_eq!(step, Step::Write { pages: 24 });
        assert!(policy.dirtied(1, 8, &pages(200, 0)));
    }

    /// Task 1 has dirtied all pages, so its limit is 100 - 12 = 88, while the limit of task 2
    /// is 100. The middle between the two global limits (50 and 100) is 75.
    #[test]
    fn who_dirties_most_is_stopped_first() {
        let mut policy = policy();
        policy.dirtied(1, 32, &pages(0, 0));
        let step = |policy: &mut WriteBack, task, dirty, under_way| {
            policy.next_step(task, &pages(dirty, under_way), &mut Throttle::default())
        };
        let go = Step::Go { wake_flusher: true };
        assert_eq!(step(&mut policy, 1, 88, 0), go);
        assert_eq!(step(&mut policy, 1, 89, 0), Step::Write { pages: 24 });
        assert_eq!(step(&mut policy, 2, 60, 40), go);
        assert_eq!(step(&mut policy, 2, 61, 40), Step::Write { pages: 24 });
        let idle = Step::Go {
            wake_flusher: false,
        };
        assert_eq!(step(&mut policy, 2, 50, 0), idle);
        assert_eq!(step(&mut policy, 2, 51, 0), go);
    }

    /// A writer over its limit must write out 24 pages but finds only 10 dirty ones. It waits, and
    /// then writes out 14 more, which completes the chunk.
    #[test]
    fn a_writer_over_the_limit_writes_his_chunk_and_waits_in_between() {
        let mut policy = policy();
        let mut throttle = Throttle::default();
        let mut step = |dirty, under_way, wrote| {
            throttle.written_pages += wrote;
            policy.next_step(1, &pages(dirty, under_way), &mut throttle)
        };
        assert_eq!(step(150, 0, 0), Step::Write { pages: 24 });
        let wait = Step::Wait { ns: 100 * MS_NS };
        assert_eq!(step(140, 10, 10), wait);
        assert_eq!(step(140, 10, 0), Step::Write { pages: 14 });
        assert_eq!(step(126, 24, 14), Step::Go { wake_flusher: true });
        // If no page is dirty, the writer waits for the pages that are being written.
        let mut throttle = Throttle::default();
        assert_eq!(policy.next_step(1, &pages(0, 150), &mut throttle), wait);
        let idle = Step::Go {
            wake_flusher: false,
        };
        assert_eq!(policy.next_step(1, &pages(0, 100), &mut throttle), idle);
    }

    #[test]
    fn the_flusher_works_down_to_the_background_limit() {
        let policy = policy();
        assert_eq!(policy.background_pages(&pages(50, 0)), Some(1024));
        assert_eq!(policy.background_pages(&pages(49, 500)), None);
        let nothing = Pages::default();
        assert_eq!(policy.background_pages(&nothing), None);
    }

    #[test]
    fn the_timer_takes_what_is_old_and_rests_a_second() {
        let policy = policy();
        let s = 1_000 * MS_NS;
        assert_eq!(policy.expired_before_ns(29 * s), None);
        assert_eq!(policy.expired_before_ns(31 * s), Some(s));
        assert_eq!(policy.next_timer_ns(10 * s, 12 * s), 15 * s);
        assert_eq!(policy.next_timer_ns(10 * s, 14 * s + 1), 15 * s + 1);
    }

    /// The limit is 100 pages. Task 1 dirties 101 pages, so the recent counts of all tasks are
    /// halved, that of task 1 to 50. Task 2 then dirties 25 pages. So 50 of the 75 counted pages
    /// belong to task 1.
    #[test]
    fn what_was_dirtied_long_ago_counts_less() {
        let mut policy = policy();
        policy.dirtied(1, 101, &pages(0, 0));
        policy.dirtied(2, 25, &pages(0, 0));
        // An eighth of 100, rounded down, is 12. The tasks have dirtied 50 and 25 of 75 recent
        // pages, so the first limit is reduced by 12 * 50 / 75 = 8 and the second limit by 12 * 25
        // / 75 = 4.
        assert_eq!(policy.limit_of(1, 100), 100 - 8);
        assert_eq!(policy.limit_of(2, 100), 100 - 4);
    }
}
