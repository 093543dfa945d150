//! Latencies of the requests of a device or an export: every request is counted, by operation, in
//! windows of time and since the start.
//!
//! The time of a request is that from the [turn](bimetal_rt::turn) in which it was submitted to the
//! turn in which it was answered. A turn reads the clock once, whatever the number of requests in
//! it; a request that is answered within its turn takes no time. To read the clock for each request
//! at each layer would cost more than the counting.
//!
//! A meter must never delay a request. The memory of an operation that never occurs is a pointer.

mod histogram;
mod pending;
mod windows;

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use bimetal_rt::{Instant, Rt};

use self::histogram::{BUCKETS, longest_of};
use self::pending::Pending;
pub use self::windows::Window;
use self::windows::Windows;
use crate::request::{IoResult, Op, PerOp};

/// Meter of the requests of a device or an export; see the module.
pub struct Meter {
    rt: Rt,
    ops: PerOp<RefCell<Option<Box<OpMeter>>>>,
}

/// What a meter knows of one operation.
#[derive(Default)]
struct OpMeter {
    windows: Windows,
    pending: Pending,
    longest: Longest,
    /// Time of the last answer; `None` before the first.
    answered_at: Option<Instant>,
}

/// The longest latency of an operation since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// The latency, in ns.
    pub latency_ns: u64,
    /// Time of the answer, in seconds since 1970.
    pub unix_s: u64,
}

/// What a meter knows of one operation, for readers.
#[derive(Clone, Debug, PartialEq)]
pub struct OpLatency {
    /// Requests in flight.
    pub in_flight: u64,
    /// Time for which the oldest request in flight has been waiting, in ns; 0 when there is none.
    pub waiting_ns: u64,
    /// Time since the last answer, in ns; `None` before the first answer.
    pub answered_ns: Option<u64>,
    /// The longest latency of an answered request since the start.
    pub longest: Longest,
    /// The windows, in the order of [`Window::ALL`].
    pub windows: [WindowLatency; Window::ALL.len()],
    /// Upper ends of the buckets with requests since the start, in ns, with the numbers of their
    /// requests. All histograms have the same buckets, so the counts of several can be added.
    pub buckets: Vec<(u64, u64)>,
}

/// Requests that were answered within a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowLatency {
    /// Answered requests, including failed ones.
    pub requests: u64,
    /// Failed requests.
    pub errors: u64,
    /// Bytes of the ranges of the successful requests.
    pub bytes: u64,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Average number of requests in flight: the sum of the latencies over the length of the window
    /// (Little's law).
    pub queue: f64,
    /// Median latency, in ns. The percentiles are at most an eighth too long.
    pub p50_ns: u64,
    /// 99th percentile of the latency, in ns.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency, in ns.
    pub p999_ns: u64,
    /// Longest latency, in ns.
    pub max_ns: u64,
}

impl WindowLatency {
    /// Returns the number of requests in each second.
    pub fn requests_per_s(&self) -> f64 {
        per_s(self.requests, self.seconds)
    }

    /// Returns the number of bytes in each second.
    pub fn bytes_per_s(&self) -> f64 {
        per_s(self.bytes, self.seconds)
    }
}

fn per_s(count: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => count as f64 / seconds,
        false => 0.0,
    }
}

impl Meter {
    /// Creates a meter of a device without requests.
    pub fn new(rt: &Rt) -> Meter {
        Meter {
            rt: rt.clone(),
            ops: PerOp::default(),
        }
    }

    /// Records that a request was submitted. It counts as in flight until
    /// [`end`](Metered::end) is called, or the returned value is dropped.
    pub fn begin(&self, op: Op, bytes: u64) -> Metered<'_> {
        let began = self.rt.turn_began();
        let mut of_op = self.ops[op].borrow_mut();
        let of_op = of_op.get_or_insert_default();
        of_op.pending.begin(began.as_ns());
        Metered {
            meter: self,
            op,
            bytes,
            began,
        }
    }

    /// Records a request that was answered in the turn in which it was submitted.
    pub fn note_at_once(&self, op: Op, bytes: u64, result: &IoResult) {
        let mut of_op = self.ops[op].borrow_mut();
        let now_ns = self.rt.turn_began().as_ns();
        let of_op = of_op.get_or_insert_default();
        of_op.answered_at = Some(self.rt.turn_began());
        of_op.windows.note(now_ns, 0, bytes, result.is_err());
    }

    /// Returns the number of requests so far if all of them are answered; `None` while there are
    /// requests in flight. Takes a few nanoseconds, whatever there is to report.
    pub fn answered(&self) -> Option<u64> {
        let mut requests = 0;
        for op in Op::ALL {
            let of_op = self.ops[op].borrow();
            let Some(of_op) = of_op.as_deref() else {
                continue;
            };
            if of_op.pending.count() > 0 {
                return None;
            }
            requests += of_op.windows.requests();
        }
        Some(requests)
    }

    /// Returns what is known of an operation; `None` when it never occurred.
    pub fn report(&self, op: Op) -> Option<OpLatency> {
        let mut of_op = self.ops[op].borrow_mut();
        let of_op = of_op.as_deref_mut()?;
        let now_ns = self.rt.turn_began().as_ns();
        let mut buckets = Vec::new();
        let windows = Window::ALL.map(|window| {
            let (all, length_ns) = of_op.windows.of(window, now_ns);
            if window == Window::Start {
                let counts = (0..BUCKETS).zip(all.counts).filter(|(_, count)| *count > 0);
                buckets = counts.map(|(b, count)| (longest_of(b), count)).collect();
            }
            WindowLatency {
                requests: all.sums.requests,
                errors: all.sums.errors,
                bytes: all.sums.bytes,
                seconds: length_ns as f64 / 1e9,
                queue: per_s(all.sums.latency_ns, length_ns as f64),
                p50_ns: all.quantile_ns(0.5),
                p99_ns: all.quantile_ns(0.99),
                p999_ns: all.quantile_ns(0.999),
                max_ns: all.sums.longest_ns,
            }
        });
        Some(OpLatency {
            in_flight: of_op.pending.count(),
            waiting_ns: of_op.pending.oldest_age_ns(now_ns),
            answered_ns: of_op
                .answered_at
                .map(|at| now_ns.saturating_sub(at.as_ns())),
            longest: of_op.longest,
            windows,
            buckets,
        })
    }
}

/// A request in flight. It is no longer in flight when this value is dropped.
pub struct Metered<'m> {
    meter: &'m Meter,
    op: Op,
    bytes: u64,
    began: Instant,
}

impl Metered<'_> {
    /// Records the answer of the request.
    pub fn end(&self, result: &IoResult) {
        let rt = &self.meter.rt;
        let now = rt.turn_began();
        let latency_ns = now.ns_since(self.began);
        let mut of_op = self.meter.ops[self.op].borrow_mut();
        let of_op = of_op.as_deref_mut().expect("a request has begun");
        let has_failed = result.is_err();
        of_op.answered_at = Some(now);
        of_op
            .windows
            .note(now.as_ns(), latency_ns, self.bytes, has_failed);
        if latency_ns > of_op.longest.latency_ns {
            of_op.longest = Longest {
                latency_ns,
                unix_s: rt.unix_seconds(),
            };
        }
    }
}

impl Drop for Metered<'_> {
    fn drop(&mut self) {
        let mut of_op = self.meter.ops[self.op].borrow_mut();
        let of_op = of_op.as_deref_mut().expect("a request has begun");
        of_op.pending.end(self.began.as_ns());
    }
}

/// Future of a request that records its answer.
pub struct Timed<'a> {
    request: Pin<Box<dyn Future<Output = IoResult> + 'a>>,
    metered: Metered<'a>,
}

impl<'a> Timed<'a> {
    /// Wraps the future of a request that was submitted.
    pub fn new(
        request: Pin<Box<dyn Future<Output = IoResult> + 'a>>,
        metered: Metered<'a>,
    ) -> Timed<'a> {
        Timed { request, metered }
    }
}

impl Future for Timed<'_> {
    type Output = IoResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<IoResult> {
        let polled = self.request.as_mut().poll(context);
        if let Poll::Ready(result) = &polled {
            self.metered.end(result);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bimetal_rt::VirtualOptions;

    use super::*;
    use crate::error::IoError;
    use crate::request::Reply;

    const MS: Duration = Duration::from_millis(1);

    /// docs/control.md states the memory of a meter.
    #[test]
    fn an_operation_takes_five_kib() {
        assert!(size_of::<OpMeter>() <= 5 << 10, "{}", size_of::<OpMeter>());
        assert!(size_of::<Meter>() <= 128, "{}", size_of::<Meter>());
    }

    #[test]
    fn requests_in_flight_are_not_answered() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let meter = Meter::new(&rt);
        rt.block_on(async {
            assert_eq!(meter.answered(), Some(0));
            meter.note_at_once(Op::Read, 4096, &Ok(Reply::Done));
            let write = meter.begin(Op::Write, 4096);
            assert_eq!(meter.answered(), None);
            // The counter goes on from second to second.
            rt.sleep(Duration::from_secs(3)).await;
            write.end(&Err(IoError::Medium));
            drop(write);
            assert_eq!(meter.answered(), Some(2));
        });
    }

    /// A disk of 3 ms, of which each tenth request takes 40 ms, and each hundredth fails.
    #[test]
    fn every_request_is_in_the_report() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let meter = Meter::new(&rt);
        rt.block_on(async {
            for index in 0..1000_u32 {
                let request = meter.begin(Op::Write, 4096);
                let time = if index % 10 == 0 { 40 * MS } else { 3 * MS };
                rt.sleep(time).await;
                request.end(&match index % 100 {
                    0 => Err(IoError::Medium),
                    _ => Ok(Reply::Done),
                });
            }
            let waits = meter.begin(Op::Write, 4096);
            rt.sleep(2000 * MS).await;
            let report = meter.report(Op::Write).expect("it occurred");
            assert_eq!(report.in_flight, 1);
            // The age of what is in flight is known to a quarter of a second.
            let age_ns = 1_750_000_000..=2_000_000_000;
            assert!(age_ns.contains(&report.waiting_ns), "{report:?}");
            let [.., all] = report.windows;
            assert_eq!((all.requests, all.errors), (1000, 10));
            assert_eq!(all.bytes, 990 * 4096);
            assert_eq!(all.max_ns, 40_000_000);
            assert_eq!(report.longest.latency_ns, 40_000_000);
            assert!((3_000_000..=3_375_000).contains(&all.p50_ns));
            assert!((40_000_000..=45_000_000).contains(&all.p99_ns));
            // 6.7 s of requests, one at a time, in 8.7 s.
            assert!((all.queue - 6.7 / 8.7).abs() < 0.01, "{}", all.queue);
            let counted: u64 = report.buckets.iter().map(|(_, count)| count).sum();
            assert_eq!(counted, 1000);
            drop(waits);
            let report = meter.report(Op::Write).expect("it occurred");
            assert_eq!((report.in_flight, report.waiting_ns), (0, 0));
            assert_eq!(report.windows[3].requests, 1000, "it was not answered");
            assert_eq!(meter.report(Op::Read), None);
        });
    }
}
