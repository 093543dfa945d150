//! Which of two ways to wait gets more done: busy-polling or sleeping.
//!
//! Whether a thread should busy-poll for what comes, or sleep until it comes, depends on who else
//! wants the processor, on what a wake-up costs here, and on whether its peers ask for more at once
//! when they are left alone. None of that can be known, but its effect can be counted: the bytes
//! that operations moved. So a conversation is run both ways for some milliseconds each, and goes
//! on in the better way until the next trial. Measured on two cores: a ping-pong over a UNIX socket
//! made 14 thousand round trips a second on a quiet machine when both ends slept and 36 thousand
//! when one busy-polled, but 107 and 56 thousand beside a process that computes, where both ends
//! share a core. Four connections of fio got a fifth to a half more from a server that sleeps.
//!
//! A trial measures what it says it measures: in the parts that busy-poll, every wait of a
//! conversation begins with it, whatever the waits before were like. That most of it is in vain is
//! a result of its own: then sleeping is chosen at once, since busy-polling cannot be what helps.
//!
//! It must never prefer sleeping without a clear difference where busy-polling finds something: who
//! asks one request after the other, with work of their own between, gets each answer sooner from a
//! thread that busy-polls. And no result holds for ever: the next trial can undo each of them.

use std::time::Duration;

use crate::time::Instant;

/// How long each part of a trial lasts, at least: some hundred requests.
const PART: Duration = Duration::from_millis(4);
/// A part with fewer waits goes on until it has as many, but no longer than [`PART_MAX`].
const WAITS_MIN: u32 = 16;
const PART_MAX: Duration = Duration::from_millis(32);
/// Of a longer wait the rest is left out: one time slice of another process must not decide.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// After a pause as long as this the machine may be another one: the next trial comes soon.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the result of a trial holds: at first, and at most, after others with the same result.
/// A trial takes a sixteenth of the longest, and half of that goes in the worse way.
const HOLDS_MIN: Duration = Duration::from_millis(16);
const HOLDS_MAX: Duration = Duration::from_millis(256);
/// The parts of a trial, true where it busy-polls. A steady change falls on both ways alike.
const PARTS: [bool; 4] = [true, false, false, true];
/// All parts are run this many times before the way is changed; once where the result is the
/// old one.
const RUNS_TO_CHANGE: u32 = 2;
/// Sleeping has to get this much more done than busy-polling, in hundredths.
const MARGIN_PERCENT: u128 = 105;
/// Waits that began by busy-polling, after which it is judged whether most of that was in vain.
const POLLS_JUDGED: u32 = 32;

/// What has been done in one of the two ways.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    done: u64,
    taken_ns: u64,
}

/// How often busy-polling found something.
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

/// A part of a trial that is under way.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: usize,
    began: Instant,
    /// What had been done when it began.
    done: u64,
    waits: u32,
    /// What of its time is left out.
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

/// Trials so far, and the one under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// The result of the last trial.
    polls: bool,
    /// How long that holds.
    holds: Duration,
    /// When the next trial begins; `None` until the next wait.
    next: Option<Instant>,
    part: Option<Part>,
    /// How often all parts of the trial under way have been run.
    runs: u32,
    polled: Yield,
    slept: Yield,
    /// In the trial under way; without one, since the last time that it was judged.
    found: Polls,
}

impl Default for Trial {
    /// Busy-polls, until a first trial has been made.
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
    /// True when a wait that begins now should busy-poll first; `done` is all that was done so far,
    /// in any unit.
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

    /// A wait that began by busy-polling is over; `found` when it did not come to sleeping.
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

    /// A wait is over that came to sleeping.
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

    /// A trial has this result, or one is not needed for it.
    fn choose(&mut self, polls: bool) {
        self.holds = match polls == self.polls {
            true => HOLDS_MAX.min(self.holds * 2),
            false => HOLDS_MIN,
        };
        self.polls = polls;
        self.forget();
    }

    /// Nothing has been measured since the last result.
    fn forget(&mut self) {
        self.part = None;
        self.next = None;
        self.runs = 0;
        (self.polled, self.slept) = Default::default();
        self.found = Polls::default();
    }
}

/// True when `slept` did at least [`MARGIN_PERCENT`] of what `polled` did, in the same time.
fn gets_clearly_more_done(slept: Yield, polled: Yield) -> bool {
    let slept_done = u128::from(slept.done) * u128::from(polled.taken_ns);
    let polled_done = u128::from(polled.done) * u128::from(slept.taken_ns);
    slept_done * 100 > polled_done * MARGIN_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(10);

    /// A server whose peers get so much done a step while it busy-polls and while it sleeps.
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

        /// Runs for so long; the share of the time in which it busy-polled, in hundredths.
        fn run(&mut self, time: Duration, polling: u64, sleeping: u64) -> u32 {
            let steps = (time.as_nanos() / STEP.as_nanos()) as u32;
            let mut polled = 0;
            for _ in 0..steps {
                polled += u32::from(self.step(polling, sleeping));
            }
            polled * 100 / steps
        }

        /// One wait; true when it busy-polled.
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
    /// A trial that changes the way, the time before it, and a step.
    const FIRST: Duration = HOLDS_MIN
        .saturating_add(PART.saturating_mul(8))
        .saturating_add(STEP);

    #[test]
    fn what_gets_more_done_is_what_is_done() {
        let mut server = Server::new();
        // It busy-polls until the first trial is over; then only in the parts of trials that do.
        assert!(server.run(FIRST, 100, 150) > 60);
        server.run(SECOND, 100, 150);
        assert!((1..=4).contains(&server.run(SECOND, 100, 150)));
        // Peers change: after the next trial it busy-polls again, but for the other parts.
        server.run(HOLDS_MAX + 9 * PART, 100, 40);
        server.run(SECOND, 100, 40);
        assert!((96..=99).contains(&server.run(SECOND, 100, 40)));
    }

    #[test]
    fn a_new_result_is_tried_again_soon_and_an_old_one_seldom() {
        let mut server = Server::new();
        server.run(FIRST, 100, 150);
        // A first result of another way holds as long as it took until it was tried.
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
        // Half of it in vain: it is judged and goes on.
        for poll in 0..POLLS_JUDGED {
            polled(&mut trial, poll % 2 == 0);
        }
        for _ in 0..POLLS_JUDGED {
            polled(&mut trial, false);
        }
        assert!(!trial.polls(Instant::ZERO, 0));
        assert_eq!(trial.holds, HOLDS_MIN);
        // The part of a trial that busy-polls in vain ends it.
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
        // Waits of 1 ms: 16 of them are a part. Of 100 ms: one is more than the longest part.
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
        // A trial begins, and its peers go away in its first part, in which it busy-polls.
        while !server.step(100, 150) {}
        server.now += SECOND;
        server.trial.waited(SECOND);
        assert_eq!(server.run(HOLDS_MIN, 100, 150), 0);
        assert!(server.step(100, 150));
    }
}
