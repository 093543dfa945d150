//! Kyber: requests are dispatched in order of arrival, and the number of requests at the device is
//! limited to the number that it completes in time.
//!
//! Source: `block/kyber-iosched.c` of Linux 6.1. Reads and writes are two domains, each with its
//! own tokens; a request needs a token while it is at the device. A device that completes a tenth
//! of a domain's requests late is congested. Domains whose latencies are below their targets then
//! give up tokens. Kyber must never hold a request back while the request's domain has a free
//! token.

use super::{Direction, DispatchList, MS_NS, Requests, Scheduler, Tag};
use crate::lists::{Links, List};

/// Maximum and initial number of tokens of each domain.
const TOKENS_MAX: [u64; 2] = [256, 128];
/// Maximum number of consecutive requests of one domain (reads, writes) before the other domain has
/// its turn.
const BATCH: [u64; 2] = [16, 8];
/// Number of histogram buckets per target latency: each bucket spans a quarter of the target.
const QUARTERS: u64 = 4;
/// Number of histogram buckets. They cover twice the target latency; the last bucket also counts
/// longer latencies.
const BUCKETS: usize = 8;
/// Number of buckets that count latencies within the target.
const GOOD_BUCKETS: usize = 4;
/// Minimum number of samples in a histogram for which a percentile is computed immediately.
const SAMPLES: u64 = 500;
/// Once this much time has passed since a percentile of a domain was first requested, fewer than
/// [`SAMPLES`] samples suffice.
const SAMPLES_WAIT_NS: u64 = 1000 * MS_NS;
/// Time between the first completion after an adjustment of the tokens and the next adjustment.
const WINDOW_NS: u64 = 100 * MS_NS;

/// Parameters of Kyber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KyberParameters {
    /// Target latency of a read.
    pub read_lat_ns: u64,
    /// Target latency of a write.
    pub write_lat_ns: u64,
}

impl Default for KyberParameters {
    /// Returns 2 and 10 ms.
    fn default() -> KyberParameters {
        KyberParameters {
            read_lat_ns: 2 * MS_NS,
            write_lat_ns: 10 * MS_NS,
        }
    }
}

/// Number of requests by latency bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Histogram([u64; BUCKETS]);

impl Histogram {
    fn add(&mut self, latency_ns: u64, target_ns: u64) {
        let quarter_ns = (target_ns / QUARTERS).max(1);
        let bucket = latency_ns.saturating_sub(1) / quarter_ns;
        self.0[bucket.min(BUCKETS as u64 - 1) as usize] += 1;
    }

    fn samples(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the index of the bucket that contains the given percentile, and clears the
    /// histogram.
    fn take_percentile(&mut self, percent: u64) -> usize {
        let mut left = (self.samples() * percent).div_ceil(100);
        let buckets = std::mem::take(self).0;
        for (bucket, count) in buckets[..BUCKETS - 1].iter().enumerate() {
            if *count >= left {
                return bucket;
            }
            left -= count;
        }
        BUCKETS - 1
    }
}

/// Requests of one direction.
#[derive(Clone, Debug)]
struct Domain {
    target_ns: u64,
    /// The waiting requests, the newest in front.
    fifo: List,
    /// Maximum number of the domain's requests at the device at a time.
    tokens: u64,
    /// Number of the domain's requests at the device.
    in_use: u64,
    /// Histograms of the latency until completion, from arrival (`total`) and from dispatch
    /// (`device`).
    total: Histogram,
    device: Histogram,
    /// Time from which a percentile is computed even from few samples. The histograms `total` and
    /// `device` share this time, as in the kernel.
    wait_until_ns: Option<u64>,
    /// Last percentile of `total` that was computed while the device was not congested. It is used
    /// if the device becomes congested when no newer percentile exists.
    kept: Option<usize>,
}

impl Domain {
    fn new(target_ns: u64, tokens: u64) -> Domain {
        Domain {
            target_ns,
            fifo: List::default(),
            tokens,
            in_use: 0,
            total: Histogram::default(),
            device: Histogram::default(),
            wait_until_ns: None,
            kept: None,
        }
    }

    /// Returns a percentile of the histogram if it has enough samples, or if the wait for samples
    /// has ended and it has at least one; otherwise `None`.
    fn percentile(
        histogram: &mut Histogram,
        wait_until_ns: &mut Option<u64>,
        percent: u64,
        now_ns: u64,
    ) -> Option<usize> {
        let samples = histogram.samples();
        if samples == 0 {
            return None;
        }
        let until_ns = *wait_until_ns.get_or_insert(now_ns.saturating_add(SAMPLES_WAIT_NS));
        if samples < SAMPLES && now_ns < until_ns {
            return None;
        }
        *wait_until_ns = None;
        Some(histogram.take_percentile(percent))
    }

    /// Returns true if the device has completed at least a tenth of the domain's requests later
    /// than the target.
    fn is_late(&mut self, now_ns: u64) -> bool {
        let p90 = Domain::percentile(&mut self.device, &mut self.wait_until_ns, 90, now_ns);
        p90.is_some_and(|bucket| bucket >= GOOD_BUCKETS)
    }

    /// Scales the number of tokens by the ratio of the 99th percentile of the latency to the
    /// target. The number is reduced only while the device is congested.
    fn adjust(&mut self, congested: bool, tokens_max: u64, now_ns: u64) {
        let p99 = Domain::percentile(&mut self.total, &mut self.wait_until_ns, 99, now_ns);
        let p99 = if congested {
            p99.or(self.kept.take())
        } else {
            self.kept = p99.or(self.kept);
            p99
        };
        if congested {
            self.kept = None;
        }
        let Some(bucket) = p99.filter(|bucket| congested || *bucket >= GOOD_BUCKETS) else {
            return;
        };
        let tokens = self.tokens * (bucket as u64 + 1) / QUARTERS;
        self.tokens = tokens.clamp(1, tokens_max);
    }
}

/// Linux 6.1's Kyber.
#[derive(Clone, Debug)]
pub struct Kyber {
    links: Links,
    /// The domains: reads, writes.
    domains: [Domain; 2],
    /// Dispatch time of each request.
    dispatched_ns: Vec<u64>,
    /// The domain whose turn it is.
    current: usize,
    /// Number of requests that the current domain has dispatched in its turn.
    batching: u64,
    /// The time of the next adjustment of tokens.
    adjust_at_ns: Option<u64>,
}

impl Kyber {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: KyberParameters) -> Kyber {
        let mut links = Links::default();
        links.reserve(tags);
        let targets = [parameters.read_lat_ns, parameters.write_lat_ns];
        Kyber {
            links,
            domains: std::array::from_fn(|of| Domain::new(targets[of], TOKENS_MAX[of])),
            dispatched_ns: vec![0; tags],
            current: Direction::Read as usize,
            batching: 0,
            adjust_at_ns: None,
        }
    }

    /// Returns the maximum number of requests of a direction at the device at a time.
    pub fn tokens(&self, direction: Direction) -> u64 {
        self.domains[direction as usize].tokens
    }

    /// Adjusts the tokens if the adjustment is due. The result is computed for the time at which
    /// the adjustment was due. No event that affects the result happens between that time and this
    /// call, so the delay does not change the result.
    fn adjust(&mut self, now_ns: u64) {
        let Some(at_ns) = self.adjust_at_ns.filter(|at_ns| *at_ns <= now_ns) else {
            return;
        };
        self.adjust_at_ns = None;
        let mut congested = false;
        for domain in &mut self.domains {
            congested |= domain.is_late(at_ns);
        }
        for (domain, tokens_max) in self.domains.iter_mut().zip(TOKENS_MAX) {
            domain.adjust(congested, tokens_max, at_ns);
        }
    }

    /// Returns the oldest request of the current domain if the domain has a free token.
    fn take(&mut self) -> Option<Tag> {
        let domain = &mut self.domains[self.current];
        if domain.in_use >= domain.tokens {
            return None;
        }
        let tag = domain.fifo.pop_back(&mut self.links)?;
        domain.in_use += 1;
        self.batching += 1;
        Some(tag)
    }

    /// Returns the next request: from the current batch if possible, otherwise the first request of
    /// a new batch. The new batch is of the other domain if that domain has a request and a free
    /// token, otherwise of the same domain.
    fn choose(&mut self) -> Option<Tag> {
        if self.batching < BATCH[self.current]
            && let Some(tag) = self.take()
        {
            return Some(tag);
        }
        self.batching = 0;
        (0..self.domains.len()).find_map(|_| {
            self.current = (self.current + 1) % self.domains.len();
            self.take()
        })
    }
}

impl Scheduler for Kyber {
    fn name(&self) -> &'static str {
        "kyber"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, _: u64) {
        let domain = &mut self.domains[requests[tag].bio.direction as usize];
        domain.fifo.push_front(&mut self.links, tag);
    }

    fn former(&self, _: Tag, _: &Requests) -> Option<Tag> {
        None
    }

    fn latter(&self, _: Tag, _: &Requests) -> Option<Tag> {
        None
    }

    fn absorbed(&mut self, _: Tag, absorbed: Tag, _: &Requests) {
        unreachable!("request {absorbed} has no neighbours")
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        self.adjust(now_ns);
        let Some(tag) = self.choose() else {
            return false;
        };
        self.dispatched_ns[tag as usize] = now_ns;
        list.push(tag, requests);
        true
    }

    fn completed(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        self.adjust(now_ns);
        let request = &requests[tag];
        let domain = &mut self.domains[request.bio.direction as usize];
        domain.in_use -= 1;
        let target_ns = domain.target_ns;
        let (total_ns, device_ns) = (request.arrived_ns, self.dispatched_ns[tag as usize]);
        domain.total.add(now_ns - total_ns, target_ns);
        domain.device.add(now_ns - device_ns, target_ns);
        self.adjust_at_ns
            .get_or_insert(now_ns.saturating_add(WINDOW_NS));
    }

    fn waiting(&self) -> usize {
        self.domains.iter().map(|domain| domain.fifo.len()).sum()
    }
}
