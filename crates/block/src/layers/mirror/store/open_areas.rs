//! Opening the areas of a side other than its log and its data area.

use std::rc::Rc;

use bimetal_rt::Rt;

use super::StoreDevice;
use super::checksums::Checksums;
use super::pages::{self, PageBits, WrittenIn};
use super::regions::Regions;
use super::segments::Segments;
use super::written::Written;
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;

/// The areas of a side other than its log and its data area.
pub(super) struct Areas {
    pub(super) written: Option<Rc<Written>>,
    pub(super) regions: Regions,
    pub(super) checksums: Option<Checksums>,
}

/// Opens the areas of a side by reading the small ones. `segments` are those of a logged side.
///
/// # Errors
/// Errors of the device.
pub(super) async fn open_areas(
    rt: &Rt,
    (device, segments): (&Rc<dyn Device>, Option<&Rc<Segments>>),
    on: &StoreDevice,
) -> Result<Areas, IoError> {
    let pages = |(offset, len): (u64, u64)| pages::Area {
        offset,
        len,
        side: on.side,
        numbered_from: 0,
    };
    let (map, of_checksums) = (pages(on.layout.map), pages(on.layout.checksums));
    let written = match on.layout.written {
        Some(place) => Some(Written::load(rt, device, place, on.layout.pages(), on.side).await?),
        None => None,
    };
    let bits = || written.clone().map(|written| written as Rc<dyn PageBits>);
    let of_map = WrittenIn::new(bits(), 0);
    let regions = Regions::load(rt, device, map, on.volume_bytes, of_map).await?;
    let checksums = on.integrity.then(|| {
        let blocks = on.layout.data.1 / BLOCK_BYTES;
        let cached = match segments {
            Some(_) => (on.map_memory_bytes / 2 / BLOCK_BYTES).max(1) as usize,
            None => (on.checksum_cache_bytes / BLOCK_BYTES).max(16) as usize,
        };
        let checksums = Checksums::new(rt, device, of_checksums, blocks, cached);
        // In the area that records which pages were written, the bits of the bitmap pages come
        // first, then the bits of the checksum pages.
        let bits = WrittenIn::new(bits(), map.pages());
        let checksums = checksums.with_written(bits, on.unknown_blocks);
        let Some(segments) = segments else {
            return checksums;
        };
        // On a logged side, the map says which pages of the checksums were written.
        let written = Rc::clone(segments) as Rc<dyn PageBits>;
        checksums.with_journal(segments.take_replayed(), WrittenIn::new(Some(written), 0))
    });
    Ok(Areas {
        written,
        regions,
        checksums,
    })
}
