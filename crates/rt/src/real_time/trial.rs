//! Which of two ways to wait gets more done: looking or sleeping.
//!
//! Whether a thread should look for what comes, or sleep until it comes, depends on who else wants the
//! processor, on what a wake-up costs here, and on whether its peers ask more at once when they are left
//! alone. None of that can be known, but what comes of it can be counted: the bytes that operations moved. So
//! a conversation is run both ways for some milliseconds each, and goes on in the better way until the next
//! trial. Four connections of fio on a machine with two cores got a fifth to a half more from a server that
//! sleeps; one request at a time gets two and a half times as much from one that looks.
//!
//! It must never prefer sleeping without a clear difference: who asks one request after the other, with work of
//! their own between, get each answer sooner from a thread that looks.

use std::time::Duration;

use crate::time::Instant;

/// How long each part of a trial lasts: some hundred requests.
const PART: Duration = Duration::from_millis(4);
/// How long what a trial has shown holds: at first, and at most, after others that showed the same. A trial takes
/// a sixteenth of the longest, and half of that goes in the worse way.
const HOLDS_MIN: Duration = Duration::from_millis(16);
const HOLDS_MAX: Duration = Duration::from_millis(256);
/// The parts of a trial, true where it looks. What changes steadily meanwhile falls on both ways alike.
const PARTS: [bool; 4] = [true, false, false, true];
/// Sleeping has to get this much more done than looking, in hundredths.
const MARGIN_PERCENT: u128 = 105;

/// What has been done in one of the two ways.
#[derive(Clone, Copy, Debug, Default)]
struct Yield {
    done: u64,
    taken_ns: u64,
}

/// A part of a trial that is under way.
#[derive(Clone, Copy, Debug)]
struct Part {
    index: usize,
    began: Instant,
    /// What had been done when it began.
    done: u64,
}

/// Trials so far, and the one under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// What the last trial has shown.
    looks: bool,
    /// How long that holds.
    holds: Duration,
    /// When the next trial begins; the first one begins when this is known.
    next: Option<Instant>,
    part: Option<Part>,
    looked: Yield,
    slept: Yield,
}

impl Default for Trial {
    /// Looks, until a first trial has been made.
    fn default() -> Trial {
        Trial {
            looks: true,
            holds: HOLDS_MIN,
            next: None,
            part: None,
            looked: Yield::default(),
            slept: Yield::default(),
        }
    }
}

impl Trial {
    /// True when a wait that begins now should look; `done` is all that was done so far, in any unit.
    pub(super) fn looks(&mut self, now: Instant, done: u64) -> bool {
        match self.part {
            None => match self.next {
                None => self.next = Some(now + self.holds),
                Some(next) if now >= next => self.begin(0, now, done),
                Some(_) => {}
            },
            Some(part) if now.since(part.began) >= PART => self.end(part, now, done),
            Some(_) => {}
        }
        self.part.map_or(self.looks, |part| PARTS[part.index])
    }

    /// A wait is over. One as long as a part is a pause, and says nothing about either way.
    pub(super) fn waited(&mut self, waited: Duration) {
        if waited >= PART && self.part.take().is_some() {
            self.next = None;
            (self.looked, self.slept) = Default::default();
        }
    }

    fn begin(&mut self, index: usize, began: Instant, done: u64) {
        self.part = Some(Part { index, began, done });
    }

    fn end(&mut self, part: Part, now: Instant, done: u64) {
        let sum = match PARTS[part.index] {
            true => &mut self.looked,
            false => &mut self.slept,
        };
        sum.done += done - part.done;
        sum.taken_ns += now.since(part.began).as_nanos() as u64;
        if part.index + 1 < PARTS.len() {
            return self.begin(part.index + 1, now, done);
        }
        let looks = !gets_clearly_more_done(self.slept, self.looked);
        self.holds = match looks == self.looks {
            true => HOLDS_MAX.min(self.holds * 2),
            false => HOLDS_MIN,
        };
        self.looks = looks;
        self.part = None;
        self.next = Some(now + self.holds);
        (self.looked, self.slept) = Default::default();
    }
}

/// True when `slept` did at least [`MARGIN_PERCENT`] of what `looked` did, in the same time.
fn gets_clearly_more_done(slept: Yield, looked: Yield) -> bool {
    let slept_done = u128::from(slept.done) * u128::from(looked.taken_ns);
    let looked_done = u128::from(looked.done) * u128::from(slept.taken_ns);
    slept_done * 100 > looked_done * MARGIN_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(10);

    /// A server whose peers get so much done a step while it looks and while it sleeps.
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

        /// Runs for so long; the share of the time in which it looked, in hundredths.
        fn run(&mut self, time: Duration, looking: u64, sleeping: u64) -> u32 {
            let steps = (time.as_nanos() / STEP.as_nanos()) as u32;
            let mut looked = 0;
            for _ in 0..steps {
                let looks = self.trial.looks(self.now, self.done);
                looked += u32::from(looks);
                self.done += if looks { looking } else { sleeping };
                self.now += STEP;
            }
            looked * 100 / steps
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    /// A trial, the time before it, and a step.
    const FIRST: Duration = HOLDS_MIN
        .saturating_add(PART.saturating_mul(4))
        .saturating_add(STEP);

    #[test]
    fn what_gets_more_done_is_what_is_done() {
        let mut server = Server::new();
        // Until the first trial is over it looks; then in the parts of trials that do, alone.
        assert!(server.run(FIRST, 100, 150) > 70);
        server.run(SECOND, 100, 150);
        assert!((1..=4).contains(&server.run(SECOND, 100, 150)));
        // Peers change: after the next trial it looks again, but for the other parts.
        server.run(HOLDS_MAX + 4 * PART, 100, 40);
        server.run(SECOND, 100, 40);
        assert!((96..=99).contains(&server.run(SECOND, 100, 40)));
    }

    #[test]
    fn a_new_finding_is_tried_again_soon_and_an_old_one_seldom() {
        let mut server = Server::new();
        server.run(FIRST, 100, 150);
        // The first finding of another way holds as long as it took to be looked for.
        assert_eq!(server.run(HOLDS_MIN - STEP, 100, 150), 0);
        server.run(2 * STEP, 100, 150);
        assert!(server.trial.part.is_some());
        server.run(2 * SECOND, 100, 150);
        assert_eq!(server.trial.holds, HOLDS_MAX);
    }

    #[test]
    fn without_a_clear_difference_it_looks() {
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
    fn what_changes_steadily_falls_on_both_ways_alike() {
        let mut server = Server::new();
        server.run(SECOND, 1000, 1000);
        let mut looks = 0;
        for step in 0..100_000 {
            looks += server.run(STEP, 1000 + step, 1000 + step) / 100;
        }
        assert!(looks >= 96_000, "{looks}");
    }

    #[test]
    fn a_pause_ends_a_trial_and_what_the_last_one_has_shown_holds() {
        let mut server = Server::new();
        server.run(FIRST, 100, 150);
        // A trial begins, and its peers go away in its first part, in which it looks.
        server.run(HOLDS_MIN + STEP, 100, 150);
        assert!(server.trial.looks(server.now, server.done));
        server.now += SECOND;
        server.trial.waited(SECOND);
        assert!(!server.trial.looks(server.now, server.done));
        assert_eq!(server.run(HOLDS_MIN, 100, 150), 0);
    }
}
