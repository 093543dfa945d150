//! Changes to a leaf since its image was written.
//!
//! Slots of one size are kept sorted, so a lookup is a binary search over the first bytes of the
//! keys. The rest of each key and the value are in a heap beside the slots. Range deletions are
//! rare and are kept in a separate list.

use super::column::head;
use super::filter::Filter;
use super::{KEY_BYTES_MAX, Kind, Row, Seq};
use std::cmp::Ordering;
use std::ops::{Bound, Range};

/// Result of a lookup in a delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a> {
    /// The key has this value.
    Put(&'a [u8]),
    /// The key has been deleted.
    Deleted,
    /// The delta has no change of the key: the image has the answer.
    Nothing,
}

/// The deletion of all keys between two bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeDeletion {
    /// Sequence number of the batch that deleted the range.
    pub seq: Seq,
    /// Start of the range.
    pub start: Bound<Box<[u8]>>,
    /// End of the range.
    pub end: Bound<Box<[u8]>>,
}

impl RangeDeletion {
    /// Returns true if `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        begins(bound(&self.start), key) && ends(bound(&self.end), key)
    }

    /// Returns the length of the keys in the bounds, in bytes.
    fn heap_bytes(&self) -> usize {
        let len = |b: &Bound<Box<[u8]>>| match b {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        len(&self.start) + len(&self.end)
    }
}

fn bound(bound: &Bound<Box<[u8]>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

/// Returns true if a range with this start begins at or before `key`.
fn begins(start: Bound<&[u8]>, key: &[u8]) -> bool {
    match start {
        Bound::Included(start) => start <= key,
        Bound::Excluded(start) => start < key,
        Bound::Unbounded => true,
    }
}

/// Returns true if `key` is not beyond the end `end` of a range.
fn ends(end: Bound<&[u8]>, key: &[u8]) -> bool {
    match end {
        Bound::Included(end) => key <= end,
        Bound::Excluded(end) => key < end,
        Bound::Unbounded => true,
    }
}

/// Returns true if the bounds alone show that no key is in the range.
fn is_empty_range(start: Bound<&[u8]>, end: Bound<&[u8]>) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (
            Bound::Included(start) | Bound::Excluded(start),
            Bound::Included(end) | Bound::Excluded(end),
        ) => start >= end,
    }
}

/// Returns true if the start `inner` of a range is equal to the start `outer` of another range, or
/// after it.
fn starts_inside(outer: Bound<&[u8]>, inner: Bound<&[u8]>) -> bool {
    match (outer, inner) {
        (Bound::Unbounded, _) => true,
        (_, Bound::Unbounded) => false,
        (Bound::Excluded(o), Bound::Included(i)) => o < i,
        (Bound::Included(o) | Bound::Excluded(o), Bound::Included(i) | Bound::Excluded(i)) => {
            o <= i
        }
    }
}

/// Returns true if the end `inner` of a range is equal to the end `outer` of another range, or
/// before it.
fn ends_inside(outer: Bound<&[u8]>, inner: Bound<&[u8]>) -> bool {
    match (outer, inner) {
        (Bound::Unbounded, _) => true,
        (_, Bound::Unbounded) => false,
        (Bound::Excluded(o), Bound::Included(i)) => i < o,
        (Bound::Included(o) | Bound::Excluded(o), Bound::Included(i) | Bound::Excluded(i)) => {
            i <= o
        }
    }
}

/// One version of a key. The heap holds the key beyond its first 8 bytes, then the value.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// First 8 bytes of the key, big-endian, padded with zeroes if the key is shorter.
    head: u64,
    seq: Seq,
    at: u32,
    value_len: u32,
    key_len: u16,
    kind: Kind,
}

const _: () = assert!(size_of::<Slot>() == 32);

impl Slot {
    fn rest_len(&self) -> usize {
        usize::from(self.key_len).saturating_sub(8)
    }

    fn heap_bytes(&self) -> usize {
        self.rest_len() + self.value_len as usize
    }
}

/// Recent versions of a leaf's keys. An empty delta owns no heap memory.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Delta {
    // If the delta has no change of a key, a get of that key reads only the next three fields: 64
    // bytes.
    /// Filter over the keys of all slots, and possibly of slots that have been removed.
    filter: Filter,
    floor: Seq,
    /// Range deletions in the order of their sequence numbers.
    ranges: Vec<RangeDeletion>,
    /// Slots in the order of their keys; for each key from the newest version to the oldest.
    slots: Vec<Slot>,
    heap: Vec<u8>,
    /// Number of heap bytes that slots refer to.
    live_bytes: usize,
}

impl Delta {
    /// Creates an empty delta.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a delta of the newest versions of some keys, given in key order. It has no spare
    /// capacity.
    ///
    /// # Panics
    /// If the keys do not ascend, and in the cases of [`insert`](Self::insert).
    pub fn of_newest(rows: &[Row<'_>]) -> Self {
        let is_ascending = rows.is_sorted_by(|one, next| one.key < next.key);
        assert!(is_ascending, "each key is there once, in order");
        let heap_bytes = |row: &Row<'_>| row.key.len().saturating_sub(8) + row.value.len();
        let mut delta = Self {
            slots: Vec::with_capacity(rows.len()),
            heap: Vec::with_capacity(rows.iter().map(heap_bytes).sum()),
            ..Self::default()
        };
        for row in rows {
            assert!(
                row.kind != Kind::Blob,
                "a delta holds values, not references"
            );
            assert!(row.key.len() <= KEY_BYTES_MAX, "a key is at most 4 KiB");
            let slot = delta.store(row.key, row.seq, row.kind, row.value);
            delta.slots.push(slot);
        }
        delta
    }

    /// Adds a version of `key`, or replaces the version with the same `seq`, which comes from an
    /// earlier change of the same batch. Drops versions of `key` that no reader at `prune_at` or
    /// above can see, and raises [`Delta::floor`] to the sequence number of the change that hides
    /// them.
    ///
    /// # Panics
    /// If `kind` is [`Kind::Blob`] (values move out of line only when a leaf is consolidated), if
    /// the key is longer than [`KEY_BYTES_MAX`], or if the delta would exceed 4 GiB.
    pub fn insert(&mut self, key: &[u8], seq: Seq, kind: Kind, value: &[u8], prune_at: Seq) {
        assert!(kind != Kind::Blob, "a delta holds values, not references");
        assert!(key.len() <= KEY_BYTES_MAX, "a key is at most 4 KiB");
        let at = self.position(key, seq);
        let run = self.run_around(at, key);
        let hiding = self.hiding(key, run.clone(), seq, prune_at);
        let is_hidden = |old: Seq| hiding.is_some_and(|hiding| old < hiding);
        // The hidden versions are the oldest of the run.
        let shown = self.slots[run.clone()].partition_point(|slot| !is_hidden(slot.seq));
        let hidden = run.start + shown..run.end;
        if let Some(hiding) = hiding
            && (!hidden.is_empty() || seq < hiding)
        {
            self.floor = self.floor.max(hiding);
        }
        if is_hidden(seq) {
            self.remove(hidden);
        } else {
            let slot = self.store(key, seq, kind, value);
            let is_same = run.contains(&at) && self.slots[at].seq == seq;
            if is_same || hidden.contains(&at) {
                self.live_bytes -= self.slots[at].heap_bytes();
                self.slots[at] = slot;
                self.remove(hidden.start.max(at + 1)..hidden.end);
            } else {
                self.remove(hidden);
                let spare = self.slots.len() / 8 + 1;
                grow(&mut self.slots, 1, spare);
                self.slots.insert(at, slot);
            }
        }
        self.compact();
    }

    /// Removes a range of slots, which may be empty.
    fn remove(&mut self, range: Range<usize>) {
        let range = range.start..range.end.max(range.start);
        let removed = self.slots.drain(range);
        self.live_bytes -= removed.map(|slot| slot.heap_bytes()).sum::<usize>();
    }

    /// Appends the bytes of a key and a value to the heap, and returns the slot that refers to
    /// them.
    fn store(&mut self, key: &[u8], seq: Seq, kind: Kind, value: &[u8]) -> Slot {
        let rest = &key[key.len().min(8)..];
        let slot = Slot {
            head: head(key),
            seq,
            at: u32::try_from(self.heap.len()).expect("a delta is smaller than 4 GiB"),
            value_len: u32::try_from(value.len()).expect("a value is shorter than 4 GiB"),
            key_len: u16::try_from(key.len()).expect("a key is at most 4 KiB"),
            kind,
        };
        self.filter.add(key);
        let len = self.heap.len();
        grow(&mut self.heap, slot.heap_bytes(), len / 8 + 8);
        self.heap.extend_from_slice(rest);
        self.heap.extend_from_slice(value);
        self.live_bytes += slot.heap_bytes();
        slot
    }

    /// Returns the sequence number of the newest change of `key` that a reader at `prune_at` sees,
    /// among the versions in `run`, a new version at `seq`, and the range deletions. No reader at
    /// `prune_at` or above sees a version older than that change.
    fn hiding(&self, key: &[u8], run: Range<usize>, seq: Seq, prune_at: Seq) -> Option<Seq> {
        let new = (seq <= prune_at).then_some(seq);
        let old = self.visible(run, prune_at).map(|slot| self.slots[slot].seq);
        new.max(old).max(self.deleted_at(key, prune_at))
    }

    /// Adds the deletion of all keys between `start` and `end` by the batch `seq`. Drops the
    /// versions and range deletions inside this range that no reader at `prune_at` or above can see
    /// any more. Also drops those that have the number `seq`, because the same batch made them
    /// before the deletion.
    pub fn insert_range(
        &mut self,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        seq: Seq,
        prune_at: Seq,
    ) {
        self.add_range(start, end, seq, &|old| {
            old == seq || (old < seq && seq <= prune_at)
        });
    }

    /// Adds a range deletion when the delta may already have changes of the same batch and of later
    /// batches. Changes of the same batch stay, because a batch deletes ranges before it makes
    /// other changes. Adds nothing if the delta already has this deletion. In all other respects,
    /// this works like [`insert_range`](Self::insert_range).
    pub fn insert_range_late(
        &mut self,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        seq: Seq,
        prune_at: Seq,
    ) {
        let is_same = |range: &RangeDeletion| {
            range.seq == seq && bound(&range.start) == start && bound(&range.end) == end
        };
        if !self.ranges.iter().any(is_same) {
            self.add_range(start, end, seq, &|old| old < seq && seq <= prune_at);
        }
    }

    /// For the keys between two bounds, drops the versions that are older than the batch `seq`,
    /// which deleted these keys. Used for a leaf whose image already includes the deletion and may
    /// contain newer versions.
    pub fn remove_older(&mut self, start: Bound<&[u8]>, end: Bound<&[u8]>, seq: Seq) {
        if self.remove_hidden(start, end, &|old| old < seq) < Seq::MAX {
            self.floor = self.floor.max(seq);
        }
        self.compact();
    }

    /// Drops each version whose key is between the two bounds, if `is_hidden` is true for its
    /// sequence number. Returns the lowest dropped sequence number, or `Seq::MAX` if no version was
    /// dropped.
    fn remove_hidden(
        &mut self,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        is_hidden: &dyn Fn(Seq) -> bool,
    ) -> Seq {
        let mut oldest = Seq::MAX;
        if is_empty_range(start, end) {
            return oldest;
        }
        let inside = self.between(start, end);
        let (mut at, mut live_bytes) = (0, self.live_bytes);
        self.slots.retain(|slot| {
            let hidden = inside.contains(&at) && is_hidden(slot.seq);
            at += 1;
            if hidden {
                oldest = oldest.min(slot.seq);
                live_bytes -= slot.heap_bytes();
            }
            !hidden
        });
        self.live_bytes = live_bytes;
        oldest
    }

    /// Adds a range deletion, and drops the versions and range deletions inside its range for which
    /// `is_hidden` is true.
    fn add_range(
        &mut self,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        seq: Seq,
        is_hidden: &dyn Fn(Seq) -> bool,
    ) {
        if is_empty_range(start, end) {
            return;
        }
        let mut oldest = self.remove_hidden(start, end, is_hidden).min(seq);
        self.ranges.retain(|range| {
            let hidden = is_hidden(range.seq)
                && starts_inside(start, bound(&range.start))
                && ends_inside(end, bound(&range.end));
            if hidden {
                oldest = oldest.min(range.seq);
            }
            !hidden
        });
        if oldest < seq {
            self.floor = self.floor.max(seq);
        }
        let range = RangeDeletion {
            seq,
            start: start.map(Into::into),
            end: end.map(Into::into),
        };
        let at = self.ranges.partition_point(|range| range.seq <= seq);
        grow(&mut self.ranges, 1, 1);
        self.ranges.insert(at, range);
        self.compact();
    }

    /// Looks up `key` for a reader at `seq`. The newest version or range deletion that is not newer
    /// than `seq` decides.
    pub fn find(&self, key: &[u8], seq: Seq) -> Found<'_> {
        let slot = match self.filter.may_have(key) {
            true => self.slots.get(self.position(key, seq)),
            false => None,
        };
        let slot = slot.filter(|slot| self.compare(slot, key).is_eq());
        let deleted = self.deleted_at(key, seq);
        match slot {
            // A version with the same sequence number as a range deletion is a later change of the
            // same batch, so the deletion does not hide it.
            Some(slot) if deleted.is_none_or(|deleted| deleted <= slot.seq) => match slot.kind {
                Kind::Delete => Found::Deleted,
                _ => Found::Put(self.value(slot)),
            },
            _ if deleted.is_some() => Found::Deleted,
            _ => Found::Nothing,
        }
    }

    /// Returns the sequence number of the newest change of `key`, a version or a range deletion,
    /// that is not newer than `seq`. This is the change that decides the result of
    /// [`find`](Self::find).
    pub fn seq_of(&self, key: &[u8], seq: Seq) -> Option<Seq> {
        let slot = match self.filter.may_have(key) {
            true => self.slots.get(self.position(key, seq)),
            false => None,
        };
        let slot = slot.filter(|slot| self.compare(slot, key).is_eq());
        slot.map(|slot| slot.seq).max(self.deleted_at(key, seq))
    }

    /// Returns the sequence number of the newest batch in the delta that changed `key` or deleted a
    /// range that contains `key`.
    pub fn newest_seq(&self, key: &[u8]) -> Option<Seq> {
        self.seq_of(key, Seq::MAX)
    }

    /// Returns the lowest sequence number at which a reader gets correct answers. Versions that
    /// only readers below this number would see may have been dropped.
    pub fn floor(&self) -> Seq {
        self.floor
    }

    /// Returns true if there are versions of keys between two bounds.
    pub fn has_between(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> bool {
        !is_empty_range(start, end) && !self.between(start, end).is_empty()
    }

    /// Returns true if there is neither a version nor a range deletion.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.ranges.is_empty()
    }

    /// Returns the number of versions, without the range deletions.
    pub fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Returns the memory of the delta in bytes, including unused capacity and this struct.
    pub fn memory_bytes(&self) -> usize {
        let bounds: usize = self.ranges.iter().map(RangeDeletion::heap_bytes).sum();
        size_of::<Self>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.heap.capacity()
            + self.ranges.capacity() * size_of::<RangeDeletion>()
            + bounds
    }

    /// Calls `visit` with the newest version of each key, in ascending order of keys. Keys that a
    /// range deletion hides are left out. A copy of the delta can be made from the range deletions
    /// and then these versions; it gives the same answers to readers that are newer than all
    /// changes.
    pub fn newest(&self, visit: &mut dyn FnMut(Row<'_>)) {
        let mut key = Vec::new();
        let mut at = 0;
        while at < self.slots.len() {
            self.key(at, &mut key);
            let row = self.row(at, &key);
            let deleted = self.deleted_at(&key, Seq::MAX);
            if deleted.is_none_or(|deleted| deleted <= row.seq) {
                visit(row);
            }
            at = self.run_end(at);
        }
    }

    /// Returns the range deletions, in the order of their batches.
    pub fn ranges(&self) -> &[RangeDeletion] {
        &self.ranges
    }

    /// Returns the sequence number of the newest range deletion of `key` that is not newer than
    /// `seq`.
    pub(super) fn deleted_at(&self, key: &[u8], seq: Seq) -> Option<Seq> {
        let range = |r: &&RangeDeletion| r.seq <= seq && r.contains(key);
        self.ranges.iter().rev().find(range).map(|range| range.seq)
    }

    fn compare(&self, slot: &Slot, key: &[u8]) -> Ordering {
        let rest = &key[key.len().min(8)..];
        slot.head
            .cmp(&head(key))
            .then_with(|| self.rest(slot).cmp(rest))
            .then_with(|| usize::from(slot.key_len).cmp(&key.len()))
    }

    /// Returns the index of the first slot that comes after all smaller keys and after all versions
    /// of `key` newer than `seq`. A version of `key` with the number `seq` is at this index or is
    /// to be inserted there.
    fn position(&self, key: &[u8], seq: Seq) -> usize {
        let head = head(key);
        let first = self.slots.partition_point(|slot| slot.head < head);
        let before = |slot: &Slot| match self.compare(slot, key) {
            Ordering::Less => true,
            Ordering::Equal => slot.seq > seq,
            Ordering::Greater => false,
        };
        match self.slots.get(first) {
            Some(slot) if before(slot) => {
                first + 1 + self.slots[first + 1..].partition_point(before)
            }
            _ => first,
        }
    }

    /// Returns the slots with versions of `key`; `at` is a position where a version of `key` is or
    /// could be inserted.
    fn run_around(&self, at: usize, key: &[u8]) -> Range<usize> {
        let same = |slot: &&Slot| self.compare(slot, key).is_eq();
        let newer = self.slots[..at].iter().rev().take_while(same).count();
        let older = self.slots[at..].iter().take_while(same).count();
        at - newer..at + older
    }

    /// Returns the slots of the keys between two bounds.
    pub(super) fn between(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Range<usize> {
        let before = |key: &[u8]| self.position(key, Seq::MAX);
        let behind = |key: &[u8]| {
            let at = before(key);
            self.run_around(at, key).end
        };
        let start = match from {
            Bound::Included(key) => before(key),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => 0,
        };
        let end = match to {
            Bound::Included(key) => behind(key),
            Bound::Excluded(key) => before(key),
            Bound::Unbounded => self.slots.len(),
        };
        start..end.max(start)
    }

    fn is_same_key(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.slots[one], &self.slots[other]);
        let fields = |slot: &Slot| (slot.head, slot.key_len);
        fields(one) == fields(other) && self.rest(one) == self.rest(other)
    }

    /// Returns the first slot after the last version of the key in slot `at`.
    pub(super) fn run_end(&self, at: usize) -> usize {
        let same = |other: &usize| self.is_same_key(at, *other);
        at + (at..self.slots.len()).take_while(same).count()
    }

    /// Returns the first slot of the run of slots that hold versions of the same key as slot `at`.
    pub(super) fn run_start(&self, at: usize) -> usize {
        let same = |other: &usize| self.is_same_key(at, *other);
        at - (0..at).rev().take_while(same).count()
    }

    /// Returns the slot of the newest version that is not newer than `seq`. All versions in `run`
    /// are of one key.
    pub(super) fn visible(&self, run: Range<usize>, seq: Seq) -> Option<usize> {
        let newer = self.slots[run.clone()].partition_point(|slot| slot.seq > seq);
        let at = run.start + newer;
        (at < run.end).then_some(at)
    }

    /// Replaces `out` with the key of a slot.
    pub(super) fn key(&self, at: usize, out: &mut Vec<u8>) {
        let slot = &self.slots[at];
        let head = slot.head.to_be_bytes();
        out.clear();
        out.extend_from_slice(&head[..usize::from(slot.key_len).min(8)]);
        out.extend_from_slice(self.rest(slot));
    }

    /// Returns the version in a slot, whose key is `key`.
    pub(super) fn row<'a>(&'a self, at: usize, key: &'a [u8]) -> Row<'a> {
        let slot = &self.slots[at];
        Row {
            key,
            seq: slot.seq,
            kind: slot.kind,
            value: self.value(slot),
        }
    }

    fn rest(&self, slot: &Slot) -> &[u8] {
        &self.heap[slot.at as usize..][..slot.rest_len()]
    }

    fn value(&self, slot: &Slot) -> &[u8] {
        &self.heap[slot.at as usize + slot.rest_len()..][..slot.value_len as usize]
    }

    /// Frees unused memory. If more than half of the heap is dead, copies the live part to a new
    /// heap. If more than half of the slots are unused, shrinks the list of slots.
    fn compact(&mut self) {
        let slots = self.slots.len();
        if self.slots.capacity() > 2 * slots + 8 {
            self.slots.shrink_to(slots + slots / 4);
        }
        if self.heap.len() - self.live_bytes <= self.heap.len() / 2 {
            return;
        }
        let mut heap = Vec::with_capacity(self.live_bytes + self.live_bytes / 4);
        for slot in &mut self.slots {
            let from = slot.at as usize;
            slot.at = u32::try_from(heap.len()).expect("it is smaller than before");
            heap.extend_from_slice(&self.heap[from..from + slot.heap_bytes()]);
        }
        self.heap = heap;
    }
}

/// Makes room for `more` elements. If this needs new memory, reserves `spare` elements in addition.
/// There are as many deltas as dirty leaves, so less spare capacity is reserved than by a `Vec`,
/// which would leave up to half of its memory unused.
fn grow<T>(list: &mut Vec<T>, more: usize, spare: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more + spare);
    }
}
