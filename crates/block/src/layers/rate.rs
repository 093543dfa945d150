//! A limit on bytes and requests per second, by token buckets.
//!
//! Requests pass in order of arrival. A small request that arrives after a large request waits too,
//! because small requests could otherwise overtake the large request forever. Requests that have
//! passed run concurrently. This layer must never delay a request that has its tokens.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::{Instant, Rt};
use serde::Deserialize;

use crate::device::{Device, IoFuture, Statistic, StatisticVisitor};
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, Request};
use crate::token_bucket::TokenBucket;
use crate::units::Size;

/// The configuration of `type = "rate"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Maximum number of bytes per second, of reads and writes together; unlimited by default.
    pub bytes_per_s: Option<Size>,
    /// Number of bytes that can pass in one burst after an idle time; by default the number of
    /// bytes that `bytes_per_s` allows in one second.
    pub burst_bytes: Option<Size>,
    /// Maximum number of requests per second, of any operation except extents; unlimited by
    /// default.
    pub requests_per_s: Option<u64>,
    /// Number of requests that can pass in one burst after an idle time; by default the number of
    /// requests that `requests_per_s` allows in one second.
    pub burst_requests: Option<u64>,
}

impl RateConfig {
    /// Checks that no limit is 0, and that each burst size is given only together with its rate.
    ///
    /// # Errors
    /// A message that says that a limit is 0, or names the rate that is missing.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [self.bytes_per_s, self.burst_bytes].map(|size| size.map(|s| s.0));
        let limits = sizes
            .into_iter()
            .chain([self.requests_per_s, self.burst_requests]);
        if limits.flatten().any(|limit| limit == 0) {
            return Err("a limit of 0 would block all requests".to_owned());
        }
        if self.burst_bytes.is_some() && self.bytes_per_s.is_none() {
            return Err("`burst_bytes` needs `bytes_per_s`".to_owned());
        }
        if self.burst_requests.is_some() && self.requests_per_s.is_none() {
            return Err("`burst_requests` needs `requests_per_s`".to_owned());
        }
        Ok(())
    }
}

/// Token buckets of the limits, and the time at which the last request passed.
struct Gate {
    bytes: Option<TokenBucket>,
    requests: Option<TokenBucket>,
    /// Time at which the last request passed. The next request passes at this time or later.
    passed_ns: u64,
}

impl Gate {
    /// Takes the tokens of a request that arrives at `now_ns`. Returns the time at which the
    /// request passes.
    fn pass(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let from_ns = now_ns.max(self.passed_ns);
        let mut at_ns = from_ns;
        let buckets = [(&mut self.requests, 1), (&mut self.bytes, bytes)];
        let mut limits: Vec<_> = Vec::with_capacity(2);
        limits.extend(
            buckets
                .into_iter()
                .filter_map(|(b, n)| Some((b.as_mut()?, n))),
        );
        for (bucket, tokens) in &mut limits {
            at_ns = at_ns.max(bucket.ready_ns(from_ns, *tokens));
        }
        for (bucket, tokens) in &mut limits {
            bucket.take(at_ns, *tokens);
        }
        self.passed_ns = at_ns;
        at_ns
    }
}

/// A rate limit over a device; see the module.
pub struct Rate {
    rt: Rt,
    below: Rc<dyn Device>,
    gate: RefCell<Gate>,
    waited_requests: Cell<u64>,
    waited_ns: Cell<u64>,
}

impl Rate {
    /// Creates a layer over `below` with full buckets.
    pub fn new(rt: &Rt, below: Rc<dyn Device>, config: &RateConfig) -> Rate {
        let bucket = |rate: Option<u64>, burst: Option<u64>| {
            rate.map(|rate| TokenBucket::full(rate, burst.unwrap_or(rate)))
        };
        Rate {
            rt: rt.clone(),
            below,
            gate: RefCell::new(Gate {
                bytes: bucket(
                    config.bytes_per_s.map(|s| s.0),
                    config.burst_bytes.map(|s| s.0),
                ),
                requests: bucket(config.requests_per_s, config.burst_requests),
                passed_ns: 0,
            }),
            waited_requests: Cell::new(0),
            waited_ns: Cell::new(0),
        }
    }

    async fn run(&self, request: Request) -> IoResult {
        let bytes = match request.op {
            Op::Read | Op::Write => request.len,
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => 0,
        };
        let now = self.rt.now();
        let at = Instant::from_ns(self.gate.borrow_mut().pass(now.as_ns(), bytes));
        if at > now {
            self.waited_requests.set(self.waited_requests.get() + 1);
            self.waited_ns.set(self.waited_ns.get() + at.ns_since(now));
            self.rt.sleep_until(at).await;
        }
        self.below.submit(request).await
    }
}

impl Device for Rate {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        // The request is checked first, because an invalid request must not use up tokens.
        if let Err(error) = self.below.geometry().check(&request) {
            return IoFuture::ready(Err(error));
        }
        match request.op {
            Op::Extents => self.below.submit(request),
            Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                IoFuture::new(self.run(request))
            }
        }
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let waited = self.waited_requests.get();
        out.statistic("", "waited_requests", Statistic::Counter(waited));
        out.statistic("", "waited_ns", Statistic::Counter(self.waited_ns.get()));
    }
}
