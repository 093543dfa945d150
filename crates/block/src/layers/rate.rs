//! A limit on bytes and requests a second, by token buckets.
//!
//! Requests pass in order of arrival: a small one behind a large one waits with it, because a limit
//! that let it pass would favour small requests for ever. What passes goes on at once and side by
//! side. This layer must never hold a request that has its tokens.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::{Instant, Rt};
use serde::Deserialize;

use crate::device::{Device, Figure, FigureVisitor, IoFuture};
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, Request};
use crate::token_bucket::TokenBucket;
use crate::units::Size;

/// The configuration of `type = "rate"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// The device below, by its name in the file.
    pub below: String,
    /// Bytes read and written in a second, together; no limit if not given.
    pub bytes_per_s: Option<Size>,
    /// Bytes that may pass at once after a rest; what a second brings if not given.
    pub burst_bytes: Option<Size>,
    /// Requests in a second, of any operation but extents; no limit if not given.
    pub requests_per_s: Option<u64>,
    /// Requests that may pass at once after a rest; what a second brings if not given.
    pub burst_requests: Option<u64>,
}

impl RateConfig {
    /// Refuses limits that let nothing pass.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [self.bytes_per_s, self.burst_bytes].map(|size| size.map(|s| s.0));
        let limits = sizes
            .into_iter()
            .chain([self.requests_per_s, self.burst_requests]);
        if limits.flatten().any(|limit| limit == 0) {
            return Err("a limit of 0 lets nothing pass".to_owned());
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

/// The limits and who passed last.
struct Gate {
    bytes: Option<TokenBucket>,
    requests: Option<TokenBucket>,
    /// When the last request passed; the next passes no earlier.
    passed_ns: u64,
}

impl Gate {
    /// When a request that arrives at `now_ns` passes. Its tokens are taken.
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

/// See the module.
pub struct Rate {
    rt: Rt,
    below: Rc<dyn Device>,
    gate: RefCell<Gate>,
    waited_requests: Cell<u64>,
    waited_ns: Cell<u64>,
}

impl Rate {
    /// A layer over `below` with full buckets.
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
        // What is refused must not use up tokens.
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

    fn figures(&self, out: &mut dyn FigureVisitor) {
        let waited = self.waited_requests.get();
        out.figure("", "waited_requests", Figure::Counter(waited));
        out.figure("", "waited_ns", Figure::Counter(self.waited_ns.get()));
    }
}
