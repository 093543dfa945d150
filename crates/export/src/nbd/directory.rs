//! The information about exports that NBD clients get.

use bimetal_proto::nbd::wire::{PAYLOAD_DEFAULT_MAX_BYTES, transmission_flag as flag};
use bimetal_proto::nbd::{self, Export, ExportDirectory, ExportInfo};

use crate::export::Shown;

/// The smallest preferred block size the protocol allows (NBD, section "Size constraints").
const PREFERRED_BYTES_MIN: u32 = 512;

/// Describes an export to a client.
///
/// `CAN_MULTI_CONN` promises that a flush on one connection covers the completed writes of all
/// connections. The promise holds because every connection submits to one device, which does not
/// distinguish between connections. `SEND_FAST_ZERO` is not offered: no device can tell in advance
/// whether zeroing is faster than writing.
fn describe(shown: &Shown) -> ExportInfo {
    let geometry = shown.export.device.geometry();
    let mut flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::SEND_DF
        | flag::CAN_MULTI_CONN;
    if shown.read_only {
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
            // The preferred size must be a power of two, whatever transfer size the device takes.
            .min(1 << max_payload_bytes.ilog2()),
        max_payload_bytes,
    }
}

/// The exports at one address that a client may see, the default one first.
pub(crate) struct Directory<'a>(pub(crate) &'a [Shown]);

impl ExportDirectory for Directory<'_> {
    fn export(&self, index: usize) -> Option<Export<'_>> {
        self.0.get(index).map(|shown| Export {
            name: &shown.export.config.name,
            description: &shown.export.config.description,
            info: describe(shown),
        })
    }
}

/// Converts runs of a device to extents of `base:allocation`: a hole is unallocated and reads as
/// zeroes.
pub(super) fn to_wire(runs: &[bimetal_block::Extent]) -> Vec<nbd::Extent> {
    use bimetal_proto::nbd::wire::state::{HOLE, ZERO};
    let to_wire = |run: &bimetal_block::Extent| nbd::Extent {
        // A request, and so a run inside it, is shorter than 4 GiB.
        length_bytes: u32::try_from(run.len).expect("a run is inside its request"),
        status: if run.data { 0 } else { HOLE | ZERO },
    };
    runs.iter().filter(|run| run.len > 0).map(to_wire).collect()
}
