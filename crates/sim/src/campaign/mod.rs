//! Campaigns: many seeds in batches whose results are kept, so that a run of hours can be stopped
//! and resumed, and batches can run in parallel.
//!
//! A campaign records the meaning of its seeds (subject, classes, extent), and never adds the
//! results of seeds with another meaning. The caller decides what a seed runs, which thread runs a
//! batch, and where the state is stored: this module has no threads and no files. The testers of
//! the mirror and of the index use the same campaigns.

mod classes;
mod summary;

pub use classes::{ClassSet, FaultClass};
pub(crate) use summary::Account;
pub use summary::{Outcome, Summary, Tally, Told};

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Version of the stored state of a campaign.
const VERSION: u32 = 1;

/// The seeds of a campaign, and the parameters with which each seed is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    /// Name of the tester: `mirror` or `index`.
    #[serde(default = "mirror")]
    pub subject: String,
    /// Range of the seeds.
    pub seeds: Range<u64>,
    /// Number of seeds in a batch.
    pub batch_seeds: u64,
    /// Fault classes that are on, in the form of the command line.
    pub classes: String,
    /// Name of the extent, which is the amount of work of a seed.
    pub extent: String,
    /// Every seed that is a multiple of this number is run twice, to check that both runs are
    /// equal; 0 means that no seed is run twice.
    pub replay_every: u64,
}

/// Returns the subject for a stored state that does not name its subject. The states of the first
/// campaigns do not, and all these campaigns tested the mirror.
fn mirror() -> String {
    "mirror".to_owned()
}

/// A campaign and its results so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Campaign {
    version: u32,
    /// The seeds and the parameters with which each seed is run.
    pub meaning: Meaning,
    /// Numbers of the completed batches.
    pub done: BTreeSet<u64>,
    /// Results of the completed batches.
    pub summary: Summary,
    /// Time spent on the completed batches in seconds, as measured by the caller.
    pub wall_s: f64,
}

impl Campaign {
    /// Creates a campaign without completed batches.
    ///
    /// # Panics
    /// If the number of seeds in a batch is zero.
    pub fn new(meaning: Meaning) -> Campaign {
        assert!(meaning.batch_seeds > 0, "a batch has seeds");
        Campaign {
            version: VERSION,
            meaning,
            done: BTreeSet::new(),
            summary: Summary::default(),
            wall_s: 0.0,
        }
    }

    /// Resumes a campaign from its stored state.
    ///
    /// # Errors
    /// If the state is invalid, has another version, or was stored by a campaign with other seeds
    /// or parameters than `meaning`.
    pub fn resume(state: &str, meaning: &Meaning) -> Result<Campaign, String> {
        let campaign: Campaign = serde_json::from_str(state).map_err(|e| e.to_string())?;
        if campaign.version != VERSION {
            return Err(format!("version {} is unknown", campaign.version));
        }
        if campaign.meaning != *meaning {
            return Err(format!(
                "it belongs to another campaign: {:?}",
                campaign.meaning
            ));
        }
        Ok(campaign)
    }

    /// Returns the numbers of the batches that are not completed.
    pub fn left(&self) -> Vec<u64> {
        let seeds = self.meaning.seeds.end - self.meaning.seeds.start;
        let batches = 0..seeds.div_ceil(self.meaning.batch_seeds);
        batches.filter(|batch| !self.done.contains(batch)).collect()
    }

    /// Adds the results of a batch.
    ///
    /// # Panics
    /// If the results of the batch have already been added.
    pub fn add(&mut self, batch: u64, summary: &Summary) {
        assert!(self.done.insert(batch), "a batch counts once");
        self.summary.merge(summary);
    }
}

impl Meaning {
    /// Returns the seeds of a batch.
    pub fn seeds_of(&self, batch: u64) -> Range<u64> {
        let start = self.seeds.start + batch * self.batch_seeds;
        start..self.seeds.end.min(start + self.batch_seeds)
    }

    /// Runs the seeds of a batch, and calls `progress` with the result of each seed.
    pub fn run<O: Outcome>(
        &self,
        batch: u64,
        run: impl FnMut(u64, Replay) -> O,
        progress: impl FnMut(&O),
    ) -> Summary {
        run_seeds(self.seeds_of(batch), self.replay_every, run, progress)
    }
}

/// Number of times that a seed is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// Once.
    Once,
    /// Twice, to check that both runs of the seed are equal.
    Twice,
}

/// Runs seeds in order, and calls `progress` with the result of each. A seed that is a multiple of
/// `replay_every` is run twice; 0 means that every seed is run once.
pub fn run_seeds<O: Outcome>(
    seeds: Range<u64>,
    replay_every: u64,
    mut run: impl FnMut(u64, Replay) -> O,
    mut progress: impl FnMut(&O),
) -> Summary {
    let mut summary = Summary::default();
    for seed in seeds {
        let replay = match replay_every > 0 && seed.is_multiple_of(replay_every) {
            true => Replay::Twice,
            false => Replay::Once,
        };
        let outcome = run(seed, replay);
        summary.add(&outcome);
        progress(&outcome);
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tester;

    fn meaning() -> Meaning {
        Meaning {
            subject: "mirror".to_owned(),
            seeds: 10..15,
            batch_seeds: 2,
            classes: "none".to_owned(),
            extent: "usual".to_owned(),
            replay_every: 0,
        }
    }

    #[test]
    fn a_campaign_in_pieces_is_the_campaign_at_once() {
        let options = tester::Options {
            classes: tester::Classes::NONE,
            ..tester::Options::default()
        };
        let seed = |seed, replay| tester::run_replayed(seed, replay, options);
        let run = |campaign: &mut Campaign, batch| {
            let summary = campaign.meaning.run(batch, seed, |_| {});
            campaign.add(batch, &summary);
        };
        let mut pieces = Campaign::new(meaning());
        run(&mut pieces, 2);
        run(&mut pieces, 0);
        let state = serde_json::to_string(&pieces).unwrap();
        let mut pieces = Campaign::resume(&state, &meaning()).unwrap();
        assert_eq!(pieces.left(), [1]);
        run(&mut pieces, 1);
        assert!(pieces.left().is_empty());
        let at_once = run_seeds(10..15, 0, seed, |_| {});
        assert_eq!(pieces.summary, at_once);
        assert_eq!(at_once.seeds, 5);
    }

    #[test]
    fn a_state_of_another_campaign_is_refused() {
        let state = serde_json::to_string(&Campaign::new(meaning())).unwrap();
        let other = Meaning {
            classes: "rot".to_owned(),
            ..meaning()
        };
        assert!(Campaign::resume(&state, &meaning()).is_ok());
        assert!(Campaign::resume(&state, &other).is_err());
        assert!(Campaign::resume("{}", &meaning()).is_err());
        let other = Meaning {
            subject: "index".to_owned(),
            ..meaning()
        };
        assert!(Campaign::resume(&state, &other).is_err());
        // The first version of the state had no field `subject`, because the mirror was the only
        // subject.
        let unnamed = state.replace(r#""subject":"mirror","#, "");
        assert!(unnamed.len() < state.len() && Campaign::resume(&unnamed, &meaning()).is_ok());
    }
}
