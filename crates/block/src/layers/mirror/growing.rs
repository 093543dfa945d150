//! Growing a volume while it is in use, after the devices of its sides have become larger.
//!
//! The superblock of each side stores the size. The size changes together with an epoch, like the
//! table of sides, so that the newest history has the newest size. The new size must never be on a
//! side before the new part of the volume reads as zeroes on every side. No write beyond the old
//! size is accepted before every healthy side durably has the new size. After a crash the volume
//! has the old size or the new size. If the new size was reported to the caller, the volume has the
//! new size.

use std::rc::Rc;

use super::shared::Shared;
use super::side::Side;
use super::superblock::SideKind;
use super::volume::Volume;
use crate::BLOCK_BYTES;
use crate::units::show_size;

impl Shared {
    /// Grows the volume to the largest size for which its smallest side has room. Returns the new
    /// size.
    ///
    /// # Errors
    /// One line with the reason. The volume then keeps its old size; but if the failure was in
    /// writing the superblocks, the next opening may find the new size.
    pub(super) async fn grow(self: &Rc<Self>) -> Result<u64, String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        let volume_bytes = self.volume_bytes_possible(volume)?;
        for index in self.healthy() {
            let side = &self.sides[index];
            if let Some(store) = side.store() {
                let cleared = store.clear_up_to(volume_bytes).await;
                cleared.map_err(|error| format!("side {}: {error}", side.name))?;
            }
        }
        // A side that was ejected while the sides cleared the new part of the volume could return
        // with an uncleared part. So the check that all sides are healthy is repeated.
        self.everybody_counts(volume)?;
        let change = || {
            for store in self.sides.iter().filter_map(Side::store) {
                store.grow(volume_bytes);
            }
            volume.set_volume_bytes(volume_bytes);
        };
        self.announce(volume, change).await?;
        self.geometry.grow_to(volume_bytes);
        Ok(volume_bytes)
    }

    /// Returns the largest size of the volume for which its smallest side has room.
    fn volume_bytes_possible(&self, volume: &Volume) -> Result<u64, String> {
        self.everybody_counts(volume)?;
        let sides = self.sides.iter();
        let rooms = sides.filter_map(|side| Some((volume.volume_bytes_max(side.index)?, side)));
        let smallest = rooms.min_by_key(|(room, _)| *room);
        let (room, side) = smallest.ok_or("no side is present")?;
        let volume_bytes = room - room % BLOCK_BYTES;
        if volume_bytes <= self.size_bytes() {
            let cap = self.cap(volume, side).unwrap_or_default();
            return Err(format!(
                "side {} has room for only {}{cap}",
                side.name,
                show_size(room)
            ));
        }
        Ok(volume_bytes)
    }

    /// Returns what caps the size of the volume, as a sentence for the operator that begins with
    /// the name of a side; `None` if no side is known.
    pub(super) fn what_caps_the_size(&self) -> Option<String> {
        let volume = self.membership.superblocks.as_ref()?;
        let sides = self.sides.iter();
        let rooms = sides.filter_map(|side| Some((volume.volume_bytes_max(side.index)?, side)));
        let (room, side) = rooms.min_by_key(|(room, _)| *room)?;
        let cap = self.cap(volume, side)?;
        Some(format!(
            "side {} has room for {}{cap}",
            side.name,
            show_size(room)
        ))
    }

    /// Returns why a side has no more room, in words that follow its room.
    fn cap(&self, volume: &Volume, side: &Side) -> Option<String> {
        let superblock = volume.superblock(side.index)?;
        let device = volume.candidate(side.index)?.device;
        let device_bytes = device.geometry().size_bytes;
        let layout = &superblock.layout;
        let (size, log) = (show_size(device_bytes), show_size(layout.log.1));
        let of_device = format!(" on its device of {size}, which also has its log of {log}");
        let why = match layout.kind() {
            SideKind::Log => {
                "; a logged side does not grow with its device: replace the side by a larger one"
            }
            // With a device as large as one likes, only the metadata is the cap.
            SideKind::Home
                if layout.volume_bytes_max(u64::MAX) == layout.volume_bytes_max(device_bytes) =>
            {
                "; its metadata covers no more: replace the side, with a larger `grow_to`"
            }
            SideKind::Home => {
                "; enlarge the device and start the server again, or replace the side"
            }
        };
        Some(format!("{of_device}{why}"))
    }

    /// Returns an error unless all sides of the volume are present and healthy. An absent or failed
    /// side would have to adopt the new size when it comes back, and might not have the room for
    /// it.
    fn everybody_counts(&self, volume: &Volume) -> Result<(), String> {
        let mut present = self.sides.iter();
        if let Some(side) = present.find(|side| !side.is_healthy()) {
            return Err(format!(
                "side {} is {}: all sides must be healthy",
                side.name,
                side.life.get().name()
            ));
        }
        match volume.is_whole_table() {
            true => Ok(()),
            false => Err("a side of the volume is missing: all sides must be healthy".to_owned()),
        }
    }
}
