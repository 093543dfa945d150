//! How much room the segments take: when they are cleaned, and when the storage becomes longer
//! instead.
//!
//! The fuller segments are, the more of what is in use has to be moved for each that becomes free.
//! So what packing saves is shared: as long as the segments take no more than their rows would
//! unpacked, the storage grows rather than that segments are cleaned, down to a bound that the
//! [cleaner](super::cleaner) has. It must never be refused room that cleaning could have made:
//! growing is tried while there still are spare segments, and where it cannot be, they are cleaned.

use super::Writer;
use crate::error::Error;

/// Segments that are being filled, emptied or cleaned, which count as in use.
const UNSETTLED_SEGMENTS: f64 = 8.0;

impl Writer {
    /// Free segments that are kept for cleaning and checkpoints.
    pub(super) fn spare_segments(&self) -> usize {
        let table = self.checkpoint_bytes() / self.tree.geometry.segment_bytes as usize;
        6 + table * 6 + self.segments.count_without_log() / 64
    }

    /// True if segments should be cleaned: few are free, and enough of the others is not in use.
    /// The storage may be longer afterwards instead.
    ///
    /// # Errors
    /// Those of making it longer, but for a lack of room.
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
