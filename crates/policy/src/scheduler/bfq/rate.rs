//! The measured peak rate of a device in sectors per time, from which the maximum budget and the
//! duration of raised weights are computed.
//!
//! Source: `bfq_update_peak_rate` and `bfq_update_rate_reset` of `block/bfq-iosched.c` in Linux
//! 6.1.

use super::super::MS_NS;

/// Number of fraction bits of a rate: a rate is in sectors per microsecond, shifted left by this
/// number of bits.
const SHIFT: u32 = 16;
/// `INTERVAL_NS` is the length of a sample. A sample ends earlier if no request is dispatched for
/// `GAP_NS` and the device is idle.
const INTERVAL_NS: u64 = 1_000 * MS_NS;
const GAP_NS: u64 = 100 * MS_NS;
/// `INTERVAL_NS_MIN` and `REQUESTS_MIN` are the minimum length and the minimum number of requests
/// of a valid sample.
const INTERVAL_NS_MIN: u64 = 300 * MS_NS;
const REQUESTS_MIN: u64 = 32;
/// Maximum rate that is accepted as valid: 20 sectors per microsecond.
const RATE_MAX: u64 = 20 << SHIFT;
/// Time after a completion during which the device is still treated as busy.
const BUSY_NS: u64 = 2 * MS_NS;

/// The measurement of a device's rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    peak: u64,
    reference: u64,
    /// Duration of a raised weight on a device whose peak rate is the reference rate.
    reference_ms: u64,
    /// Duration of a raised weight on the measured device. The duration is computed only when the
    /// peak rate changes, since every request reads it and the computation needs a division.
    raised_ns: u64,
    requests: u64,
    sequential: u64,
    sectors: u64,
    first_ns: u64,
    last_ns: u64,
    completed_ns: u64,
}

impl Rate {
    /// Creates the state for a device that has not been measured, with defaults that depend on
    /// `rotational`.
    pub(super) fn new(rotational: bool) -> Rate {
        let (reference, reference_ms) = if rotational {
            (14_000, 7_000)
        } else {
            (33_000, 2_500)
        };
        let mut rate = Rate {
            peak: reference * 2 / 3,
            reference,
            reference_ms,
            raised_ns: 0,
            requests: 0,
            sequential: 0,
            sectors: 0,
            first_ns: 0,
            last_ns: 0,
            completed_ns: 0,
        };
        rate.compute_raise();
        rate
    }

    /// Records the dispatch of a request of `sectors` sectors while `under_way` other requests are
    /// at the device. `seeky` is true if the request is far from the previous one. Returns true if
    /// the peak rate has possibly changed.
    pub(super) fn dispatched(
        &mut self,
        sectors: u64,
        seeky: bool,
        under_way: usize,
        now_ns: u64,
    ) -> bool {
        let since_ns = now_ns - self.last_ns;
        self.last_ns = now_ns;
        if self.requests == 0 {
            self.begin(sectors, now_ns);
            return false;
        }
        let is_over = since_ns > GAP_NS && under_way == 0;
        if !is_over {
            self.requests += 1;
            let busy = under_way > 0 || now_ns - self.completed_ns < BUSY_NS;
            self.sequential += u64::from(busy && !seeky);
            self.sectors += sectors;
        }
        let length_ns = if is_over { now_ns - since_ns } else { now_ns } - self.first_ns;
        if !is_over && length_ns < INTERVAL_NS {
            return false;
        }
        let has_changed = self.learn(length_ns);
        self.begin(sectors, now_ns);
        has_changed
    }

    pub(super) fn completed(&mut self, now_ns: u64) {
        self.completed_ns = now_ns;
    }

    fn begin(&mut self, sectors: u64, now_ns: u64) {
        (self.requests, self.sequential) = (1, 0);
        (self.sectors, self.first_ns) = (sectors, now_ns);
    }

    fn learn(&mut self, length_ns: u64) -> bool {
        if self.requests < REQUESTS_MIN || length_ns < INTERVAL_NS_MIN {
            return false;
        }
        let length_ns = length_ns.max(self.completed_ns.saturating_sub(self.first_ns));
        let rate = (self.sectors << SHIFT) / (length_ns / 1_000);
        let mostly_seeky = self.sequential < 3 * self.requests / 4;
        if (mostly_seeky && rate <= self.peak) || rate > RATE_MAX {
            return false;
        }
        // A sample weighs more the longer it is, and the larger its share of sequential requests
        // is.
        let weight = 9 * self.sequential / self.requests;
        let divisor = 10 - (weight * length_ns / INTERVAL_NS).min(8);
        self.peak = (self.peak * (divisor - 1) / divisor + rate / divisor).max(1);
        self.compute_raise();
        true
    }

    /// Returns the number of sectors that the device can serve in `time_ns` at its peak rate.
    pub(super) fn sectors_in(&self, time_ns: u64) -> u64 {
        (self.peak * (time_ns / 1_000)) >> SHIFT
    }

    /// Returns the duration of a raised weight, estimated as the time in which the device serves
    /// the reads of a starting program.
    pub(super) fn raised_ns(&self) -> u64 {
        self.raised_ns
    }

    fn compute_raise(&mut self) {
        let raised_ms = self.reference * self.reference_ms / self.peak;
        self.raised_ns = raised_ms.clamp(3_000, 25_000) * MS_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_which_nothing_is_known_is_two_thirds_of_the_reference() {
        // The initial rate is 14,000 * 2/3 = 9333, in sectors per us shifted left by 16. So the
        // maximum budget is 9333 * 124,000 us >> 16 = 17,658 sectors, and the duration of a raised
        // weight is 14,000 * 7000 ms / 9333 = 10.5 s.
        let rate = Rate::new(true);
        assert_eq!(rate.sectors_in(124 * MS_NS), 17_658);
        assert_eq!(rate.raised_ns(), 10_500 * MS_NS);
        // Duration of a raised weight on a device without rotation: 33,000 * 2500 ms / 22,000 =
        // 3.75 s.
        assert_eq!(Rate::new(false).raised_ns(), 3_750 * MS_NS);
    }

    #[test]
    fn a_second_of_sequential_requests_counts_nine_tenths() {
        // One request of 512 sectors per millisecond is 0.512 sectors per us, about 33,554 in fixed
        // point. The sample has 1001 requests in 1 s, that is 512,512 sectors: (512,512 << 16) /
        // 1,000,000 = 33,587. Of these requests 1000 are known to be sequential, so the weight is 9
        // * 1000 / 1001 = 8. The sample has the full length of 1 s, so the weight is not reduced.
        // The divisor is 10 - 8 = 2, so the peak is 9333/2 + 33,587/2 = 4666 + 16,793.
        let mut rate = Rate::new(true);
        let mut changes = 0;
        for ms in 0..=1000 {
            changes += u64::from(rate.dispatched(512, false, 1, ms * MS_NS));
        }
        assert_eq!((changes, rate.peak), (1, 4666 + 16_793));
    }

    #[test]
    fn seeks_that_are_slow_say_nothing() {
        let mut rate = Rate::new(true);
        let changed = (0..=2000).any(|ms| rate.dispatched(8, true, 1, ms * MS_NS));
        assert!(!changed);
        assert_eq!(rate.peak, 9333);
    }

    #[test]
    fn a_pause_of_the_device_ends_a_sample() {
        // The queue dispatches 400 requests in 399 ms, and then none for 101 ms, so the sample ends
        // after 399 ms. Its weight of 8 is scaled by 399/1000 to 3, so the divisor is 7.
        let mut rate = Rate::new(true);
        for ms in 0..400 {
            assert!(!rate.dispatched(512, false, 1, ms * MS_NS));
        }
        assert!(rate.dispatched(512, false, 0, 500 * MS_NS));
        let seen = ((400 * 512) << 16) / 399_000;
        assert_eq!(rate.peak, 9333 * 6 / 7 + seen / 7);
    }
}
