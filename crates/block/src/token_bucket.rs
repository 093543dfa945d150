//! Token buckets, exact to the nanosecond, used by every rate limit in layers and models.
//!
//! A bucket reads no clock; times are nanoseconds from any fixed origin. A request can need more
//! tokens than the bucket holds. Such a request waits only until the bucket is full. Its tokens are
//! then taken, which makes the level of the bucket negative, so later requests wait longer.

/// Nanoseconds per second; also the number of units of the bucket's level that make one token.
const NS_PER_S: u64 = 1_000_000_000;

/// A token bucket whose level is counted in billionths of a token, so that one nanosecond adds
/// exactly the rate and no rounding error accumulates.
#[derive(Debug)]
pub struct TokenBucket {
    rate_per_s: u64,
    capacity: i128,
    level: i128,
    as_of_ns: u64,
}

impl TokenBucket {
    /// Creates a full bucket that gains `rate_per_s` tokens per second and holds at most `burst`
    /// tokens.
    pub fn full(rate_per_s: u64, burst: u64) -> Self {
        let capacity = i128::from(burst) * i128::from(NS_PER_S);
        TokenBucket {
            rate_per_s,
            capacity,
            level: capacity,
            as_of_ns: 0,
        }
    }

    fn refill(&mut self, now_ns: u64) {
        if now_ns > self.as_of_ns {
            let added = i128::from(now_ns - self.as_of_ns) * i128::from(self.rate_per_s);
            self.level = (self.level + added).min(self.capacity);
            self.as_of_ns = now_ns;
        }
    }

    /// Returns the earliest time, not before `now_ns`, at which `tokens` tokens can be taken. If
    /// `tokens` is more than the bucket can hold, this is the time at which the bucket is full.
    pub fn ready_ns(&mut self, now_ns: u64, tokens: u64) -> u64 {
        self.refill(now_ns);
        let wanted = (i128::from(tokens) * i128::from(NS_PER_S)).min(self.capacity);
        if self.level >= wanted {
            return now_ns;
        }
        let rate = i128::from(self.rate_per_s);
        let wait_ns = (wanted - self.level + rate - 1) / rate;
        now_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX / 4))
    }

    /// Takes `tokens` tokens at `now_ns`. If the bucket has too few tokens, its level becomes
    /// negative.
    pub fn take(&mut self, now_ns: u64, tokens: u64) {
        self.refill(now_ns);
        self.level -= i128::from(tokens) * i128::from(NS_PER_S);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_at_the_rate_and_debts_are_paid() {
        let mut bucket = TokenBucket::full(1_000, 10);
        assert_eq!(bucket.ready_ns(0, 10), 0);
        bucket.take(0, 10);
        // 5 tokens at 1,000 a second are 5 ms.
        assert_eq!(bucket.ready_ns(0, 5), 5_000_000);
        bucket.take(5_000_000, 5);
        // 100 tokens exceed the capacity. They can be taken when all 10 tokens are available, and
        // the level is then -90 tokens.
        assert_eq!(bucket.ready_ns(5_000_000, 100), 15_000_000);
        bucket.take(15_000_000, 100);
        assert_eq!(bucket.ready_ns(15_000_000, 1), 15_000_000 + 91_000_000);
        // An idle hour adds no more tokens than the bucket holds.
        let later = 3_600 * NS_PER_S;
        bucket.take(later, 10);
        assert_eq!(bucket.ready_ns(later, 1), later + 1_000_000);
    }
}
