//! Measures the time in which a thread was awake, without its stalls.
//!
//! A thread that does not run (stopped by a signal, in a paused virtual machine, waiting for a
//! processor) handles no completions, so a device that seems to complete nothing during such a
//! stall need not have failed. [`Stalls`] detects and records stalls, so that timeouts for devices
//! can exclude them. A stall is a turn of the executor that took long, or a sleep that lasted much
//! longer than requested. A stop during a sleep is detected only if the stop outlasts the sleep, so
//! the duration of a sleep is bounded.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use crate::executor::{Elapsed, Rt};
use crate::time::Instant;

/// Minimum duration of a stall: a turn that takes at least this time is a stall, and so is a sleep
/// that lasts at least this time longer than requested.
pub(crate) const STALL_MIN: Duration = Duration::from_millis(100);

/// Maximum duration of a sleep while a timer is set. If the thread is stopped during a sleep, only
/// the time after the requested end of the sleep is recorded as a stall; the time before it is
/// counted as awake time. This maximum therefore bounds the part of a stall that is counted as
/// awake time.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Maximum number of stalls that are kept.
const KEPT_MAX: usize = 32;

/// Stalls of a thread: periods in which the thread did not poll its driver although it should have.
#[derive(Default)]
pub(crate) struct Stalls {
    /// Start and end of each stall, oldest first, disjoint.
    kept: RefCell<VecDeque<(Instant, Instant)>>,
    /// The time by which the thread should poll its driver.
    expected: Cell<Instant>,
}

impl Stalls {
    /// Records that the thread polls its driver at `now`, and that it should poll again soon.
    pub(crate) fn probe(&self, now: Instant) {
        if let Some(start) = self.current(now) {
            let mut kept = self.kept.borrow_mut();
            if kept.len() == KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back((start, now));
        }
        self.expected.set(now);
    }

    /// Records that the thread, which has just polled its driver, does not have to poll it before
    /// `end`.
    pub(crate) fn sleep_until(&self, end: Instant) {
        self.expected.set(end);
    }

    /// Returns the start of the stall (a period in which the driver should have been polled, but
    /// was not) that ends at `now`; `None` if there is none.
    fn current(&self, now: Instant) -> Option<Instant> {
        let expected = self.expected.get();
        (now.since(expected) >= STALL_MIN).then_some(expected)
    }

    /// Returns the time from `since` to `now` minus the stalls in that period. Only the last
    /// `KEPT_MAX` stalls are recorded. For a long period, the result can therefore include the time
    /// of older stalls.
    pub(crate) fn awake(&self, since: Instant, now: Instant) -> Duration {
        let kept = self.kept.borrow();
        let current = self.current(now).map(|start| (start, now));
        let stalls = kept.iter().copied().chain(current);
        let stalled: Duration = stalls.map(|(start, end)| end.since(start.max(since))).sum();
        now.since(since).saturating_sub(stalled)
    }
}

impl Rt {
    /// Returns the time since `earlier` in which this thread was awake. The result excludes stalls.
    /// A stall is a period in which the thread should have polled for completions but did not,
    /// because the process was stopped, the machine was paused, or a turn took long. Timeouts for
    /// devices use this time, since a thread that does not poll sees no completion.
    ///
    /// Up to one second of each stall can be counted as awake time. Only the last 32 stalls are
    /// excluded; earlier stalls are counted as awake time.
    pub fn awake_since(&self, earlier: Instant) -> Duration {
        self.0.stalls.awake(earlier, self.now())
    }

    /// Waits for `future` for at most `duration`, like [`Rt::timeout`]. `duration` includes only
    /// the time in which this thread is [awake](Rt::awake_since).
    ///
    /// # Errors
    /// [`Elapsed`] if `duration` has passed before `future` completes.
    pub async fn timeout_awake<F: Future>(
        &self,
        duration: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let began = self.now();
        let mut future = std::pin::pin!(future);
        loop {
            let left = duration.saturating_sub(self.awake_since(began));
            match self.timeout(left, future.as_mut()).await {
                Ok(output) => return Ok(output),
                Err(Elapsed) if self.awake_since(began) < duration => {}
                Err(Elapsed) => return Err(Elapsed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    fn awake_ms(stalls: &Stalls, since: u64, now: u64) -> u128 {
        stalls.awake(at(since), at(now)).as_millis()
    }

    #[test]
    fn a_stall_counts_from_when_a_look_was_due() {
        let stalls = Stalls::default();
        stalls.probe(at(10));
        stalls.sleep_until(at(500));
        // The thread polls its driver 5 s late. Each measured period contains this whole stall, a
        // part of it, or nothing of it.
        stalls.probe(at(5_500));
        stalls.probe(at(5_510));
        assert_eq!(awake_ms(&stalls, 0, 5_510), 510);
        assert_eq!(awake_ms(&stalls, 500, 5_510), 10);
        assert_eq!(awake_ms(&stalls, 3_000, 5_510), 10);
        assert_eq!(awake_ms(&stalls, 5_505, 5_510), 5);
    }

    #[test]
    fn short_delays_are_no_stalls() {
        let stalls = Stalls::default();
        for turn in 1..100 {
            stalls.probe(at(turn * 99));
        }
        assert_eq!(awake_ms(&stalls, 0, 99 * 99), 99 * 99);
    }

    #[test]
    fn the_turn_that_runs_counts_as_well() {
        let stalls = Stalls::default();
        stalls.sleep_until(at(1_000));
        stalls.probe(at(1_000));
        assert_eq!(awake_ms(&stalls, 0, 9_000), 1_000);
        assert_eq!(awake_ms(&stalls, 2_000, 9_000), 0);
    }

    #[test]
    fn of_many_stalls_the_newest_are_known() {
        let stalls = Stalls::default();
        for second in 1..=40 {
            stalls.probe(at(second * 1_000));
        }
        assert_eq!(awake_ms(&stalls, 8_000, 40_000), 0);
        assert_eq!(awake_ms(&stalls, 0, 40_000), 8_000);
    }
}
