//! Whether a thread with nothing to do looks again for a moment before it sleeps.
//!
//! Going to sleep and being woken costs the thread, and whoever wakes it, some microseconds each, in a guest
//! of a hypervisor tens: as much as dozens of requests. Where a peer answers within that time, looking
//! costs less than sleeping. So a wait begins by looking where the waits before it were short, and for no
//! longer than a sleep would have cost. Looking in vain ends that, and each time that it happens more short
//! waits are asked for before it is tried again.
//!
//! That a wait is short does not say that looking through it pays: peers that share the processor with the
//! looking thread, or that have more to ask the longer they are left alone, get further while it sleeps. So
//! it is [tried](Trial) from time to time which of the two gets more done.
//!
//! It must never look where nothing comes: an idle thread takes no processor time.

use std::time::Duration;

use super::trial::Trial;
use crate::time::Instant;

/// Short waits in a row after which the next one begins by looking: at first, and at most.
const SHORT_MIN: u32 = 2;
const SHORT_MAX: u32 = 4096;
/// A sleep counts as short up to this many times what may be spent on looking: part of it is the wake-ups
/// at both ends, which looking would have spared.
const SLEEP_FACTOR: u32 = 2;

/// What the waits so far say about the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin {
    longest: Duration,
    /// Short waits in a row, and how many are wanted.
    short: u32,
    wanted: u32,
    trial: Trial,
}

impl Spin {
    /// Looks for at most `longest`; never when that is nothing.
    pub(super) fn new(longest: Duration) -> Spin {
        Spin {
            longest,
            short: 0,
            wanted: SHORT_MIN,
            trial: Trial::default(),
        }
    }

    /// True when how long waits take has to be known.
    pub(super) fn is_on(&self) -> bool {
        !self.longest.is_zero()
    }

    /// How long to look before the sleep that begins now, with so much done since the thread began; `None` when
    /// not at all.
    pub(super) fn budget(&mut self, now: Instant, done: u64) -> Option<Duration> {
        (self.is_short() && self.trial.looks(now, done)).then_some(self.longest)
    }

    /// True when the next wait is expected to be short.
    fn is_short(&self) -> bool {
        self.short >= self.wanted
    }

    /// A wait is over that began by looking, and did not come to sleeping.
    pub(super) fn found(&mut self) {
        self.wanted = (self.wanted / 2).max(SHORT_MIN);
        self.short = self.wanted;
    }

    /// A wait is over in which the thread slept, for so long with the looking before it if it `looked`.
    pub(super) fn slept(&mut self, waited: Duration, looked: bool) {
        if looked {
            self.wanted = (self.wanted * 2).min(SHORT_MAX);
            self.short = 0;
        } else if waited <= self.longest * SLEEP_FACTOR {
            self.short = self.short.saturating_add(1);
        } else {
            self.short = 0;
        }
        self.trial.waited(waited);
    }
}

/// What can be looked at without sleeping.
pub(super) trait Watched {
    /// The time.
    fn now(&self) -> Instant;

    /// True when something is there.
    fn has_completed(&self) -> bool;

    /// True when the kernel says that it has work that makes completions.
    fn has_work(&self) -> bool;

    /// Has that work done, without waiting.
    fn do_work(&self);
}

/// Looks for a completion until `end`; true when there is one.
///
/// What the kernel says of its work is a hint: work that was added while it did the work before is done
/// with it, and the word stays until there is work again. So the time is looked at whatever it says.
pub(super) fn look(watched: &impl Watched, end: Instant) -> bool {
    while !watched.has_completed() {
        if watched.now() >= end {
            return false;
        }
        if watched.has_work() {
            watched.do_work();
        } else {
            std::hint::spin_loop();
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A ring whose time goes on with each look, and that says that there is work all the time.
    struct Ring {
        now_ns: Cell<u64>,
        completes_at_ns: u64,
    }

    impl Watched for Ring {
        fn now(&self) -> Instant {
            self.now_ns.set(self.now_ns.get() + 1);
            Instant::from_ns(self.now_ns.get())
        }

        fn has_completed(&self) -> bool {
            self.now_ns.get() >= self.completes_at_ns
        }

        fn has_work(&self) -> bool {
            true
        }

        fn do_work(&self) {}
    }

    #[test]
    fn a_stale_word_of_work_does_not_keep_it_looking() {
        let looked = |completes_at_ns| {
            let ring = Ring {
                now_ns: Cell::new(0),
                completes_at_ns,
            };
            (look(&ring, Instant::from_ns(100)), ring.now_ns.get())
        };
        assert_eq!(looked(u64::MAX), (false, 100));
        assert_eq!(looked(50), (true, 50));
    }

    const US: Duration = Duration::from_micros(1);

    fn after(sleeps_us: &[u32]) -> Spin {
        let mut spin = Spin::new(20 * US);
        for &us in sleeps_us {
            let looked = budget(&mut spin).is_some();
            spin.slept(us * US, looked);
        }
        spin
    }

    /// The budget at the beginning of time, where no trial is under way.
    fn budget(spin: &mut Spin) -> Option<Duration> {
        spin.budget(Instant::from_ns(0), 0)
    }

    /// Short sleeps until it looks.
    fn until_it_looks(spin: &mut Spin) -> u32 {
        (0..)
            .find(|_| {
                let looks = budget(spin).is_some();
                if !looks {
                    spin.slept(US, false);
                }
                looks
            })
            .unwrap()
    }

    #[test]
    fn short_sleeps_in_a_row_make_it_look() {
        assert_eq!(budget(&mut after(&[])), None);
        assert_eq!(budget(&mut after(&[30])), None);
        assert_eq!(budget(&mut after(&[30, 40])), Some(20 * US));
        assert_eq!(budget(&mut after(&[30, 41, 30])), None);
        assert_eq!(budget(&mut after(&[41; 9])), None);
    }

    #[test]
    fn looking_in_vain_makes_it_rarer_and_finding_brings_it_back() {
        let mut spin = after(&[]);
        for wanted in [2, 4, 8, 16] {
            assert_eq!(until_it_looks(&mut spin), wanted);
            spin.slept(21 * US, true);
            assert_eq!(budget(&mut spin), None);
        }
        assert_eq!(until_it_looks(&mut spin), 32);
        for _ in 0..4 {
            spin.found();
            assert_eq!(budget(&mut spin), Some(20 * US));
        }
        spin.slept(21 * US, true);
        assert_eq!(until_it_looks(&mut spin), 4);
    }

    #[test]
    fn looking_always_in_vain_costs_next_to_nothing() {
        let mut spin = after(&[]);
        let looked = (0..1_000_000).filter(|_| {
            let looks = budget(&mut spin).is_some();
            spin.slept(30 * US, looks);
            looks
        });
        assert!(looked.count() < 300);
    }

    #[test]
    fn short_waits_are_slept_through_where_that_gets_more_done() {
        let mut spin = after(&[30, 30]);
        let (mut now, mut done, mut looked) = (Instant::from_ns(0), 0, 0);
        for _ in 0..100_000 {
            let looks = spin.budget(now, done).is_some();
            if looks {
                spin.found();
            } else {
                spin.slept(10 * US, false);
            }
            looked += u32::from(looks);
            done += if looks { 1 } else { 2 };
            now += 10 * US;
        }
        // A second of it: before the first trial, and half of it and of seven more.
        assert!((2_000..10_000).contains(&looked), "{looked}");
    }

    #[test]
    fn nothing_is_spent_where_it_is_off() {
        let mut spin = Spin::new(Duration::ZERO);
        assert!(!spin.is_on());
        (0..9).for_each(|_| spin.slept(US, false));
        assert_eq!(budget(&mut spin), None);
    }
}
