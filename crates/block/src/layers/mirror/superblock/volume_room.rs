//! What a volume needs of a new side.

use super::Superblock;

/// What a side that is added to an existing volume must have room for.
#[derive(Clone, Copy, Debug)]
pub(in crate::layers::mirror) struct VolumeRoom {
    /// Size of the volume in bytes.
    pub(in crate::layers::mirror) volume_bytes: u64,
    /// Number of bytes of the volume that may have content; `None` if all of it may.
    pub(in crate::layers::mirror) room_bytes: Option<u64>,
}

impl VolumeRoom {
    /// Returns what the volume needs of a side, by the superblock of another side.
    pub(in crate::layers::mirror) fn of(superblock: &Superblock) -> VolumeRoom {
        VolumeRoom {
            volume_bytes: superblock.volume_bytes,
            room_bytes: superblock.layout.limited_room_bytes(),
        }
    }
}
