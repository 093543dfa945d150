//! The requests of the last ten seconds, the last minute, the last ten minutes, and of all time.
//!
//! A request is added to the histogram of the present second only. The histograms of past seconds
//! are merged into those of ten seconds and of minutes. A device without requests costs nothing:
//! what has become too old is dropped when the next request, or a reader, comes.

use std::collections::VecDeque;

use super::histogram::{Dense, Sparse};

const SECOND_NS: u64 = 1_000_000_000;
/// Number of seconds of a ten.
const TEN: u64 = 10;
/// Number of tens of a minute.
const TENS_OF_A_MINUTE: u64 = 6;
/// Number of minutes of the longest window.
const MINUTES: u64 = 10;

/// A window of time up to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The last ten seconds.
    TenSeconds,
    /// The last minute.
    Minute,
    /// The last ten minutes.
    TenMinutes,
    /// All time since the device was opened.
    Start,
}

impl Window {
    /// All windows, the shortest first.
    pub const ALL: [Window; 4] = [
        Window::TenSeconds,
        Window::Minute,
        Window::TenMinutes,
        Window::Start,
    ];

    /// Returns the name of the window in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Window::TenSeconds => "last_10_s",
            Window::Minute => "last_1_min",
            Window::TenMinutes => "last_10_min",
            Window::Start => "since_start",
        }
    }
}

/// Histograms of past times of one length, each with the number of its time, oldest first.
#[derive(Debug, Default)]
struct Past(VecDeque<(u64, Sparse)>);

impl Past {
    fn from(&self, first: u64) -> impl Iterator<Item = &Sparse> {
        let past = self.0.iter().filter(move |(number, _)| *number >= first);
        past.map(|(_, histogram)| histogram)
    }

    fn forget_before(&mut self, first: u64) {
        while self.0.front().is_some_and(|(number, _)| *number < first) {
            self.0.pop_front();
        }
    }

    /// Adds the histogram of a time, if it has requests.
    fn push(&mut self, number: u64, histogram: Sparse) {
        if histogram.sums.requests > 0 {
            self.0.push_back((number, histogram));
        }
    }
}

/// The requests of one kind of one device; see the module.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Number of the present second, since the runtime began.
    second: u64,
    /// Requests of the present second.
    present: Dense,
    seconds: Past,
    tens: Past,
    minutes: Past,
    /// All requests before the present second.
    before: Dense,
}

impl Windows {
    /// Adds a request that ends at `now_ns`.
    pub(super) fn note(&mut self, now_ns: u64, latency_ns: u64, bytes: u64, has_failed: bool) {
        let second = now_ns / SECOND_NS;
        if second > self.second {
            self.move_on(second);
        }
        self.present.note(latency_ns, bytes, has_failed);
    }

    /// Returns the number of all requests.
    pub(super) fn requests(&self) -> u64 {
        self.before.sums.requests + self.present.sums.requests
    }

    /// Makes `second` the present second.
    fn move_on(&mut self, second: u64) {
        let past = std::mem::replace(&mut self.second, second);
        let requests = self.present.take();
        self.before.add(&requests);
        self.seconds.push(past, requests);
        let (ten, minute) = (past / TEN, past / TEN / TENS_OF_A_MINUTE);
        if second / TEN > ten {
            self.tens.push(ten, merged(self.seconds.from(ten * TEN)));
        }
        if second / TEN / TENS_OF_A_MINUTE > minute {
            let first = minute * TENS_OF_A_MINUTE;
            self.minutes.push(minute, merged(self.tens.from(first)));
        }
        let of = |number: u64, count: u64| number.saturating_sub(count);
        self.seconds.forget_before(of(second, TEN));
        self.tens.forget_before(of(second / TEN, TENS_OF_A_MINUTE));
        self.minutes
            .forget_before(of(second / TEN / TENS_OF_A_MINUTE, MINUTES));
    }

    /// Returns the requests of a window that ends at `now_ns`, and its length in ns. It begins with
    /// a whole second, ten seconds or minute, so it can be longer by as much.
    pub(super) fn of(&mut self, window: Window, now_ns: u64) -> (Dense, u64) {
        let second = now_ns / SECOND_NS;
        if second > self.second {
            self.move_on(second);
        }
        let (ten, minute) = (second / TEN, second / TEN / TENS_OF_A_MINUTE);
        let mut all = Dense::default();
        let first = match window {
            Window::TenSeconds => {
                let first = second.saturating_sub(TEN);
                self.seconds.from(first).for_each(|past| all.add(past));
                first
            }
            Window::Minute => {
                let first = ten.saturating_sub(TENS_OF_A_MINUTE);
                self.tens.from(first).for_each(|past| all.add(past));
                self.seconds.from(ten * TEN).for_each(|past| all.add(past));
                first * TEN
            }
            Window::TenMinutes => {
                let first = minute.saturating_sub(MINUTES);
                self.minutes.from(first).for_each(|past| all.add(past));
                let tens = self.tens.from(minute * TENS_OF_A_MINUTE);
                tens.for_each(|past| all.add(past));
                self.seconds.from(ten * TEN).for_each(|past| all.add(past));
                first * TENS_OF_A_MINUTE * TEN
            }
            Window::Start => {
                all = self.before.clone();
                0
            }
        };
        all.add(&self.present.clone().take());
        (all, now_ns.saturating_sub(first * SECOND_NS))
    }
}

/// Returns the histogram of all requests of some others.
fn merged<'h>(histograms: impl Iterator<Item = &'h Sparse>) -> Sparse {
    let mut all = Dense::default();
    histograms.for_each(|histogram| all.add(histogram));
    all.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of requests in the windows, when one request ended in the middle of each
    /// of some seconds.
    fn requests(seconds: impl Iterator<Item = u64>, now_s: u64) -> [u64; 4] {
        let mut windows = Windows::default();
        for second in seconds {
            let at_ns = second * SECOND_NS + SECOND_NS / 2;
            windows.note(at_ns, 1000, 4096, false);
        }
        Window::ALL.map(|window| {
            let (all, _) = windows.of(window, now_s * SECOND_NS);
            assert_eq!(all.counts.iter().sum::<u64>(), all.sums.requests);
            all.sums.requests
        })
    }

    #[test]
    fn each_window_has_the_requests_of_its_time() {
        // At the beginning of a minute, the windows are as long as their names say.
        assert_eq!(requests(0..6000, 6000), [10, 60, 600, 6000]);
        // Later in it, those that begin with whole times are longer.
        assert_eq!(requests(0..6017, 6017), [10, 67, 617, 6017]);
        assert_eq!(requests(0..6, 6), [6, 6, 6, 6]);
    }

    #[test]
    fn a_pause_leaves_nothing_of_what_is_too_old() {
        // The last minute begins with a whole ten.
        assert_eq!(requests(0..60, 65), [5, 60, 60, 60]);
        assert_eq!(requests(0..60, 70), [0, 50, 60, 60]);
        assert_eq!(requests(0..60, 130), [0, 0, 60, 60]);
        assert_eq!(requests(0..60, 100_000), [0, 0, 0, 60]);
        // Requests after the pause are not mixed with those before it.
        let seconds = (0..60).chain(1000..1003);
        assert_eq!(requests(seconds, 1003), [3, 3, 3, 63]);
    }

    #[test]
    fn no_more_is_kept_than_the_windows_need() {
        let mut windows = Windows::default();
        for second in 0..5000 {
            windows.note(second * SECOND_NS, 1000, 4096, false);
        }
        let kept = [&windows.seconds, &windows.tens, &windows.minutes];
        assert_eq!(kept.map(|past| past.0.len()), [10, 6, 10]);
    }
}
