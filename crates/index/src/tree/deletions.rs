//! Range deletions that some leaves have not applied yet, as readers see them.
//!
//! A deletion of a long range takes effect as one entry of a list; leaves apply it later, some of
//! them after each group of batches ([`crate::writer`]). Until then a reader applies the deletion
//! to the content of a leaf. A reader must ask for deletions with the lock of the leaf held. An
//! entry is removed from the list only when every leaf has applied the deletion, and a leaf is
//! changed with its lock held; so a reader finds a deletion in the leaf or in the list.

use crate::node::{Delta, Image, Seq};
use crate::planted::{Bug, is_planted};
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

/// Start and end of a range of keys.
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

    /// Returns true if this range includes the whole range of `other`.
    pub(crate) fn covers(&self, other: &Deletion) -> bool {
        let ends_later = match (&self.end, &other.end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(other)) => own >= other,
        };
        self.start <= other.start && ends_later
    }
}

/// All range deletions that some leaves have not applied yet.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    /// True if the list is not empty. If it is empty, a reader has to load only this flag.
    has_any: AtomicBool,
    /// Deletions in the order of their batches.
    all: RwLock<Arc<[Deletion]>>,
}

/// The range deletions that one reader sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    all: Option<Arc<[Deletion]>>,
    seq: Seq,
}

impl Deletions {
    /// Replaces the list of deletions that readers consult.
    pub(crate) fn set(&self, all: Vec<Deletion>) {
        let has_any = !all.is_empty();
        *self.all.write() = all.into();
        self.has_any.store(has_any, Ordering::Release);
    }

    /// Returns the deletions of batches up to `seq`. The caller holds the lock of the leaf that it
    /// reads.
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

    /// Returns the sequence number of the newest batch that has deleted `key`.
    pub(crate) fn of_key(&self, key: &[u8]) -> Option<Seq> {
        let mut newest_first = self.each().rev();
        newest_first
            .find(|deletion| deletion.has(key))
            .map(|deletion| deletion.seq)
    }

    /// Returns the changes in `delta` together with the range deletions of this list that concern
    /// the leaf. `delta` has the changes of the leaf since its image was written.
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

/// Returns true if a leaf has keys in the range of a deletion.
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

/// Applies a range deletion, limited to the given bounds, to `delta`, the changes of a leaf since
/// its image was written. `lsn` is the sequence number of that image. If `lsn` is equal to or above
/// the sequence number of the deletion, the image already includes the deletion and can have newer
/// keys. In this case the function only removes from `delta` the versions that are older than the
/// deletion.
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
