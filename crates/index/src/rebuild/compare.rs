//! Images that no footer lists, held against what was rebuilt without them. They never add anything: what
//! they show is that a footer is lost which had listed something newer than what was found.

use super::pieces::{Piece, Source, WholeLog};
use super::survey::Unlisted;
use super::{Building, Loss};
use crate::error::Error;
use crate::node::{Image, Kind, Seq};
use crate::tree::blob::Reference;
use std::ops::{Bound, Range};

/// From which key to which a leaf has keys, as of a batch.
#[derive(Debug)]
pub(super) struct Span {
    lsn: Seq,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Building<'_> {
    /// Holds an image that no footer lists against what there is as of its batch. They differ if it is the
    /// newest of its leaf, and a damaged footer had listed it; they do not if a power cut kept the footer
    /// from being written.
    pub(super) fn compare(&mut self, unlisted: &Unlisted, whole: WholeLog) -> Result<(), Error> {
        let Unlisted { place, was_listed } = *unlisted;
        let Some(image) = self.survey.image(self.from, &place) else {
            return Ok(());
        };
        self.write_batch()?;
        let pieces = self.pieces;
        // Where a leaf ends is not known; it does not go beyond these. One without keys may be anywhere.
        let numbers = match self.pieces_of_rows(&image) {
            Some(numbers) => numbers,
            None => 0..pieces.all().len(),
        };
        let mut doubted = match was_listed {
            true => self.doubted_beside(&image, &numbers, whole)?,
            false => Vec::new(),
        };
        for number in numbers {
            let piece = &pieces.all()[number];
            let is_of_node = match piece.source {
                Source::Leaf(index) => self.survey.leaves[index].place.node == place.node,
                Source::Nothing | Source::Lost(_) => false,
            };
            let is_meant = is_of_node || image.rows() > 0;
            // What is newer has nothing to do with it, and what is lost is listed.
            let is_lost = matches!(piece.source, Source::Lost(_));
            let is_older = !is_lost && piece.lsn < place.lsn;
            if !is_meant || !is_older {
                continue;
            }
            // What a power cut keeps from being listed has nothing that the log has not.
            let may_be_all = was_listed && has_gap(piece, whole);
            let is_doubted = !self.is_as_in(&image, number)?
                || may_be_all && self.has_more_than(&image, number)?;
            if is_doubted {
                doubted.push(number);
            }
        }
        if doubted.is_empty() {
            return Ok(());
        }
        let what = format!("an image of leaf {} that no footer lists", place.node);
        self.rebuilt.problem(what, place.offset);
        for number in doubted {
            let piece = &pieces.all()[number];
            let to = pieces.end_of(number);
            self.rebuilt.lose(&piece.from, to, Loss::Changes);
        }
        Ok(())
    }

    /// The pieces from that of the first key of an image to that of its last.
    pub(super) fn pieces_of_rows(&self, image: &Image) -> Option<Range<usize>> {
        let (first, last) = span_of(image)?;
        Some(self.pieces.number_of(&first)..self.pieces.number_of(&last) + 1)
    }

    /// True if in a piece everything is as an image says: for a leaf, between its first key and its last.
    fn is_as_in(&self, image: &Image, number: usize) -> Result<bool, Error> {
        let from = &*self.pieces.all()[number].from;
        let to = self.pieces.end_of(number);
        if image.is_patch() {
            return self.has_rows(image, from, to);
        }
        let is_in = |key: &[u8]| to.is_none_or(|to| key < to);
        let Some((first, last)) = span_of(image) else {
            let to = to.map_or(Bound::Unbounded, Bound::Excluded);
            return Ok(self.db.scan((Bound::Included(from), to)).next()?.is_none());
        };
        let upper = match to {
            Some(to) if !is_in(&last) => Bound::Excluded(to),
            _ => Bound::Included(&last[..]),
        };
        let mut rows = self.db.scan((Bound::Included(from.max(&first)), upper));
        let (mut key, mut before) = (Vec::new(), None);
        for row in image.lower_bound(from)..image.rows() {
            image.key(row, &mut key);
            if !is_in(&key) {
                break;
            }
            if before.as_ref() == Some(&key) {
                continue;
            }
            before = Some(key.clone());
            let is_same = match image.kind(row) {
                Kind::Delete => true,
                Kind::Put => rows.next()? == Some((&key, &image.value(row))),
                Kind::Blob => {
                    let reference = Reference::decode(&image.value(row));
                    let is_it = |value: &[u8]| reference.is_some_and(|r| r.is_of(value));
                    rows.next()?
                        .is_some_and(|(found, value)| found == key && is_it(value))
                }
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(rows.next()?.is_none())
    }

    /// True if between two keys everything is as a patch says.
    fn has_rows(&self, patch: &Image, from: &[u8], to: Option<&[u8]>) -> Result<bool, Error> {
        let mut key = Vec::new();
        for row in patch.lower_bound(from)..patch.rows() {
            patch.key(row, &mut key);
            if to.is_some_and(|to| &key[..] >= to) {
                break;
            }
            let found = self.db.get(&key)?;
            let is_same = match patch.kind(row) {
                Kind::Delete => found.is_none(),
                _ => found.as_deref() == Some(patch.value(row).as_slice()),
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// True if in a piece, outside the first and the last key of an image, there is a key that no other unlisted image
    /// can have: then it was one of this leaf, and had been deleted when the image was written.
    fn has_more_than(&mut self, image: &Image, number: usize) -> Result<bool, Error> {
        let Some((first, last)) = span_of(image).filter(|_| !image.is_patch()) else {
            return Ok(false);
        };
        let pieces = self.pieces;
        let piece = &pieces.all()[number];
        let to = pieces.end_of(number);
        let mut found = Vec::new();
        if *piece.from < first[..] {
            self.keys_between(
                Bound::Included(&piece.from),
                Bound::Excluded(&first),
                &mut found,
            )?;
        }
        if to.is_none_or(|to| &last[..] < to) {
            let to = to.map_or(Bound::Unbounded, Bound::Excluded);
            self.keys_between(Bound::Excluded(&last), to, &mut found)?;
        }
        if found.is_empty() {
            return Ok(false);
        }
        let spans = self.unlisted_spans();
        let is_of_another = |key: &Vec<u8>| {
            spans.iter().any(|span| {
                let is_between = piece.lsn < span.lsn && span.lsn <= image.lsn();
                is_between && span.first <= *key && *key <= span.last
            })
        };
        Ok(!found.iter().all(is_of_another))
    }

    /// The pieces beside those of an image that it may have been for as well, where all that the leaf had there was
    /// deleted: a leaf that was joined with its neighbour, or made of a part of it. On either side the next piece with
    /// keys is doubted.
    fn doubted_beside(
        &mut self,
        image: &Image,
        numbers: &Range<usize>,
        whole: WholeLog,
    ) -> Result<Vec<usize>, Error> {
        let all = self.pieces.all();
        let may_be_of_it = |number: &usize| {
            let piece = &all[*number];
            let is_lost = matches!(piece.source, Source::Lost(_));
            !is_lost && piece.lsn < image.lsn() && has_gap(piece, whole)
        };
        let before = (0..numbers.start).rev().take_while(may_be_of_it);
        let behind = (numbers.end..all.len()).take_while(may_be_of_it);
        let beside = [self.first_with_keys(before)?, self.first_with_keys(behind)?];
        let mut doubted = Vec::new();
        for number in beside.into_iter().flatten() {
            if self.has_more_than(image, number)? {
                doubted.push(number);
            }
        }
        Ok(doubted)
    }

    fn first_with_keys(
        &self,
        numbers: impl Iterator<Item = usize>,
    ) -> Result<Option<usize>, Error> {
        for number in numbers {
            let from = &*self.pieces.all()[number].from;
            let to = self.pieces.end_of(number);
            let to = to.map_or(Bound::Unbounded, Bound::Excluded);
            if self.db.scan((Bound::Included(from), to)).next()?.is_some() {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn keys_between(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        found: &mut Vec<Vec<u8>>,
    ) -> Result<(), Error> {
        let mut rows = self.db.scan((from, to));
        while let Some((key, _)) = rows.next()? {
            found.push(key.to_vec());
        }
        Ok(())
    }

    /// Those of the leaves that no footer lists.
    fn unlisted_spans(&mut self) -> &[Span] {
        let (survey, from) = (self.survey, self.from);
        self.unlisted_spans.get_or_insert_with(|| {
            let images = survey.unlisted.iter();
            let images = images.filter_map(|unlisted| survey.image(from, &unlisted.place));
            let leaves = images.filter(|image| !image.is_patch());
            let spans = leaves.filter_map(|image| {
                let (first, last) = span_of(&image)?;
                Some(Span {
                    lsn: image.lsn(),
                    first,
                    last,
                })
            });
            spans.collect()
        })
    }
}

/// True if the log does not have all batches after a piece: an image may be all that is left of some.
fn has_gap(piece: &Piece, whole: WholeLog) -> bool {
    piece.lsn + 1 < whole.first_seq
}

/// The first and the last key of an image, if it has keys.
fn span_of(image: &Image) -> Option<(Vec<u8>, Vec<u8>)> {
    let last_row = image.rows().checked_sub(1)?;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    image.key(0, &mut first);
    image.key(last_row, &mut last);
    Some((first, last))
}
