//! What has changed in a leaf since its image was written.
//!
//! Slots of one size are kept sorted, so that a lookup is a binary search over the first bytes of
//! the keys; what does not fit a slot stands in a heap beside them. Range deletions are rare and
//! stand in a list of their own.

use super::column::head;
use super::filter::Filter;
use super::{KEY_BYTES_MAX, Kind, Row, Seq};
use std::cmp::Ordering;
use std::ops::{Bound, Range};

/// What a delta says about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a> {
    /// It has this value.
    Put(&'a [u8]),
    /// It has been deleted.
    Deleted,
    /// Nothing: ask the image.
    Nothing,
}

/// The deletion of all keys between two bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeDeletion {
    /// The batch that deleted.
    pub seq: Seq,
    /// Where the range starts.
    pub start: Bound<Box<[u8]>>,
    /// Where the range ends.
    pub end: Bound<Box<[u8]>>,
}

impl RangeDeletion {
    /// True if `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        begins(bound(&self.start), key) && ends(bound(&self.end), key)
    }

    /// Bytes of its bounds.
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

/// True if a range from `start` on begins at or before `key`.
fn begins(start: Bound<&[u8]>, key: &[u8]) -> bool {
    match start {
        Bound::Included(start) => start <= key,
        Bound::Excluded(start) => start < key,
        Bound::Unbounded => true,
    }
}

/// True if a range up to `end` ends at or behind `key`.
fn ends(end: Bound<&[u8]>, key: &[u8]) -> bool {
    match end {
        Bound::Included(end) => key <= end,
        Bound::Excluded(end) => key < end,
        Bound::Unbounded => true,
    }
}

/// True if no key is in the range, as far as the bounds tell.
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

/// True if what begins at `inner` is inside what begins at `outer`.
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

/// True if what ends at `inner` is inside what ends at `outer`.
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

/// One version. The heap has the key beyond its first 8 bytes, then the value.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The first 8 bytes of the key, big-endian, with zeroes behind a shorter key.
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

/// Recent versions of a leaf's keys. An empty one owns no memory but itself.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Delta {
    // What a get looks at when the delta has nothing of its key: 64 bytes.
    /// Of the keys of all slots, and of some that are gone.
    filter: Filter,
    floor: Seq,
    /// By number.
    ranges: Vec<RangeDeletion>,
    /// By key, then from the newest version to the oldest.
    slots: Vec<Slot>,
    heap: Vec<u8>,
    /// Bytes of the heap that slots refer to.
    live_bytes: usize,
}

impl Delta {
    /// An empty delta.
    pub fn new() -> Self {
        Self::default()
    }

    /// A delta of the newest versions of some keys, in the order of the keys, with no memory to
    /// spare.
    ///
    /// # Panics
    /// If the keys do not ascend, and as [`insert`](Self::insert) does.
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

    /// Adds a version of `key`, or replaces the one with the same `seq`, which an earlier change of
    /// the same batch has left. Versions of this key that no reader at `prune_at` or above can see
    /// are dropped, and [`Delta::floor`] rises to the number of what hides them.
    ///
    /// # Panics
    /// If `kind` is [`Kind::Blob`] (content moves out of line when a leaf is folded), if the key is
    /// longer than [`KEY_BYTES_MAX`], or if the delta would pass 4 GiB.
    pub fn insert(&mut self, key: &[u8], seq: Seq, kind: Kind, value: &[u8], prune_at: Seq) {
        assert!(kind != Kind::Blob, "a delta holds values, not references");
        assert!(key.len() <= KEY_BYTES_MAX, "a key is at most 4 KiB");
        let at = self.position(key, seq);
        let run = self.run_around(at, key);
        let hiding = self.hiding(key, run.clone(), seq, prune_at);
        let is_hidden = |old: Seq| hiding.is_some_and(|hiding| old < hiding);
        // What is hidden is the oldest of the run.
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

    /// Removes slots, if `range` has any.
    fn remove(&mut self, range: Range<usize>) {
        let range = range.start..range.end.max(range.start);
        let removed = self.slots.drain(range);
        self.live_bytes -= removed.map(|slot| slot.heap_bytes()).sum::<usize>();
    }

    /// Appends what a slot refers to.
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

    /// Of the versions in `run`, one at `seq` and the range deletions, the newest that a reader at
    /// `prune_at` sees: nobody sees what is older.
    fn hiding(&self, key: &[u8], run: Range<usize>, seq: Seq, prune_at: Seq) -> Option<Seq> {
        let new = (seq <= prune_at).then_some(seq);
        let old = self.visible(run, prune_at).map(|slot| self.slots[slot].seq);
        new.max(old).max(self.deleted_at(key, prune_at))
    }

    /// Adds the deletion of all keys between `start` and `end`, with the batch `seq`. Versions and
    /// range deletions that no reader at `prune_at` or above can see any more are dropped, and
    /// those of the same batch, which come before it.
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

    /// The same for a deletion that comes after changes of its own batch and of later ones were
    /// added: those of its own batch stay, since a batch deletes ranges before it does anything
    /// else. Adds nothing if it is here already.
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

    /// Drops the versions of keys between two bounds that are older than the batch `seq`, which has
    /// deleted them: for an image that has that deletion and may have newer versions.
    pub fn remove_older(&mut self, start: Bound<&[u8]>, end: Bound<&[u8]>, seq: Seq) {
        if self.remove_hidden(start, end, &|old| old < seq) < Seq::MAX {
            self.floor = self.floor.max(seq);
        }
        self.compact();
    }

    /// Drops the versions of keys between two bounds that `is_hidden` names. Returns the least of
    /// their numbers.
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

    /// Adds a deletion, and drops the versions and range deletions in it that `is_hidden` names.
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

    /// What a reader at `seq` is told about `key`: by the newest version or range deletion that is
    /// not newer than `seq`.
    pub fn find(&self, key: &[u8], seq: Seq) -> Found<'_> {
        let slot = match self.filter.may_have(key) {
            true => self.slots.get(self.position(key, seq)),
            false => None,
        };
        let slot = slot.filter(|slot| self.compare(slot, key).is_eq());
        let deleted = self.deleted_at(key, seq);
        match slot {
            // A version with the number of a range deletion is of the same batch, and later.
            Some(slot) if deleted.is_none_or(|deleted| deleted <= slot.seq) => match slot.kind {
                Kind::Delete => Found::Deleted,
                _ => Found::Put(self.value(slot)),
            },
            _ if deleted.is_some() => Found::Deleted,
            _ => Found::Nothing,
        }
    }

    /// The batch of the newest version of `key` or range deletion with it that is not newer than
    /// `seq`, if there is one here: what [`find`](Self::find) answers by.
    pub fn seq_of(&self, key: &[u8], seq: Seq) -> Option<Seq> {
        let slot = match self.filter.may_have(key) {
            true => self.slots.get(self.position(key, seq)),
            false => None,
        };
        let slot = slot.filter(|slot| self.compare(slot, key).is_eq());
        slot.map(|slot| slot.seq).max(self.deleted_at(key, seq))
    }

    /// The newest batch that has changed `key` or deleted a range with it, if it is here.
    pub fn newest_seq(&self, key: &[u8]) -> Option<Seq> {
        self.seq_of(key, Seq::MAX)
    }

    /// Answers for readers below this may be wrong: versions that they would see were dropped.
    pub fn floor(&self) -> Seq {
        self.floor
    }

    /// True if there are versions of keys between two bounds.
    pub fn has_between(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> bool {
        !is_empty_range(start, end) && !self.between(start, end).is_empty()
    }

    /// True if there is neither a version nor a range deletion.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.ranges.is_empty()
    }

    /// Number of versions, without the range deletions.
    pub fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Memory that it takes in bytes, unused capacity and this struct included.
    pub fn memory_bytes(&self) -> usize {
        let bounds: usize = self.ranges.iter().map(RangeDeletion::heap_bytes).sum();
        size_of::<Self>()
            + self.slots.capacity() * size_of::<Slot>()
            + self.heap.capacity()
            + self.ranges.capacity() * size_of::<RangeDeletion>()
            + bounds
    }

    /// Calls `visit` with the newest version of each key, keys ascending, without those that a
    /// range deletion hides. With the range deletions inserted first, these make an equal delta
    /// for readers that are as new as all of it.
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

    /// The range deletions, in the order of their batches.
    pub fn ranges(&self) -> &[RangeDeletion] {
        &self.ranges
    }

    /// The newest range deletion of `key` that is not newer than `seq`.
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

    /// The first slot behind all of smaller keys and of newer versions of this one.
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

    /// The versions of `key`, one of which would stand at `at`.
    fn run_around(&self, at: usize, key: &[u8]) -> Range<usize> {
        let same = |slot: &&Slot| self.compare(slot, key).is_eq();
        let newer = self.slots[..at].iter().rev().take_while(same).count();
        let older = self.slots[at..].iter().take_while(same).count();
        at - newer..at + older
    }

    /// The slots of the keys between two bounds.
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

    /// Behind the last version of the key in slot `at`.
    pub(super) fn run_end(&self, at: usize) -> usize {
        let same = |other: &usize| self.is_same_key(at, *other);
        at + (at..self.slots.len()).take_while(same).count()
    }

    /// The first version of the key in slot `at`.
    pub(super) fn run_start(&self, at: usize) -> usize {
        let same = |other: &usize| self.is_same_key(at, *other);
        at - (0..at).rev().take_while(same).count()
    }

    /// Of versions of one key, the newest that is not newer than `seq`.
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

    /// The version in a slot, whose key is `key`.
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

    /// Gives memory back: of the heap when more than half of it is dead, of the slots when more
    /// than half of them are unused.
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

/// Makes room for `more`, with `spare` beyond it if that needs new memory: less than the half that
/// a `Vec` would leave unused, as there are as many deltas as dirty leaves.
fn grow<T>(list: &mut Vec<T>, more: usize, spare: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more + spare);
    }
}
