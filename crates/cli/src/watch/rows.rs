//! A volume as rows: its exports, and the stack of its devices as a tree. What a row shows is taken
//! from the answer of the server; this module decides nothing about health.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde_json::Value;

use super::look::{self, Look};
use crate::figures::{Figures, Window, entries};
use crate::health::{self, Shown};
use crate::terminal::Tone;

/// Deepest tree that is shown.
const DEPTH_MAX: usize = 16;

/// Time from which on a request without an answer is mentioned.
const WAITING_NS_MIN: u64 = 1_000_000_000;

/// Order of the devices that have the same parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// As in the configuration.
    #[default]
    Configured,
    /// The one with the slowest writes first.
    Slowest,
    /// The one with the most requests first.
    Busiest,
}

impl Order {
    /// Returns the order that follows when the key is pressed.
    pub(crate) fn next(self) -> Order {
        match self {
            Order::Configured => Order::Slowest,
            Order::Slowest => Order::Busiest,
            Order::Busiest => Order::Configured,
        }
    }

    /// Returns the order in words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Order::Configured => "as configured",
            Order::Slowest => "slowest first",
            Order::Busiest => "busiest first",
        }
    }
}

/// An export, an attached device, or a device.
pub(crate) struct Row<'a> {
    /// `export`, `attached` or `device`.
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
    /// Lines of the tree before the name, and before further lines of the row.
    pub(crate) branch: String,
    pub(crate) under: String,
    /// What the row is for the device above it: an export, the volume, a side, or a part.
    pub(crate) role: String,
    /// Number of devices above it.
    pub(crate) depth: usize,
    /// What it is.
    pub(crate) what: String,
    /// Its state, empty if there is nothing to say.
    pub(crate) state: String,
    pub(crate) tone: Tone,
    pub(crate) writes: Window,
    pub(crate) reads: Window,
    pub(crate) lag_s: f64,
    pub(crate) is_side: bool,
}

/// Returns the rows of a volume: its exports first, then the tree of its devices.
pub(crate) fn rows<'a>(
    status: &'a Value,
    volume: &'a str,
    order: Order,
    look: Look,
) -> Vec<Row<'a>> {
    let mut tree = Tree {
        devices: &status["devices"],
        findings: health::shown(status, volume),
        order,
        look,
        rows: Vec::new(),
        names: BTreeSet::new(),
    };
    tree.add(volume, None, ("", ""), 0);
    let (devices, names) = (tree.rows, tree.names);
    let mut rows = Vec::new();
    for (kind, things) in [
        ("export", &status["exports"]),
        ("attached", &status["attached"]),
    ] {
        for (name, thing) in entries(things) {
            let device = thing["device"].as_str().unwrap_or_default();
            if !names.contains(device) {
                continue;
            }
            let figures = Figures::of(thing);
            let (state, tone) = waiting(&figures).unwrap_or((clients(&figures), Tone::Dim));
            let how = thing["protocol"].as_str().map(str::to_uppercase);
            rows.push(Row {
                kind,
                name,
                role: format!("{kind} of {device}"),
                depth: 0,
                branch: String::new(),
                under: String::new(),
                what: how.unwrap_or_else(|| "local".to_owned()),
                state,
                tone,
                writes: figures.latency("write").window("last_10_s"),
                reads: figures.latency("read").window("last_10_s"),
                lag_s: 0.0,
                is_side: false,
            });
        }
    }
    rows.extend(devices);
    rows
}

/// Returns the age of the oldest request without an answer, if it has been waiting for long.
fn waiting(thing: &Figures) -> Option<(String, Tone)> {
    let waiting_ns = thing.waiting_ns();
    let words = || format!("waits {}", look::latency(waiting_ns));
    (waiting_ns >= WAITING_NS_MIN).then(|| (words(), Tone::Warn))
}

/// Returns true if a side lacks an acknowledged write.
fn lags(side: &Figures) -> bool {
    side.number("lag_seconds") > 0.0
}

fn clients(export: &Figures) -> String {
    match export.number("connections") as u64 {
        0 => "no client".to_owned(),
        1 => "1 client".to_owned(),
        count => format!("{count} clients"),
    }
}

struct Tree<'a> {
    devices: &'a Value,
    findings: Vec<Shown<'a>>,
    order: Order,
    look: Look,
    rows: Vec<Row<'a>>,
    names: BTreeSet<&'a str>,
}

impl<'a> Tree<'a> {
    /// Adds a device, which is below the device `parent`, and those below it. `side` has the
    /// figures of a device that is a side of a mirror.
    fn add(
        &mut self,
        name: &'a str,
        side: Option<Figures<'a>>,
        (parent, under): (&str, &str),
        depth: usize,
    ) {
        let value = &self.devices[name];
        if depth > DEPTH_MAX || !self.names.insert(name) {
            return;
        }
        let device = Figures::of(value);
        let (state, tone) = self.state(name, &device, side.as_ref());
        let writes = device.latency("write").window("last_10_s");
        let reads = device.latency("read").window("last_10_s");
        let what = match (device.kind(), device.size_bytes()) {
            ("", _) => String::new(),
            (kind, size_bytes) => format!("{kind} {}", look::size(size_bytes)),
        };
        let role = match (&side, parent) {
            (_, "") => "volume".to_owned(),
            (Some(_), mirror) => format!("side of {mirror}"),
            (None, parent) => format!("part of {parent}"),
        };
        self.rows.push(Row {
            kind: "device",
            name,
            role,
            depth,
            branch: String::new(),
            under: String::new(),
            what,
            state,
            tone,
            writes,
            reads,
            lag_s: side.as_ref().map_or(0.0, |side| side.number("lag_seconds")),
            is_side: side.is_some(),
        });
        let mut below: Vec<(&str, Option<Figures>)> = match device.kind() {
            "mirror" => device
                .parts()
                .map(|(side, own)| (side, Some(own)))
                .collect(),
            _ => device.children().map(|child| (child, None)).collect(),
        };
        self.sort(&mut below);
        let (branches, count) = (self.look.branches(), below.len());
        for (at, (child, figures)) in below.into_iter().enumerate() {
            let is_last = at + 1 == count;
            let branch = if is_last {
                branches.last
            } else {
                branches.middle
            };
            let passing = if is_last { " " } else { branches.passing };
            let first = self.rows.len();
            let inner = format!("{under}{passing} ");
            self.add(child, figures, (name, &inner), depth + 1);
            if let Some(row) = self.rows.get_mut(first) {
                row.branch = format!("{under}{branch} ");
                row.under = inner;
            }
        }
    }

    fn sort(&self, below: &mut [(&'a str, Option<Figures<'a>>)]) {
        let window = |name: &str, op| {
            Figures::of(&self.devices[name])
                .latency(op)
                .window("last_10_s")
        };
        match self.order {
            Order::Configured => {}
            Order::Slowest => below.sort_by_key(|(name, _)| Reverse(window(name, "write").p99_ns)),
            Order::Busiest => below.sort_by_key(|(name, _)| {
                Reverse(window(name, "write").requests + window(name, "read").requests)
            }),
        }
    }

    fn state(&self, name: &str, device: &Figures, side: Option<&Figures>) -> (String, Tone) {
        let found = self.findings.iter().find(|finding| finding.of == name);
        if let Some(finding) = found.filter(|found| found.word != "healthy" || side.is_some()) {
            return (finding.word.to_owned(), finding.tone());
        }
        match side {
            Some(side) if side.word("mode") == Some("delayed") && lags(side) => {
                ("catching up".to_owned(), Tone::Dim)
            }
            Some(_) => ("healthy".to_owned(), Tone::Good),
            None => match device.word("health") {
                None | Some("healthy") => waiting(device).unwrap_or((String::new(), Tone::Dim)),
                Some(word) => (word.to_owned(), Tone::Bad),
            },
        }
    }
}
