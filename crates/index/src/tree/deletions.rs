//! Deletions of ranges that not every leaf has taken in yet, as readers see them.
//!
//! A deletion of a long range is one entry here from the moment it counts; leaves take it in later,
//! some with each group of batches ([`crate::writer`]). Until then a reader adds it to what a leaf
//! says. It must be asked with the lock of the leaf held: an entry goes only when every leaf has
//! it, and a leaf is changed with its lock held, so that a reader finds a deletion in the leaf or
//! here.

use crate::node::{Delta, Image, Seq};
use crate::planted::{Bug, is_planted};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

/// Where a range of keys begins and where it ends.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The deletion of all keys from `start` to before `end`, or to the end of all keys, by the batch
/// `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deletion {
    pub seq: Seq,
    pub start: Box<[u8]>,
    pub end: Option<Box<[u8]>>,
}

impl Deletion {
    pub(crate) fn bounds(&self) -> Bounds<'_> {
        let end = self
            .end
            .as_deref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        (Bound::Included(&self.start), end)
    }

    fn has(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// True if it has every key that `other` has.
    pub(crate) fn covers(&self, other: &Deletion) -> bool {
        let ends_later = match (&self.end, &other.end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(other)) => own >= other,
        };
        self.start <= other.start && ends_later
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    /// Whether there are any, so that a reader of a tree without any pays for one look.
    has_any: AtomicBool,
    /// In the order of their batches.
    all: RwLock<Arc<[Deletion]>>,
}

/// Those that one reader sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    all: Option<Arc<[Deletion]>>,
    seq: Seq,
}

impl Deletions {
    /// Readers find these from now on.
    pub(crate) fn set(&self, all: Vec<Deletion>) {
        let has_any = !all.is_empty();
        *self.all.write() = all.into();
        self.has_any.store(has_any, Ordering::Release);
    }

    /// Those of batches up to `seq`. The caller holds the lock of the leaf that it asks for.
    pub(crate) fn seen_at(&self, seq: Seq) -> Seen {
        let has_any = self.has_any.load(Ordering::Acquire);
        let looks = has_any && !is_planted(Bug::OverlooksDeletions);
        Seen {
            all: looks.then(|| Arc::clone(&self.all.read())),
            seq,
        }
    }
}

impl Seen {
    fn each(&self) -> impl DoubleEndedIterator<Item = &Deletion> {
        let all = self.all.as_deref().unwrap_or_default().iter();
        all.filter(|deletion| deletion.seq <= self.seq)
    }

    /// The newest batch that has deleted `key`.
    pub(crate) fn of_key(&self, key: &[u8]) -> Option<Seq> {
        let mut newest_first = self.each().rev();
        newest_first
            .find(|deletion| deletion.has(key))
            .map(|deletion| deletion.seq)
    }

    /// What has changed in a leaf since its image, with these deletions in it.
    pub(crate) fn over<'a>(
        &self,
        delta: Option<&'a Delta>,
        image: Option<&Image>,
    ) -> Option<Cow<'a, Delta>> {
        let mut with = delta.map(Cow::Borrowed);
        let concerns = |deletion: &&Deletion| is_about(deletion, delta, image);
        let lsn = image.map_or(0, Image::lsn);
        for deletion in self.each().filter(concerns) {
            let delta = with
                .get_or_insert_with(|| Cow::Owned(Delta::new()))
                .to_mut();
            take_in(delta, deletion, deletion.bounds(), lsn, self.seq);
        }
        with
    }
}

/// True if a leaf says something of keys that were deleted.
fn is_about(deletion: &Deletion, delta: Option<&Delta>, image: Option<&Image>) -> bool {
    let (start, end) = deletion.bounds();
    let in_delta = delta.is_some_and(|delta| delta.has_between(start, end));
    in_delta
        || image.is_some_and(|image| {
            let end = deletion.end.as_deref();
            let behind = end.map_or(image.rows(), |end| image.lower_bound(end));
            image.lower_bound(&deletion.start) < behind
        })
}

/// Makes a deletion, between bounds, a part of what has changed in a leaf since its image. An image
/// with at least its number has it already, and keys in it may be newer.
pub(crate) fn take_in(
    delta: &mut Delta,
    deletion: &Deletion,
    (start, end): Bounds<'_>,
    lsn: Seq,
    prune_at: Seq,
) {
    match lsn < deletion.seq {
        true => delta.insert_range_late(start, end, deletion.seq, prune_at),
        false => delta.remove_older(start, end, deletion.seq),
    }
}
