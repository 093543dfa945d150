//! Writing images: rows in order in, packed bytes out.

use super::{NodeId, Row};

/// Collects rows and packs them into an image. Its buffers are reused after [`Builder::clear`].
#[derive(Debug)]
pub struct Builder {
    plain: bool,
    rows: usize,
}

impl Builder {
    /// An empty builder. With `plain`, keys and values are laid out without packing: no common
    /// prefix is cut and no column of numbers is made.
    pub fn new(plain: bool) -> Self {
        Self { plain, rows: 0 }
    }

    /// Adds a row behind all others.
    ///
    /// # Panics
    /// If it does not belong behind the row before it (keys ascend, and the versions of a key go
    /// from the newest to the oldest), or if it is beyond a limit of the format.
    pub fn push(&mut self, _row: Row<'_>) {
        self.rows += 1;
    }

    /// Number of rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// True if there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Length in bytes of the image that [`Builder::finish`] would give. It is exact.
    pub fn estimated_bytes(&self) -> usize {
        0
    }

    /// Length in bytes that the image would have with `row` behind the others. It is exact.
    pub fn estimated_bytes_with(&self, _row: &Row<'_>) -> usize {
        usize::from(self.plain)
    }

    /// The image of the rows, to be sealed with [`seal`]. The rows stay; see [`Builder::clear`].
    ///
    /// # Panics
    /// If it would be longer than [`IMAGE_BYTES_MAX`](super::IMAGE_BYTES_MAX), or if `level` is
    /// above 0 and a row is a version or its value is not the 4 bytes of a node's number.
    pub fn finish(&mut self, _node: NodeId, _level: u8, _lsn: u64, _interval: u8) -> Vec<u8> {
        Vec::new()
    }

    /// Removes all rows and keeps the buffers.
    pub fn clear(&mut self) {
        self.rows = 0;
    }
}

/// Writes its own location and the checksum into an image, new or moved.
///
/// # Panics
/// If `bytes` is not the length that the image gives itself.
pub fn seal(_bytes: &mut [u8], _location: u64) {}
