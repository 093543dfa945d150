//! Decaying means of a task's behaviour, in the kernel's fixed point, by which Anticipatory and CFQ
//! predict whether its next request is worth waiting for.
//!
//! Source: `as_update_thinktime`, `as_update_seekdist` of `block/as-iosched.c` in Linux 2.6.26, and
//! the same in `block/cfq-iosched.c`.

/// The number one in the fixed point.
const ONE: u64 = 256;

/// Maximum by which a counted seek exceeds four times the mean, while there are few samples.
const SEEK_MORE_SECTORS_FEW: u64 = 2 * 1024 * 1024;
/// The same maximum once there are enough samples, so that an outlier does not spoil the mean.
const SEEK_MORE_SECTORS: u64 = 2 * 1024 * 64;
/// The weight of samples from which on they are enough.
const ENOUGH: u64 = 80;

/// A mean in which a new sample weighs one eighth, and the previous ones seven.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    /// The weight of all samples so far, which approaches [`ONE`].
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

    /// Adds a seek distance, clipped.
    pub(super) fn add_seek(&mut self, sectors: u64) {
        let few = self.samples < ENOUGH;
        let more = if few {
            SEEK_MORE_SECTORS_FEW
        } else {
            SEEK_MORE_SECTORS
        };
        self.add(sectors.min(self.mean.saturating_mul(4).saturating_add(more)));
    }

    /// Returns the mean; `None` unless its samples weigh more than `weight`, of 256.
    pub(super) fn get_above(&self, weight: u64) -> Option<u64> {
        (self.samples > weight).then_some(self.mean)
    }

    /// Returns the mean; `None` before the first sample.
    pub(super) fn get(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.mean)
    }
}

/// A mean over all tasks, which starts at zero, so that a few samples have little effect.
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

/// The decaying share of cases in which an event happens, of [`Share::ALWAYS`].
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
        // samples 256/8 = 32, total 256*100/8 = 3200, mean (3200+128)/32 = 104.
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        mean.add(100);
        assert_eq!(mean.get(), Some(104));
        // samples (224+256)/8 = 60, total (22400+0)/8 = 2800, mean 2928/60 = 48.
        mean.add(0);
        assert_eq!(mean.get(), Some(48));
    }

    #[test]
    fn an_odd_seek_is_cut_off() {
        // The first sample is cut to 4*0 + 2 Mi: total 2 Mi * 32, samples 32.
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
