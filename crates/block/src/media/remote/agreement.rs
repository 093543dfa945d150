//! Compares the features that a server offers after a reconnection with the properties that were
//! reported to the layers above when the device was opened.

use bimetal_proto::nbd::wire::{command_flag, transmission_flag as offer};
use bimetal_proto::nbd::{ClientSession, Command, Request};

use crate::geometry::Geometry;
use crate::units::show_size;

/// Describes the differences between the features that the server offered before (`before`) and
/// offers now (`now`). The list is empty if there are none. `told` is the geometry that was
/// reported to the layers above when the device was opened.
///
/// # Errors
/// A message that says why the server cannot be used unless the device is opened again.
pub(super) fn changes(
    told: &Geometry,
    before: &ClientSession,
    now: &ClientSession,
) -> Result<Vec<String>, String> {
    let (was, is) = (&before.info, &now.info);
    if is.size_bytes < told.size_bytes + told.tail_bytes {
        return Err(format!(
            "the export has shrunk from {} bytes to {}",
            was.size_bytes, is.size_bytes
        ));
    }
    if told.writable && is.offers(offer::READ_ONLY) {
        return Err("the export has become read-only".to_owned());
    }
    if is.min_block_bytes > told.block_bytes || is.max_payload_bytes < told.transfer_bytes_max {
        return Err(format!(
            "the export now accepts requests of {} to {} bytes, but {} to {} bytes are needed",
            is.min_block_bytes, is.max_payload_bytes, told.block_bytes, told.transfer_bytes_max
        ));
    }
    if was.offers(offer::SEND_FLUSH) && !is.offers(offer::SEND_FLUSH) {
        return Err("the server no longer supports flushes (no NBD_FLAG_SEND_FLUSH)".to_owned());
    }
    let mut found = Vec::new();
    if is.size_bytes > was.size_bytes {
        found.push(format!(
            "the export has grown from {} to {}; the added space is used after the next start",
            show_size(was.size_bytes),
            show_size(is.size_bytes)
        ));
    }
    for (flag, name, without) in OFFERS {
        match (was.offers(flag), is.offers(flag)) {
            (true, false) => found.push(format!("the server no longer offers {name}: {without}")),
            (false, true) => found.push(format!("the server now offers {name}")),
            _ => {}
        }
    }
    Ok(found)
}

/// Optional features of a server: flag, name, and effect if the feature is missing.
const OFFERS: [(u16, &str, &str); 4] = [
    (
        offer::CAN_MULTI_CONN,
        "flush for several connections",
        "one connection is used",
    ),
    (offer::SEND_FUA, "FUA", "flushes are used instead"),
    (offer::SEND_TRIM, "trim", "discards are ignored"),
    (
        offer::SEND_WRITE_ZEROES,
        "write-zeroes",
        "zeroes are sent as data",
    ),
];

/// Returns true if the server of this session supports a request that was created for an earlier
/// session.
pub(super) fn takes(session: &ClientSession, request: &Request) -> bool {
    let offers = |flag| session.info.offers(flag);
    let command = match request.command() {
        Some(Command::Trim) => offers(offer::SEND_TRIM),
        Some(Command::WriteZeroes) => offers(offer::SEND_WRITE_ZEROES),
        Some(Command::BlockStatus) => session.negotiated.base_allocation_id.is_some(),
        _ => true,
    };
    command && (offers(offer::SEND_FUA) || !request.has(command_flag::FUA))
}
