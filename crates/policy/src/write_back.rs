//! When dirty pages are written, and by whom: the writer himself, the flusher, or the timer.
//!
//! A [`WriteBack`] is asked by whoever dirties pages, and by the tasks that clean them; it knows
//! how many pages there are, not which. A page cache that lets writers go on until a share of
//! memory is dirty, and then has them write, is as fast as memory in bursts and as fast as the
//! device in the long run. It must never do I/O, read a clock, or let a writer pass who is over his
//! limit and has not written his chunk.
//!
//! Source: `mm/page-writeback.c` of Linux 2.6.27 (`get_dirty_limits`, `balance_dirty_pages`,
//! `background_writeout`, `wb_kupdate`), with one device, whose share of the limit is all of it.
//! The rules are in `docs/lab.md`.

use std::collections::BTreeMap;

const MS_NS: u64 = 1_000_000;

/// How a page written by a program gets to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// It stays dirty until the policy has it written.
    Back,
    /// The write waits until it, and what has changed with it, is on the device (`O_SYNC`,
    /// `mount -o sync`).
    Through,
}

/// Parameters; [`WriteBackParameters::for_memory`] has those of Linux 2.6.26.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBackParameters {
    /// Share of the available pages, in percent, above which the flusher works.
    pub background_percent: u64,
    /// Share of the available pages, in percent, above which writers write themselves; at least 5.
    pub dirty_percent: u64,
    /// A writer is checked after so many pages.
    pub check_pages: u64,
    /// The timer flushes this often, in ns.
    pub interval_ns: u64,
    /// The timer takes files that have been dirty for longer than this, in ns.
    pub expire_ns: u64,
    /// Pages that a flusher writes at a time.
    pub pass_pages: u64,
}

impl WriteBackParameters {
    /// The defaults for a machine of so many pages and processors: 5 and 10 %, 5 s and 30 s, 1024
    /// pages at a time, a check every pages / (32 x processors) pages, at least 16 and at most 1024
    /// (4 MiB).
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

    /// What a writer over his limit writes himself.
    fn chunk_pages(&self) -> u64 {
        self.check_pages + self.check_pages / 2
    }
}

/// How many pages are in which state now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Free, or in the page cache.
    pub available: u64,
    /// Dirty, and not on their way.
    pub dirty: u64,
    /// On their way to the device.
    pub under_way: u64,
}

/// Limits in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Above this the flusher works.
    pub background: u64,
    /// Above this writers write themselves.
    pub dirty: u64,
}

/// What a writer has done about being over his limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttle {
    /// Pages that he has written himself.
    pub written_pages: u64,
    told_to_write: bool,
}

/// What a writer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// He goes on; the flusher is woken if there is something for it.
    Go {
        /// There is.
        wake_flusher: bool,
    },
    /// He starts to write so many dirty pages, and asks again.
    Write {
        /// How many.
        pages: u64,
    },
    /// He waits until the device takes more, but no longer than this, and asks again.
    Wait {
        /// How long, in ns.
        ns: u64,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct WriteBack {
    parameters: WriteBackParameters,
    /// Some writer was over the limit, so all are checked more often.
    exceeded: bool,
    /// For each task: pages dirtied since its last check, and of late.
    tasks: BTreeMap<u32, Dirtied>,
    /// Pages dirtied of late, by all.
    of_late: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Dirtied {
    unchecked: u64,
    of_late: u64,
}

/// A writer is checked after so many pages while somebody is over the limit.
const EXCEEDED_CHECK_PAGES: u64 = 8;

/// Nobody waits longer than this for a congested device.
const CONGESTION_WAIT_NS: u64 = 100 * MS_NS;

impl WriteBack {
    /// A policy that has seen no writer yet.
    pub fn new(parameters: WriteBackParameters) -> WriteBack {
        WriteBack {
            parameters,
            exceeded: false,
            tasks: BTreeMap::new(),
            of_late: 0,
        }
    }

    /// A task has made `pages` more dirty; true if it is to be checked now, by
    /// [`next_step`](Self::next_step).
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

    /// Who dirties most changes with time.
    fn forget_half(&mut self) {
        for of in self.tasks.values_mut() {
            of.of_late /= 2;
        }
        self.tasks
            .retain(|_, of| of.of_late > 0 || of.unchecked > 0);
        self.of_late /= 2;
    }

    /// The limits for so many available pages.
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

    /// The limit of one task: lower by up to an eighth, by its share of what was dirtied of late,
    /// and never below half.
    fn limit_of(&self, task: u32, dirty: u64) -> u64 {
        let of_late = self.tasks.get(&task).map_or(0, |of| of.of_late);
        let lower = match self.of_late {
            0 => 0,
            all => dirty / 8 * of_late.min(all) / all,
        };
        (dirty - lower).max(dirty / 2)
    }

    /// What a writer who is checked does next. He asks until it is [`Step::Go`], with one
    /// `throttle`, to which he adds what he has written.
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

    /// How many pages the flusher, which was woken, writes next; `None` when it has done enough.
    pub fn background_pages(&self, pages: &Pages) -> Option<u64> {
        let is_enough = pages.dirty == 0 || pages.dirty < self.limits(pages).background;
        (!is_enough).then_some(self.parameters.pass_pages)
    }

    /// Pages that a flusher writes at a time.
    pub fn pass_pages(&self) -> u64 {
        self.parameters.pass_pages
    }

    /// Files that have been dirty since before this time are written by the timer that rings now.
    pub fn expired_before_ns(&self, now_ns: u64) -> Option<u64> {
        now_ns.checked_sub(self.parameters.expire_ns)
    }

    /// When the timer rings next, after it has rung at `rung_at_ns` and was done at `now_ns`: at
    /// its interval, and not within a second.
    pub fn next_timer_ns(&self, rung_at_ns: u64, now_ns: u64) -> u64 {
        (rung_at_ns + self.parameters.interval_ns).max(now_ns + 1_000 * MS_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 available pages: background 50, dirty 100, a check every 16 pages, a chunk of 24.
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
        // 2 % is below the least that there can be, and 5 / 2 in whole percent is 2.
        assert_eq!(limits(40, 2), (20, 50));
    }

    #[test]
    fn checks_come_with_memory_and_more_often_when_somebody_is_over() {
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

    /// All was dirtied by task 1, so its limit is 100 - 12 = 88; task 2's is 100. Half of both
    /// limits: 75.
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

    /// Over the limit: 24 pages are asked for, 10 found; a wait; 14 more; then the chunk is done.
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
        // Nothing is left to start: he waits for what is under way.
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

    /// The limit is 100 pages; after 101 what was dirtied counts half: 50 of 75 for task 1.
    #[test]
    fn what_was_dirtied_long_ago_counts_less() {
        let mut policy = policy();
        policy.dirtied(1, 101, &pages(0, 0));
        policy.dirtied(2, 25, &pages(0, 0));
        // 100 / 8 = 12, of which two thirds and a third (50 and 25 of 75).
        assert_eq!(policy.limit_of(1, 100), 100 - 8);
        assert_eq!(policy.limit_of(2, 100), 100 - 4);
    }
}
