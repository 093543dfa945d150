//! One export as the server holds it: its device, what clients are told about it, its counters.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_block::{Device, Figure, FigureVisitor, Geometry, Op};
use bimetal_proto::nbd::wire::{PAYLOAD_DEFAULT_MAX_BYTES, transmission_flag as flag};
use bimetal_proto::nbd::{self, Export, ExportDirectory, ExportInfo};

use crate::config::ExportConfig;

/// The smallest preferred block size the protocol allows (NBD, section "Size constraints").
const PREFERRED_BYTES_MIN: u32 = 512;

/// An export that is served.
pub(crate) struct Served {
    pub(crate) config: ExportConfig,
    /// The device behind its atomic unit, which all connections to it share.
    pub(crate) device: Rc<dyn Device>,
    pub(crate) counters: Counters,
}

/// What happened to an export.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) connections: Cell<u32>,
    pub(crate) connections_total: Cell<u64>,
    pub(crate) connections_refused: Cell<u64>,
    pub(crate) requests: [Cell<u64>; Op::ALL.len()],
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    pub(crate) requests_failed: Cell<u64>,
    pub(crate) requests_refused: Cell<u64>,
    pub(crate) protocol_errors: Cell<u64>,
    pub(crate) receives: Cell<u64>,
    pub(crate) sends: Cell<u64>,
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get().wrapping_add(amount));
}

impl Served {
    pub(crate) fn new(config: ExportConfig, device: Rc<dyn Device>) -> Rc<Served> {
        Rc::new(Served {
            config,
            device,
            counters: Counters::default(),
        })
    }

    /// What a client is told that connects now.
    pub(crate) fn info(&self) -> ExportInfo {
        describe(self.device.geometry(), self.config.read_only)
    }

    pub(crate) fn figures(&self, out: &mut dyn FigureVisitor) {
        let (part, counters) = (self.config.name.as_str(), &self.counters);
        let connections = f64::from(counters.connections.get());
        out.figure(part, "connections", Figure::Gauge(connections));
        for op in Op::ALL {
            let name = match op {
                Op::Read => "reads",
                Op::Write => "writes",
                Op::Flush => "flushes",
                Op::Discard => "discards",
                Op::WriteZeroes => "write_zeroes",
                Op::Extents => "extents",
            };
            let count = counters.requests[op as usize].get();
            out.figure(part, name, Figure::Counter(count));
        }
        for (name, counter) in [
            ("read_bytes", &counters.read_bytes),
            ("written_bytes", &counters.written_bytes),
            ("requests_failed", &counters.requests_failed),
            ("requests_refused", &counters.requests_refused),
            ("protocol_errors", &counters.protocol_errors),
            ("connections_total", &counters.connections_total),
            ("connections_refused", &counters.connections_refused),
            ("receives", &counters.receives),
            ("sends", &counters.sends),
        ] {
            out.figure(part, name, Figure::Counter(counter.get()));
        }
    }
}

/// What clients are told about a device.
///
/// `CAN_MULTI_CONN` promises that a flush on one connection covers the completed writes of all.
/// That holds because every connection submits to one device, which makes no difference between
/// them. `SEND_FAST_ZERO` is not offered: no device can tell beforehand whether zeroing is faster
/// than writing.
fn describe(geometry: &Geometry, read_only: bool) -> ExportInfo {
    let mut flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::SEND_DF
        | flag::CAN_MULTI_CONN;
    if read_only || !geometry.writable {
        flags |= flag::READ_ONLY;
    }
    if geometry.rotational {
        flags |= flag::ROTATIONAL;
    }
    let max_payload_bytes = geometry.transfer_bytes_max.min(PAYLOAD_DEFAULT_MAX_BYTES);
    ExportInfo {
        size_bytes: geometry.size_bytes,
        transmission_flags: flags,
        min_block_bytes: 1,
        preferred_block_bytes: geometry
            .preferred_bytes
            .max(PREFERRED_BYTES_MIN)
            .min(max_payload_bytes),
        max_payload_bytes,
    }
}

/// The exports of one address, the default one first.
pub(crate) struct Directory(pub(crate) Vec<Rc<Served>>);

impl ExportDirectory for Directory {
    fn export(&self, index: usize) -> Option<Export<'_>> {
        self.0.get(index).map(|served| Export {
            name: &served.config.name,
            description: &served.config.description,
            info: served.info(),
        })
    }
}

/// Runs of a device as the extents of `base:allocation`: a hole is unallocated and reads as
/// zeroes.
pub(crate) fn to_wire(runs: &[bimetal_block::Extent]) -> Vec<nbd::Extent> {
    use bimetal_proto::nbd::wire::state::{HOLE, ZERO};
    let to_wire = |run: &bimetal_block::Extent| nbd::Extent {
        // A request, and so a run inside it, is shorter than 4 GiB.
        length_bytes: u32::try_from(run.len).expect("a run is inside its request"),
        status: if run.data { 0 } else { HOLE | ZERO },
    };
    runs.iter().filter(|run| run.len > 0).map(to_wire).collect()
}
