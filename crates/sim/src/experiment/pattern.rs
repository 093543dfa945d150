//! Patterns of offsets: uniform, in sequence, or skewed.

use std::fmt;
use std::str::FromStr;

use bimetal_rt::Rng;
use serde::{Serialize, Serializer};

/// Choice of the offsets of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Every place is equally likely: `uniform`.
    Uniform,
    /// The places in ascending order, again and again: `sequential`.
    Sequential,
    /// The probability of the place with rank k is proportional to 1/k^theta: `zipf:THETA`, with a
    /// theta between 0 and 1. The ranks are scattered over the places.
    Zipf(f64),
    /// A share of the writes goes to a share of the places: `hot:90/10` sends 90 % of the writes to
    /// 10 % of the places. The numbers are percentages.
    Hot {
        /// Share of the writes, in percent.
        writes: u8,
        /// Share of the places, in percent.
        places: u8,
    },
}

/// Error: a text is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown pattern {0:?}, expected uniform, sequential, zipf:THETA such as zipf:0.9, or \
         hot:WRITES/PLACES such as hot:90/10"
)]
pub struct UnknownPattern(String);

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(text: &str) -> Result<Pattern, UnknownPattern> {
        let unknown = || UnknownPattern(text.to_owned());
        if let Some(theta) = text.strip_prefix("zipf:") {
            let theta: f64 = theta.parse().map_err(|_| unknown())?;
            let is_possible = theta > 0.0 && theta < 1.0;
            return is_possible
                .then_some(Pattern::Zipf(theta))
                .ok_or_else(unknown);
        }
        if let Some(shares) = text.strip_prefix("hot:") {
            let (writes, places) = shares.split_once('/').ok_or_else(unknown)?;
            let share = |text: &str| text.parse::<u8>().ok().filter(|n| (1..100).contains(n));
            let (writes, places) = share(writes).zip(share(places)).ok_or_else(unknown)?;
            return Ok(Pattern::Hot { writes, places });
        }
        match text {
            "uniform" => Ok(Pattern::Uniform),
            "sequential" => Ok(Pattern::Sequential),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Uniform => f.write_str("uniform"),
            Pattern::Sequential => f.write_str("sequential"),
            Pattern::Zipf(theta) => write!(f, "zipf:{theta}"),
            Pattern::Hot { writes, places } => write!(f, "hot:{writes}/{places}"),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Source of the offsets of a load. The range of the load is divided into places, each as long as
/// one write, and an offset is given as the number of a place.
pub struct Offsets {
    pattern: Pattern,
    places: u64,
    next: u64,
    zipf: Option<Zipf>,
    /// Factor that scatters ranks over the places. It has no common divisor with `places`, so each
    /// place has one rank.
    scatter: u64,
}

impl Offsets {
    /// Creates a source of offsets among `places` places. If `places` is 0, there is one place.
    pub fn new(pattern: Pattern, places: u64) -> Offsets {
        let places = places.max(1);
        let zipf = match pattern {
            Pattern::Zipf(theta) => Some(Zipf::new(places, theta)),
            _ => None,
        };
        // About places / golden ratio, so that neighbouring ranks are far apart.
        let mut scatter = (places as f64 * 0.618_034) as u64 | 1;
        while common_divisor(scatter, places) != 1 {
            scatter += 2;
        }
        Offsets {
            pattern,
            places,
            next: 0,
            zipf,
            scatter,
        }
    }

    /// Draws the place of the next write.
    pub fn draw(&mut self, rng: &mut Rng) -> u64 {
        let rank = match self.pattern {
            Pattern::Uniform => return rng.below(self.places),
            Pattern::Sequential => {
                let place = self.next;
                self.next = (self.next + 1) % self.places;
                return place;
            }
            Pattern::Zipf(_) => {
                let zipf = self.zipf.as_ref();
                zipf.map_or(0, |zipf| zipf.rank(rng.unit_f64()))
            }
            Pattern::Hot { writes, places } => {
                let hot = (self.places * u64::from(places) / 100).clamp(1, self.places);
                match hot == self.places || rng.chance(f64::from(writes) / 100.0) {
                    true => rng.below(hot),
                    false => hot + rng.below(self.places - hot),
                }
            }
        };
        let scattered = u128::from(rank) * u128::from(self.scatter) % u128::from(self.places);
        scattered as u64
    }
}

fn common_divisor(one: u64, other: u64) -> u64 {
    match other {
        0 => one,
        _ => common_divisor(other, one % other),
    }
}

/// Zipf distribution of ranks from 0. Source: Gray et al., *Quickly generating billion-record
/// synthetic databases*, SIGMOD 1994.
struct Zipf {
    ranks: u64,
    theta: f64,
    /// Sum of 1/k^theta over all ranks k, counted from 1.
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(ranks: u64, theta: f64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|k| (k as f64).powf(-theta)).sum::<f64>();
        let (all, two) = (zeta(ranks), zeta(ranks.min(2)));
        Zipf {
            ranks,
            theta,
            zeta: all,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - (2.0 / ranks as f64).powf(1.0 - theta)) / (1.0 - two / all),
        }
    }

    /// Returns the rank for a uniform number from 0 to 1.
    fn rank(&self, uniform: f64) -> u64 {
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.ranks - 1);
        }
        let base = self.eta * uniform - self.eta + 1.0;
        let rank = self.ranks as f64 * base.powf(self.alpha);
        (rank as u64).min(self.ranks - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: u64 = 1000;
    const DRAWS: u64 = 200_000;

    /// Draws many places, and returns how often each was drawn, most frequent first.
    fn counts(pattern: &str) -> Vec<u64> {
        let mut offsets = Offsets::new(pattern.parse().unwrap(), PLACES);
        let mut rng = Rng::new(1);
        let mut counts = vec![0; PLACES as usize];
        (0..DRAWS).for_each(|_| counts[offsets.draw(&mut rng) as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    fn share(counts: &[u64], places: usize) -> f64 {
        counts[..places].iter().sum::<u64>() as f64 / DRAWS as f64
    }

    #[test]
    fn a_sequence_visits_every_place_equally_often() {
        assert!(
            counts("sequential")
                .iter()
                .all(|count| *count == DRAWS / PLACES)
        );
    }

    #[test]
    fn uniform_writes_go_everywhere() {
        let counts = counts("uniform");
        // 200 draws for each place, with a standard deviation of 14.
        assert!(counts[0] < 200 + 6 * 14 && counts[999] > 200 - 6 * 14);
    }

    #[test]
    fn hot_places_get_their_share() {
        let share = share(&counts("hot:90/10"), 100);
        assert!((share - 0.9).abs() < 0.01, "{share}");
    }

    /// The expected shares are the sums of 1/k^0.9 over the first places, divided by the sum over
    /// all places. Gray's formula approximates them.
    #[test]
    fn ranks_have_a_zipf_distribution() {
        let counts = counts("zipf:0.9");
        let sum = |n: u32| (1..=n).map(|k| f64::from(k).powf(-0.9)).sum::<f64>();
        for places in [1, 10, 100] {
            let expected = sum(places) / sum(PLACES as u32);
            let found = share(&counts, places as usize);
            assert!(
                (found / expected - 1.0).abs() < 0.1,
                "{places}: {found}, {expected}"
            );
        }
    }

    #[test]
    fn a_single_place_and_strange_names() {
        for pattern in ["uniform", "sequential", "zipf:0.5", "hot:90/10"] {
            let parsed: Pattern = pattern.parse().unwrap();
            assert_eq!(parsed.to_string(), pattern);
            let mut offsets = Offsets::new(parsed, 1);
            assert_eq!(offsets.draw(&mut Rng::new(1)), 0, "{pattern}");
        }
        for wrong in [
            "",
            "zipf",
            "zipf:1",
            "zipf:-1",
            "zipf:x",
            "hot:90",
            "hot:0/10",
            "hot:100/1",
        ] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
