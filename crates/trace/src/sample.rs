//! A representative sample of the pages of a trace, selected by a hash of each page's address.
//!
//! All accesses to selected pages are kept, and accesses to other pages are dropped. So the number
//! of distinct pages between two uses of a page shrinks by the sampling rate. If the size of a
//! cache shrinks by the same rate, its hit ratio stays about the same. Source: Waldspurger et al.,
//! "Efficient MRC construction with SHARDS", FAST 2015, and "Cache modeling and optimization using
//! miniature simulations", USENIX ATC 2017. The selection must depend only on the address, so that
//! the same pages are selected in every run and every trace.

use std::fmt;

/// Number of bits of the hash.
const HASH_BITS: u32 = 32;

/// Selection of the sampled pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    rate: f64,
    threshold: u64,
}

/// The error for an invalid sampling rate: not above 0, above 1, or too small to select any page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRate;

impl fmt::Display for InvalidRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a rate above 0 and at most 1, such as 0.1")
    }
}

impl std::error::Error for InvalidRate {}

impl Sample {
    /// Creates a sample of about the share `rate` of all pages.
    ///
    /// # Errors
    /// When `rate` is 0 or less, is above 1, or is so small that no page would be selected.
    pub fn new(rate: f64) -> Result<Sample, InvalidRate> {
        let possible = rate > 0.0 && rate <= 1.0;
        let threshold = (rate * f64::from(HASH_BITS).exp2()).round() as u64;
        if !possible || threshold == 0 {
            return Err(InvalidRate);
        }
        Ok(Sample { rate, threshold })
    }

    /// Returns the approximate share of sampled pages.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns whether a page is sampled.
    pub fn takes(&self, page: u64) -> bool {
        mixed(page) >> (64 - HASH_BITS) < self.threshold
    }
}

/// Returns a hash of `value`: the finalizer of Steele et al., "Fast splittable pseudorandom number
/// generators", OOPSLA 2014.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_the_rate_of_all_pages_is_taken() {
        for rate in [0.01, 0.1, 0.5, 1.0] {
            let sample = Sample::new(rate).expect("possible");
            let taken = (0..1_000_000).filter(|page| sample.takes(*page)).count() as f64;
            // The allowed deviation is five standard deviations of a binomial distribution.
            let allowed = 5.0 * (1e6 * rate * (1.0 - rate)).sqrt();
            assert!((taken - 1e6 * rate).abs() <= allowed, "{rate}: {taken}");
        }
    }

    #[test]
    fn a_higher_rate_takes_what_a_lower_one_takes() {
        let (low, high) = (Sample::new(0.1), Sample::new(0.2));
        let (low, high) = (low.expect("possible"), high.expect("possible"));
        let lost = (0..10_000).filter(|page| low.takes(*page) && !high.takes(*page));
        assert_eq!(lost.count(), 0);
    }

    #[test]
    fn impossible_rates_are_refused() {
        for rate in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY, 1e-12] {
            assert_eq!(Sample::new(rate), Err(InvalidRate), "{rate}");
        }
    }
}
