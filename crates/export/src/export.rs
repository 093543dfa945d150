//! A served export: its device, its view for each client, and its counters.

use std::cell::Cell;
use std::fmt::Display;
use std::ops::Deref;
use std::rc::Rc;

use bimetal_block::{Device, Op, Statistic, StatisticVisitor};
use bimetal_rt::net::{Address, WorkCounters};
use bimetal_rt::{Notices, Rt};

use crate::access::{Client, Rights};
use crate::config::{ExportConfig, Protocol};
use crate::counters::{RequestCounters, add};

/// A served export.
pub(crate) struct Served {
    pub(crate) config: ExportConfig,
    /// Device of the export, wrapped in the device's atomic unit (a layer that makes unaligned
    /// requests atomic). All connections to the export share this wrapped device.
    pub(crate) device: Rc<dyn Device>,
    pub(crate) counters: Counters,
    notices: Notices,
}

/// An export as it is presented to one client.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) export: Rc<Served>,
    /// Whether requests that change the device are refused.
    pub(crate) read_only: bool,
}

/// Returns the exports that the client may see, in the order of `exports`. Every answer to the
/// client must be based on the returned exports alone.
pub(crate) fn shown_to(client: &Client, exports: &[Rc<Served>]) -> Vec<Shown> {
    let shown = exports.iter().filter_map(|export| {
        let rights = client.rights(export.config.clients.as_deref());
        (rights != Rights::Hidden).then(|| Shown {
            export: Rc::clone(export),
            read_only: rights == Rights::ReadOnly || export.is_read_only(),
        })
    });
    shown.collect()
}

/// Counters of one export.
pub(crate) struct Counters {
    pub(crate) connections: Cell<u32>,
    pub(crate) connections_accepted: Cell<u64>,
    pub(crate) connections_refused: Cell<u64>,
    pub(crate) requests: RequestCounters,
    pub(crate) protocol_errors: Cell<u64>,
    pub(crate) receives: Cell<u64>,
    pub(crate) sends: Cell<u64>,
    /// BRP messages that carry requests.
    pub(crate) commands: Cell<u64>,
    /// Counters of connections over RDMA.
    pub(crate) work: Rc<WorkCounters>,
}

/// A connection slot of an export. The slot is reserved before the client is told that it is
/// admitted, and released when this value is dropped.
pub(crate) struct Connected(Rc<Served>);

impl Deref for Connected {
    type Target = Rc<Served>;

    fn deref(&self) -> &Rc<Served> {
        &self.0
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let connections = &self.0.counters.connections;
        connections.set(connections.get() - 1);
    }
}

impl Served {
    pub(crate) fn new(rt: &Rt, config: ExportConfig, device: Rc<dyn Device>) -> Rc<Served> {
        Rc::new(Served {
            config,
            device,
            notices: rt.notices().clone(),
            counters: Counters {
                connections: Cell::new(0),
                connections_accepted: Cell::new(0),
                connections_refused: Cell::new(0),
                requests: RequestCounters::new(rt),
                protocol_errors: Cell::new(0),
                receives: Cell::new(0),
                sends: Cell::new(0),
                commands: Cell::new(0),
                work: Rc::default(),
            },
        })
    }

    /// Reserves a connection slot. When no slot is free, counts the refusal and returns `None`.
    pub(crate) fn connect(self: &Rc<Served>) -> Option<Connected> {
        let counters = &self.counters;
        if counters.connections.get() >= self.config.connections_max {
            self.refuse(format_args!(
                "the export has its maximum of {} connections (`connections_max`)",
                self.config.connections_max
            ));
            return None;
        }
        counters.connections.set(counters.connections.get() + 1);
        Some(Connected(Rc::clone(self)))
    }

    /// Counts a client that is refused, and reports the reason to the operator.
    pub(crate) fn refuse(&self, why: impl Display) {
        add(&self.counters.connections_refused, 1);
        let (name, address) = (&self.config.name, &self.config.listen);
        self.notices.post(
            &format!("export {name} at {address}"),
            "client-refused",
            format_args!("a client was refused: {why}"),
        );
    }

    /// Whether requests that change the device are refused for every client.
    fn is_read_only(&self) -> bool {
        self.config.read_only || !self.device.geometry().writable
    }

    pub(crate) fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let (part, counters) = (self.config.name.as_str(), &self.counters);
        let connections = f64::from(counters.connections.get());
        out.statistic(part, "connections", Statistic::Gauge(connections));
        counters.requests.statistics(part, &Op::ALL, out);
        for (name, counter) in [
            ("protocol_errors", &counters.protocol_errors),
            ("connections_accepted", &counters.connections_accepted),
            ("connections_refused", &counters.connections_refused),
            ("receives", &counters.receives),
            ("sends", &counters.sends),
        ] {
            out.statistic(part, name, Statistic::Counter(counter.get()));
        }
        if self.config.protocol == Protocol::Brp {
            let commands = Statistic::Counter(counters.commands.get());
            out.statistic(part, "commands", commands);
        }
        if let Address::Rdma(_) = self.config.listen {
            let work = &counters.work;
            for (name, counter) in [
                ("rdma_sends", &work.sends),
                ("rdma_receives", &work.receives),
                ("rdma_completions", &work.completions),
                ("rdma_notices", &work.notices),
            ] {
                out.statistic(part, name, Statistic::Counter(counter.get()));
            }
        }
    }
}
