//! What the answers of the last minute say about each second: the slowest write of each export and
//! device. The server counts latencies since the start; the difference of two answers is what came
//! between them.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use crate::figures::{Latency, entries};

/// Number of seconds that are kept.
pub(super) const KEPT: usize = 60;

/// The last minute of the exports and devices of a server.
#[derive(Default)]
pub(super) struct History {
    of: BTreeMap<String, Past>,
}

#[derive(Default)]
struct Past {
    /// Number of writes by the longest latency of their bucket, in the last answer.
    counts: BTreeMap<u64, u64>,
    slowest_ns: VecDeque<Option<u64>>,
    is_known: bool,
}

impl History {
    /// Adds an answer.
    pub(super) fn add(&mut self, status: &Value) {
        let mut names = Vec::new();
        for (kind, things) in [
            ("export", &status["exports"]),
            ("device", &status["devices"]),
        ] {
            for (name, thing) in entries(things) {
                let name = key(kind, name);
                let past = self.of.entry(name.clone()).or_default();
                past.add(Latency::of(&thing["latency"]["write"]));
                names.push(name);
            }
        }
        self.of.retain(|name, _| names.contains(name));
    }

    /// Returns true if anything is known of at least one second.
    pub(super) fn is_known(&self) -> bool {
        let mut pasts = self.of.values();
        pasts.any(|past| past.slowest_ns.iter().any(Option::is_some))
    }

    /// Returns the slowest write of each of the last seconds of an `export` or a `device`, oldest
    /// first; `None` for a second without a write.
    pub(super) fn slowest_writes(&self, kind: &str, name: &str) -> Vec<Option<u64>> {
        let past = self.of.get(&key(kind, name));
        past.map_or_else(Vec::new, |past| past.slowest_ns.iter().copied().collect())
    }
}

fn key(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

impl Past {
    fn add(&mut self, writes: Latency) {
        let counts = writes.buckets();
        let before = |latency_ns: &u64| self.counts.get(latency_ns).copied().unwrap_or(0);
        let new = counts.iter().filter(|(ns, count)| **count > before(ns));
        let slowest_ns = new.map(|(ns, _)| *ns).max();
        // A write without an answer is as slow as it is old.
        let waiting_ns = Some(writes.waiting_ns()).filter(|ns| *ns > 0);
        if self.is_known {
            if self.slowest_ns.len() == KEPT {
                self.slowest_ns.pop_front();
            }
            self.slowest_ns.push_back(slowest_ns.max(waiting_ns));
        }
        self.counts = counts;
        self.is_known = true;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(buckets: &Value, waiting_ns: u64) -> Value {
        let write = json!({ "buckets": buckets, "waiting_ns": waiting_ns });
        json!({ "devices": { "a": { "latency": { "write": write } } } })
    }

    #[test]
    fn each_second_has_the_slowest_write_that_ended_or_waits() {
        let mut history = History::default();
        for (buckets, waiting_ns) in [
            // What was before the first answer is not of a known second.
            (json!([[90, 5], [2_000, 1]]), 0),
            (json!([[90, 7], [2_000, 1]]), 0),
            (json!([[90, 7], [2_000, 2]]), 0),
            (json!([[90, 7], [2_000, 2]]), 0),
            (json!([[90, 8], [2_000, 2]]), 5_000),
        ] {
            history.add(&status(&buckets, waiting_ns));
        }
        let seen = history.slowest_writes("device", "a");
        assert_eq!(seen, [Some(90), Some(2_000), None, Some(5_000)]);
        assert_eq!(history.slowest_writes("export", "a"), []);
    }

    #[test]
    fn a_minute_is_kept_and_what_is_gone_is_forgotten() {
        let mut history = History::default();
        for count in 0..200 {
            history.add(&status(&json!([[90, count]]), 0));
        }
        assert_eq!(history.slowest_writes("device", "a").len(), KEPT);
        history.add(&json!({ "devices": {} }));
        assert_eq!(history.slowest_writes("device", "a"), []);
    }
}
