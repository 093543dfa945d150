//! Layout of a logged side: a side that consists of segments and has no fixed home for any block.
//! `docs/format/logged-side.md` specifies the sizes.
//!
//! The blocks of the volume and the pages of their checksums have no place of their own on such a
//! side. They have addresses in a *virtual* range that begins at [`VIRTUAL_START`], and a map says
//! in which segment each block is.

use super::SUPERBLOCK_BYTES;
use super::areas::{
    CHECKSUM_PAGE_COVERS_BYTES, DESCRIBED_MAX, PAGE_BLOCKS, map_bytes, written_bytes,
};
use super::layout::{
    AREA_ALIGNMENT, Asked, DATA_ALIGNMENT, HEADER_BYTES, LayoutError, Reserve, SegmentLayout,
    SideLayout, check_areas, log_bytes,
};
use crate::geometry::Geometry;
use crate::request::BLOCK_BYTES;
use crate::units::show_size;

/// First virtual address. No device is so large, so no virtual address is an offset on a device.
pub(in crate::layers::mirror) const VIRTUAL_START: u64 = 1 << 60;
/// Length in bytes of the shortest and of the longest segment.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Number of segments into which a device is divided, if the length of its segments allows it. With
/// fewer segments, cleaning has to write more.
const SEGMENTS_WANTED: u64 = 2048;
/// Number of segments that no client can fill: those that are being filled by cleaning, by the
/// pages of the map and by the journal, and those that are emptied but not yet released by a
/// commit.
pub(in crate::layers::mirror) const SEGMENTS_RESERVED: u64 = 12;
/// Part of the log whose entries are folded into the map and dropped together: one quarter.
pub(in crate::layers::mirror) const LOG_FOLD_DIVISOR: u64 = 4;
/// Smallest number of segments for data.
const SEGMENTS_FOR_DATA_MIN: u64 = 4;
/// A log of this part of the device always leaves room for data.
const LOG_DIVISOR_MIN: u64 = 4;
/// Length in bytes of the fixed fields of a segment record.
pub(in crate::layers::mirror) const RECORD_HEAD_BYTES: u64 = BLOCK_BYTES;
/// Number of pages of the map that one page of the page table describes, and of segments that one
/// page of the segment table describes.
pub(in crate::layers::mirror) const TABLE_PAGE_ENTRIES: u64 = 504;
/// Length in bytes of what a segment record says about a page of a table.
pub(in crate::layers::mirror) const TABLE_ENTRY_BYTES: u64 = 16;
/// Length in bytes of the description of a run of the journal in a segment record, and the maximum
/// number of runs.
pub(in crate::layers::mirror) const RUN_ENTRY_BYTES: u64 = 24;
pub(in crate::layers::mirror) const RUNS_MAX: u64 = 512;
/// Maximum number of blocks in all segments together, limited by the 32 bits of a place.
const BLOCKS_MAX: u64 = u32::MAX as u64 - 2;
/// Length in bytes of the largest device of which a logged side can use all: 16 TiB. Of a larger
/// one, the rest is not used.
pub const LOGGED_SIDE_BYTES_MAX: u64 = (1 << 32) * BLOCK_BYTES;

/// Returns the length of the segments of a device.
fn segment_bytes(device_bytes: u64) -> u64 {
    let wanted = (device_bytes / SEGMENTS_WANTED).max(1);
    let power = 1 << wanted.ilog2();
    u64::clamp(power, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

/// Returns the number of pages of the map for a virtual range of `bytes`.
pub(in crate::layers::mirror) fn place_pages(bytes: u64) -> u64 {
    (bytes / BLOCK_BYTES).div_ceil(PAGE_BLOCKS)
}

/// Returns the number of pages of the page table of a map with `place_pages` pages.
pub(in crate::layers::mirror) fn table_pages(place_pages: u64) -> u64 {
    place_pages.div_ceil(TABLE_PAGE_ENTRIES)
}

/// Returns the number of pages of the page table of a map with `place_pages` pages, and of the
/// segment table of `segments` segments, together.
pub(in crate::layers::mirror) fn all_table_pages(place_pages: u64, segments: u64) -> u64 {
    table_pages(place_pages) + segments.div_ceil(TABLE_PAGE_ENTRIES)
}

/// Returns the length in bytes of a segment record: of a side with `segments` segments, of which
/// `in_log` are in the log, with `tables` pages of tables and `runs` runs of the journal.
pub(in crate::layers::mirror) fn record_bytes(
    segments: u64,
    [in_log, tables, runs]: [u64; 3],
) -> u64 {
    let lists = in_log * 4 + tables * TABLE_ENTRY_BYTES + runs * RUN_ENTRY_BYTES;
    let body = lists + segments.div_ceil(8);
    RECORD_HEAD_BYTES + body.next_multiple_of(BLOCK_BYTES)
}

/// Returns the maximum length in bytes of the segment record of a side.
fn record_bytes_max(segments: u64, virtual_bytes: u64) -> u64 {
    let tables = all_table_pages(place_pages(virtual_bytes), segments);
    record_bytes(segments, [segments, tables, RUNS_MAX])
}

/// Computes the layout of a logged side. The log has the requested length, or by default one 16th
/// of the device, at most 1 GiB, rounded up to whole segments.
///
/// # Errors
/// When the device has existing content or is too small, or when the log is too long.
pub(super) fn of(geometry: &Geometry, asked: Asked) -> Result<SideLayout, LayoutError> {
    let device_bytes = geometry.size_bytes;
    if geometry.content_offset_bytes.is_some() {
        return Err(LayoutError::AdoptedLog);
    }
    if asked.grow_to_bytes.is_some() {
        return Err(LayoutError::GrowingLog);
    }
    let segment_bytes = segment_bytes(device_bytes);
    let log_bytes = log_bytes(device_bytes, asked)?;
    let log_bytes = log_bytes.next_multiple_of(segment_bytes);
    let mut position = HEADER_BYTES;
    let mut area = |bytes: u64| {
        let place = (position, bytes.next_multiple_of(AREA_ALIGNMENT));
        position += place.1;
        place
    };
    let covered_bytes = device_bytes.max(asked.volume_bytes.unwrap_or(0));
    let checksums_len = checksum_area_bytes(covered_bytes);
    let virtual_bytes = checksums_len + covered_bytes;
    let map = area(map_bytes(covered_bytes));
    let pages = (map.1 + checksums_len) / BLOCK_BYTES;
    let written = area(written_bytes(pages));
    let record = area(2 * record_bytes_max(device_bytes / segment_bytes, virtual_bytes));
    let start = position.next_multiple_of(DATA_ALIGNMENT);
    let end = device_bytes - device_bytes % BLOCK_BYTES - SUPERBLOCK_BYTES;
    let segments = end.saturating_sub(start) / segment_bytes;
    let segments = segments.min(BLOCKS_MAX / (segment_bytes / BLOCK_BYTES));
    let layout = SegmentLayout {
        record,
        area: (start, segments * segment_bytes),
        segment_bytes,
        log_overtakes: true,
        room_bytes: None,
    };
    let room = |volume_bytes| capacity_bytes(&layout, log_bytes, asked.reserve, volume_bytes);
    let volume_bytes = asked.volume_bytes.unwrap_or(0);
    let too_large = LayoutError::TooLargeVolume {
        device_bytes,
        volume_bytes,
    };
    let of_whole = room(0).ok_or(match volume_bytes > device_bytes {
        true => too_large.clone(),
        false => LayoutError::LogSize {
            log_bytes,
            log_bytes_max: device_bytes / LOG_DIVISOR_MIN,
        },
    })?;
    let of_part = match volume_bytes > of_whole {
        true => Some(room(volume_bytes).ok_or(too_large)?),
        false => None,
    };
    let of_data = volume_bytes.max(of_whole).next_multiple_of(BLOCK_BYTES);
    let laid_out = SideLayout {
        map,
        checksums: (VIRTUAL_START, checksums_len),
        written: Some(written),
        log: (start, log_bytes),
        data: (VIRTUAL_START + checksums_len, of_data),
        segments: Some(layout),
    };
    Ok(laid_out.with_room(of_part))
}

/// Returns the length of the virtual range of the checksum pages of a device.
fn checksum_area_bytes(device_bytes: u64) -> u64 {
    let pages = device_bytes.div_ceil(CHECKSUM_PAGE_COVERS_BYTES);
    (pages * BLOCK_BYTES).next_multiple_of(DATA_ALIGNMENT)
}

/// Returns the number of bytes of a volume for which the segments have room; `None` when the log
/// and the metadata leave no room. The volume has `volume_bytes` if that is more: then its content
/// may be scattered over all of it.
fn capacity_bytes(
    layout: &SegmentLayout,
    log_bytes: u64,
    reserve: Reserve,
    volume_bytes: u64,
) -> Option<u64> {
    // While entries are being dropped, the log is longer than its length by as much as is dropped
    // together.
    let usable_bytes = layout.usable_blocks() * BLOCK_BYTES;
    let of_log = (log_bytes + log_bytes / LOG_FOLD_DIVISOR).div_ceil(usable_bytes);
    let taken = of_log + SEGMENTS_RESERVED;
    if log_bytes > layout.area.1 / 2 {
        return None;
    }
    // Each chunk that is moved begins with descriptions of its blocks.
    let usable = layout.usable_blocks() * DESCRIBED_MAX / (DESCRIBED_MAX + 1) * BLOCK_BYTES;
    let room = layout.segments().checked_sub(taken)? * usable;
    let room = room - reserve.of(room);
    // Each block of data needs an entry in a checksum page and in a page of the map.
    let pages = (room.max(volume_bytes) / CHECKSUM_PAGE_COVERS_BYTES + 2) * 2;
    let capacity = room.checked_sub(pages * BLOCK_BYTES)? / BLOCK_BYTES * BLOCK_BYTES;
    let of_log = 2 * (log_bytes / layout.segment_bytes);
    let needed = of_log + SEGMENTS_RESERVED + SEGMENTS_FOR_DATA_MIN;
    (layout.segments() > needed && capacity >= layout.segment_bytes).then_some(capacity)
}

/// Checks the layout of a logged side that was read, for a volume of `volume_bytes` on a device of
/// `device_bytes`.
///
/// # Errors
/// A description of the fault.
pub(super) fn check(
    layout: &SideLayout,
    segments: &SegmentLayout,
    volume_bytes: u64,
    device_bytes: u64,
) -> Result<(), String> {
    let written = layout.written.ok_or("it records no written pages")?;
    let size = segments.segment_bytes;
    if !size.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&size) {
        return Err(format!("its segments have {}", show_size(size)));
    }
    let checksums = layout.checksums;
    let is_virtual = checksums.0 == VIRTUAL_START
        && checksums.1 <= VIRTUAL_START / 2
        && layout.data.0 == VIRTUAL_START + checksums.1
        && layout.data.1 <= VIRTUAL_START / 2
        && (checksums.1 | layout.data.1).is_multiple_of(BLOCK_BYTES);
    if !is_virtual {
        return Err("its virtual addresses are not those of a logged side".to_owned());
    }
    let count = segments.segments();
    let record_needed = 2 * record_bytes_max(count, checksums.1 + layout.data.1);
    let areas = [
        ("map", layout.map, map_bytes(volume_bytes)),
        ("written", written, written_bytes(layout.pages())),
        ("record", segments.record, record_needed),
        ("segment", segments.area, size),
    ];
    check_areas(&areas, device_bytes)?;
    let checksums_needed = volume_bytes.div_ceil(CHECKSUM_PAGE_COVERS_BYTES) * BLOCK_BYTES;
    let log = layout.log;
    let of_log = (log.1 / size).saturating_mul(2);
    let log_fits = count > of_log.saturating_add(SEGMENTS_RESERVED + SEGMENTS_FOR_DATA_MIN)
        && log.0 == segments.area.0
        && log.1.is_multiple_of(size)
        && (size..=segments.area.1 / 2).contains(&log.1);
    let content_bytes = segments.room_bytes.unwrap_or(layout.data.1);
    let fits = segments.area.1.is_multiple_of(size)
        && segments.area.1 / BLOCK_BYTES <= BLOCKS_MAX
        && checksums.1 >= checksums_needed
        && layout.data.1 >= volume_bytes
        && content_bytes <= layout.data.1
        && content_bytes < segments.area.1
        && volume_bytes.is_multiple_of(BLOCK_BYTES);
    if !fits || !log_fits {
        return Err(format!(
            "it describes a volume of {} in segments that have no room for it",
            show_size(volume_bytes)
        ));
    }
    Ok(())
}
