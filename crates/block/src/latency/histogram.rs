//! Histograms of latencies with a fixed set of buckets, so that any two of them can be merged.
//!
//! The buckets divide each power of two into eight, so the upper end of a bucket is at most an
//! eighth above every latency in it. A general histogram with the same precision takes four times
//! the memory, and each device has several histograms for each kind of request.

/// Number of buckets of each power of two, as a power of two.
const PART_BITS: u32 = 3;
/// Latencies below 2 to this power, in ns, have one bucket.
const LEAST_BITS: u32 = 8;
/// Latencies from 2 to this power on, in ns, count as the longest one: 18 minutes.
const MOST_BITS: u32 = 40;
/// Number of buckets.
pub(super) const BUCKETS: usize = ((MOST_BITS - LEAST_BITS) << PART_BITS) as usize + 1;

/// Returns the bucket of a latency.
pub(super) fn bucket_of(latency_ns: u64) -> usize {
    let latency_ns = latency_ns.min((1 << MOST_BITS) - 1);
    if latency_ns < 1 << LEAST_BITS {
        return 0;
    }
    let power = latency_ns.ilog2();
    let part = (latency_ns >> (power - PART_BITS)) & ((1 << PART_BITS) - 1);
    (((power - LEAST_BITS) << PART_BITS) as usize + part as usize) + 1
}

/// Returns the longest latency of a bucket, in ns.
pub(super) fn longest_of(bucket: usize) -> u64 {
    let Some(index) = bucket.checked_sub(1) else {
        return (1 << LEAST_BITS) - 1;
    };
    let power = LEAST_BITS + (index >> PART_BITS) as u32;
    let part = (index & ((1 << PART_BITS) - 1)) as u64;
    (((1 << PART_BITS) + part + 1) << (power - PART_BITS)) - 1
}

/// What is known of the requests of some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) bytes: u64,
    /// Sum of all latencies.
    pub(super) latency_ns: u64,
    /// Longest latency.
    pub(super) longest_ns: u64,
}

impl Sums {
    /// Adds the sums of another time.
    pub(super) fn add(&mut self, other: &Sums) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.latency_ns = self.latency_ns.saturating_add(other.latency_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

/// A histogram with room for a count in each bucket.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    pub(super) sums: Sums,
    pub(super) counts: [u64; BUCKETS],
}

impl Default for Dense {
    fn default() -> Dense {
        Dense {
            sums: Sums::default(),
            counts: [0; BUCKETS],
        }
    }
}

impl Dense {
    /// Adds a request.
    pub(super) fn note(&mut self, latency_ns: u64, bytes: u64, has_failed: bool) {
        let sums = &mut self.sums;
        sums.requests += 1;
        match has_failed {
            true => sums.errors += 1,
            false => sums.bytes += bytes,
        }
        sums.latency_ns = sums.latency_ns.saturating_add(latency_ns);
        sums.longest_ns = sums.longest_ns.max(latency_ns);
        self.counts[bucket_of(latency_ns)] += 1;
    }

    /// Adds all requests of another histogram.
    pub(super) fn add(&mut self, other: &Sparse) {
        self.sums.add(&other.sums);
        for (bucket, count) in &other.counts {
            self.counts[usize::from(*bucket)] += u64::from(*count);
        }
    }

    /// Removes all requests, and returns them.
    pub(super) fn take(&mut self) -> Sparse {
        let mut counts = Vec::new();
        for (bucket, count) in (0..).zip(&mut self.counts) {
            let count = std::mem::take(count);
            if count > 0 {
                counts.push((bucket, u32::try_from(count).unwrap_or(u32::MAX)));
            }
        }
        Sparse {
            sums: std::mem::take(&mut self.sums),
            counts: counts.into(),
        }
    }

    /// Returns a latency that the part `quantile` of the requests does not exceed, and that is at
    /// most an eighth too long; 0 when there are no requests.
    pub(super) fn quantile_ns(&self, quantile: f64) -> u64 {
        let wanted = (self.sums.requests as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return longest_of(bucket).min(self.sums.longest_ns);
            }
        }
        0
    }
}

/// A histogram that has a count only for the buckets that are in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sparse {
    pub(super) sums: Sums,
    counts: Box<[(u16, u32)]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_follow_one_another_and_are_narrow() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        let mut first = 0;
        for bucket in 0..BUCKETS {
            let longest = longest_of(bucket);
            assert_eq!(bucket_of(first), bucket, "{first} ns");
            assert_eq!(bucket_of(longest), bucket, "{longest} ns");
            assert!(bucket == 0 || longest - first <= first / 8, "{first} ns");
            first = longest + 1;
        }
        assert_eq!(first, 1 << MOST_BITS, "the last bucket ends here");
    }

    /// The expected values are the latencies themselves: of 1,000 different ones, 500 are at most
    /// the median.
    #[test]
    fn quantiles_are_never_too_short_and_at_most_an_eighth_too_long() {
        let mut histogram = Dense::default();
        for latency_us in 1..=1000 {
            histogram.note(latency_us * 1000, 4096, false);
        }
        for (quantile, exact_us) in [(0.5, 500), (0.99, 990), (0.999, 999), (1.0, 1000)] {
            let (found_ns, exact_ns) = (histogram.quantile_ns(quantile), exact_us * 1000);
            let range = exact_ns..=exact_ns + exact_ns / 8;
            assert!(range.contains(&found_ns), "{quantile}: {found_ns} ns");
        }
        assert_eq!(
            histogram.quantile_ns(1.0),
            1_000_000,
            "the longest is exact"
        );
        assert_eq!(Dense::default().quantile_ns(0.5), 0);
    }

    #[test]
    fn merged_histograms_are_the_histogram_of_all_requests() {
        let (mut all, mut merged, mut part) = <(Dense, Dense, Dense)>::default();
        for index in 0..10_000_u64 {
            let latency_ns = index * index * 37;
            let has_failed = index % 10 == 0;
            all.note(latency_ns, 4096, has_failed);
            part.note(latency_ns, 4096, has_failed);
            if index % 999 == 0 {
                merged.add(&part.take());
            }
        }
        merged.add(&part.take());
        assert_eq!((&merged.sums, merged.counts), (&all.sums, all.counts));
        assert_eq!(all.sums.errors, 1000);
        assert_eq!(all.sums.bytes, 9000 * 4096);
    }
}
