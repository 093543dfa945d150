//! The served configuration as the control socket and the alerts show it: the devices, the exports
//! and their current state.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use bimetal_block::Statistic;
use bimetal_block::graph::{Node, Stack};
use bimetal_block::layers::shard::Seen;
use bimetal_export::{ExportConfig, Server};
use bimetal_rt::{Driven, Instant, Rt};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::events::Events;
use crate::health::{self, Health};
use crate::history::History;
use crate::local::Local;
use crate::metrics::{Measured, Snapshot};
use crate::operation::Operation;
use crate::statistics;
use crate::whereabouts::Whereabouts;

/// A statistic with the part that it describes, and its name.
type Named = (String, String, Statistic);

/// State of the server from which the control socket answers.
pub(crate) struct Shown {
    pub(crate) rt: Rt,
    pub(crate) started: Instant,
    pub(crate) started_unix_s: u64,
    pub(crate) config: Config,
    pub(crate) stack: Stack,
    pub(crate) operation: Operation,
    pub(crate) server: Server,
    pub(crate) attached: RefCell<Option<Attached>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) events: Events,
    /// Where the sides were when the server was started.
    pub(crate) whereabouts: Whereabouts,
    /// The last hour, if it can be read.
    pub(crate) history: Option<History>,
    /// Health of each volume when it was last judged, at most a second ago.
    pub(crate) latest: RefCell<BTreeMap<String, Health>>,
}

/// A device that is exposed to this machine itself.
#[derive(Clone)]
pub(crate) struct Attached {
    pub(crate) device: String,
    pub(crate) local: Local,
}

impl Shown {
    /// Removes the block device or the mount by which a device is exposed to this machine.
    pub(crate) async fn take_away(&self) -> Result<()> {
        let attached = self.attached.borrow().clone();
        match attached {
            Some(attached) => attached.local.take_away(&self.rt).await,
            None => Ok(()),
        }
    }

    /// Returns the complete status.
    pub(crate) fn status(&self) -> Value {
        let seen = self.devices();
        let volumes = health::judge(&seen);
        let mut devices = statistics::of_devices(seen);
        for (name, health) in &volumes {
            devices[name]["health"] = health.to_json();
        }
        let (exports, attached) = self.above(|_| true);
        json!({
            "version": 1,
            "health": health::overall(&volumes),
            "stopping": self.stopping.get(),
            "pid": std::process::id(),
            "driver": self.driver(),
            "uptime_s": self.rt.now().since(self.started).as_secs_f64(),
            "longest_turn": self.longest_turn(),
            "exports": exports,
            "attached": attached,
            "devices": devices,
        })
    }

    /// Returns the state of the server for metrics.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let devices = self.devices();
        let volumes = health::judge(&devices);
        let of_export = |(export, statistics): (&ExportConfig, _)| Measured {
            kind: "export",
            label: ("export", export.name.clone()),
            size_bytes: None,
            statistics,
        };
        let of_attached = |(attached, statistics): (Attached, _)| Measured {
            kind: "attached",
            label: ("attached", attached.local.path()),
            size_bytes: None,
            statistics,
        };
        let of_device = |seen: Seen| Measured {
            kind: seen.kind,
            label: ("device", seen.name),
            size_bytes: Some(seen.size_bytes),
            statistics: seen.statistics,
        };
        let exports = self.exports().into_iter().map(of_export);
        let attached = self.attached().into_iter().map(of_attached);
        let devices = devices.into_iter().map(of_device);
        let word = |(name, health): &(String, Health)| (name.clone(), health.state());
        Snapshot {
            health: health::overall(&volumes),
            volumes: volumes.iter().map(word).collect(),
            uptime_seconds: self.rt.now().since(self.started).as_secs_f64(),
            longest_turn_seconds: self.rt.longest_turn().time_ns as f64 / 1e9,
            measured: exports.chain(attached).chain(devices).collect(),
        }
    }

    /// Returns the open devices, those on the threads of shards first.
    fn devices(&self) -> Vec<Seen> {
        self.stack.seen(&self.config.graph, |_| true)
    }

    /// Returns the exports and the attached devices of some devices, as the control socket shows
    /// them.
    pub(crate) fn above(&self, of: impl Fn(&str) -> bool) -> (Value, Value) {
        let exports = self.exports().into_iter();
        let exports = exports.filter(|(export, _)| of(&export.device));
        let exports = exports.map(|(export, seen)| {
            let shown = json!({
                "device": export.device,
                "protocol": export.protocol.name(),
                "listen": export.listen.to_string(),
            });
            (
                export.name.clone(),
                statistics::with(shown, statistics::of_whole(seen)),
            )
        });
        let attached = self.attached().into_iter();
        let attached = attached.filter(|(attached, _)| of(&attached.device));
        let attached = attached.map(|(attached, seen)| {
            let shown = json!({ "device": attached.device });
            (
                attached.local.path(),
                statistics::with(shown, statistics::of_whole(seen)),
            )
        });
        let (exports, attached): (Map<_, _>, Map<_, _>) = (exports.collect(), attached.collect());
        (Value::Object(exports), Value::Object(attached))
    }

    /// Returns the names of the volumes: the open devices that are below no other one.
    pub(crate) fn volumes(&self) -> Vec<&str> {
        let nodes = self.config.graph.nodes();
        let open = || self.stack.devices().map(|(name, _)| name);
        let below: BTreeSet<&str> = open().flat_map(|name| nodes[name].children()).collect();
        open().filter(|name| !below.contains(name)).collect()
    }

    /// Returns the exports with their statistics.
    fn exports(&self) -> Vec<(&ExportConfig, Vec<Named>)> {
        let mut seen: Vec<Named> = Vec::new();
        self.server.statistics(&mut seen);
        let mut exports = Vec::new();
        for export in &self.config.exports {
            let of = seen.iter().filter(|(part, _, _)| *part == export.name);
            exports.push((export, of.cloned().map(whole).collect()));
        }
        exports
    }

    /// Returns the attached device with its statistics.
    fn attached(&self) -> Option<(Attached, Vec<Named>)> {
        let attached = self.attached.borrow().clone()?;
        let mut seen: Vec<Named> = Vec::new();
        attached.local.statistics(&mut seen);
        Some((attached, seen.into_iter().map(whole).collect()))
    }

    /// Returns the I/O driver in use, and the reason why a more efficient driver is not in use.
    fn driver(&self) -> Value {
        let shown = |driven: &Driven| {
            json!({
                "name": driven.kind.name(),
                "refused": driven.refused,
                "unregistered": driven.unregistered,
            })
        };
        self.rt.driven().map_or(Value::Null, shown)
    }

    /// Returns the longest time, since the server became ready, in which the serving thread did not
    /// poll for new events.
    fn longest_turn(&self) -> Value {
        let longest = self.rt.longest_turn();
        json!({ "time_ns": longest.time_ns, "steps": longest.steps })
    }

    /// Returns a description of the work for which a slow stop is waiting.
    pub(crate) fn left_to_do(&self) -> String {
        if let Some(device) = self.stack.closing() {
            return format!("device {device} is still draining");
        }
        let mut seen: Vec<(String, String, Statistic)> = Vec::new();
        self.server.statistics(&mut seen);
        let is_connected = |export: &str| {
            seen.iter().any(|(part, name, statistic)| {
                part == export
                    && name == "connections"
                    && matches!(statistic, Statistic::Gauge(n) if *n > 0.0)
            })
        };
        let exports = self.config.exports.iter().filter(|e| is_connected(&e.name));
        let attached = self.attached.borrow();
        let devices = exports.map(|e| e.device.as_str());
        let devices = devices.chain(attached.iter().map(|attached| attached.device.as_str()));
        let devices: BTreeSet<&str> = devices.collect();
        let devices: Vec<&str> = devices.into_iter().collect();
        format!("requests on device {} are unanswered", devices.join(", "))
    }

    /// Returns a description, for the operator, of the consequences of abandoning a stop.
    pub(crate) fn afterwards(&self) -> &'static str {
        let is_mirror = |node: &Node| matches!(node, Node::Mirror(_));
        if self.config.graph.nodes().values().any(is_mirror) {
            "the next `serve` recovers all flushed data"
        } else {
            "data that was not flushed may be lost"
        }
    }
}

/// Returns a statistic of a part as one of the whole.
fn whole((_, name, statistic): Named) -> Named {
    (String::new(), name, statistic)
}
