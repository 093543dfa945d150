//! Hedged reads: a read that is slow on one side of a mirror is also sent to another side. This
//! module decides when.
//!
//! Source: the deferred hedge of Dean and Barroso (*The Tail at Scale*). A second read is sent only
//! once the first read has taken longer than most reads, and for at most a small share of all
//! reads, since a second read slows the writes of the side that receives it.

use crate::latency::Quantiles;

/// Quantile of a side's recent read latencies beyond which a read is late.
const LATE_QUANTILE: f64 = 0.95;
/// Minimum time after which a read is late. Below this time, delays of the clock and the machine
/// are larger than those of the device.
const LATE_NS_MIN: u64 = 500_000;
/// The quantile of a side is used only if it is computed from at least this number of samples.
const SAMPLES_MIN: u32 = 32;
/// Number of reads that earn one hedged read, which limits the share of hedged reads to 5 %.
const READS_PER_HEDGE: u64 = 20;
/// Maximum number of hedged reads that the budget can accumulate.
const SAVED_MAX: u64 = 16;

/// The hedge budget of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct HedgeBudget {
    /// The accumulated budget: the number of client reads, less [`READS_PER_HEDGE`] for each hedged
    /// read.
    saved_reads: u64,
}

impl HedgeBudget {
    /// Records a read of a client.
    pub fn read(&mut self) {
        self.saved_reads = (self.saved_reads + 1).min(SAVED_MAX * READS_PER_HEDGE);
    }

    /// Takes one hedged read from the budget; returns false if the budget does not suffice.
    pub fn take(&mut self) -> bool {
        let left = self.saved_reads.checked_sub(READS_PER_HEDGE);
        self.saved_reads = left.unwrap_or(self.saved_reads);
        left.is_some()
    }
}

/// Returns the time after which a read of a side is late, given the side's recent read latencies;
/// `None` while there are too few samples.
pub fn late_after_ns(reads: &Quantiles) -> Option<u64> {
    let late = reads
        .quantile_ns(LATE_QUANTILE)
        .filter(|_| reads.samples() >= SAMPLES_MIN);
    late.map(|ns| ns.max(LATE_NS_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_twentieth_of_the_reads_is_hedged() {
        let mut budget = HedgeBudget::default();
        let mut hedged = 0u64;
        for read in 1..=10_000u64 {
            budget.read();
            hedged += u64::from(budget.take());
            assert!(hedged * 20 <= read, "{hedged} of {read}");
        }
        assert_eq!(hedged, 500);
    }

    #[test]
    fn little_is_saved_for_bad_moments() {
        let mut budget = HedgeBudget::default();
        (0..1_000_000).for_each(|_| budget.read());
        assert_eq!((0..100).filter(|_| budget.take()).count(), 16);
    }

    #[test]
    fn late_is_later_than_nearly_all() {
        let mut reads = Quantiles::new(256);
        (0..31).for_each(|_| reads.record(2_000_000));
        assert_eq!(late_after_ns(&reads), None);
        reads.record(2_000_000);
        // The value is exact to a sixteenth.
        let late_ns = late_after_ns(&reads).unwrap();
        assert!((2_000_000..=2_125_000).contains(&late_ns), "{late_ns}");
        (0..512).for_each(|_| reads.record(1_000));
        assert_eq!(late_after_ns(&reads), Some(LATE_NS_MIN));
    }
}
