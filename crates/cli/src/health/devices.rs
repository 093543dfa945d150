//! The statistics of devices at one moment, by their names, as the judge of the health reads them.
//! They are borrowed, not copied: the health is judged at each scrape of the metrics, and each
//! second while clients work.

use std::collections::{BTreeMap, BTreeSet};

use bimetal_block::Statistic;
use bimetal_block::latency::{OpLatency, Window, WindowLatency};
use bimetal_block::layers::shard::Seen;

/// Devices by their names, in the order in which they were given.
pub(super) struct Devices<'a> {
    by_name: BTreeMap<&'a str, Device<'a>>,
    order: Vec<&'a str>,
}

/// A device.
pub(super) struct Device<'a> {
    pub(super) kind: &'static str,
    pub(super) children: &'a [String],
    /// Figures of the device itself.
    pub(super) own: Figures<'a>,
    parts: Vec<(&'a str, Figures<'a>)>,
    latencies: BTreeMap<&'a str, &'a OpLatency>,
}

/// Figures of a device, or of a part of one. A figure that is not there, or is of another kind,
/// counts as none.
#[derive(Default)]
pub(super) struct Figures<'a>(BTreeMap<&'a str, &'a Statistic>);

impl<'a> Devices<'a> {
    /// Returns the devices of which the statistics are given.
    pub(super) fn of(seen: &'a [Seen]) -> Devices<'a> {
        Devices {
            by_name: seen.iter().map(|of| (&*of.name, Device::of(of))).collect(),
            order: seen.iter().map(|of| of.name.as_str()).collect(),
        }
    }

    /// Returns the device `name`, if it is among them.
    pub(super) fn get(&self, name: &str) -> Option<&Device<'a>> {
        self.by_name.get(name)
    }

    /// Returns the devices that are below no other one.
    pub(super) fn volumes(&self) -> impl Iterator<Item = &'a str> {
        let children = self.by_name.values().flat_map(|device| device.children);
        let below: BTreeSet<&str> = children.map(String::as_str).collect();
        let names = self.order.iter().copied();
        names.filter(move |name| !below.contains(name))
    }
}

impl<'a> Device<'a> {
    fn of(seen: &'a Seen) -> Device<'a> {
        let mut device = Device {
            kind: seen.kind,
            children: &seen.children,
            own: Figures::default(),
            parts: Vec::new(),
            latencies: BTreeMap::new(),
        };
        for (part, name, statistic) in &seen.statistics {
            match statistic {
                Statistic::Latency(latency) => {
                    device.latencies.insert(name, latency);
                }
                _ => {
                    device.part(part).0.insert(name, statistic);
                }
            }
        }
        device
    }

    fn part(&mut self, name: &'a str) -> &mut Figures<'a> {
        if name.is_empty() {
            return &mut self.own;
        }
        let found = self.parts.iter().rposition(|(part, _)| *part == name);
        let at = found.unwrap_or_else(|| {
            self.parts.push((name, Figures::default()));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }

    /// Returns the parts of the device, by name.
    pub(super) fn parts(&self) -> &[(&'a str, Figures<'a>)] {
        &self.parts
    }

    /// Returns the requests of an operation, if it occurred, in a window.
    pub(super) fn window(&self, op: &str, window: Window) -> WindowLatency {
        let of_op = self.latencies.get(op);
        of_op.map_or_else(WindowLatency::default, |of_op| {
            of_op.windows[window as usize]
        })
    }

    /// Returns the number of requests without an answer.
    pub(super) fn in_flight(&self) -> u64 {
        self.latencies.values().map(|of_op| of_op.in_flight).sum()
    }

    /// Returns for how long the device has had requests in flight and has answered none, in ns. A
    /// discard is advice, for which nothing waits, and does not count; a flush counts after
    /// `flush_ns`.
    pub(super) fn silent_ns(&self, flush_ns: u64) -> u64 {
        let waited_for = || self.latencies.iter().filter(|(op, _)| **op != "discard");
        let waiting = waited_for().map(|(op, of_op)| match *op {
            "flush" => of_op.waiting_ns.saturating_sub(flush_ns),
            _ => of_op.waiting_ns,
        });
        let answers = waited_for().filter_map(|(_, of_op)| of_op.answered_ns);
        let answered_ns = answers.min().unwrap_or(u64::MAX);
        waiting.max().unwrap_or(0).min(answered_ns)
    }
}

impl<'a> Figures<'a> {
    /// Returns a figure in words.
    pub(super) fn word(&self, name: &str) -> Option<&'a str> {
        match self.0.get(name)? {
            Statistic::State(word) => Some(word),
            _ => None,
        }
    }

    /// Returns a figure that is a number, if there is one.
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        match self.0.get(name)? {
            Statistic::Counter(count) => Some(*count as f64),
            Statistic::Gauge(value) if value.is_finite() => Some(*value),
            _ => None,
        }
    }

    /// Returns a figure that is a number; 0 if there is none.
    pub(super) fn number(&self, name: &str) -> f64 {
        self.figure(name).unwrap_or(0.0)
    }
}
