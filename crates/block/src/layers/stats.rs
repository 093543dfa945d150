//! Counts, bytes and latencies of each operation, as a layer that can be placed anywhere in a
//! stack.
//!
//! Latencies go into histograms of two significant digits (hdrhistogram), so a percentile is
//! accurate within one percent at any load, and a request costs two clock reads and one increment.
//! This layer must never change a request that passes through it.

use std::cell::RefCell;
use std::rc::Rc;

use bimetal_rt::Rt;
use hdrhistogram::Histogram;
use serde::Deserialize;

use crate::device::{Device, IoFuture, Statistic, StatisticVisitor};
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, PerOp, Request};

/// Largest latency that a histogram distinguishes: an hour, in ns. A longer latency is recorded as
/// an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// The configuration of `type = "stats"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
}

/// Counters of one operation since the start or the last [`Stats::reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSummary {
    /// Number of completed requests, including failed ones.
    pub requests: u64,
    /// Number of failed requests.
    pub errors: u64,
    /// Total length of the ranges of successful requests, in bytes.
    pub bytes: u64,
    /// Median latency, in ns; all percentiles are accurate within 1 %.
    pub p50_ns: u64,
    /// 99th percentile of the latency, in ns.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency, in ns.
    pub p999_ns: u64,
    /// Maximum latency, in ns.
    pub max_ns: u64,
}

/// Counters and latencies of one operation.
struct OpRecord {
    errors: u64,
    bytes: u64,
    latencies_ns: Histogram<u64>,
}

impl Default for OpRecord {
    fn default() -> Self {
        OpRecord {
            errors: 0,
            bytes: 0,
            latencies_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2)
                .expect("the bounds and digits are among those allowed"),
        }
    }
}

impl OpRecord {
    fn record(&mut self, bytes: u64, latency_ns: u64, failed: bool) {
        if failed {
            self.errors += 1;
        } else {
            self.bytes += bytes;
        }
        self.latencies_ns.saturating_record(latency_ns);
    }

    fn summary(&self) -> OpSummary {
        let latencies = &self.latencies_ns;
        OpSummary {
            requests: latencies.len(),
            errors: self.errors,
            bytes: self.bytes,
            p50_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
            p999_ns: latencies.value_at_quantile(0.999),
            max_ns: latencies.max(),
        }
    }
}

/// A statistics layer; see the module.
pub struct Stats {
    rt: Rt,
    below: Rc<dyn Device>,
    ops: RefCell<PerOp<OpRecord>>,
}

impl Stats {
    /// Creates a layer over `below`.
    pub fn new(rt: &Rt, below: Rc<dyn Device>) -> Stats {
        Stats {
            rt: rt.clone(),
            below,
            ops: RefCell::new(PerOp::default()),
        }
    }

    /// Returns the counters of an operation.
    pub fn summary(&self, op: Op) -> OpSummary {
        self.ops.borrow()[op].summary()
    }

    /// Resets all counters.
    pub fn reset(&self) {
        self.ops.replace(PerOp::default());
    }

    fn record(&self, op: Op, bytes: u64, started: bimetal_rt::Instant, result: &IoResult) {
        let latency_ns = self.rt.now().ns_since(started);
        let mut ops = self.ops.borrow_mut();
        ops[op].record(bytes, latency_ns, result.is_err());
    }
}

impl Device for Stats {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let (op, bytes) = (request.op, request.len);
        let submitted = self.rt.now();
        match self.below.submit(request) {
            // The answer is already known, so the request needs no further future.
            IoFuture::Ready(Some(result)) => {
                self.record(op, bytes, submitted, &result);
                IoFuture::ready(result)
            }
            pending => IoFuture::new(async move {
                // The latency begins at the first poll, which is when the device receives the
                // request.
                let started = self.rt.now();
                let result = pending.await;
                self.record(op, bytes, started, &result);
                result
            }),
        }
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        for op in Op::ALL {
            let summary = self.summary(op);
            if summary.requests == 0 {
                continue;
            }
            let mut count = |name, value| out.statistic(op.name(), name, Statistic::Counter(value));
            count("requests", summary.requests);
            count("errors", summary.errors);
            count("bytes", summary.bytes);
            let mut gauge = |name, ns| out.statistic(op.name(), name, Statistic::Gauge(ns as f64));
            gauge("p50_ns", summary.p50_ns);
            gauge("p99_ns", summary.p99_ns);
            gauge("p999_ns", summary.p999_ns);
            gauge("max_ns", summary.max_ns);
        }
    }
}
