//! Looks at the health of the volumes of a server once a second, so that a change of the word is an
//! [event](crate::damping), and at their figures every ten seconds, for
//! [the history](crate::history).
//!
//! A look must not cost anything while nothing happens: a healthy volume whose devices have had no
//! request for a while is not judged again, as its word can only change by a request, or together
//! with an event. What is compared then are a few counters. With many volumes, other tasks run
//! between one volume and the next.

use std::collections::BTreeSet;

use bimetal_block::layers::shard::Seen;
use bimetal_rt::{Instant, yield_now};

use crate::damping::Damping;
use crate::health::{self, Health, State};
use crate::history::{self, OfVolume, Requests};
use crate::shown::Shown;

/// Number of looks without a request after which a healthy volume is not judged again: what comes
/// and goes is judged by the last ten seconds.
const QUIET_LOOKS: u32 = 12;

/// An event about the health of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) volume: String,
    /// The event in words, without the name of the volume.
    pub(crate) words: String,
}

/// The volumes of a server; see the module.
pub(crate) struct Lookout {
    volumes: Vec<Watched>,
    looks: u64,
}

/// A volume, and what was found at the last look.
struct Watched {
    name: String,
    /// Names of its devices, with its own.
    devices: BTreeSet<String>,
    /// What was told of it; `None` before the first look.
    damping: Option<Damping>,
    /// The reason of its last word.
    reason: String,
    /// Whether its last word is that it is healthy.
    is_healthy: bool,
    rest: Rest,
}

/// For how long a volume has had no requests.
#[derive(Default)]
struct Rest {
    answered: Option<u64>,
    looks: u32,
}

impl Rest {
    /// Takes the number of requests that the devices have had so far, `None` while requests are in
    /// flight, and returns whether there have been none for long.
    fn is_long(&mut self, answered: Option<u64>) -> bool {
        self.looks = match answered.is_some() && answered == self.answered {
            true => self.looks.saturating_add(1),
            false => 0,
        };
        self.answered = answered;
        self.looks >= QUIET_LOOKS
    }
}

impl Lookout {
    /// Returns the volumes of a server, of which nothing is known yet.
    pub(crate) fn new(shown: &Shown) -> Lookout {
        let graph = &shown.config.graph;
        let watched = |name: &str| Watched {
            name: name.to_owned(),
            devices: graph.below(name).into_iter().map(str::to_owned).collect(),
            damping: None,
            reason: String::new(),
            is_healthy: false,
            rest: Rest::default(),
        };
        Lookout {
            volumes: shown.volumes().into_iter().map(watched).collect(),
            looks: 0,
        }
    }

    /// Looks at all volumes, and returns what to tell of their words. With `has_news`, something
    /// has happened to a device or a volume, and all of them are judged.
    pub(crate) async fn look(&mut self, shown: &Shown, has_news: bool) -> Vec<Change> {
        let is_sample = self.looks.is_multiple_of(history::EVERY_S);
        self.looks += 1;
        let mut changes = Vec::new();
        for watched in &mut self.volumes {
            let is_at_rest = watched.rest.is_long(answered(shown, &watched.devices));
            if is_at_rest && !has_news && watched.is_healthy {
                changes.extend(watched.tell(shown.rt.now(), State::Healthy));
                if let Some(history) = shown.history.as_ref().filter(|_| is_sample) {
                    history.add_idle(shown.rt.unix_seconds(), &watched.name);
                }
                continue;
            }
            changes.extend(watched.judge(shown, is_sample));
            yield_now().await;
        }
        changes
    }
}

impl Watched {
    fn judge(&mut self, shown: &Shown, is_sample: bool) -> Option<Change> {
        let graph = &shown.config.graph;
        let seen = shown.stack.seen(graph, |name| self.devices.contains(name));
        let mut judged = health::judge(&seen).into_iter();
        let (_, health) = judged.find(|(name, _)| *name == self.name)?;
        if is_sample {
            self.sample(shown, &seen, &health);
        }
        let worst = health.worst();
        self.reason.clone_from(&worst.reason);
        self.is_healthy = worst.state == State::Healthy;
        let change = self.tell(shown.rt.now(), worst.state);
        let mut latest = shown.latest.borrow_mut();
        latest.insert(self.name.clone(), health);
        change
    }

    /// Takes the word of the volume at the time `now`, and returns what to tell about it.
    fn tell(&mut self, now: Instant, is: State) -> Option<Change> {
        let Some(damping) = &mut self.damping else {
            self.damping = Some(Damping::new(now, is));
            return None;
        };
        let told = damping.look(now, is)?;
        Some(Change {
            volume: self.name.clone(),
            words: told.words(&self.reason),
        })
    }

    /// Adds the present figures to the history: those of the volume, of each mirror in it, and of
    /// their sides.
    fn sample(&self, shown: &Shown, seen: &[Seen], health: &Health) {
        let Some(history) = &shown.history else {
            return;
        };
        let mirrors = seen.iter().filter(|device| device.kind == "mirror");
        let mut names: BTreeSet<&str> = BTreeSet::from([self.name.as_str()]);
        let mut exposed_bytes = 0.0;
        for mirror in mirrors {
            names.insert(&mirror.name);
            names.extend(mirror.children.iter().map(String::as_str));
            let figures = mirror.statistics.iter();
            let mut own = figures.filter(|(part, _, _)| part.is_empty());
            if let Some((_, _, bimetal_block::Statistic::Gauge(bytes))) =
                own.find(|(_, name, _)| name == "exposed_bytes")
            {
                exposed_bytes += bytes;
            }
        }
        let of_volume = OfVolume {
            state: health.state(),
            exposed_bytes,
        };
        let sampled = seen.iter().filter(|device| names.contains(&*device.name));
        // The volume comes first, as it is the one to keep where not all are kept.
        let sampled = sampled.rev().map(|of| (of.name.as_str(), Requests::of(of)));
        let sampled: Vec<(&str, Requests)> = sampled.collect();
        history.add(shown.rt.unix_seconds(), &self.name, of_volume, &sampled);
    }
}

/// Returns the number of requests that devices have had so far; `None` while one of them has
/// requests in flight, or is on another thread or absent, so that its requests are not known.
fn answered(shown: &Shown, devices: &BTreeSet<String>) -> Option<u64> {
    devices.iter().try_fold(0_u64, |sum, name| {
        Some(sum + shown.stack.tap(name)?.answered()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_at_rest_twelve_looks_after_its_last_request() {
        let mut rest = Rest::default();
        let mut looks = |answered: Option<u64>, count: u32| -> Vec<bool> {
            (0..count).map(|_| rest.is_long(answered)).collect()
        };
        // The first look has nothing to compare with.
        let mut expected = vec![false; 12];
        expected.push(true);
        assert_eq!(looks(Some(7), 13), expected);
        assert_eq!(looks(Some(8), 1), [false]);
        assert_eq!(looks(None, 20), [false; 20]);
        assert_eq!(looks(Some(9), 13), expected);
    }
}
