//! Selection of the right image for each key, by the key ranges of all leaf images found: where
//! ranges overlap, the newest image is the right one.

use super::evidence::{CompleteLog, Leaf, WholePatches};
use crate::footer::Base;
use crate::node::{KeyRange, Seq};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

/// Source of the keys of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// No image: no keys existed before the changes in the log.
    Nothing,
    /// The newest image of the keys cannot be read. The value is the LSN of that image, or the
    /// highest possible LSN if no image is known.
    Lost(Seq),
    /// The image of this leaf of the survey.
    Leaf(usize),
}

/// A range of keys, up to the start of the next piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub from: Box<[u8]>,
    pub source: Source,
    /// LSN up to which the source includes all batches; 0 if every change found in patches and in
    /// the log has to be applied.
    pub lsn: Seq,
}

/// All keys, divided into pieces.
#[derive(Debug)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Divides all keys into pieces, which are key ranges with one source image each. Where the key
    /// ranges of leaves overlap, the newest leaf is the source.
    pub(super) fn of(leaves: &[Leaf], patches: &WholePatches, whole: CompleteLog) -> Pieces {
        // Each border has a key, the index of the leaf whose range ends or begins at the key, and
        // true if the range begins there.
        let mut borders: Vec<(&[u8], usize, bool)> = Vec::with_capacity(leaves.len() * 2);
        for (index, leaf) in leaves.iter().enumerate() {
            borders.push((&leaf.range.from, index, true));
            if let Some(to) = &leaf.range.to {
                borders.push((to, index, false));
            }
        }
        borders.sort_unstable();
        let mut pieces = Pieces(Vec::new());
        // Leaves whose range contains `from`, the newest first; of two leaves with the same LSN,
        // the readable one first.
        let mut over: BTreeSet<(Reverse<Seq>, bool, usize)> = BTreeSet::new();
        let mut at = 0;
        let mut from: &[u8] = &[];
        loop {
            while let Some((key, index, begins)) = borders.get(at)
                && *key <= from
            {
                let leaf = &leaves[*index];
                let entry = (Reverse(leaf.place.lsn), !leaf.is_whole, *index);
                if *begins {
                    over.insert(entry);
                } else {
                    over.remove(&entry);
                }
                at += 1;
            }
            let (source, lsn) = source_of(leaves, &over, patches, whole);
            pieces.push(from, source, lsn);
            match borders.get(at) {
                Some((key, ..)) => from = key,
                None => return pieces,
            }
        }
    }

    fn push(&mut self, from: &[u8], source: Source, lsn: Seq) {
        let is_same = |last: &Piece| last.source == source && last.lsn == lsn;
        if !self.0.last().is_some_and(is_same) {
            self.0.push(Piece {
                from: from.into(),
                source,
                lsn,
            });
        }
    }

    /// Returns all pieces (key ranges with one source image each), in key order. The first piece
    /// begins with the empty key.
    pub(super) fn all(&self) -> &[Piece] {
        &self.0
    }

    /// Returns the number of the piece of a key.
    pub(super) fn number_of(&self, key: &[u8]) -> usize {
        self.0.partition_point(|piece| &*piece.from <= key) - 1
    }

    /// Returns the piece of a key.
    pub(super) fn of_key(&self, key: &[u8]) -> &Piece {
        &self.0[self.number_of(key)]
    }

    /// Returns true if a lost image might have contained a newer change of `key` than a patch with
    /// the LSN `patch`. This is impossible if the patch is newer than the image, or if the log has
    /// all batches after the patch.
    pub(super) fn may_be_outdated(&self, key: &[u8], patch: Seq, whole: CompleteLog) -> bool {
        match self.of_key(key).source {
            Source::Lost(lsn) => patch <= lsn && whole.first_seq > patch + 1,
            Source::Nothing | Source::Leaf(_) => false,
        }
    }

    /// Returns the pieces that have keys of a range.
    pub(super) fn within(&self, range: &KeyRange) -> Range<usize> {
        let from = self.number_of(&range.from);
        let Some(to) = &range.to else {
            return from..self.0.len();
        };
        // The end of the range can be inside a piece (a key range with one source image). The piece
        // then continues beyond the end, and is included.
        let last = self.number_of(to);
        let goes_on = *self.0[last].from < **to;
        from..last + usize::from(goes_on)
    }

    /// Returns the end of a piece.
    pub(super) fn end_of(&self, number: usize) -> Option<&[u8]> {
        self.0.get(number + 1).map(|piece| &*piece.from)
    }
}

/// Returns the source of a piece of the key space, and the LSN of that source. `over` is the set of
/// leaves whose key ranges contain this piece, the newest first.
fn source_of(
    leaves: &[Leaf],
    over: &BTreeSet<(Reverse<Seq>, bool, usize)>,
    patches: &WholePatches,
    whole: CompleteLog,
) -> (Source, Seq) {
    let mut damaged: Option<&Leaf> = None;
    let newest = over.first().map_or(Seq::MAX, |(Reverse(lsn), ..)| *lsn);
    for (_, _, index) in over {
        let leaf = &leaves[*index];
        if damaged.is_some_and(|above| !is_enough(leaf, above, patches, whole)) {
            return (Source::Lost(newest), 0);
        }
        if leaf.is_whole {
            return (Source::Leaf(*index), leaf.place.lsn);
        }
        damaged = Some(leaf);
    }
    match whole.from == 0
        || damaged.is_some_and(|leaf| leaf.bases.is_empty() && leaf.logged_from >= whole.from)
    {
        true => (Source::Nothing, 0),
        false => (Source::Lost(newest), 0),
    }
}

/// Returns true if `leaf` and the log together have the whole content of `damaged`, a newer leaf
/// that cannot be read. This is true in three cases. First, a checkpoint proves that no image other
/// than `leaf` is needed. Second, the log has all batches after the LSN of `leaf`. Third, the log
/// has all changes that `damaged` added to its bases (the images that it was made from), and one of
/// two conditions holds: `leaf` is one of these bases, with all its patches; or no base has patches
/// and none is newer than `leaf`.
fn is_enough(leaf: &Leaf, damaged: &Leaf, patches: &WholePatches, whole: CompleteLog) -> bool {
    let (node, lsn) = (leaf.place.node, leaf.place.lsn);
    if leaf.is_proven || whole.first_seq <= lsn + 1 {
        return true;
    }
    if damaged.logged_from < whole.from || damaged.bases.is_empty() {
        return false;
    }
    let mut bases = damaged.bases.iter();
    let is_base = bases.clone().any(|base| {
        (base.node, base.lsn) == (node, lsn)
            && patches_of(base, damaged, patches) == usize::from(base.patches)
    });
    // The age of a base with patches is not known.
    is_base || bases.all(|base| base.patches == 0 && base.lsn <= lsn)
}

/// Returns the number of readable patches of `base`, one of the images from which `damaged` was
/// made. These patches were written after the base was written and before its leaf was rewritten.
fn patches_of(base: &Base, damaged: &Leaf, patches: &WholePatches) -> usize {
    let later = damaged
        .bases
        .iter()
        .filter(|other| other.node == base.node && other.lsn > base.lsn);
    let written_anew = later.map(|other| other.lsn).min();
    let until = written_anew.unwrap_or(damaged.place.lsn).max(base.lsn + 1);
    patches
        .range((base.node, base.lsn + 1)..=(base.node, until))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Seal;
    use crate::rebuild::evidence::ImageLocation;

    fn leaf(from: &str, to: &str, lsn: Seq, is_whole: bool, logged_from: u64) -> Leaf {
        Leaf {
            place: ImageLocation {
                seal: Seal::default(),
                offset: 0,
                bytes: 64,
                node: 1,
                lsn,
            },
            range: KeyRange {
                from: from.as_bytes().into(),
                to: (to != "~").then(|| to.as_bytes().into()),
            },
            is_whole,
            bases: vec![Base {
                node: 1,
                lsn: 10,
                patches: 0,
            }],
            logged_from,
            is_proven: false,
        }
    }

    fn log_from(from: u64) -> CompleteLog {
        CompleteLog {
            from,
            first_seq: from * 10,
        }
    }

    fn pieces(leaves: &[Leaf], complete_from: u64) -> Vec<(String, Source, Seq)> {
        let pieces = Pieces::of(leaves, &WholePatches::new(), log_from(complete_from));
        let all = pieces.all().iter();
        all.map(|p| {
            let from = String::from_utf8(p.from.to_vec()).expect("text");
            (from, p.source, p.lsn)
        })
        .collect()
    }

    fn piece(from: &str, source: Source, lsn: Seq) -> (String, Source, Seq) {
        (from.to_owned(), source, lsn)
    }

    #[test]
    fn the_newest_image_counts_for_each_key() {
        let leaves = [
            leaf("", "~", 10, true, 0),
            leaf("c", "m", 20, true, 5),
            leaf("e", "g", 15, true, 5),
            leaf("k", "~", 30, true, 5),
        ];
        let expected = [
            piece("", Source::Leaf(0), 10),
            piece("c", Source::Leaf(1), 20),
            piece("k", Source::Leaf(3), 30),
        ];
        assert_eq!(pieces(&leaves, 9), expected);
    }

    #[test]
    fn a_damaged_image_is_a_loss_unless_the_log_has_what_it_adds() {
        let leaves = [
            leaf("", "~", 10, true, 0),
            leaf("c", "e", 20, false, 4),
            leaf("g", "i", 20, false, 9),
            leaf("c", "d", 30, true, 12),
        ];
        let expected = [
            piece("", Source::Leaf(0), 10),
            piece("c", Source::Leaf(3), 30),
            piece("d", Source::Lost(20), 0),
            piece("e", Source::Leaf(0), 10),
        ];
        assert_eq!(pieces(&leaves, 9), expected);
    }

    #[test]
    fn a_damaged_image_is_none_over_one_that_is_proven() {
        let mut leaves = [leaf("", "~", 9, true, 0), leaf("c", "e", 20, false, 4)];
        assert_eq!(pieces(&leaves, 9)[1], piece("c", Source::Lost(20), 0));
        leaves[0].is_proven = true;
        assert_eq!(pieces(&leaves, 9), [piece("", Source::Leaf(0), 9)]);
    }

    #[test]
    fn what_is_older_than_what_a_damaged_image_was_made_of_is_not_taken_for_it() {
        let mut leaves = [leaf("", "~", 9, true, 0), leaf("c", "e", 20, false, 9)];
        let lost = pieces(&leaves, 9);
        assert_eq!(lost[1], piece("c", Source::Lost(20), 0));
        // Leaf 0 together with its patch is the base of leaf 1.
        leaves[1].bases[0].lsn = 9;
        leaves[1].bases[0].patches = 1;
        let patches = WholePatches::from([(1, 10)]);
        let source_of_d = |leaves: &[Leaf], patches: &WholePatches| {
            Pieces::of(leaves, patches, log_from(9)).of_key(b"d").source
        };
        assert_eq!(source_of_d(&leaves, &patches), Source::Leaf(0));
        assert_eq!(source_of_d(&leaves, &WholePatches::new()), Source::Lost(20));
        leaves[1].bases[0].patches = 2;
        assert_eq!(
            source_of_d(&leaves, &patches),
            Source::Lost(20),
            "one missing"
        );
    }

    #[test]
    fn an_older_image_of_a_leaf_is_no_base_though_the_patch_of_one_is_there() {
        let mut leaves = [leaf("", "~", 5, true, 0), leaf("c", "e", 20, false, 9)];
        leaves[1].bases[0].lsn = 9;
        leaves[1].bases[0].patches = 1;
        let patches = WholePatches::from([(1, 10)]);
        let pieces = Pieces::of(&leaves, &patches, log_from(9));
        assert_eq!(pieces.of_key(b"d").source, Source::Lost(20));
    }

    #[test]
    fn a_patch_counts_where_nothing_that_is_lost_may_be_newer() {
        let leaves = [leaf("", "c", 10, true, 0), leaf("c", "~", 20, false, 4)];
        let log = log_from(3);
        let pieces = Pieces::of(&leaves, &WholePatches::new(), log);
        assert_eq!(log.first_seq, 30);
        let is_outdated = |key: &str, patch| pieces.may_be_outdated(key.as_bytes(), patch, log);
        assert!(is_outdated("d", 15) && is_outdated("d", 20));
        assert!(!is_outdated("d", 21), "over the image that is lost");
        assert!(!is_outdated("b", 15), "nothing is lost");
        let longer = CompleteLog {
            first_seq: 16,
            ..log
        };
        assert!(!pieces.may_be_outdated(b"d", 15, longer), "in the log");
    }

    #[test]
    fn patches_of_a_later_base_are_not_those_of_an_earlier_one() {
        let mut leaves = [leaf("", "~", 5, true, 0), leaf("c", "e", 20, false, 9)];
        let base = |lsn, patches| Base {
            node: 1,
            lsn,
            patches,
        };
        leaves[1].bases = vec![base(9, 1), base(5, 1)];
        let patches = WholePatches::from([(1, 7), (1, 12)]);
        let pieces = Pieces::of(&leaves, &patches, log_from(9));
        assert_eq!(pieces.of_key(b"d").source, Source::Leaf(0));
    }

    #[test]
    fn where_no_image_is_the_whole_log_is_needed() {
        assert_eq!(pieces(&[], 0), [piece("", Source::Nothing, 0)]);
        assert_eq!(pieces(&[], 1), [piece("", Source::Lost(Seq::MAX), 0)]);
        let leaves = [leaf("c", "e", 20, true, 4)];
        let expected = [
            piece("", Source::Lost(Seq::MAX), 0),
            piece("c", Source::Leaf(0), 20),
            piece("e", Source::Lost(Seq::MAX), 0),
        ];
        assert_eq!(pieces(&leaves, 3), expected);
    }
}
