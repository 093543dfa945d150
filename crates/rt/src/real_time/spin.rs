//! Whether a thread with nothing to do busy-polls for a moment before it sleeps.
//!
//! Going to sleep and being woken costs the thread, and whoever wakes it, some microseconds each,
//! in a guest of a hypervisor tens: as much as dozens of requests. Where a peer answers within that
//! time, busy-polling costs less than sleeping. So a wait may begin with it where the waits before
//! it were short, and for no longer than sleeping would have cost both ends.
//!
//! That waits are short does not say that busy-polling pays: peers that share the processor with
//! the thread, or that have more to ask the longer they are left alone, get further while it
//! sleeps. Nor does a wait that was slept through say how long it would have been without the
//! wake-ups. So it is [tried](Trial) from time to time which of the two gets more done, and nothing
//! else decides: what is here only tells a conversation, in which that is worth a trial, from rare
//! requests.
//!
//! It must never busy-poll where nothing comes: an idle thread takes no processor time.

use std::time::Duration;

use super::trial::Trial;
use crate::time::Instant;

/// Short waits in a row after which the next one may begin by busy-polling: more than one request
/// makes, on its way to the devices and back, so that rare requests are no conversation.
const SHORT_WAITS: u32 = 8;
/// A wait is short up to this many times what may be spent on busy-polling. With the default that
/// is 1 ms: a thread that is asked more rarely than a thousand times a second does not busy-poll.
const SHORT_FACTOR: u32 = 10;

/// What the waits so far say about the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin {
    longest: Duration,
    /// Short waits in a row, counted up to [`SHORT_WAITS`].
    short: u32,
    trial: Trial,
}

impl Spin {
    /// Busy-polls for at most `longest`; never when that is nothing.
    pub(super) fn new(longest: Duration) -> Spin {
        Spin {
            longest,
            short: 0,
            trial: Trial::default(),
        }
    }

    /// True when how long waits take has to be known.
    pub(super) fn is_on(&self) -> bool {
        !self.longest.is_zero()
    }

    /// How long to busy-poll before the sleep that begins now, with so much done since the thread
    /// began; `None` when not at all.
    pub(super) fn budget(&mut self, now: Instant, done: u64) -> Option<Duration> {
        let polls = self.is_on() && self.short >= SHORT_WAITS && self.trial.polls(now, done);
        polls.then_some(self.longest)
    }

    /// A wait is over that began by busy-polling, and did not come to sleeping.
    pub(super) fn found(&mut self) {
        self.trial.polled(true);
    }

    /// A wait is over in which the thread slept, for so long with the busy-polling before it, if it
    /// `polled`.
    pub(super) fn slept(&mut self, waited: Duration, polled: bool) {
        self.short = match waited <= self.longest * SHORT_FACTOR {
            true => SHORT_WAITS.min(self.short + 1),
            false => 0,
        };
        if polled {
            self.trial.polled(false);
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
/// What the kernel says of its work is a hint: work that was added while it did the work before is
/// done with it, and the word stays until there is work again. So the time is looked at whatever it
/// says.
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
            let polled = budget(&mut spin).is_some();
            spin.slept(us * US, polled);
        }
        spin
    }

    /// The budget at the beginning of time, where no trial is under way.
    fn budget(spin: &mut Spin) -> Option<Duration> {
        spin.budget(Instant::from_ns(0), 0)
    }

    #[test]
    fn short_waits_in_a_row_are_a_conversation() {
        assert_eq!(budget(&mut after(&[])), None);
        assert_eq!(budget(&mut after(&[200; 7])), None);
        assert_eq!(budget(&mut after(&[200; 8])), Some(20 * US));
        assert_eq!(budget(&mut after(&[201; 99])), None);
        // One long wait ends it, and eight short ones bring it back.
        let again = |short| {
            let mut spin = after(&[200; 8]);
            spin.slept(201 * US, false);
            (0..short).for_each(|_| spin.slept(200 * US, false));
            budget(&mut spin)
        };
        assert_eq!(again(7), None);
        assert_eq!(again(8), Some(20 * US));
    }

    #[test]
    fn short_waits_are_slept_through_where_that_gets_more_done() {
        let mut spin = after(&[30; 8]);
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
        (0..9).for_each(|_| spin.slept(Duration::ZERO, false));
        assert_eq!(budget(&mut spin), None);
    }
}
