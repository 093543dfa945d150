//! The parameters for opening the store of a side, as its superblock has them.

use std::rc::Rc;

use crate::device::Device;
use crate::layers::mirror::config::MirrorConfig;
use crate::layers::mirror::store::StoreDevice;
use crate::layers::mirror::superblock::Superblock;

/// Maximum number of bytes of checksum pages in memory, for a side with a home that serves no
/// volume. They are read in ascending order.
const CHECKSUM_CACHE_BYTES: u64 = 64 << 20;

/// Returns the parameters for opening the store of a side of a volume with this configuration.
pub(in crate::layers::mirror) fn store_device(
    device: &Rc<dyn Device>,
    superblock: &Superblock,
    config: &MirrorConfig,
) -> StoreDevice {
    StoreDevice {
        cleans_always: config.cleans_always,
        fills_newest_first: config.fills_newest_first,
        checksum_cache_bytes: config.checksum_cache.0,
        map_memory_bytes: config.map_memory.0,
        watches_map: config.watches_map,
        order_after: config.order_after.time(),
        ..store_alone(device, superblock)
    }
}

/// Returns the parameters for opening the store of a side that serves no volume. All pages of the
/// map of a logged side stay in memory.
pub(in crate::layers::mirror) fn store_alone(
    device: &Rc<dyn Device>,
    superblock: &Superblock,
) -> StoreDevice {
    let history = superblock.history.clone();
    StoreDevice {
        device: Rc::clone(device),
        side: superblock.side,
        layout: superblock.layout,
        digest: superblock.digest,
        volume_bytes: superblock.volume_bytes,
        unknown_blocks: superblock.unknown_blocks,
        integrity: !superblock.flags.no_checksums,
        cleans_always: false,
        fills_newest_first: false,
        checksum_cache_bytes: CHECKSUM_CACHE_BYTES,
        map_memory_bytes: u64::MAX,
        watches_map: false,
        order_after: None,
        counts_below: Rc::new(move |epoch| {
            let later = history.epochs().iter().filter(|e| e.number > epoch);
            later.map(|e| e.first_change).min().unwrap_or(u64::MAX)
        }),
    }
}

/// Returns why a side cannot be opened whose store has no valid beginning.
pub(in crate::layers::mirror) fn damaged_words(superblock: &Superblock) -> &'static str {
    match superblock.layout.segments {
        Some(_) => "its checkpoints, or both copies of its segment record, are damaged",
        None => "both its checkpoints are damaged",
    }
}
