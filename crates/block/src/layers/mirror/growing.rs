//! Making a volume larger while it is in use, after its sides have become larger.
//!
//! The size stands in the superblock of each side, and changes as the table of sides does: with an
//! epoch, so that the newest history has the newest size. It must never be on a side before every
//! side reads as zeroes up to it, and nothing beyond the old size is taken before every side that
//! counts has the new one durably. After a crash the volume has the old size or the new one, and
//! the new one once it was reported.

use std::rc::Rc;

use super::shared::Shared;
use super::side::Side;
use super::volume::Volume;
use crate::BLOCK_BYTES;
use crate::units::show_size;

impl Shared {
    /// Makes the volume as large as its smallest side has room for. Returns its size.
    ///
    /// # Errors
    /// One line that says why not. The volume takes no more than before then; where only the
    /// writing of superblocks has failed, it may open larger.
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
        // A side that has gone meanwhile could come back without having been cleared.
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

    /// The size of the volume if it had all the room that there is.
    fn volume_bytes_possible(&self, volume: &Volume) -> Result<u64, String> {
        self.everybody_counts(volume)?;
        let sides = self.sides.iter();
        let rooms = sides.filter_map(|side| Some((volume.volume_bytes_max(side.index)?, side)));
        let smallest = rooms.min_by_key(|(room, _)| *room);
        let (room, side) = smallest.ok_or("no side is there")?;
        let volume_bytes = room - room % BLOCK_BYTES;
        if volume_bytes <= self.size_bytes() {
            return Err(format!(
                "side {} has room for {} and no more",
                side.name,
                show_size(room)
            ));
        }
        Ok(volume_bytes)
    }

    /// Only a volume all of whose sides are there and whole may grow: the others would have to be
    /// told when they come back, and may not have the room.
    fn everybody_counts(&self, volume: &Volume) -> Result<(), String> {
        let mut present = self.sides.iter();
        if let Some(side) = present.find(|side| !side.is_healthy()) {
            return Err(format!(
                "side {} is {}: all sides must be whole",
                side.name,
                side.life.get().name()
            ));
        }
        match volume.is_whole_table() {
            true => Ok(()),
            false => Err("a side of the volume is missing: all sides must be whole".to_owned()),
        }
    }
}
