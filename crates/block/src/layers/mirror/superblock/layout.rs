//! Layout of the areas of a side. `docs/format/mirror-side.md` specifies the sizes, which are fixed
//! when a side is formatted: an opening reads them from the superblock and never computes them.

use serde::Deserialize;

use super::SUPERBLOCK_BYTES;
use super::areas::{
    CHECKSUM_PAGE_COVERS_BYTES, DESCRIBED_MAX, MAP_PAGE_COVERS_BYTES, map_bytes, written_bytes,
};
use crate::geometry::Geometry;
use crate::request::BLOCK_BYTES;
use crate::units::show_size;

/// Length in bytes of the space before the first area.
pub(super) const HEADER_BYTES: u64 = 64 << 10;
/// Alignment in bytes of the start and the end of each area.
pub(super) const AREA_ALIGNMENT: u64 = 64 << 10;
/// Alignment in bytes of the start of the data area.
pub(super) const DATA_ALIGNMENT: u64 = 1 << 20;
/// Size in bytes of the smallest device that can be a side.
pub const SIDE_BYTES_MIN: u64 = 16 << 20;
/// Length in bytes of the smallest log.
pub const LOG_BYTES_MIN: u64 = 4 << 20;
const LOG_BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// Offsets and lengths of the areas of a side, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideLayout {
    /// The dirty-region bitmap.
    pub map: (u64, u64),
    /// The checksums.
    pub checksums: (u64, u64),
    /// Offset and length of the bits that record which pages of the bitmap and the checksums were
    /// ever written; `None` when formatting wrote all of these pages.
    pub written: Option<(u64, u64)>,
    /// The log.
    pub log: (u64, u64),
    /// The data area: the volume itself, readable without bimetal. On a logged side, this range and
    /// that of the checksums are virtual.
    pub data: (u64, u64),
    /// The segments of a logged side; `None` for a side whose blocks have a home.
    pub segments: Option<SegmentLayout>,
}

/// Offsets and lengths, in bytes, of what only a logged side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// The two copies of the segment record, each half of the area.
    pub record: (u64, u64),
    /// The segments.
    pub area: (u64, u64),
    /// Length of a segment.
    pub segment_bytes: u64,
    /// Whether entries of the log may overtake others that the device is late with.
    pub log_overtakes: bool,
    /// Number of bytes of the volume that may have content at a time, if the volume is larger than
    /// what its sides have room for; `None` if all of it may. It is the same on all sides.
    pub room_bytes: Option<u64>,
}

impl SegmentLayout {
    /// Returns the number of segments.
    pub fn segments(&self) -> u64 {
        self.area.1 / self.segment_bytes
    }

    /// Returns the number of blocks in a segment.
    pub(in crate::layers::mirror) fn segment_blocks(&self) -> u64 {
        self.segment_bytes / BLOCK_BYTES
    }

    /// Returns the number of blocks of a segment before its summary.
    pub(in crate::layers::mirror) fn usable_blocks(&self) -> u64 {
        let blocks = self.segment_blocks();
        blocks - blocks.div_ceil(DESCRIBED_MAX + 1)
    }
}

/// Reason why a device cannot be a side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The device is smaller than the smallest side.
    #[error("too small: {}, a side needs at least {}", show_size(*device_bytes), show_size(SIDE_BYTES_MIN))]
    TooSmall {
        /// Size of the device in bytes.
        device_bytes: u64,
    },
    /// The requested log is too small or too large.
    #[error(
        "a log of {} does not fit; on this device it can have {} to {}",
        show_size(*log_bytes), show_size(LOG_BYTES_MIN), show_size(*log_bytes_max)
    )]
    LogSize {
        /// Length in bytes of the requested log.
        log_bytes: u64,
        /// Length in bytes of the largest possible log on this device.
        log_bytes_max: u64,
    },
    /// The areas needed for later growth leave no room for data.
    #[error(
        "a device of {} has no room for data beside the metadata for growth to {}",
        show_size(*device_bytes), show_size(*grow_to_bytes)
    )]
    GrowTo {
        /// Size of the device in bytes.
        device_bytes: u64,
        /// Size in bytes up to which the device should be able to grow.
        grow_to_bytes: u64,
    },
    /// A disk whose content is kept cannot be a logged side.
    #[error("has content to be kept, which a side with layout = \"log\" cannot do")]
    AdoptedLog,
    /// A logged side cannot be prepared for growth.
    #[error("cannot be prepared to grow: layout = \"log\" allows no grow_to")]
    GrowingLog,
    /// A volume cannot be larger than a side with homes.
    #[error(
        "has room for {} of data, and the volume is to have {}: only on sides with \
        layout = \"log\", `size` may be more than there is room for",
        show_size(*room_bytes), show_size(*volume_bytes)
    )]
    LargerThanHome {
        /// Size in bytes of the data area.
        room_bytes: u64,
        /// Size of the volume in bytes.
        volume_bytes: u64,
    },
    /// The volume is so large that its metadata leaves no room for content.
    #[error(
        "too small for a volume of {}: its metadata leaves no room on {}",
        show_size(*volume_bytes), show_size(*device_bytes)
    )]
    TooLargeVolume {
        /// Size of the device in bytes.
        device_bytes: u64,
        /// Size of the volume in bytes.
        volume_bytes: u64,
    },
    /// The areas do not fit into the metadata device before the data.
    #[error(
        "the {} before the data are not enough; the metadata device needs {} and 4 KiB",
        show_size(*head_bytes), show_size(*needed_bytes)
    )]
    HeadTooSmall {
        /// Number of bytes before the content.
        head_bytes: u64,
        /// Number of bytes that the areas need.
        needed_bytes: u64,
    },
}

/// How a side stores the blocks of the volume. The default is only that of [`Asked`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SideKind {
    /// Each block has a home, to which changes are written after they were logged.
    #[default]
    Home,
    /// The side is a log and nothing else: a block stays where it was logged until its segment is
    /// cleaned.
    Log,
}

impl SideKind {
    /// How the sides of a new volume store blocks if the configuration does not say it. Adopted
    /// disks are the exception.
    pub const OF_NEW_VOLUMES: SideKind = SideKind::Log;

    /// Returns the value of the key `layout` for this kind.
    pub fn name(self) -> &'static str {
        match self {
            SideKind::Home => "home",
            SideKind::Log => "log",
        }
    }
}

/// Requested properties of a layout.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// How the side stores the blocks of the volume.
    pub kind: SideKind,
    /// Length of the log in bytes; `None` to derive it from the size of the device.
    pub log_bytes: Option<u64>,
    /// Size in bytes up to which the device, and the volume with it, can grow later.
    pub grow_to_bytes: Option<u64>,
    /// Size of the volume in bytes, which may be more than a logged side has room for; `None` for
    /// as much as the side has room for.
    pub volume_bytes: Option<u64>,
    /// Share of the segments of a logged side that stays free.
    pub reserve: Reserve,
}

/// Share of the segments of a logged side that stays free, so that cleaning finds segments with few
/// live blocks. The more there is, the less cleaning writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Reserve {
    thousandths: u64,
}

impl Reserve {
    /// Smallest and largest share.
    const BOUNDS: (f64, f64) = (0.02, 0.9);

    /// Returns the share.
    pub fn share(self) -> f64 {
        self.thousandths as f64 / 1000.0
    }

    /// Returns the part of `bytes` that stays free, rounded down.
    pub(super) fn of(self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.thousandths) / 1000;
        part.try_into().expect("a share is at most the whole")
    }
}

impl Default for Reserve {
    fn default() -> Reserve {
        Reserve { thousandths: 200 }
    }
}

impl TryFrom<f64> for Reserve {
    type Error = String;

    fn try_from(share: f64) -> Result<Reserve, String> {
        let (least, most) = Reserve::BOUNDS;
        match (least..=most).contains(&share) {
            true => Ok(Reserve {
                thousandths: (share * 1000.0).round() as u64,
            }),
            false => Err(format!(
                "`reserve` must lie between {least} and {most}, such as 0.2: it is the share of a \
                logged side that stays free for cleaning"
            )),
        }
    }
}

impl SideLayout {
    /// Computes the layout of a side whose blocks have a home; see [`SideLayout::of`].
    ///
    /// # Errors
    /// As for [`SideLayout::of`].
    pub(super) fn of_home(geometry: &Geometry, asked: Asked) -> Result<SideLayout, LayoutError> {
        let device_bytes = geometry.size_bytes;
        if device_bytes < SIDE_BYTES_MIN && geometry.content_offset_bytes.is_none() {
            return Err(LayoutError::TooSmall { device_bytes });
        }
        let mut position = HEADER_BYTES;
        let mut area = |bytes: u64| {
            let place = (position, bytes.next_multiple_of(AREA_ALIGNMENT));
            position += place.1;
            place
        };
        let covered_bytes = device_bytes.max(asked.grow_to_bytes.unwrap_or(0));
        let map = area(map_bytes(covered_bytes));
        let checksums = area(checksum_bytes(covered_bytes));
        let written = area(written_bytes(pages_of(map, checksums)));
        let log_start = written.0 + written.1;
        let log = area(match geometry.content_offset_bytes {
            None => log_bytes(device_bytes, asked)?,
            Some(start) => log_bytes_before(start, log_start, device_bytes, asked)?,
        });
        let aligned = position.next_multiple_of(DATA_ALIGNMENT);
        let start = geometry.content_offset_bytes.unwrap_or(aligned);
        // The last whole block is the second copy of the superblock; an incomplete block after it
        // is unused.
        let end = device_bytes - device_bytes % BLOCK_BYTES - SUPERBLOCK_BYTES;
        if start >= end {
            return Err(LayoutError::GrowTo {
                device_bytes,
                grow_to_bytes: covered_bytes,
            });
        }
        assert!(position <= start, "the data lie behind the other areas");
        if let Some(volume_bytes) = asked.volume_bytes.filter(|bytes| *bytes > end - start) {
            return Err(LayoutError::LargerThanHome {
                room_bytes: end - start,
                volume_bytes,
            });
        }
        Ok(SideLayout {
            map,
            checksums,
            written: Some(written),
            log,
            data: (start, end - start),
            segments: None,
        })
    }

    /// Returns the offset in bytes of the data area, where the volume can be read without bimetal;
    /// `None` for a logged side, where it cannot.
    pub fn home_offset(&self) -> Option<u64> {
        self.segments.is_none().then_some(self.data.0)
    }

    /// Returns the number of bytes of a volume that may have content on a side that was just laid
    /// out: those for which there is room.
    pub(in crate::layers::mirror) fn room_bytes(&self) -> u64 {
        self.limited_room_bytes().unwrap_or(self.data.1)
    }

    /// Returns the number of bytes of the volume that may have content; `None` if all of it may.
    pub(in crate::layers::mirror) fn limited_room_bytes(&self) -> Option<u64> {
        self.segments.and_then(|segments| segments.room_bytes)
    }

    /// Returns the layout of a side of a volume that may have at most `room_bytes` bytes of
    /// content; `None` if all of the volume may have content.
    pub(in crate::layers::mirror) fn with_room(&self, room_bytes: Option<u64>) -> SideLayout {
        SideLayout {
            segments: self.segments.map(|segments| SegmentLayout {
                room_bytes,
                ..segments
            }),
            ..*self
        }
    }

    /// Returns the total number of pages of the dirty-region bitmap and of the checksums.
    pub(in crate::layers::mirror) fn pages(&self) -> u64 {
        pages_of(self.map, self.checksums)
    }

    /// Returns the size in bytes of the largest volume for which a device of `device_bytes` has
    /// room, and which the bitmap and the checksums can describe.
    pub(in crate::layers::mirror) fn volume_bytes_max(&self, device_bytes: u64) -> u64 {
        if self.segments.is_some() {
            return self.data.1;
        }
        let pages = |(_, len): (u64, u64)| len / BLOCK_BYTES;
        let described = [
            pages(self.map) * MAP_PAGE_COVERS_BYTES,
            pages(self.checksums) * CHECKSUM_PAGE_COVERS_BYTES,
        ];
        let end = (device_bytes - device_bytes % BLOCK_BYTES).saturating_sub(SUPERBLOCK_BYTES);
        let data = end.saturating_sub(self.data.0).max(self.data.1);
        described.into_iter().fold(data, u64::min)
    }

    /// Returns the layout with the data area extended to at least `volume_bytes`.
    pub(in crate::layers::mirror) fn reaching(&self, volume_bytes: u64) -> SideLayout {
        SideLayout {
            data: (self.data.0, self.data.1.max(volume_bytes)),
            ..*self
        }
    }

    /// Checks the layout of a side whose blocks have a home; see [`SideLayout::check`].
    ///
    /// # Errors
    /// A description of the fault.
    pub(super) fn check_home(&self, volume_bytes: u64, device_bytes: u64) -> Result<(), String> {
        // A side that does not record which pages were written has no area for this record, so the
        // length of that area is 0.
        let nowhere = (self.log.0, 0);
        let written = self.written.unwrap_or(nowhere);
        let written_needed = match self.written {
            Some(_) => written_bytes(self.pages()),
            None => 0,
        };
        let areas = [
            ("map", self.map, map_bytes(volume_bytes)),
            ("checksum", self.checksums, checksum_bytes(volume_bytes)),
            ("written", written, written_needed),
            ("log", self.log, LOG_BYTES_MIN),
            ("data", self.data, volume_bytes),
        ];
        check_areas(&areas, device_bytes)?;
        if !volume_bytes.is_multiple_of(BLOCK_BYTES) || !self.data.0.is_multiple_of(DATA_ALIGNMENT)
        {
            return Err(format!(
                "it describes a volume of {volume_bytes} bytes at {}",
                self.data.0
            ));
        }
        Ok(())
    }
}

/// Checks areas that were read, given as their names, places and needed lengths in bytes: they must
/// be long enough, lie one behind the other, and end before the last block of the device.
///
/// # Errors
/// A description of the fault.
pub(super) fn check_areas(
    areas: &[(&str, (u64, u64), u64)],
    device_bytes: u64,
) -> Result<(), String> {
    let mut free_from = HEADER_BYTES;
    for (name, (start, len), needed) in areas {
        let end = start
            .checked_add(*len)
            .ok_or_else(|| format!("its {name} area has no end"))?;
        if *start < free_from || !(start | len).is_multiple_of(BLOCK_BYTES) {
            return Err(format!(
                "its {name} area lies at {start}, where it cannot be"
            ));
        }
        if len < needed {
            return Err(format!("its {name} area is too small for the volume"));
        }
        free_from = end;
    }
    if free_from > device_bytes.saturating_sub(SUPERBLOCK_BYTES) {
        return Err(format!(
            "its areas end at {} but the device has {}",
            show_size(free_from),
            show_size(device_bytes)
        ));
    }
    Ok(())
}

/// Returns the default length in bytes of the log on a device.
fn default_log_bytes(device_bytes: u64) -> u64 {
    (device_bytes / 16).clamp(LOG_BYTES_MIN, LOG_BYTES_DEFAULT_MAX)
}

/// Returns the length in bytes of the log on a device without existing content.
pub(super) fn log_bytes(device_bytes: u64, asked: Asked) -> Result<u64, LayoutError> {
    let log_bytes = asked.log_bytes.unwrap_or(default_log_bytes(device_bytes));
    let log_bytes_max = device_bytes / 2;
    if (LOG_BYTES_MIN..=log_bytes_max).contains(&log_bytes) {
        return Ok(log_bytes);
    }
    Err(LayoutError::LogSize {
        log_bytes,
        log_bytes_max,
    })
}

/// Returns the length in bytes of the log between `log_start` and the existing content of a device.
fn log_bytes_before(
    content_offset: u64,
    log_start: u64,
    device_bytes: u64,
    asked: Asked,
) -> Result<u64, LayoutError> {
    let least = asked.log_bytes.unwrap_or(LOG_BYTES_MIN).max(LOG_BYTES_MIN);
    let room = content_offset.saturating_sub(log_start);
    let room = room - room % AREA_ALIGNMENT;
    if least > room {
        let needed_bytes = log_start.saturating_add(least);
        return Err(LayoutError::HeadTooSmall {
            head_bytes: content_offset,
            needed_bytes: needed_bytes.div_ceil(DATA_ALIGNMENT) * DATA_ALIGNMENT,
        });
    }
    let wanted = asked.log_bytes.unwrap_or(default_log_bytes(device_bytes));
    Ok(wanted.clamp(least, room))
}

/// Returns the size in bytes of the smallest device whose data area has room for `data_bytes`,
/// rounded up to whole MiB.
pub(in crate::layers::mirror) fn device_bytes_for(data_bytes: u64, asked: Asked) -> u64 {
    let of_log = asked.log_bytes.unwrap_or(0).saturating_mul(2);
    let mut device_bytes = SIDE_BYTES_MIN.max(data_bytes).max(of_log);
    // Each step adds only the missing bytes, which are a lower bound of the necessary growth. So
    // the first size that suffices is the smallest.
    while let Ok(layout) = SideLayout::of(&Geometry::of_size(device_bytes), asked)
        && layout.room_bytes() < data_bytes
    {
        device_bytes += data_bytes - layout.room_bytes();
    }
    device_bytes.div_ceil(DATA_ALIGNMENT) * DATA_ALIGNMENT
}

/// Returns the length in bytes of the checksum pages that describe `covered_bytes` of data.
fn checksum_bytes(covered_bytes: u64) -> u64 {
    covered_bytes.div_ceil(CHECKSUM_PAGE_COVERS_BYTES) * BLOCK_BYTES
}

/// Returns the total number of pages of the two areas. The lengths of the areas are possibly read
/// from a device, so they can have any value.
fn pages_of(map: (u64, u64), checksums: (u64, u64)) -> u64 {
    map.1 / BLOCK_BYTES + checksums.1 / BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;

    /// The expected values are computed by hand from the table in the format specification.
    #[test]
    fn the_layout_of_the_format_page() {
        // 1 GiB: 3 bitmap pages, 261 checksum pages (1044 KiB, rounded up to 1088 KiB), 64 MiB of
        // log.
        let of_1_gib = SideLayout::of_device(1 << 30, None).unwrap();
        assert_eq!(of_1_gib.map, (64 * KIB, 64 * KIB));
        assert_eq!(of_1_gib.checksums, (128 * KIB, 1088 * KIB));
        // The bitmap area and the checksum area have room for 16 + 272 pages. The bits for these
        // pages fit into one page, of which there are two copies: 8 KiB, rounded up to 64 KiB.
        assert_eq!(of_1_gib.written, Some((1216 * KIB, 64 * KIB)));
        assert_eq!(of_1_gib.log, (1280 * KIB, 64 * MIB));
        assert_eq!(of_1_gib.data, (66 * MIB, 958 * MIB - 4 * KIB));
        // 1 TiB: 2081 bitmap pages (8324 KiB, rounded up to 8384 KiB), 266306 checksum pages
        // (1065224 KiB, rounded up to 1065280 KiB).
        let of_1_tib = SideLayout::of_device(1 << 40, None).unwrap();
        assert_eq!(of_1_tib.map, (64 * KIB, 8384 * KIB));
        assert_eq!(of_1_tib.checksums, (8448 * KIB, 1_065_280 * KIB));
        // The bitmap area and the checksum area have 2096 + 266320 pages. The bits for these pages
        // fit into 9 pages of 32256 bits. There are two copies of these 9 pages: 72 KiB, rounded up
        // to 128 KiB.
        assert_eq!(of_1_tib.written, Some((1_073_728 * KIB, 128 * KIB)));
        assert_eq!(of_1_tib.log, (1_073_856 * KIB, 1 << 30));
        let smallest = SideLayout::of_device(SIDE_BYTES_MIN, None).unwrap();
        assert_eq!(smallest.log, (256 * KIB, 4 * MIB));
        assert_eq!(smallest.data, (5 * MIB, 11 * MIB - 4 * KIB));
        let with_log = SideLayout::of_device(64 * MIB, Some(5 * MIB + 1)).unwrap();
        // 64 MiB: 17 checksum pages (68 KiB, rounded up to 128 KiB).
        assert_eq!(with_log.log, (320 * KIB, 5 * MIB + 64 * KIB));
    }

    #[test]
    fn areas_follow_each_other_and_leave_room_for_the_second_copy() {
        let sizes = [SIDE_BYTES_MIN, 1 << 30, (1 << 40) + 12_288, 20 << 40];
        for device_bytes in sizes {
            for log_bytes in [None, Some(LOG_BYTES_MIN), Some(device_bytes / 2)] {
                let layout = SideLayout::of_device(device_bytes, log_bytes).unwrap();
                let mut end = HEADER_BYTES;
                let written = layout.written.unwrap();
                for (start, len) in [layout.map, layout.checksums, written, layout.log] {
                    assert_eq!(start, end);
                    end = start + len;
                }
                assert!(layout.data.0 >= end && layout.data.0.is_multiple_of(DATA_ALIGNMENT));
                assert_eq!(layout.data.0 + layout.data.1, device_bytes - BLOCK_BYTES);
                assert_eq!(layout.check(layout.data.1, device_bytes), Ok(()));
                assert!(
                    layout
                        .check(layout.data.1, device_bytes - BLOCK_BYTES)
                        .is_err()
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(matches!(
            SideLayout::of_device(SIDE_BYTES_MIN - 1, None),
            Err(LayoutError::TooSmall { .. })
        ));
        for log_bytes in [0, LOG_BYTES_MIN - 1, (32 << 20) + 1, u64::MAX] {
            assert!(matches!(
                SideLayout::of_device(64 << 20, Some(log_bytes)),
                Err(LayoutError::LogSize { .. })
            ));
        }
    }

    /// A device with 100 MiB of existing content. Before the content is a head, the free part of
    /// the device. With a head of 5 MiB, the 105 MiB need one bitmap page and 27 checksum pages
    /// (108 KiB, rounded up to 128 KiB).
    #[test]
    fn content_that_is_there_stays_where_it_is() {
        let of = |head: u64, log_bytes| {
            let geometry = Geometry {
                content_offset_bytes: Some(head),
                ..Geometry::of_size(head + 100 * MIB + 4 * KIB)
            };
            let asked = Asked {
                log_bytes,
                ..Asked::default()
            };
            SideLayout::of(&geometry, asked)
        };
        let layout = of(5 * MIB, None).unwrap();
        assert_eq!(layout.checksums, (128 * KIB, 128 * KIB));
        assert_eq!(layout.log, (320 * KIB, 5 * MIB - 320 * KIB));
        assert_eq!(layout.data, (5 * MIB, 100 * MIB));
        assert_eq!(layout.check(100 * MIB, 105 * MIB + 4 * KIB), Ok(()));
        // The default length of the log is one 16th of the device, if there is enough room. This
        // device has 132 MiB and one block.
        let roomy = of(32 * MIB, None).unwrap();
        assert_eq!(
            roomy.log.1,
            (33 * MIB / 4).next_multiple_of(64 * KIB) + 64 * KIB
        );
        assert_eq!(roomy.data, (32 * MIB, 100 * MIB));
        assert_eq!(of(32 * MIB, Some(6 * MIB)).unwrap().log.1, 6 * MIB);
        let needs = |needed_bytes, head_bytes| {
            Err(LayoutError::HeadTooSmall {
                head_bytes,
                needed_bytes,
            })
        };
        assert_eq!(of(4 * MIB, None), needs(5 * MIB, 4 * MIB));
        assert_eq!(of(MIB, Some(9 * MIB)), needs(10 * MIB, MIB));
    }

    /// A checksum page describes 3.9375 MiB and a bitmap page 504 MiB; areas are rounded up to 64
    /// KiB, which is 16 pages.
    #[test]
    fn a_side_has_room_to_grow_as_far_as_its_areas_reach() {
        let layout = SideLayout::of_device(32 * MIB, None).unwrap();
        assert_eq!(layout.volume_bytes_max(32 * MIB), layout.data.1);
        let larger = 40 * MIB - 4 * KIB - layout.data.0;
        assert_eq!(layout.volume_bytes_max(40 * MIB), larger);
        assert_eq!(layout.volume_bytes_max(1 << 40), 63 * MIB);
        let asked = Asked {
            grow_to_bytes: Some(1 << 30),
            ..Asked::default()
        };
        let layout = SideLayout::of(&Geometry::of_size(32 * MIB), asked).unwrap();
        // 1 GiB needs 261 checksum pages, rounded up to 272.
        assert_eq!(layout.checksums.1, 1088 * KIB);
        assert_eq!(layout.volume_bytes_max(1 << 40), 272 * 4032 * KIB);
        let grown = layout.reaching(100 * MIB);
        let end = layout.data.0 + 100 * MIB + 4 * KIB;
        assert_eq!(grown.check(100 * MIB, end), Ok(()));
        assert!(grown.check(100 * MIB, end - 4 * KIB).is_err());
        assert_eq!(layout.reaching(MIB), layout);
        let asked = Asked {
            grow_to_bytes: Some(1 << 40),
            ..Asked::default()
        };
        let too_far = SideLayout::of(&Geometry::of_size(32 * MIB), asked);
        assert!(matches!(too_far, Err(LayoutError::GrowTo { .. })));
    }

    #[test]
    fn the_least_device_is_told() {
        for data_bytes in [MIB, 100 * MIB, (1 << 40) + 4096] {
            for log_bytes in [None, Some(40 * MIB)] {
                let asked = Asked {
                    log_bytes,
                    ..Asked::default()
                };
                let least = device_bytes_for(data_bytes, asked);
                let room = |device_bytes| {
                    let layout = SideLayout::of_device(device_bytes, log_bytes);
                    layout.map_or(0, |layout| layout.data.1)
                };
                assert!(room(least) >= data_bytes);
                let smallest = SIDE_BYTES_MIN.max(2 * log_bytes.unwrap_or(0));
                assert!(
                    least == smallest || room(least - MIB) < data_bytes,
                    "{least}"
                );
            }
        }
    }

    #[test]
    fn a_layout_that_cannot_be_is_noticed() {
        let good = SideLayout::of_device(1 << 30, None).unwrap();
        let volume_bytes = good.data.1;
        let bad = [
            SideLayout {
                map: (0, good.map.1),
                ..good
            },
            SideLayout {
                map: (good.map.0, good.map.1 * 2),
                ..good
            },
            SideLayout {
                checksums: (good.checksums.0, 4096),
                ..good
            },
            SideLayout {
                checksums: (good.checksums.0, u64::MAX),
                ..good
            },
            // The area must hold two copies of at least one page each, but has only one page.
            SideLayout {
                written: Some((good.log.0 - 4096, 4096)),
                ..good
            },
            SideLayout {
                written: Some((good.checksums.0, 64 << 10)),
                ..good
            },
            SideLayout {
                log: (good.log.0 + 1, good.log.1),
                ..good
            },
            SideLayout {
                log: (good.log.0, 4096),
                ..good
            },
            SideLayout {
                log: (good.log.0, u64::MAX),
                ..good
            },
            SideLayout {
                data: (good.data.0 + 4096, good.data.1 - 4096),
                ..good
            },
            SideLayout {
                data: (good.data.0, good.data.1 + (1 << 20)),
                ..good
            },
        ];
        for layout in bad {
            assert!(layout.check(volume_bytes, 1 << 30).is_err(), "{layout:?}");
        }
        // Sides that were formatted by older programs do not record which pages were written.
        let older = SideLayout {
            written: None,
            ..good
        };
        assert_eq!(older.check(volume_bytes, 1 << 30), Ok(()));
        assert!(good.check(volume_bytes + 4096, 1 << 30).is_err());
        assert!(good.check(volume_bytes - 1, 1 << 30).is_err());
    }
}
