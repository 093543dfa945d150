//! Finds the images that are proven to be the newest images of their keys, and the keys without
//! such a proof.
//!
//! There are three kinds of evidence. The first is the log, if it has every batch after the image.
//! The second is a checkpoint: it names the images and patches of all leaves, and the log from the
//! checkpoint's tail on has all later changes. So the content of a key is right if the leaf that
//! covers it in the checkpoint, or a newer leaf, can be read. The third is the segments: the
//! entries of their footers, and the key range in each image. The segments are used as evidence
//! only if no superblock is left. They must then suffice, because a power cut may have destroyed
//! all superblocks and checkpoints, and an index must not be reported as damaged after a mere power
//! cut. But if a superblock exists and its checkpoint could not be compared with the segments, the
//! lack of a newer image must never be taken as proof that an image is the newest.

use super::evidence::{CompleteLog, Doubt};
use super::survey::{Patch, Survey};
use crate::layout::Superblock;
use crate::node::{KeyRange, Seal, Seq};
use crate::segments::Location;
use crate::storage::Storage;
use crate::writer::Stored;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the key ranges for which it is not proven that the newest image was found. Marks the
/// proven leaves in the survey. `superblocks` are the intact superblocks, the newer first.
pub(super) fn doubts(
    storage: &dyn Storage,
    superblocks: &[Superblock],
    survey: &mut Survey,
    whole: CompleteLog,
    lacks_needed: bool,
) -> Vec<Doubt> {
    if lacks_needed {
        // The keys of the missing batches are not known.
        return vec![Doubt::of_all(Seq::MAX)];
    }
    let mut all = superblocks.iter();
    match all.find_map(|superblock| Named::by(storage, superblock, whole)) {
        Some(named) => named.doubts(survey, whole),
        None if superblocks.is_empty() => of_segments(survey, whole),
        None => vec![Doubt::of_all(Seq::MAX)],
    }
}

/// Returns the doubtful key ranges if no superblock is left, so that the segments are the only
/// evidence. Unreadable parts of segments, and damaged patches that a footer lists, cause doubts.
fn of_segments(survey: &Survey, whole: CompleteLog) -> Vec<Doubt> {
    let mut doubts = vec![Doubt::of_all(survey.missing_up_to)];
    let damaged = survey.patches.iter();
    let damaged = damaged.filter(|patch| !patch.is_whole && patch.logged_from < whole.from);
    doubts.extend(damaged.filter_map(|patch| of_patch(survey, patch)));
    doubts
}

/// Returns the keys that a damaged patch makes doubtful: the key range of the newest image of the
/// patch's leaf that is older than the patch. Returns `None` if there is no such image: then the
/// leaf was rewritten after the patch, and cleaning has overwritten the leaf's older images.
fn of_patch(survey: &Survey, patch: &Patch) -> Option<Doubt> {
    let (node, lsn) = (patch.place.node, patch.place.lsn);
    let leaves = survey.leaves.iter();
    let before = leaves.filter(|leaf| leaf.place.node == node && leaf.place.lsn < lsn);
    let newest = before.max_by_key(|leaf| leaf.place.lsn)?;
    Some(Doubt {
        range: newest.range.clone(),
        up_to: lsn,
    })
}

/// Nodes that a superblock and its checkpoint name.
struct Named {
    stored: Stored,
    /// Sequence number of the last batch before the tail of the log. Changes of batches up to this
    /// number are in the images that the checkpoint names or in older images, or were relogged
    /// after the tail.
    seq: Seq,
}

impl Named {
    /// Reads the nodes that a superblock and its checkpoint name. Returns `None` if the checkpoint
    /// is damaged or names no image, or if the log does not have all later changes.
    fn by(storage: &dyn Storage, superblock: &Superblock, whole: CompleteLog) -> Option<Named> {
        if superblock.log_tail < whole.from {
            return None;
        }
        let stored = Stored::read(storage, superblock).ok()?;
        let is_image = |location: &Location| !location.is_nowhere();
        stored.locations.iter().any(is_image).then_some(Named {
            stored,
            seq: superblock.seq_at_tail,
        })
    }

    fn seal(&self, location: Location) -> Seal {
        let name = self.stored.generations.get(location.segment() as usize);
        Seal {
            location: location.stored(),
            generation: name.copied().unwrap_or_default(),
        }
    }

    /// Returns the doubtful key ranges. A key is in doubt if the survey found no leaf of the
    /// checkpoint that covers the key, or if the leaf found has lost a patch. A leaf whose image
    /// cannot be read is treated as found if a footer lists the image. Which keys of such a leaf
    /// are lost is determined later, when a source image is selected for each key.
    fn doubts(&self, survey: &mut Survey, whole: CompleteLog) -> Vec<Doubt> {
        let leaves = survey.leaves.iter().enumerate();
        let leaves: BTreeMap<_, usize> = leaves
            .map(|(index, leaf)| (key_of(leaf.place.seal), index))
            .collect();
        let patches = survey.patches.iter();
        let patches = patches.filter(|patch| patch.is_whole || patch.logged_from >= whole.from);
        let patches: BTreeSet<_> = patches.map(|patch| key_of(patch.place.seal)).collect();
        let mut ranges = Vec::new();
        let mut doubted = Vec::new();
        for (node, location) in (0..).zip(&self.stored.locations) {
            // `None` in four cases: the node has no location, or it is an inner node, a blob or a
            // lost leaf.
            let found = leaves.get(&key_of(self.seal(*location)));
            let found = found.map(|index| &mut survey.leaves[*index]);
            let Some(leaf) = found.filter(|leaf| leaf.place.node == node) else {
                continue;
            };
            leaf.is_proven = leaf.is_whole;
            ranges.push(leaf.range.clone());
            let over = self.stored.patches.get(&node).into_iter().flatten();
            let mut over = over.map(|patch| key_of(self.seal(patch.location)));
            if over.any(|place| !patches.contains(&place)) {
                doubted.push(leaf.range.clone());
            }
        }
        doubted.extend(between(ranges));
        let of = |range| Doubt {
            range,
            up_to: self.seq,
        };
        doubted.into_iter().map(of).collect()
    }
}

fn key_of(seal: Seal) -> (u64, u32) {
    (seal.location, seal.generation)
}

/// Returns the keys that are in none of the ranges.
fn between(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort_by(|a, b| a.from.cmp(&b.from));
    let mut all = Vec::new();
    let mut end = Some(Box::default());
    for range in ranges {
        let Some(before) = &end else {
            break;
        };
        if *before < range.from {
            all.push(KeyRange {
                from: before.clone(),
                to: Some(range.from.clone()),
            });
        }
        if range.to.as_ref().is_none_or(|to| before < to) {
            end = range.to;
        }
    }
    all.extend(end.map(|from| KeyRange { from, to: None }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: &str, to: &str) -> KeyRange {
        KeyRange {
            from: from.as_bytes().into(),
            to: (to != "~").then(|| to.as_bytes().into()),
        }
    }

    #[test]
    fn keys_of_no_leaf_are_those_between_the_ranges_of_all() {
        let all = [range("", "c"), range("c", "m"), range("m", "~")];
        assert_eq!(between(all.to_vec()), []);
        let some = vec![range("p", "t"), range("c", "m"), range("m", "n")];
        let expected = [range("", "c"), range("n", "p"), range("t", "~")];
        assert_eq!(between(some), expected);
        assert_eq!(between(Vec::new()), [range("", "~")]);
        assert_eq!(between(vec![range("b", "~")]), [range("", "b")]);
    }
}
