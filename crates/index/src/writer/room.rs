//! How much room the segments take: when they are cleaned, and when the storage becomes longer instead.
//!
//! The fuller segments are, the more of what is in use has to be moved for each that becomes free. So what packing saves
//! is shared: as long as the segments take no more than their rows would unpacked, the storage grows rather than that
//! segments are cleaned, down to [`UTILISATION_MIN`]. It must never be refused room that cleaning could have made: growing is
//! tried while there still are spare segments, and where it cannot be, they are cleaned.

use super::Writer;
use crate::error::Error;

/// However well rows pack, segments are cleaned when less than so much of them is in use.
const UTILISATION_MIN: f64 = 0.7;
/// Segments that are being filled, emptied or cleaned, which count as in use.
const UNSETTLED_SEGMENTS: f64 = 8.0;
/// Bytes of images after which what was seen of packing counts half.
const REMEMBERED_BYTES: u64 = 64 << 20;

/// What leaves were packed from and to of late, in bytes.
#[derive(Debug, Default)]
pub(super) struct Packing {
    rows: u64,
    images: u64,
}

impl Packing {
    /// Keys and values of `rows_bytes` have become an image.
    pub(super) fn note(&mut self, rows_bytes: usize, image_bytes: usize) {
        if self.images >= REMEMBERED_BYTES {
            self.rows /= 2;
            self.images /= 2;
        }
        self.rows += rows_bytes as u64;
        self.images += image_bytes as u64;
    }

    /// Bytes of an image for each byte of its rows; 1 as long as that is not known.
    fn packed_part(&self) -> f64 {
        match self.rows {
            0 => 1.0,
            rows => self.images as f64 / rows as f64,
        }
    }

    /// The least part of the segments that should be in use, where the options ask for `utilisation`.
    fn utilisation(&self, utilisation: f64) -> f64 {
        self.packed_part().max(UTILISATION_MIN).min(utilisation)
    }
}

impl Writer {
    /// Free segments that are kept for cleaning and checkpoints.
    pub(super) fn spare_segments(&self) -> usize {
        let table = self.checkpoint_bytes() / self.geometry.segment_bytes as usize;
        6 + table * 6 + self.segments.count_without_log() / 64
    }

    /// True if segments should be cleaned: few are free, and enough of the others is not in use. The storage may be
    /// longer afterwards instead.
    ///
    /// # Errors
    /// Those of making it longer, but for a lack of room.
    pub(super) fn needs_cleaning(&mut self) -> Result<bool, Error> {
        if self.cleaning.is_some() {
            return Ok(true);
        }
        if self.segments.free_count() >= self.spare_segments() {
            return Ok(false);
        }
        let segment_bytes = f64::from(self.geometry.segment_bytes);
        let in_use = self.segments.live_bytes() as f64 + segment_bytes * UNSETTLED_SEGMENTS;
        let total = self.segments.count_without_log() as f64 * segment_bytes;
        if in_use >= total * self.options.utilisation {
            return Ok(false);
        }
        if in_use < total * self.packing.utilisation(self.options.utilisation) {
            return Ok(true);
        }
        let storage = self.storage();
        Ok(!self.segments.try_grow(&*storage)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_packing_saves_is_left_to_segments_down_to_a_bound() {
        let mut packing = Packing::default();
        assert_eq!(packing.utilisation(0.85), 0.85, "nothing is known");
        packing.note(1000, 980);
        assert_eq!(packing.utilisation(0.85), 0.85, "nothing is saved");
        assert_eq!(packing.utilisation(0.5), 0.5, "who asks for less gets it");
        packing.note(1000, 520);
        assert_eq!(packing.utilisation(0.85), 0.75);
        packing.note(8000, 1000);
        assert_eq!(packing.utilisation(0.85), UTILISATION_MIN);
    }

    #[test]
    fn what_was_long_ago_counts_less() {
        let mut packing = Packing::default();
        let mib = 1 << 20;
        for _ in 0..64 {
            packing.note(mib, mib);
        }
        for _ in 0..96 {
            packing.note(2 * mib, mib);
        }
        // 64 are halved to 32; 32 later all 64 are halved once more: 16 and 16, then 64 more... less than a tenth is old.
        assert!(packing.packed_part() < 0.58, "{}", packing.packed_part());
    }
}
