//! Space for segments: decides whether segments are cleaned or the storage is extended.
//!
//! The fuller segments are, the more live content has to be moved to free one segment. So a part of
//! the space that packing (the compact encoding of rows) saves is left free. While the segments
//! take no more space than their rows would take unpacked, the storage grows and no segment is
//! cleaned. Segments are cleaned if the utilisation is below a minimum that the
//! [cleaner](super::cleaner) determines. A write must never be refused for lack of space that
//! cleaning could have made. So the index keeps spare segments for cleaning. It tries to grow the
//! storage before they are used up, and cleans segments if the storage cannot grow.

use super::Writer;
use crate::error::Error;

/// Number of segments assumed to be in the course of being filled, emptied or cleaned. Their whole
/// space is treated as in use.
const UNSETTLED_SEGMENTS: f64 = 8.0;

impl Writer {
    /// Returns the number of free segments kept for cleaning and checkpoints.
    pub(super) fn spare_segments(&self) -> usize {
        let table = self.checkpoint_bytes() / self.tree.geometry.segment_bytes as usize;
        6 + table * 6 + self.segments.count_without_log() / 64
    }

    /// Returns true if segments should be cleaned. A segment that is being cleaned already is
    /// always continued. Otherwise, segments are cleaned only if few segments are free, and the
    /// share of live content in the storage decides. If the share is below a lower bound, which the
    /// cleaner determines, segments are cleaned. If the share is at or above the utilisation in the
    /// options, segments are not cleaned. Between the two bounds, this function tries to extend the
    /// storage, and segments are cleaned only if the storage has no space left.
    ///
    /// # Errors
    /// Errors of extending the storage, except a lack of space.
    pub(super) fn needs_cleaning(&mut self) -> Result<bool, Error> {
        if self.cleaner.is_under_way() {
            return Ok(true);
        }
        if self.segments.free_count() >= self.spare_segments() {
            return Ok(false);
        }
        let segment_bytes = f64::from(self.tree.geometry.segment_bytes);
        let in_use = self.segments.live_bytes() as f64 + segment_bytes * UNSETTLED_SEGMENTS;
        let total = self.segments.count_without_log() as f64 * segment_bytes;
        if in_use >= total * self.options.utilisation {
            return Ok(false);
        }
        if in_use < total * self.cleaner.utilisation(self.options.utilisation) {
            return Ok(true);
        }
        let storage = self.storage();
        Ok(!self.segments.try_grow(&*storage)?)
    }
}
