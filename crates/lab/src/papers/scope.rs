//! How much of the papers' experiments is run: the scale, the seeds and the traces.

use serde::{Deserialize, Serialize};

use super::traces::Traces;

/// Extent of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Shortened runs, which show that everything works. Verdicts on them say little.
    Small,
    /// The cells of the papers with two seeds.
    Default,
    /// All cells of the experiments, with five seeds.
    Full,
}

impl Scale {
    /// Returns the name of the scale.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Small => "small",
            Scale::Default => "default",
            Scale::Full => "full",
        }
    }

    /// Returns the number of seeds.
    pub fn seeds(self) -> u64 {
        match self {
            Scale::Small | Scale::Default => 2,
            Scale::Full => 5,
        }
    }
}

/// Scale, seeds and traces of a report.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The scale.
    pub scale: Scale,
    /// First seed. The others follow it.
    pub first_seed: u64,
    /// The traces of source 4.
    pub traces: Traces,
}

impl Scope {
    /// Returns the seeds.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, count) = (self.first_seed, self.scale.seeds());
        (0..count).map(move |number| first.saturating_add(number))
    }

    /// Returns one of two values: the first at the small scale, otherwise the second.
    pub fn sized<T>(&self, small: T, usual: T) -> T {
        match self.scale {
            Scale::Small => small,
            Scale::Default | Scale::Full => usual,
        }
    }
}
