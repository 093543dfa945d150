//! The served configuration as the control socket and the alerts show it: the devices, the exports
//! and their current state.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use anyhow::Result;
use bimetal_block::Statistic;
use bimetal_block::graph::{Node, Stack};
use bimetal_export::Server;
use bimetal_rt::{Driven, Instant, Rt};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::events::Events;
use crate::local::Local;
use crate::metrics::{Measured, Snapshot};
use crate::operation::Operation;
use crate::statistics;

/// State of the server from which the control socket answers.
pub(crate) struct Shown {
    pub(crate) rt: Rt,
    pub(crate) started: Instant,
    pub(crate) config: Config,
    pub(crate) stack: Stack,
    pub(crate) operation: Operation,
    pub(crate) server: Server,
    pub(crate) attached: RefCell<Option<Attached>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) events: Events,
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
        let devices = self.devices();
        json!({
            "version": 1,
            "health": statistics::health(&devices),
            "stopping": self.stopping.get(),
            "pid": std::process::id(),
            "driver": self.driver(),
            "uptime_s": self.rt.now().since(self.started).as_secs_f64(),
            "longest_turn": self.longest_turn(),
            "exports": self.exports(),
            "attached": self.attached(),
            "devices": devices,
        })
    }

    fn devices(&self) -> Map<String, Value> {
        let mut devices = Map::new();
        for seen in self.stack.beyond() {
            let mut shown = json!({
                "type": seen.kind,
                "size_bytes": seen.size_bytes,
                "children": seen.children,
            });
            merge(&mut shown, statistics::of(seen.statistics));
            devices.insert(seen.name, shown);
        }
        for (name, device) in self.stack.devices() {
            let node = &self.config.graph.nodes()[name];
            let mut shown = json!({
                "type": node.kind(),
                "size_bytes": device.geometry().size_bytes,
                "children": node.children(),
            });
            merge(&mut shown, statistics::to_json(device.as_ref()));
            devices.insert(name.to_owned(), shown);
        }
        devices
    }

    /// Returns the state of the server for metrics.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut measured = Vec::new();
        let mut seen: Vec<(String, String, Statistic)> = Vec::new();
        self.server.statistics(&mut seen);
        for export in &self.config.exports {
            let of_export = seen.iter().filter(|(part, _, _)| *part == export.name);
            let whole = of_export.map(|(_, name, s)| (String::new(), name.clone(), s.clone()));
            measured.push(Measured {
                kind: "export".to_owned(),
                label: ("export", export.name.clone()),
                size_bytes: None,
                statistics: whole.collect(),
            });
        }
        if let Some(attached) = self.attached.borrow().as_ref() {
            let mut seen: Vec<(String, String, Statistic)> = Vec::new();
            attached.local.statistics(&mut seen);
            let whole = seen
                .into_iter()
                .map(|(_, name, s)| (String::new(), name, s));
            measured.push(Measured {
                kind: "attached".to_owned(),
                label: ("attached", attached.local.path()),
                size_bytes: None,
                statistics: whole.collect(),
            });
        }
        for seen in self.stack.beyond() {
            measured.push(Measured {
                kind: seen.kind.to_owned(),
                label: ("device", seen.name),
                size_bytes: Some(seen.size_bytes),
                statistics: seen.statistics,
            });
        }
        for (name, device) in self.stack.devices() {
            let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
            device.statistics(&mut statistics);
            measured.push(Measured {
                kind: self.config.graph.nodes()[name].kind().to_owned(),
                label: ("device", name.to_owned()),
                size_bytes: Some(device.geometry().size_bytes),
                statistics,
            });
        }
        Snapshot {
            health: statistics::health(&self.devices()),
            uptime_seconds: self.rt.now().since(self.started).as_secs_f64(),
            longest_turn_seconds: self.rt.longest_turn().time_ns as f64 / 1e9,
            measured,
        }
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

    fn exports(&self) -> Map<String, Value> {
        let mut seen: Vec<(String, String, Statistic)> = Vec::new();
        self.server.statistics(&mut seen);
        let mut exports = Map::new();
        for export in &self.config.exports {
            let of_export = seen.iter().filter(|(part, _, _)| *part == export.name);
            let mut shown = json!({
                "device": export.device,
                "protocol": export.protocol.name(),
                "listen": export.listen.to_string(),
            });
            merge(&mut shown, statistics::of_whole(of_export));
            exports.insert(export.name.clone(), shown);
        }
        exports
    }

    fn attached(&self) -> Map<String, Value> {
        let attached = self.attached.borrow();
        let mut shown = Map::new();
        if let Some(attached) = attached.as_ref() {
            let mut seen: Vec<(String, String, Statistic)> = Vec::new();
            attached.local.statistics(&mut seen);
            let mut value = json!({ "device": attached.device });
            merge(&mut value, statistics::of_whole(seen.iter()));
            shown.insert(attached.local.path(), value);
        }
        shown
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

/// Adds the entries of one object to another.
fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
