//! The properties of exports that NBD clients are told.

use bimetal_proto::nbd::wire::{PAYLOAD_DEFAULT_MAX_BYTES, transmission_flag as flag};
use bimetal_proto::nbd::{self, Export, ExportDirectory, ExportInfo};

use crate::export::Shown;

/// Minimum preferred block size that the protocol allows (NBD, section "Size constraints").
const PREFERRED_BYTES_MIN: u32 = 512;

/// Returns the description of an export that a client gets.
///
/// `CAN_MULTI_CONN` promises that a flush on one connection covers the completed writes of all
/// connections. The promise holds because all connections submit to the same device, which does not
/// distinguish between connections. `SEND_FAST_ZERO` is not offered, because no device can tell in
/// advance whether zeroing is faster than writing.
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
            // The preferred size must be a power of two, even if the preferred transfer size of the
            // device is not.
            .min(1 << max_payload_bytes.ilog2()),
        max_payload_bytes,
    }
}

/// The exports at one address that a client may see, with the default export first.
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

/// Converts extents from the device to extents of the NBD metadata context `base:allocation`. A
/// hole is reported as unallocated and zero.
pub(super) fn to_wire(runs: &[bimetal_block::Extent]) -> Vec<nbd::Extent> {
    use bimetal_proto::nbd::wire::state::{HOLE, ZERO};
    let to_wire = |run: &bimetal_block::Extent| nbd::Extent {
        // An extent lies inside its request, and a request is shorter than 4 GiB.
        length_bytes: u32::try_from(run.len).expect("a run is inside its request"),
        status: if run.data { 0 } else { HOLE | ZERO },
    };
    runs.iter().filter(|run| run.len > 0).map(to_wire).collect()
}
