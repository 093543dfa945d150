//! Tests of deltas, consolidation (`fold`) and views against a list of all changes in order. A
//! reader sees the last change of a key among the changes that are not newer than the reader's
//! sequence number.

use super::model::{Versions, contents, image, key};
use bimetal_index::node::{
    Builder, Delta, Found, Image, Kind, Row, Rows, Seq, View, consolidate, seal, view,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

/// Number of distinct keys of a test.
const KEYS: u16 = 24;

/// Highest sequence number of a version in an image. Versions in deltas have higher numbers.
const BASE_SEQ_MAX: Seq = 8;

type Edge = Bound<Vec<u8>>;

#[derive(Clone, Debug)]
enum What {
    Version(Vec<u8>, Kind, Vec<u8>),
    Range(Edge, Edge),
}

#[derive(Clone, Debug)]
struct Change {
    seq: Seq,
    prune_at: Seq,
    what: What,
}

impl Change {
    fn touches(&self, key: &[u8]) -> bool {
        match &self.what {
            What::Version(own, ..) => own == key,
            What::Range(start, end) => is_between(start, end, key),
        }
    }

    fn kind_and_value(&self) -> (Kind, Vec<u8>) {
        match &self.what {
            What::Version(_, kind, value) => (*kind, value.clone()),
            What::Range(..) => (Kind::Delete, Vec::new()),
        }
    }
}

fn is_between(start: &Edge, end: &Edge, key: &[u8]) -> bool {
    RangeBounds::<[u8]>::contains(&(slice(start), slice(end)), key)
}

fn slice(edge: &Edge) -> Bound<&[u8]> {
    edge.as_ref().map(Vec::as_slice)
}

/// The versions in an image, the later changes, and the keys of both.
#[derive(Clone, Debug)]
struct History {
    keys: Vec<Vec<u8>>,
    base: Versions,
    changes: Vec<Change>,
}

fn edge(style: usize) -> impl Strategy<Value = Edge> {
    prop_oneof![
        3 => (0..KEYS).prop_map(move |n| Bound::Included(key(style, n))),
        3 => (0..KEYS).prop_map(move |n| Bound::Excluded(key(style, n))),
        1 => Just(Bound::Unbounded),
    ]
}

fn change(style: usize) -> impl Strategy<Value = What> {
    // Value lengths are below and above the capacity of a slot; some are long enough to make the
    // heap move.
    let value = (any::<u8>(), 0..40_usize).prop_map(|(byte, len)| vec![byte; len]);
    let key = (0..KEYS).prop_map(move |n| key(style, n));
    prop_oneof![
        8 => (key.clone(), value).prop_map(|(k, v)| What::Version(k, Kind::Put, v)),
        3 => key.prop_map(|k| What::Version(k, Kind::Delete, Vec::new())),
        2 => (edge(style), edge(style)).prop_map(|(start, end)| What::Range(start, end)),
    ]
}

fn history() -> impl Strategy<Value = History> {
    let style = prop_oneof![
        Just(0),
        Just(2),
        Just(3),
        Just(5),
        Just(6),
        Just(8),
        Just(10)
    ];
    style.prop_flat_map(|style| {
        let base = vec((0..KEYS, 0..=BASE_SEQ_MAX, 0..5_u8, any::<u8>()), 0..40);
        let step = (0..3_u64, 0..12_u64, change(style));
        let changes = vec(step, 0..60);
        let versioned = any::<bool>();
        (base, versioned, changes).prop_map(move |(base, versioned, changes)| History {
            keys: (0..KEYS)
                .map(|n| key(style, n))
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            base: base_of(style, &base, versioned),
            changes: in_order(changes),
        })
    })
}

fn base_of(style: usize, rows: &[(u16, Seq, u8, u8)], versioned: bool) -> Versions {
    let row = |&(n, seq, kind, byte): &(u16, Seq, u8, u8)| {
        let (kind, value) = match kind {
            0 if versioned => (Kind::Delete, Vec::new()),
            1 => (Kind::Blob, vec![byte, kind, 7]),
            _ => (Kind::Put, vec![byte; 8]),
        };
        let seq = if versioned { seq } else { 0 };
        ((key(style, n), Reverse(seq)), (kind, value))
    };
    rows.iter().map(row).collect()
}

/// Assigns sequence numbers to changes. Each batch advances the sequence number by a few, and the
/// oldest reader lags a few batches behind.
fn in_order(changes: Vec<(u64, u64, What)>) -> Vec<Change> {
    let (mut seq, mut prune_at) = (BASE_SEQ_MAX + 1, BASE_SEQ_MAX);
    let change = |(step, lag, what): (u64, u64, What)| {
        seq += step;
        prune_at = seq.saturating_sub(lag).max(prune_at);
        Change {
            seq,
            prune_at,
            what,
        }
    };
    changes.into_iter().map(change).collect()
}

impl History {
    fn delta(&self) -> Delta {
        let mut delta = Delta::new();
        for change in &self.changes {
            apply(&mut delta, change);
        }
        delta
    }

    /// Returns the newest sequence number.
    fn now(&self) -> Seq {
        self.changes
            .last()
            .map_or(BASE_SEQ_MAX, |change| change.seq)
    }

    /// Returns a sequence number that no reader is below.
    fn prune_at(&self) -> Seq {
        self.changes
            .last()
            .map_or(BASE_SEQ_MAX, |change| change.prune_at)
    }

    /// Returns the last change of `key` that a reader at the sequence number `seq` sees.
    fn change(&self, key: &[u8], seq: Seq) -> Option<&Change> {
        let seen = |change: &&Change| change.seq <= seq && change.touches(key);
        self.changes.iter().rev().find(seen)
    }

    /// Returns the version of `key` that a reader at the sequence number `seq` sees in the image
    /// and the delta. Returns `None` if the reader sees no version, or sees a deletion.
    fn visible(&self, key: &[u8], seq: Seq) -> Option<(Kind, Vec<u8>)> {
        let base = || super::model::visible(&self.base, key, seq).map(|(_, what)| what.clone());
        let newest = self.change(key, seq).map(Change::kind_and_value);
        newest
            .or_else(base)
            .filter(|(kind, _)| *kind != Kind::Delete)
    }

    /// Returns all versions of `key`, the newest first.
    fn versions(&self, key: &[u8]) -> Vec<(Seq, Kind, Vec<u8>)> {
        let mut versions: Vec<(Seq, Kind, Vec<u8>)> = Vec::new();
        for change in self
            .changes
            .iter()
            .rev()
            .filter(|change| change.touches(key))
        {
            if versions.last().is_none_or(|(seq, ..)| *seq != change.seq) {
                let (kind, value) = change.kind_and_value();
                versions.push((change.seq, kind, value));
            }
        }
        for ((own, Reverse(seq)), (kind, value)) in &self.base {
            if own == key {
                versions.push((*seq, *kind, value.clone()));
            }
        }
        versions
    }

    /// Returns the versions that a fold keeps.
    fn consolidated(&self, oldest: Seq) -> Versions {
        let mut consolidated = Versions::new();
        for key in &self.keys {
            let mut versions = self.versions(key);
            let above = versions
                .iter()
                .take_while(|(seq, ..)| *seq > oldest)
                .count();
            versions.truncate(above + 1);
            if let Some((seq, ..)) = versions.get_mut(above) {
                *seq = 0;
            }
            while versions
                .last()
                .is_some_and(|(_, kind, _)| *kind == Kind::Delete)
            {
                versions.pop();
            }
            for (seq, kind, value) in versions {
                consolidated.insert((key.clone(), Reverse(seq)), (kind, value));
            }
        }
        consolidated
    }
}

fn apply(delta: &mut Delta, change: &Change) {
    let Change {
        seq,
        prune_at,
        ref what,
    } = *change;
    match what {
        What::Version(key, kind, value) => delta.insert(key, seq, *kind, value, prune_at),
        What::Range(start, end) => delta.insert_range(slice(start), slice(end), seq, prune_at),
    }
}

/// Returns the expected result of [`Delta::find`] if `change` is the last change that the reader
/// sees.
fn found(change: Option<&Change>) -> (bool, Option<Vec<u8>>) {
    let value = change.and_then(|change| match &change.what {
        What::Version(_, Kind::Put, value) => Some(value.clone()),
        _ => None,
    });
    (change.is_some(), value)
}

fn said(found: Found<'_>) -> (bool, Option<Vec<u8>>) {
    match found {
        Found::Put(value) => (true, Some(value.to_vec())),
        Found::Deleted => (true, None),
        Found::Nothing => (false, None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_delta_answers_every_reader_that_is_left(history in history()) {
        let mut delta = Delta::new();
        let mut so_far = History { changes: Vec::new(), ..history.clone() };
        for change in &history.changes {
            apply(&mut delta, change);
            so_far.changes.push(change.clone());
            prop_assert!(delta.floor() <= change.prune_at);
            for key in &history.keys {
                for seq in change.prune_at..=change.seq + 1 {
                    let expected = found(so_far.change(key, seq));
                    prop_assert_eq!(said(delta.find(key, seq)), expected, "{:?} at {}", key, seq);
                }
            }
        }
    }

    /// A delta gives correct answers at every sequence number from its floor to the newest one.
    /// This includes numbers below `prune_at`, if the floor is lower.
    #[test]
    fn a_delta_knows_how_far_back_it_answers(history in history()) {
        let delta = history.delta();
        for key in &history.keys {
            for seq in delta.floor()..=history.now() {
                let expected = found(history.change(key, seq));
                prop_assert_eq!(said(delta.find(key, seq)), expected, "{:?} at {}", key, seq);
            }
        }
    }

    #[test]
    fn the_newest_versions_make_the_same_delta(history in history()) {
        let delta = history.delta();
        let mut again = Delta::new();
        for range in delta.ranges() {
            let edges = (range.start.as_ref(), range.end.as_ref());
            let (start, end) = (edges.0.map(|k| &**k), edges.1.map(|k| &**k));
            again.insert_range(start, end, range.seq, 0);
        }
        let mut last = None;
        delta.newest(&mut |row| {
            assert!(last.as_deref() < Some(row.key), "keys ascend");
            last = Some(row.key.to_vec());
            again.insert(row.key, row.seq, row.kind, row.value, 0);
        });
        for key in &history.keys {
            prop_assert_eq!(delta.find(key, Seq::MAX), again.find(key, Seq::MAX));
        }
    }

    #[test]
    fn a_fold_keeps_what_a_reader_can_see(history in history(), later in 0..5_u64) {
        let base = image(&history.base, false);
        let oldest = history.prune_at() + later;
        let mut builder = Builder::new(false);
        let mut freed = Vec::new();
        consolidate(
            Some(&base),
            &history.delta(),
            oldest,
            &mut |row| builder.push(row),
            &mut |value| freed.push(value.to_vec()),
        );
        let mut bytes = builder.finish(0, 0, 0, 0);
        seal(&mut bytes, 0);
        let consolidated = contents(&Image::parse(&bytes, 0).expect("sealed for it"));
        prop_assert_eq!(&consolidated, &history.consolidated(oldest));
        // Every reference is either kept or freed.
        let blobs = |versions: &Versions| {
            let blobs = versions.values().filter(|(kind, _)| *kind == Kind::Blob);
            blobs.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        freed.extend(blobs(&consolidated));
        freed.sort();
        let mut before = blobs(&history.base);
        before.sort();
        prop_assert_eq!(freed, before);
    }

    #[test]
    fn a_scan_gives_what_a_reader_sees(
        history in history(),
        which in 0..4_u8,
        edges in (edge(0), edge(3), any::<u16>(), any::<u16>()),
        (reverse, later) in (any::<bool>(), 0..30_u64),
        (pieces_max, bytes_max) in (1..12_usize, prop_oneof![Just(usize::MAX), 0..300_usize]),
    ) {
        let mut history = history;
        let (base, delta) = (which != 1, which != 2);
        let floor = history.prune_at();
        if !base {
            history.base.clear();
        }
        if !delta {
            history.changes.clear();
        }
        let near = |edge: Edge, n: u16| edge.map(|_| history.keys[usize::from(n) % history.keys.len()].clone());
        let (from, to) = (near(edges.0, edges.2), near(edges.1, edges.3));
        let (image, changes) = (image(&history.base, false), history.delta());
        let seq = floor + later;
        let mut expected: Vec<_> = history
            .keys
            .iter()
            .filter(|key| is_between(&from, &to, key))
            .filter_map(|key| Some((key.clone(), history.visible(key, seq)?)))
            .collect();
        if reverse {
            expected.reverse();
        }
        let (mut from, mut to) = (from, to);
        let (mut out, mut seen) = (Rows::new(), Vec::new());
        loop {
            let asked = View {
                seq,
                from: slice(&from),
                to: slice(&to),
                is_reverse: reverse,
                pieces_max,
                bytes_max,
            };
            let base = base.then_some(&image);
            let is_cut = view(base, delta.then_some(&changes), &asked, &mut out);
            prop_assert!(out.pieces() <= pieces_max);
            let mut last = Vec::new();
            out.last_key(&mut last);
            let mut taken = Vec::new();
            while out.advance() {
                let kind = out.kind();
                let (key, value) = out.row();
                taken.push((key.to_vec(), (kind, value.to_vec())));
            }
            let longest = taken.iter().map(|(key, (_, value))| key.len() + value.len()).max();
            prop_assert!(out.copied_bytes() <= bytes_max.max(longest.unwrap_or(0)));
            prop_assert_eq!(taken.last().map_or(&b""[..], |row| &row.0), &last[..]);
            seen.append(&mut taken);
            prop_assert_eq!(&expected[..seen.len()], &seen);
            prop_assert_eq!(is_cut, seen.len() < expected.len());
            if !is_cut {
                break;
            }
            prop_assert!(out.pieces() > 0, "it goes on");
            match reverse {
                false => from = Bound::Excluded(last),
                true => to = Bound::Excluded(last),
            }
        }
    }
}

#[test]
fn a_delta_that_is_written_over_stays_small() {
    let mut delta = Delta::new();
    for seq in 1..10_000 {
        delta.insert(b"a key that is long", seq, Kind::Put, &[7; 100], seq);
    }
    assert_eq!((delta.rows(), delta.floor()), (1, 9999));
    // The delta consists of the struct itself, one slot of 32 bytes, and 110 bytes of heap. The
    // capacities of the slots and of the heap are at most twice as large as needed.
    assert!(delta.memory_bytes() < 700, "{}", delta.memory_bytes());
}

#[test]
fn a_delta_counts_all_that_it_holds() {
    let mut delta = Delta::new();
    let empty = delta.memory_bytes();
    assert_eq!(empty, size_of::<Delta>());
    for n in 0..1000_u64 {
        delta.insert(&n.to_be_bytes(), 1, Kind::Put, &[7; 20], 0);
    }
    // Each row needs a slot of 32 bytes and the bytes of its value, and little more.
    let bytes = delta.memory_bytes() - empty;
    assert!((52_000..66_000).contains(&bytes), "{bytes}");
    let edge = vec![b'x'; 3000];
    delta.insert_range(Bound::Included(&edge), Bound::Unbounded, 2, 0);
    assert!(delta.memory_bytes() >= bytes + 3000);
    delta.insert_range(Bound::Unbounded, Bound::Unbounded, 3, 3);
    assert_eq!((delta.rows(), delta.ranges().len()), (0, 1));
    assert!(delta.memory_bytes() < 600, "{}", delta.memory_bytes());
}

#[test]
fn a_batch_is_applied_in_its_order() {
    let mut delta = Delta::new();
    let all = || (Bound::Included(&b"a"[..]), Bound::Excluded(&b"c"[..]));
    delta.insert(b"a", 5, Kind::Put, b"before", 0);
    delta.insert_range(all().0, all().1, 5, 0);
    delta.insert(b"b", 5, Kind::Put, b"after", 0);
    assert_eq!(delta.find(b"a", 5), Found::Deleted);
    assert_eq!(delta.find(b"b", 5), Found::Put(b"after"));
    assert_eq!(delta.find(b"b", 4), Found::Nothing);
    assert_eq!(delta.find(b"c", 5), Found::Nothing);
}

#[test]
fn a_fold_of_nothing_is_nothing() {
    let mut rows = 0;
    let mut count = |_: Row<'_>| rows += 1;
    consolidate(None, &Delta::new(), 0, &mut count, &mut |_| ());
    assert_eq!(rows, 0);
}

#[test]
fn a_range_of_no_keys_deletes_nothing() {
    let mut delta = Delta::new();
    let (a, b) = (Bound::Included(&b"a"[..]), Bound::Excluded(&b"a"[..]));
    delta.insert_range(a, b, 1, 0);
    delta.insert_range(Bound::Excluded(b"b"), Bound::Included(b"a"), 1, 0);
    assert!(delta.is_empty());
}
