//! Time as a value. An [`Instant`] counts nanoseconds since the runtime started, in real and in
//! virtual time, so that a log or a trace hash of a virtual run is the same on every machine.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Nanoseconds since the runtime started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The start of the runtime.
    pub const ZERO: Instant = Instant(0);
    /// An instant later than every timer.
    pub const MAX: Instant = Instant(u64::MAX);

    /// Returns the instant `ns` nanoseconds after the start.
    pub const fn from_ns(ns: u64) -> Instant {
        Instant(ns)
    }

    /// Returns the nanoseconds since the start.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the seconds since the start, for reports.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the time from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the nanoseconds from `earlier` to `self`; zero when `earlier` is later.
    pub fn ns_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(ns))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl std::fmt::Debug for Instant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.9}s", self.as_secs_f64())
    }
}
