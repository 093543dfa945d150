//! The layouts of both kinds of sides: sides whose blocks have a home, and logged sides.

use super::layout::{Asked, LayoutError, SideKind, SideLayout};
use super::segmented;
use crate::geometry::Geometry;

impl SideLayout {
    /// Computes the layout of a device. The log has the requested length (rounded up to 64 KiB), or
    /// by default one 16th of the device, at least 4 MiB and at most 1 GiB.
    ///
    /// # Errors
    /// When the device is too small, or the log is not between 4 MiB and half of the device.
    pub fn of_device(device_bytes: u64, log_bytes: Option<u64>) -> Result<SideLayout, LayoutError> {
        let asked = Asked {
            log_bytes,
            ..Asked::default()
        };
        SideLayout::of(&Geometry::of_size(device_bytes), asked)
    }

    /// Computes the layout of a device. If the device already has content, this content becomes the
    /// data area. Its log then has the requested length; by default it has the default length of
    /// [`of_device`](Self::of_device), or all the room before the content if that is less.
    ///
    /// A logged side has the layout that the [segments](super::SegmentLayout) describe.
    ///
    /// # Errors
    /// As for [`of_device`](Self::of_device); or when there is too little room before the content.
    pub fn of(geometry: &Geometry, asked: Asked) -> Result<SideLayout, LayoutError> {
        match asked.kind {
            SideKind::Home => SideLayout::of_home(geometry, asked),
            SideKind::Log => segmented::of(geometry, asked),
        }
    }

    /// Returns how a side with this layout stores the blocks of the volume.
    pub fn kind(&self) -> SideKind {
        match self.segments {
            None => SideKind::Home,
            Some(_) => SideKind::Log,
        }
    }

    /// Checks a layout that was read, for a volume of `volume_bytes` on a device of `device_bytes`:
    /// areas must not overlap, and must be large enough for the volume.
    ///
    /// # Errors
    /// A description of the fault.
    pub(super) fn check(&self, volume_bytes: u64, device_bytes: u64) -> Result<(), String> {
        match &self.segments {
            None => self.check_home(volume_bytes, device_bytes),
            Some(segments) => segmented::check(self, segments, volume_bytes, device_bytes),
        }
    }
}
