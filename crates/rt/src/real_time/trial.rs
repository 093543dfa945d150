//! Compares two ways to wait, busy-polling and sleeping, by the amount of work that is done with
//! each.
//!
//! Whether a thread should busy-poll or sleep depends on the other users of the processor, on the
//! cost of a wake-up, and on whether peers send larger batches when the thread answers later. These
//! factors cannot be known, but their effect can be counted: the bytes that operations moved. So a
//! conversation (requests that follow each other closely) is run both ways for some milliseconds
//! each, and continues in the better way until the next trial.
//!
//! Measured on two cores, with a ping-pong over a UNIX socket: on a quiet machine it made 14
//! thousand round trips a second when both ends slept, and 36 thousand when one end busy-polled.
//! Beside a compute-bound process both ends shared a core, and it made 107 thousand round trips a
//! second when both ends slept, and 56 thousand when one end busy-polled. The throughput of four
//! connections of fio was a fifth to a half higher with a server that slept.
//!
//! A trial forces the way to wait that it measures: in the parts that busy-poll, every wait of a
//! conversation begins with busy-polling, regardless of the waits before. If most of these polls
//! find nothing, sleeping is chosen immediately, since busy-polling cannot help.
//!
//! If busy-polling finds completions, a trial must never choose sleeping without a clear
//! difference: a client that sends one request after another, with work of its own between, gets
//! each reply sooner from a thread that busy-polls. And no result is final: the next trial can
//! reverse it.

use std::time::Duration;

use crate::time::Instant;

/// Minimum duration of a part of a trial: the time of some hundred requests.
const PART: Duration = Duration::from_millis(4);
/// Minimum number of waits in a part of a trial. A part with fewer waits continues until it has
/// this number of waits, but for at most [`PART_MAX`].
const WAITS_MIN: u32 = 16;
const PART_MAX: Duration = Duration::from_millis(32);
/// Maximum time that a trial counts for one wait. The time of a wait beyond this maximum is
/// excluded from the trial, so that a single time slice of another process does not decide the
/// result.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// If a wait in which the thread sleeps lasts at least this time, the trial in progress is
/// discarded, and the next trial begins soon: the load of the machine might have changed during the
/// wait.
const PAUSE: Duration = Duration::from_millis(100);
/// Minimum and maximum time for which the result of a trial is used. The time is [`HOLDS_MIN`] at
/// first. A result that changes the way to wait sets the time to [`HOLDS_MIN`] again. Each trial
/// that confirms the earlier result doubles the time, up to [`HOLDS_MAX`]. One run of all parts of
/// a trial takes a sixteenth of [`HOLDS_MAX`], and half of that run uses the worse way to wait.
const HOLDS_MIN: Duration = Duration::from_millis(16);
const HOLDS_MAX: Duration = Duration::from_millis(256);
/// Way to wait in each part of a trial: true for busy-polling. With this order of the parts, a load
/// that changes at a constant rate during the trial affects both ways equally.
const PARTS: [bool; 4] = [true, false, false, true];
/// Number of times that all parts of a trial are run before the trial can change the way to wait.
/// One run is enough to confirm the earlier result.
const RUNS_TO_CHANGE: u32 = 2;
/// Sleeping is chosen only if it gets more work done than this percentage of the work that
/// busy-polling gets done in the same time.
const MARGIN_PERCENT: u128 = 105;
/// Number of waits with busy-polling after which their success is judged. If most of them found no
/// completion, sleeping is chosen.
const POLLS_JUDGED: u32 = 32;

/// Work that was done with one of the two ways to wait (sleeping or busy-polling), and the time
/// that it took.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    done: u64,
    taken_ns: u64,
}

/// Counters of waits that began with busy-polling. `all`: all such waits. `in_vain`: the waits in
/// which busy-polling found no completion.
#[derive(Clone, Copy, Debug, Default)]
struct Polls {
    all: u32,
    in_vain: u32,
}

impl Polls {
    fn are_mostly_in_vain(self) -> bool {
        self.in_vain > self.all / 2
    }
}

/// A part of a trial that is in progress.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: usize,
    began: Instant,
    /// The work counter at the start of the part.
    done: u64,
    waits: u32,
    /// Time of the part that is excluded.
    left_out: Duration,
}

impl Part {
    fn new(index: usize, began: Instant, done: u64) -> Part {
        Part {
            index,
            began,
            done,
            waits: 0,
            left_out: Duration::ZERO,
        }
    }

    fn taken(&self, now: Instant) -> Duration {
        now.since(self.began).saturating_sub(self.left_out)
    }

    fn is_over(&self, now: Instant) -> bool {
        let taken = self.taken(now);
        taken >= PART_MAX || taken >= PART && self.waits >= WAITS_MIN
    }
}

/// The result of the trials so far, and the trial in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// The result of the last trial: true for busy-polling.
    polls: bool,
    /// Time for which the result holds.
    holds: Duration,
    /// Time at which the next trial begins. It is `None` at first and after the end of a trial; the
    /// next wait then sets the time.
    next: Option<Instant>,
    part: Option<Part>,
    /// Number of runs in the trial in progress. A run is one pass through all parts of a trial.
    runs: u32,
    polled: Yield,
    slept: Yield,
    /// Counters of the waits with busy-polling in the trial in progress. While no trial is in
    /// progress, they are reset after every [`POLLS_JUDGED`] waits.
    found: Polls,
}

impl Default for Trial {
    /// Returns a state in which the thread busy-polls until the first trial has ended.
    fn default() -> Trial {
        Trial {
            polls: true,
            holds: HOLDS_MIN,
            next: None,
            part: None,
            runs: 0,
            polled: Yield::default(),
            slept: Yield::default(),
            found: Polls::default(),
        }
    }
}

impl Trial {
    /// Returns true if a wait that begins now should begin with busy-polling. `done` is the total
    /// work done so far, in any unit. This also begins and ends the trials and their parts.
    pub(super) fn polls(&mut self, now: Instant, done: u64) -> bool {
        match &self.part {
            None => match self.next {
                None => self.next = Some(now + self.holds),
                Some(next) if now >= next => self.begin(now, done),
                Some(_) => {}
            },
            Some(part) if part.is_over(now) => self.end(*part, now, done),
            Some(_) => {}
        }
        match &mut self.part {
            Some(part) => {
                part.waits = part.waits.saturating_add(1);
                PARTS[part.index]
            }
            None => self.polls,
        }
    }

    /// Records the end of a wait that began with busy-polling. `found` is true when the
    /// busy-polling found a completion, so that the thread did not sleep.
    pub(super) fn polled(&mut self, found: bool) {
        self.found.all = self.found.all.saturating_add(1);
        self.found.in_vain = self.found.in_vain.saturating_add(u32::from(!found));
        if self.found.all < POLLS_JUDGED {
            return;
        }
        if self.found.are_mostly_in_vain() {
            self.choose(false);
        } else if self.part.is_none() {
            self.found = Polls::default();
        }
    }

    /// Records the end of a wait in which the thread slept.
    pub(super) fn waited(&mut self, waited: Duration) {
        if waited >= PAUSE {
            self.holds = HOLDS_MIN;
            self.forget();
        } else if let Some(part) = &mut self.part {
            part.left_out += waited.saturating_sub(WAIT_MAX);
        }
    }

    fn begin(&mut self, now: Instant, done: u64) {
        self.forget();
        self.part = Some(Part::new(0, now, done));
    }

    fn end(&mut self, part: Part, now: Instant, done: u64) {
        let sum = match PARTS[part.index] {
            true => &mut self.polled,
            false => &mut self.slept,
        };
        sum.done += done - part.done;
        sum.taken_ns += part.taken(now).as_nanos() as u64;
        let index = (part.index + 1) % PARTS.len();
        self.part = Some(Part::new(index, now, done));
        if index > 0 {
            return;
        }
        self.runs += 1;
        let sleeps =
            self.found.are_mostly_in_vain() || gets_clearly_more_done(self.slept, self.polled);
        if sleeps != self.polls || self.runs == RUNS_TO_CHANGE {
            self.choose(!sleeps);
        }
    }

    /// Sets how the next waits begin: with busy-polling if `polls` is true, otherwise with
    /// sleeping. The caller passes the result of a trial, or false if most waits with busy-polling
    /// found no completion.
    fn choose(&mut self, polls: bool) {
        self.holds = match polls == self.polls {
            true => HOLDS_MAX.min(self.holds * 2),
            false => HOLDS_MIN,
        };
        self.polls = polls;
        self.forget();
    }

    /// Discards all measurements since the last result.
    fn forget(&mut self) {
        self.part = None;
        self.next = None;
        self.runs = 0;
        (self.polled, self.slept) = Default::default();
        self.found = Polls::default();
    }
}

/// Returns true when waiting with sleep (`slept`) did more than [`MARGIN_PERCENT`] of the work of
/// busy-polling (`polled`), per unit of time.
fn gets_clearly_more_done(slept: Yield, polled: Yield) -> bool {
    let slept_done = u128::from(slept.done) * u128::from(polled.taken_ns);
    let polled_done = u128::from(polled.done) * u128::from(slept.taken_ns);
    slept_done * 100 > polled_done * MARGIN_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(10);

    /// A simulated server. In each step, its peers get `polling` units of work done if the server
    /// busy-polls, and `sleeping` units of work if it sleeps.
    struct Server {
        trial: Trial,
        now: Instant,
        done: u64,
    }

    impl Server {
        fn new() -> Server {
            Server {
                trial: Trial::default(),
                now: Instant::from_ns(0),
                done: 0,
            }
        }

        /// Runs for `time`; returns the percentage of time in which the server busy-polled.
        fn run(&mut self, time: Duration, polling: u64, sleeping: u64) -> u32 {
            let steps = (time.as_nanos() / STEP.as_nanos()) as u32;
            let mut polled = 0;
            for _ in 0..steps {
                polled += u32::from(self.step(polling, sleeping));
            }
            polled * 100 / steps
        }

        /// Makes one wait; returns true when it busy-polled.
        fn step(&mut self, polling: u64, sleeping: u64) -> bool {
            let polls = self.trial.polls(self.now, self.done);
            if polls {
                self.trial.polled(true);
            }
            self.done += if polls { polling } else { sleeping };
            self.now += STEP;
            polls
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    /// Time after which the first trial has made the server sleep instead of busy-poll: the time
    /// before the first trial, plus two runs of the four parts of a trial, plus one step.
    const FIRST: Duration = HOLDS_MIN
        .saturating_add(PART.saturating_mul(8))
        .saturating_add(STEP);

    #[test]
    fn what_gets_more_done_is_what_is_done() {
        let mut server = Server::new();
        // The server busy-polls until the first trial is over. After that, it busy-polls only in
        // the parts of trials that measure busy-polling.
        assert!(server.run(FIRST, 100, 150) > 60);
        server.run(SECOND, 100, 150);
        assert!((1..=4).contains(&server.run(SECOND, 100, 150)));
        // Now busy-polling gets more work done. After the next trial the server busy-polls, except
        // in the parts of trials that measure sleeping.
        server.run(HOLDS_MAX + 9 * PART, 100, 40);
        server.run(SECOND, 100, 40);
        assert!((96..=99).contains(&server.run(SECOND, 100, 40)));
    }

    #[test]
    fn a_new_result_is_tried_again_soon_and_an_old_one_seldom() {
        let mut server = Server::new();
        server.run(FIRST, 100, 150);
        // A trial result that changes the way to wait, from busy-polling to sleeping or back, is
        // used for the minimum time before the next trial.
        assert_eq!(server.run(HOLDS_MIN - STEP, 100, 150), 0);
        server.run(2 * STEP, 100, 150);
        assert!(server.trial.part.is_some());
        server.run(2 * SECOND, 100, 150);
        assert_eq!(server.trial.holds, HOLDS_MAX);
    }

    #[test]
    fn without_a_clear_difference_it_busy_polls() {
        for sleeping in [0, 99, 100, 105] {
            let mut server = Server::new();
            server.run(SECOND, 100, sleeping);
            assert!(server.run(SECOND, 100, sleeping) >= 96, "{sleeping}");
        }
        let mut server = Server::new();
        server.run(SECOND, 100, 106);
        assert!(server.run(SECOND, 100, 106) <= 4);
    }

    #[test]
    fn a_steady_change_falls_on_both_ways_alike() {
        let mut server = Server::new();
        server.run(SECOND, 1000, 1000);
        let mut polled = 0;
        for step in 0..100_000 {
            polled += server.run(STEP, 1000 + step, 1000 + step) / 100;
        }
        assert!(polled >= 96_000, "{polled}");
    }

    #[test]
    fn busy_polling_in_vain_is_a_result_at_once() {
        let mut trial = Trial::default();
        let polled = |trial: &mut Trial, found: bool| {
            assert!(trial.polls(Instant::ZERO, 0));
            trial.polled(found);
        };
        // Half of the waits with busy-polling find no completion. This is not the majority, so the
        // server keeps busy-polling.
        for poll in 0..POLLS_JUDGED {
            polled(&mut trial, poll % 2 == 0);
        }
        for _ in 0..POLLS_JUDGED {
            polled(&mut trial, false);
        }
        assert!(!trial.polls(Instant::ZERO, 0));
        assert_eq!(trial.holds, HOLDS_MIN);
        // No poll of the first `POLLS_JUDGED` polls finds a completion, so the trial ends during
        // its first part.
        let later = Instant::ZERO + HOLDS_MIN;
        for _ in 0..POLLS_JUDGED {
            assert!(trial.polls(later, 0));
            trial.polled(false);
        }
        assert!(trial.part.is_none() && !trial.polls(later, 0));
        assert_eq!(trial.holds, 2 * HOLDS_MIN);
    }

    #[test]
    fn a_trial_with_few_waits_takes_longer() {
        let mut trial = Trial::default();
        let mut now = Instant::ZERO;
        assert!(trial.polls(now, 0));
        now += HOLDS_MIN;
        // A part of a trial ends after 16 waits of 1 ms each, or after a single wait that lasts as
        // long as a part is allowed to last.
        for (wait, waits) in [(PART / 4, WAITS_MIN), (PART_MAX, 1)] {
            for _ in 0..waits {
                trial.polls(now, 0);
                now += wait;
            }
            let index = trial.part.map(|part| part.index);
            trial.polls(now, 0);
            assert_eq!(
                trial.part.map(|part| part.index),
                index.map(|index| index + 1)
            );
            trial.part.as_mut().expect("a part").waits = 0;
        }
    }

    #[test]
    fn of_a_long_wait_a_part_counts_the_beginning() {
        let mut server = Server::new();
        server.run(HOLDS_MIN + STEP, 100, 100);
        assert!(server.trial.part.is_some());
        server.now += 10 * PART;
        server.trial.waited(10 * PART);
        let taken = server.trial.part.map(|part| part.taken(server.now));
        assert_eq!(taken, Some(WAIT_MAX + STEP));
    }

    #[test]
    fn a_pause_ends_a_trial_and_the_last_result_holds_until_the_next() {
        let mut server = Server::new();
        server.run(2 * SECOND, 100, 150);
        assert_eq!(server.trial.holds, HOLDS_MAX);
        // A trial begins. In its first part, in which the server busy-polls, the peers stop sending
        // for a second.
        while !server.step(100, 150) {}
        server.now += SECOND;
        server.trial.waited(SECOND);
        assert_eq!(server.run(HOLDS_MIN, 100, 150), 0);
        assert!(server.step(100, 150));
    }
}
