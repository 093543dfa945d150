//! Decaying means of a task's behaviour, in the kernel's fixed point. Anticipatory, CFQ and BFQ use
//! the means to predict whether a task's next request is worth waiting for.
//!
//! Source: `as_update_thinktime`, `as_update_seekdist` of `block/as-iosched.c` in Linux 2.6.26, and
//! the same functions in `block/cfq-iosched.c`.

/// The number one in the fixed-point representation of means and weights.
const ONE: u64 = 256;

/// Number of sectors by which a recorded seek can exceed four times the mean while there are few
/// samples.
const SEEK_MORE_SECTORS_FEW: u64 = 2 * 1024 * 1024;
/// If there are enough samples, a recorded seek is at most four times the mean plus this number of
/// sectors. A longer seek is recorded as this limit, so that an outlier does not distort the mean.
const SEEK_MORE_SECTORS: u64 = 2 * 1024 * 64;
/// Total sample weight from which a mean counts as reliable. From this weight on, recorded seeks
/// are limited by [`SEEK_MORE_SECTORS`]; below it, they are limited by [`SEEK_MORE_SECTORS_FEW`].
const ENOUGH: u64 = 80;

/// A decaying mean: a new sample has a weight of one eighth, all previous samples together seven
/// eighths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    /// Total weight of all samples recorded, which approaches [`ONE`].
    samples: u64,
    total: u64,
    mean: u64,
}

impl Mean {
    pub(super) fn add(&mut self, sample: u64) {
        self.samples = (7 * self.samples + ONE) / 8;
        let sample = sample.saturating_mul(ONE);
        self.total = self.total.saturating_mul(7).saturating_add(sample) / 8;
        self.mean = self.total.saturating_add(ONE / 2) / self.samples;
    }

    /// Adds a seek distance, limited so that an outlier does not dominate the mean.
    pub(super) fn add_seek(&mut self, sectors: u64) {
        let few = self.samples < ENOUGH;
        let more = if few {
            SEEK_MORE_SECTORS_FEW
        } else {
            SEEK_MORE_SECTORS
        };
        self.add(sectors.min(self.mean.saturating_mul(4).saturating_add(more)));
    }

    /// Returns the mean, or `None` if the total sample weight (full scale 256) does not exceed
    /// `weight`.
    pub(super) fn get_above(&self, weight: u64) -> Option<u64> {
        (self.samples > weight).then_some(self.mean)
    }

    /// Returns the mean; `None` before the first sample.
    pub(super) fn get(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.mean)
    }
}

/// A decaying mean over all tasks. It starts at zero, so a few samples have little effect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowMean {
    total: u64,
}

impl SlowMean {
    pub(super) fn add(&mut self, sample: u64) {
        let sample = sample.saturating_mul(ONE);
        self.total = self.total.saturating_mul(7).saturating_add(sample) / 8;
    }

    pub(super) fn get(&self) -> u64 {
        self.total / ONE
    }
}

/// The share of cases in which an event happens, as a moving average: older cases count less.
/// [`Share::ALWAYS`] stands for all cases.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share(u64);

impl Share {
    pub(super) const ALWAYS: u64 = ONE;

    pub(super) fn note(&mut self, happened: bool) {
        self.0 = (7 * self.0 + if happened { ONE } else { 0 }) / 8;
    }

    pub(super) fn get(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_the_kernels() {
        // Total weight: 256/8 = 32. Total: 256*100/8 = 3200. Mean: (3200+128)/32 = 104.
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        mean.add(100);
        assert_eq!(mean.get(), Some(104));
        // Total weight: (7*32 + 256)/8 = 60. Total: (7*3200 + 0)/8 = 2800. Mean: (2800 + 128)/60 =
        // 48.
        mean.add(0);
        assert_eq!(mean.get(), Some(48));
    }

    #[test]
    fn an_odd_seek_is_cut_off() {
        // The first sample is limited to 4*0 + 2 Mi sectors, so the total is 2 Mi * 32, and the
        // total weight is 32.
        let mut seeks = Mean::default();
        seeks.add_seek(u64::MAX);
        assert_eq!(seeks.get(), Some((2 * 1024 * 1024 * 32 + 128) / 32));
    }

    #[test]
    fn a_share_goes_towards_what_happens() {
        // 256/8 = 32, (224+256)/8 = 60, 420/8 = 52.
        let mut share = Share::default();
        let notes = [true, true, false].map(|happened| {
            share.note(happened);
            share.get()
        });
        assert_eq!(notes, [32, 60, 52]);
    }
}
