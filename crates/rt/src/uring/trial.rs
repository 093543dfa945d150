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
/// How long what a trial has shown holds: a trial takes a sixteenth of it, half of that in the worse way.
const HOLDS: Duration = Duration::from_millis(256);
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
                None => self.next = Some(now + HOLDS),
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
        self.looks = !gets_clearly_more_done(self.slept, self.looked);
        self.part = None;
        self.next = Some(now + HOLDS);
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
                self.now = self.now + STEP;
            }
            looked * 100 / steps
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_gets_more_done_is_what_is_done() {
        let mut server = Server::new();
        // Until the first trial is over it looks; then in the parts of trials that do, alone.
        server.run(HOLDS + 4 * PART, 100, 150);
        assert!((1..=4).contains(&server.run(SECOND, 100, 150)));
        // Peers change: after the next trial it looks again, but for the other parts.
        server.run(HOLDS + 4 * PART, 100, 40);
        assert!((96..=99).contains(&server.run(SECOND, 100, 40)));
    }

    #[test]
    fn without_a_clear_difference_it_looks() {
        for sleeping in [0, 99, 100, 105] {
            let mut server = Server::new();
            server.run(HOLDS + 4 * PART, 100, sleeping);
            assert!(server.run(SECOND, 100, sleeping) >= 96, "{sleeping}");
        }
        let mut server = Server::new();
        server.run(HOLDS + 4 * PART, 100, 106);
        assert!(server.run(SECOND, 100, 106) <= 4);
    }

    #[test]
    fn what_changes_steadily_falls_on_both_ways_alike() {
        let mut server = Server::new();
        let mut looks = 0;
        for step in 0..100_000 {
            looks += server.run(STEP, 1000 + step, 1000 + step) / 100;
        }
        assert!(looks >= 96_000, "{looks}");
    }

    #[test]
    fn a_pause_ends_a_trial_and_what_the_last_one_has_shown_holds() {
        let mut server = Server::new();
        server.run(HOLDS + 4 * PART, 100, 150);
        // A trial begins, and its peers go away in its first part, in which it looks.
        server.run(HOLDS, 100, 150);
        assert!(server.trial.looks(server.now, server.done));
        server.now = server.now + SECOND;
        server.trial.waited(SECOND);
        assert!(!server.trial.looks(server.now, server.done));
        assert_eq!(server.run(HOLDS, 100, 150), 0);
    }
}
