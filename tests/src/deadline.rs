//! Waits for a condition, never for a fixed time.
//!
//! Only this module of the tests reads the clock. A deadline turns a hang into a test failure that
//! names the condition, and must not be used to measure time. (An emulated slow disk computes its
//! delays with the same clock, and no test asserts anything about these delays.)

use std::time::{Duration, Instant};

/// The moment at which a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    end: Instant,
}

impl Deadline {
    /// Returns the deadline that is `seconds` from now.
    #[allow(
        clippy::disallowed_methods,
        reason = "a deadline for processes of the real world"
    )]
    pub fn in_s(seconds: u64) -> Self {
        Self {
            end: Instant::now() + Duration::from_secs(seconds),
        }
    }

    /// Returns the present moment as a deadline, from which an emulated disk computes the end of an
    /// operation.
    pub fn now() -> Self {
        Self::in_s(0)
    }

    /// Returns the deadline that is `by` later than this one.
    pub fn later(self, by: Duration) -> Self {
        Self { end: self.end + by }
    }

    /// Returns the time until the deadline, which is zero once the deadline has passed.
    #[allow(
        clippy::disallowed_methods,
        reason = "a deadline for processes of the real world"
    )]
    pub fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns whether the deadline has passed.
    pub fn passed(self) -> bool {
        self.left().is_zero()
    }
}

/// Calls `probe` until it returns a value, and returns the value. After `seconds` without a value,
/// panics with `what`.
///
/// Use this function for conditions that only files of the kernel show (`/proc`, a pid file), on
/// which a thread cannot block. Between two probes the thread is parked for 10 ms, so that the
/// process under observation gets the processor.
pub fn eventually<T>(seconds: u64, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::in_s(seconds);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(!deadline.passed(), "waited {seconds} s in vain for: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
