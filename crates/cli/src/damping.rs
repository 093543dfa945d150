//! Which changes of a volume's health are events: what comes and goes must not be an event each
//! time.
//!
//! The word that is told is the worst of the last minute. So a worse word is told at once, and a
//! milder one when nothing worse was seen for a minute. A word that keeps returning within that
//! time is told as such when it has come for the third time, and then when it has come ten times as
//! often. Nothing here reads a clock.

use std::collections::VecDeque;
use std::time::Duration;

use bimetal_rt::Instant;

use crate::health::State;

/// Time for which nothing worse must have been seen before a milder word is told.
const CALM: Duration = Duration::from_secs(60);
/// Number of times that a word must have come until it is told that it keeps coming.
const OFTEN: u64 = 3;
/// Factor between the numbers of times at which that is told.
const OFTENER: u64 = 10;

/// An event about the health of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The word is another one, and worse.
    Worse { was: State, is: State },
    /// The told word keeps coming: `times` in the time `within`.
    Again {
        is: State,
        times: u64,
        within: Duration,
    },
    /// Nothing worse than `is` was seen for a minute. Before, `was` came `times` in `within`.
    Milder {
        was: State,
        is: State,
        times: u64,
        within: Duration,
    },
}

impl Told {
    /// Returns the event in words. `reason` is the reason of the present word.
    pub(crate) fn words(&self, reason: &str) -> String {
        match self {
            Told::Worse { was, is } => format!("was {}, is {}: {reason}", was.word(), is.word()),
            Told::Again { is, times, within } => format!(
                "is {} again and again, {times} times in {}: {reason}",
                is.word(),
                in_words(*within)
            ),
            Told::Milder {
                was,
                is,
                times,
                within,
            } => {
                let often = match times {
                    1 if within.as_secs() == 0 => "once".to_owned(),
                    1 => format!("for {}", in_words(*within)),
                    times => format!("{times} times in {}", in_words(*within)),
                };
                let (was, is) = (was.word(), is.word());
                format!("was {was} ({often}), is {is}: {reason}")
            }
        }
    }
}

/// Returns a time in words, in units in which it has at most three digits or so.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..600 => format!("{seconds} s"),
        seconds @ 600..36_000 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// The word that was told of a volume, and what has been seen since.
#[derive(Debug)]
pub(crate) struct Damping {
    told: State,
    /// The times at which the told word was first seen since it was told, and last.
    first: Instant,
    last: Instant,
    /// How often the told word has come since it was told, and the number at which that is told.
    times: u64,
    often: u64,
    /// Whether the told word was seen at the last look.
    is_there: bool,
    /// Words that may be the worst of the last minute now or later, each with the time at which it
    /// was last seen: the oldest first, which is also the worst.
    seen: VecDeque<(State, Instant)>,
}

impl Damping {
    /// Begins with the word of the start, which is no event.
    pub(crate) fn new(now: Instant, is: State) -> Damping {
        Damping {
            told: is,
            first: now,
            last: now,
            times: 1,
            often: OFTEN,
            is_there: true,
            seen: VecDeque::from([(is, now)]),
        }
    }

    /// Takes the word `is` that is seen at the time `now`, and returns what to tell about it.
    pub(crate) fn look(&mut self, now: Instant, is: State) -> Option<Told> {
        // A word is worse than another if it is less.
        while self.seen.back().is_some_and(|(state, _)| *state >= is) {
            self.seen.pop_back();
        }
        self.seen.push_back((is, now));
        while self.seen.len() > 1 && now.since(self.seen[0].1) > CALM {
            self.seen.pop_front();
        }
        let worst = self.seen[0].0;
        let was = self.told;
        if worst != was {
            let (times, within) = (self.times, self.last.since(self.first));
            let seen = std::mem::take(&mut self.seen);
            *self = Damping {
                is_there: is == worst,
                first: seen[0].1,
                last: seen[0].1,
                seen,
                ..Damping::new(now, worst)
            };
            return Some(match worst < was {
                true => Told::Worse { was, is: worst },
                false => Told::Milder {
                    was,
                    is: worst,
                    times,
                    within,
                },
            });
        }
        let was_there = std::mem::replace(&mut self.is_there, is == self.told);
        if !self.is_there {
            return None;
        }
        self.last = now;
        if was_there || self.told == State::Healthy {
            return None;
        }
        self.times += 1;
        let is_often = self.times == self.often;
        is_often.then(|| {
            self.often *= OFTENER;
            Told::Again {
                is: self.told,
                times: self.times,
                within: now.since(self.first),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{Gone, Healthy, Rebuilding, Slow};

    /// Looks once a second, from the given second on for as long as the word lasts, and returns
    /// what was told, with the second.
    struct Seen {
        damping: Damping,
        now_s: u64,
    }

    impl Seen {
        fn new() -> Seen {
            Seen {
                damping: Damping::new(Instant::from_ns(0), Healthy),
                now_s: 0,
            }
        }

        fn during(&mut self, is: State, looks: u64) -> Vec<(u64, String)> {
            let mut told = Vec::new();
            for _ in 0..looks {
                self.now_s += 1;
                let now = Instant::from_ns(self.now_s * 1_000_000_000);
                let event = self.damping.look(now, is);
                told.extend(event.map(|event| (self.now_s, event.words("why"))));
            }
            told
        }
    }

    fn told(at_s: u64, words: &str) -> Vec<(u64, String)> {
        vec![(at_s, words.to_owned())]
    }

    #[test]
    fn a_worse_word_is_told_at_once_and_its_end_after_a_minute() {
        let mut seen = Seen::new();
        assert_eq!(seen.during(Slow, 5), told(1, "was healthy, is slow: why"));
        // It was last seen at 5 s, and healthy first at 6 s.
        assert_eq!(seen.during(Healthy, 60), []);
        let end = "was slow (for 4 s), is healthy: why";
        assert_eq!(seen.during(Healthy, 1), told(66, end));
        assert_eq!(seen.during(Healthy, 1000), []);
        assert_eq!(
            seen.during(Slow, 1),
            told(1067, "was healthy, is slow: why")
        );
    }

    #[test]
    fn what_keeps_happening_is_told_as_such_once() {
        let mut seen = Seen::new();
        let stall = |seen: &mut Seen| {
            let mut events = seen.during(Slow, 2);
            events.extend(seen.during(Healthy, 18));
            events
        };
        assert_eq!(stall(&mut seen), told(1, "was healthy, is slow: why"));
        assert_eq!(stall(&mut seen), []);
        let often = "is slow again and again, 3 times in 40 s: why";
        assert_eq!(stall(&mut seen), told(41, often));
        for _ in 3..29 {
            assert_eq!(stall(&mut seen), []);
        }
        // The thirtieth begins 29 times 20 s after the first.
        let oftener = "is slow again and again, 30 times in 580 s: why";
        assert_eq!(stall(&mut seen), told(581, oftener));
        // The last one was seen at 582 s, and 18 looks have been healthy since.
        assert_eq!(seen.during(Healthy, 42), []);
        let end = "was slow (30 times in 581 s), is healthy: why";
        assert_eq!(seen.during(Healthy, 1), told(643, end));
    }

    #[test]
    fn a_return_within_the_minute_begins_it_again() {
        let mut seen = Seen::new();
        assert_eq!(seen.during(Slow, 1).len(), 1);
        assert_eq!(seen.during(Healthy, 60), []);
        // One look more would have told the end.
        assert_eq!(seen.during(Slow, 1), []);
        assert_eq!(seen.during(Healthy, 60), []);
        let end = "was slow (2 times in 61 s), is healthy: why";
        assert_eq!(seen.during(Healthy, 1), told(123, end));
    }

    #[test]
    fn a_milder_word_is_told_after_a_minute_and_a_worse_one_at_once() {
        let mut seen = Seen::new();
        assert_eq!(seen.during(Slow, 1), told(1, "was healthy, is slow: why"));
        assert_eq!(seen.during(Gone, 10), told(2, "was slow, is gone: why"));
        // Last gone at 11 s. What comes and goes below it is one word, the worst of it.
        for _ in 0..15 {
            assert_eq!(seen.during(Slow, 1), []);
            assert_eq!(seen.during(Rebuilding, 1), []);
            assert_eq!(seen.during(Healthy, 2), []);
        }
        let milder = "was gone (for 9 s), is rebuilding: why";
        assert_eq!(seen.during(Healthy, 1), told(72, milder));
        // Last rebuilding at 69 s.
        assert_eq!(seen.during(Healthy, 57), []);
        let end = "was rebuilding (once), is healthy: why";
        assert_eq!(seen.during(Healthy, 1), told(130, end));
    }

    #[test]
    fn the_word_of_the_start_is_told_only_when_it_ends() {
        let mut damping = Damping::new(Instant::from_ns(0), Gone);
        assert_eq!(damping.look(Instant::from_ns(1_000_000_000), Gone), None);
        let minute = Instant::from_ns(62_000_000_000);
        assert!(matches!(
            damping.look(minute, Healthy),
            Some(Told::Milder {
                was: Gone,
                is: Healthy,
                times: 1,
                ..
            })
        ));
    }
}
