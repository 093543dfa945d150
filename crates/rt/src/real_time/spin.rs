//! Decides whether an idle thread busy-polls for a moment before it sleeps.
//!
//! Sleeping and being woken costs the thread, and the thread that wakes it, some microseconds each,
//! and tens of microseconds in a virtual machine: as much as dozens of requests. If a peer answers
//! within that time, busy-polling costs less than sleeping. So a wait begins with busy-polling only
//! if the previous waits were short. Busy-polling lasts at most as long as sleeping would have cost
//! both threads.
//!
//! Short waits do not prove that busy-polling is worthwhile. Some peers share the processor with
//! the thread, and some peers send larger batches when the thread answers later: such peers
//! progress faster while the thread sleeps. The duration of a wait with sleep does not show how
//! long the wait would have been without the wake-ups. So a [trial](Trial) measures from time to
//! time which of the two ways to wait gets more done, and only its result decides. The rest of this
//! module only distinguishes a conversation (requests that follow each other closely), in which a
//! trial is worthwhile, from rare requests.
//!
//! A thread must never busy-poll when no requests come: an idle thread takes no processor time.

use std::time::Duration;

use super::trial::Trial;
use crate::time::Instant;

/// Number of consecutive short waits after which the next wait is allowed to begin with
/// busy-polling. A single request causes fewer waits than this on its way to the devices and back.
/// Rare requests are therefore not mistaken for a conversation (requests that follow each other
/// closely).
const SHORT_WAITS: u32 = 8;
/// Ratio of the maximum duration of a short wait to the busy-polling limit. With the default limit,
/// short waits last at most 1 ms, so a thread that gets fewer than a thousand requests a second
/// does not busy-poll.
const SHORT_FACTOR: u32 = 10;

/// State of the decision whether to busy-poll: a summary of the waits so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin {
    longest: Duration,
    /// Number of consecutive short waits, counted up to [`SHORT_WAITS`].
    short: u32,
    trial: Trial,
}

impl Spin {
    /// Creates the state of a thread that busy-polls for at most `longest` per wait, or never if
    /// `longest` is zero.
    pub(super) fn new(longest: Duration) -> Spin {
        Spin {
            longest,
            short: 0,
            trial: Trial::default(),
        }
    }

    /// Returns true when busy-polling is enabled, so that the duration of waits must be measured.
    pub(super) fn is_on(&self) -> bool {
        !self.longest.is_zero()
    }

    /// Returns the maximum time to busy-poll in the wait that begins now, or `None` to sleep
    /// immediately. `done` is the total work done so far, in any unit.
    pub(super) fn budget(&mut self, now: Instant, done: u64) -> Option<Duration> {
        let polls = self.is_on() && self.short >= SHORT_WAITS && self.trial.polls(now, done);
        polls.then_some(self.longest)
    }

    /// Records the end of a wait in which busy-polling found a completion, so that the thread did
    /// not sleep.
    pub(super) fn found(&mut self) {
        self.trial.polled(true);
    }

    /// Records the end of a wait in which the thread slept. `polled` is true if the wait began with
    /// busy-polling; `waited` then includes the time of the busy-polling.
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

/// A source of completions that can be probed without sleeping.
pub(super) trait Watched {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Returns true when a completion has arrived.
    fn has_completed(&self) -> bool;

    /// Returns true when the kernel reports pending work that produces completions.
    fn has_work(&self) -> bool;

    /// Lets the kernel do its pending work, without waiting.
    fn do_work(&self);
}

/// Busy-polls for a completion until `end`; returns true when there is a completion.
///
/// The kernel's flag for pending work is only a hint. If work is added while the kernel executes
/// earlier work, the kernel executes both together, but the flag stays set until more work is
/// added. The loop therefore checks the time even while the flag is set.
pub(super) fn probe(watched: &impl Watched, end: Instant) -> bool {
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

    /// A simulated ring whose time advances each time that the clock is read, and which always
    /// reports pending work.
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
        let probed = |completes_at_ns| {
            let ring = Ring {
                now_ns: Cell::new(0),
                completes_at_ns,
            };
            (probe(&ring, Instant::from_ns(100)), ring.now_ns.get())
        };
        assert_eq!(probed(u64::MAX), (false, 100));
        assert_eq!(probed(50), (true, 50));
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

    /// Returns the busy-polling budget for a wait that begins at time zero; `None` if the wait
    /// should sleep immediately.
    fn budget(spin: &mut Spin) -> Option<Duration> {
        spin.budget(Instant::from_ns(0), 0)
    }

    #[test]
    fn short_waits_in_a_row_are_a_conversation() {
        assert_eq!(budget(&mut after(&[])), None);
        assert_eq!(budget(&mut after(&[200; 7])), None);
        assert_eq!(budget(&mut after(&[200; 8])), Some(20 * US));
        assert_eq!(budget(&mut after(&[201; 99])), None);
        // The thread chooses busy-polling only after eight short waits in a row. After one long
        // wait, eight further short waits are necessary.
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
        let (mut now, mut done, mut probed) = (Instant::from_ns(0), 0, 0);
        for _ in 0..100_000 {
            let probes = spin.budget(now, done).is_some();
            if probes {
                spin.found();
            } else {
                spin.slept(10 * US, false);
            }
            probed += u32::from(probes);
            done += if probes { 1 } else { 2 };
            now += 10 * US;
        }
        // The thread busy-polls until the first trial begins, and then during half of each trial.
        // The loop simulates one second, which has eight trials.
        assert!((2_000..10_000).contains(&probed), "{probed}");
    }

    #[test]
    fn nothing_is_spent_where_it_is_off() {
        let mut spin = Spin::new(Duration::ZERO);
        assert!(!spin.is_on());
        (0..9).for_each(|_| spin.slept(Duration::ZERO, false));
        assert_eq!(budget(&mut spin), None);
    }
}
