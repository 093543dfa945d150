//! State of the cleaning of segments between two steps: the segment being cleaned, and how well the
//! rows of leaves have packed recently. The latter decides whether cleaning is worthwhile.
//!
//! The cleaner holds the bytes read from a segment and the offset up to which they have been
//! scanned; it moves no content itself. It must never continue with the bytes of a segment that has
//! become free: that segment can be rewritten.

use crate::footer::{About, Entry, Listed};
use crate::layout::Geometry;
use crate::node::Peek;
use crate::storage::Aligned;
use std::iter::Peekable;
use std::vec;

/// Minimum of the share of the segments' space below which segments are cleaned. However well rows
/// pack, this share is not set lower, unless the options ask for less.
const UTILISATION_MIN: f64 = 0.7;
/// When this number of image bytes has been observed, the weight of all earlier observations is
/// halved. The observations tell how well rows pack.
const REMEMBERED_BYTES: u64 = 64 << 20;

/// A segment that is being cleaned.
#[derive(Debug)]
pub(super) struct Cleaning {
    segment: u32,
    bytes: Aligned,
    /// Offset up to which the segment was scanned.
    at: usize,
    /// Footer entries of the images that start at `at` or later, by offset.
    said: Peekable<vec::IntoIter<Entry>>,
}

impl Cleaning {
    /// Begins to clean `segment`, whose content is `bytes`, at its start.
    pub(super) fn new(segment: u32, bytes: Aligned, geometry: &Geometry) -> Cleaning {
        let listed = Listed::of(&bytes, geometry, segment);
        let entries = listed.footers.into_iter().flat_map(|footer| footer.entries);
        Cleaning::of(segment, bytes, entries.collect())
    }

    fn of(segment: u32, bytes: Aligned, mut said: Vec<Entry>) -> Cleaning {
        said.sort_by_key(|entry| entry.at);
        Cleaning {
            segment,
            bytes,
            at: 0,
            said: said.into_iter().peekable(),
        }
    }

    pub(super) fn segment(&self) -> u32 {
        self.segment
    }

    /// Returns the offset up to which the segment was scanned, in bytes.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns the bytes not scanned yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Returns the end of the next piece of `bytes` bytes.
    pub(super) fn piece_end(&self, bytes: usize) -> usize {
        (self.at + bytes).min(self.bytes.len())
    }

    /// Marks the next `bytes` bytes as scanned.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.at += bytes;
        assert!(self.at <= self.bytes.len(), "images are in their segment");
    }

    /// Takes the footer entry at the current offset if it names the node and the LSN of `image`;
    /// otherwise returns `None`.
    pub(super) fn said_of_next(&mut self, image: &Peek) -> Option<About> {
        while self.said.next_if(|entry| entry.at < self.at).is_some() {}
        let said = self.said.next_if(|entry| entry.at == self.at);
        let said = said.filter(|said| (said.node, said.lsn) == (image.node, image.lsn));
        said.map(|said| said.about)
    }

    /// Returns true if the whole segment was scanned.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// Total number of bytes of the rows that were packed recently, and of the images that these rows
/// were packed into.
#[derive(Debug, Default)]
struct Packing {
    rows: u64,
    images: u64,
}

impl Packing {
    fn note(&mut self, rows_bytes: usize, image_bytes: usize) {
        if self.images >= REMEMBERED_BYTES {
            self.rows /= 2;
            self.images /= 2;
        }
        self.rows += rows_bytes as u64;
        self.images += image_bytes as u64;
    }

    /// Returns the number of image bytes per byte of rows; 1 if no image has been packed yet.
    fn packed_part(&self) -> f64 {
        match self.rows {
            0 => 1.0,
            rows => self.images as f64 / rows as f64,
        }
    }
}

/// State of cleaning between two steps.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    under_way: Option<Cleaning>,
    packing: Packing,
}

impl Cleaner {
    /// Returns true between two steps of cleaning a segment.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Makes `cleaning` the segment being cleaned, in place of any other segment.
    pub(super) fn begin(&mut self, cleaning: Cleaning) {
        self.under_way = Some(cleaning);
    }

    /// Removes the segment being cleaned from the cleaner and returns it, for one step. After the
    /// step, the caller passes the segment to [`give_back`](Self::give_back). If the step fails,
    /// the caller drops the segment instead. The cleaning of that segment then starts again from
    /// its beginning.
    pub(super) fn take(&mut self) -> Option<Cleaning> {
        self.under_way.take()
    }

    /// Takes back a segment that [`take`](Self::take) has returned, after one step of its cleaning.
    /// Returns true if that was the last step.
    pub(super) fn give_back(&mut self, cleaning: Cleaning) -> bool {
        assert!(self.under_way.is_none(), "one segment at a time");
        let is_done = cleaning.is_done();
        if !is_done {
            self.under_way = Some(cleaning);
        }
        is_done
    }

    /// Stops cleaning `segment`: the segment has become free and can be rewritten, so the bytes
    /// read from it are not valid any more.
    pub(super) fn stop(&mut self, segment: u32) {
        self.under_way
            .take_if(|cleaning| cleaning.segment == segment);
    }

    /// Notes that rows with `rows_bytes` of keys and values were packed into an image.
    pub(super) fn note_packed(&mut self, rows_bytes: usize, image_bytes: usize) {
        self.packing.note(rows_bytes, image_bytes);
    }

    /// Returns a share of the segments' space. While less than this share is in use, segments are
    /// cleaned if free segments are scarce. The share is at most `utilisation`, the value of the
    /// options.
    pub(super) fn utilisation(&self, utilisation: f64) -> f64 {
        let packed_part = self.packing.packed_part();
        packed_part.max(UTILISATION_MIN).min(utilisation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Seal, Sort};

    fn entry(at: usize, node: u32) -> Entry {
        Entry {
            at,
            bytes: 64,
            node,
            lsn: 5,
            about: About::Patch {
                logged_from: u64::from(node) * 100,
            },
        }
    }

    fn image(node: u32, lsn: u64) -> Peek {
        Peek {
            node,
            lsn,
            len_bytes: 64,
            seal: Seal {
                location: 0,
                generation: 0,
            },
            sort: Sort::Patch,
            level: 0,
            interval: 0,
        }
    }

    /// A segment of 256 bytes, whose footers list three images.
    fn cleaning(segment: u32) -> Cleaning {
        let said = vec![entry(192, 3), entry(64, 1), entry(128, 2)];
        Cleaning::of(segment, Aligned::zeroed(256), said)
    }

    #[test]
    fn footers_are_believed_of_the_image_that_they_mean() {
        let mut cleaning = cleaning(9);
        assert_eq!(cleaning.said_of_next(&image(1, 5)), None, "nothing at 0");
        // The entry at 64 was not taken, and is skipped.
        cleaning.pass(128);
        let about = About::Patch { logged_from: 200 };
        assert_eq!(cleaning.said_of_next(&image(2, 5)), Some(about));
        cleaning.pass(64);
        assert_eq!(cleaning.said_of_next(&image(3, 6)), None, "a newer one");
    }

    #[test]
    fn a_segment_is_looked_through_to_its_end() {
        let mut cleaning = cleaning(9);
        assert_eq!(cleaning.piece_end(100), 100);
        cleaning.pass(192);
        assert_eq!((cleaning.at(), cleaning.rest().len()), (192, 64));
        assert_eq!(cleaning.piece_end(100), 256);
        assert!(!cleaning.is_done());
        let mut cleaner = Cleaner::default();
        assert!(!cleaner.give_back(cleaning));
        let mut cleaning = cleaner.take().expect("it is under way");
        cleaning.pass(64);
        assert!(cleaner.give_back(cleaning), "it is done");
        assert!(!cleaner.is_under_way());
    }

    #[test]
    #[should_panic(expected = "images are in their segment")]
    fn an_image_does_not_reach_beyond_its_segment() {
        cleaning(9).pass(320);
    }

    #[test]
    fn a_segment_that_may_be_written_anew_is_not_gone_on_with() {
        let mut cleaner = Cleaner::default();
        cleaner.begin(cleaning(9));
        cleaner.stop(8);
        assert!(cleaner.is_under_way());
        cleaner.stop(9);
        assert!(!cleaner.is_under_way());
    }

    #[test]
    fn what_packing_saves_is_left_to_segments_down_to_a_bound() {
        let mut cleaner = Cleaner::default();
        assert_eq!(cleaner.utilisation(0.85), 0.85, "nothing is known");
        cleaner.note_packed(1000, 980);
        assert_eq!(cleaner.utilisation(0.85), 0.85, "nothing is saved");
        assert_eq!(cleaner.utilisation(0.5), 0.5, "who asks for less gets it");
        cleaner.note_packed(1000, 520);
        assert_eq!(cleaner.utilisation(0.85), 0.75);
        cleaner.note_packed(8000, 1000);
        assert_eq!(cleaner.utilisation(0.85), UTILISATION_MIN);
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
        // The weight of the first 64 MiB is halved three times, to 8 MiB. The total weight at the
        // end of the test is 64 MiB, so the first 64 MiB have an eighth of it.
        assert!(packing.packed_part() < 0.58, "{}", packing.packed_part());
    }
}
