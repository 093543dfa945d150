//! For how long clients were held up lately: the time within the last ten seconds in which a
//! condition was true, such as that a change waits for room in a log.
//!
//! A condition that comes and goes many times in a second would be shown as something else each
//! time that someone looks, and a counter since the start would show a trouble of last week for
//! ever. This module must never wait, and its memory is a few words.

use std::cell::RefCell;

use bimetal_rt::Instant;

const SECOND_NS: u64 = 1_000_000_000;
/// Number of whole seconds that are remembered.
const SECONDS: u64 = 10;
/// Time from which on clients count as held up.
const MUCH_NS: u64 = 2 * SECOND_NS;
/// Time below which they no longer count as held up. It is lower, so that a time that varies a
/// little does not change the answer each second.
const LITTLE_NS: u64 = SECOND_NS / 2;

/// A condition, and when it was true; see the module.
#[derive(Default)]
pub(super) struct Lately(RefCell<State>);

#[derive(Default)]
struct State {
    is_true: bool,
    /// Time up to which the seconds are complete.
    known_ns: u64,
    /// Time for which the condition was true in the present second, and in each of the last ones.
    true_ns: [u64; SECONDS as usize + 1],
    is_much: bool,
}

impl Lately {
    /// Records whether the condition is true from the time `now` on.
    pub(super) fn set(&self, now: Instant, is_true: bool) {
        let mut state = self.0.borrow_mut();
        if state.is_true != is_true {
            state.know_until(now.as_ns());
            state.is_true = is_true;
        }
    }

    /// Returns the number of seconds, of the last ten before `now`, in which the condition was
    /// true. Returns 0 until it was true for two of them, and again when it was for less than half
    /// of one.
    pub(super) fn held_up_seconds(&self, now: Instant) -> f64 {
        let mut state = self.0.borrow_mut();
        state.know_until(now.as_ns());
        let all_ns: u64 = state.true_ns.iter().sum();
        state.is_much = all_ns >= MUCH_NS || state.is_much && all_ns >= LITTLE_NS;
        match state.is_much {
            true => all_ns.min(SECONDS * SECOND_NS) as f64 / 1e9,
            false => 0.0,
        }
    }
}

impl State {
    fn know_until(&mut self, now_ns: u64) {
        let slots = self.true_ns.len() as u64;
        let first_kept_ns = (now_ns / SECOND_NS).saturating_sub(slots) * SECOND_NS;
        self.known_ns = self.known_ns.max(first_kept_ns);
        while self.known_ns < now_ns {
            let second = self.known_ns / SECOND_NS;
            let end_ns = now_ns.min((second + 1) * SECOND_NS);
            if self.is_true {
                self.true_ns[(second % slots) as usize] += end_ns - self.known_ns;
            }
            self.known_ns = end_ns;
            if end_ns.is_multiple_of(SECOND_NS) {
                let next = end_ns / SECOND_NS % slots;
                self.true_ns[next as usize] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// The condition is true for a quarter of each second, for 20 s from the second 100 on.
    #[test]
    fn a_condition_that_flickers_counts_once_it_holds_up_for_two_seconds_of_ten() {
        let lately = Lately::default();
        let mut seen = Vec::new();
        for second in 0..40 {
            if second < 20 {
                lately.set(at(100_000 + second * 1_000), true);
                lately.set(at(100_250 + second * 1_000), false);
            }
            seen.push(lately.held_up_seconds(at(100_999 + second * 1_000)) > 0.0);
        }
        // After eight seconds it was true for 2 s. Ten seconds after the last time, it was not.
        let expected: Vec<bool> = (0..40).map(|second| (7..29).contains(&second)).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_condition_that_is_true_for_long_fills_the_window() {
        let lately = Lately::default();
        lately.set(at(0), true);
        assert_eq!(lately.held_up_seconds(at(1_900)), 0.0);
        assert_eq!(lately.held_up_seconds(at(2_500)), 2.5);
        assert_eq!(lately.held_up_seconds(at(3_600_000)), 10.0);
        lately.set(at(3_600_000), false);
        assert_eq!(lately.held_up_seconds(at(3_612_000)), 0.0);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let lately = Lately::default();
        lately.set(at(0), true);
        lately.set(at(9_000), false);
        assert_eq!(lately.held_up_seconds(at(9_500)), 9.0);
        assert_eq!(lately.held_up_seconds(at(86_400_000)), 0.0);
    }
}
