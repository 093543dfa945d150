//! Merging a leaf's image and delta into the rows of its next image.

use super::merge::Merge;
use super::{Delta, Image, Kind, Row, Seq};
use std::cmp::Reverse;
use std::ops::{Bound, Range};

/// Passes the rows of `base` and `delta` to `sink` in the order of an image, without the versions
/// that no reader at `oldest` or above can see. Of each key, all versions above `oldest` are
/// passed, and the newest version at or below `oldest` with its sequence number set to 0. A range
/// deletion has the effect of a deletion of each existing key in the range. A deletion of a key
/// that has no older version has no effect and is dropped. `freed` receives the values of the
/// dropped rows of kind [`Blob`](Kind::Blob).
pub fn consolidate(
    base: Option<&Image>,
    delta: &Delta,
    oldest: Seq,
    sink: &mut dyn FnMut(Row<'_>),
    freed: &mut dyn FnMut(&[u8]),
) {
    let all = Bound::Unbounded;
    let mut merge = Merge::new(base, Some(delta), all, all, false, Vec::new());
    let mut consolidate = Consolidation {
        base,
        delta,
        oldest,
        sink,
        freed,
        versions: Vec::new(),
    };
    let mut key = Vec::new();
    while let Some(step) = merge.next() {
        if let Some(image) = base {
            consolidate.rows(image, step.alone, &mut key);
        }
        if let Some(shared) = step.shared {
            consolidate.key(&merge.key, shared.slots, shared.rows);
        }
    }
}

struct Consolidation<'a> {
    base: Option<&'a Image>,
    delta: &'a Delta,
    oldest: Seq,
    sink: &'a mut dyn FnMut(Row<'_>),
    freed: &'a mut dyn FnMut(&[u8]),
    /// Versions of the current key.
    versions: Vec<Version>,
}

#[derive(Clone, Copy)]
struct Version {
    seq: Seq,
    kind: Kind,
    source: Source,
}

#[derive(Clone, Copy)]
enum Source {
    Slot(usize),
    Range,
    Row(usize),
}

impl Consolidation<'_> {
    /// Handles rows of the image whose keys have no version in the delta.
    fn rows(&mut self, image: &Image, rows: Range<usize>, key: &mut Vec<u8>) {
        let as_they_are = !image.is_versioned() && self.delta.ranges().is_empty();
        let mut row = rows.start;
        while row < rows.end {
            image.key(row, key);
            if as_they_are && image.kind(row) != Kind::Delete {
                (self.sink)(Row {
                    key,
                    seq: 0,
                    kind: image.kind(row),
                    value: &image.value(row),
                });
                row += 1;
            } else {
                let end = image.run_end(row);
                self.key(key, 0..0, row..end);
                row = end;
            }
        }
    }

    /// Handles all versions of one key.
    fn key(&mut self, key: &[u8], slots: Range<usize>, rows: Range<usize>) {
        self.collect(key, slots, rows);
        let mut versions = std::mem::take(&mut self.versions);
        let kept = self.keep(&mut versions);
        for version in &versions[..kept] {
            self.give(key, version);
        }
        for version in &versions[kept..] {
            if let (Some(image), Source::Row(row), Kind::Blob) =
                (self.base, version.source, version.kind)
            {
                (self.freed)(&image.value(row));
            }
        }
        self.versions = versions;
    }

    /// Lists the versions from newest to oldest. Within one batch, a version in the delta is newer
    /// than a range deletion, and both are newer than a row of the image.
    fn collect(&mut self, key: &[u8], slots: Range<usize>, rows: Range<usize>) {
        let Self { base, delta, .. } = *self;
        self.versions.clear();
        self.versions.extend(slots.map(|slot| {
            let row = delta.row(slot, key);
            Version {
                seq: row.seq,
                kind: row.kind,
                source: Source::Slot(slot),
            }
        }));
        let ranges = delta.ranges().iter().filter(|range| range.contains(key));
        self.versions.extend(ranges.map(|range| Version {
            seq: range.seq,
            kind: Kind::Delete,
            source: Source::Range,
        }));
        if let Some(image) = base {
            self.versions.extend(rows.map(|row| Version {
                seq: image.seq(row),
                kind: image.kind(row),
                source: Source::Row(row),
            }));
        }
        self.versions.sort_by_key(|version| Reverse(version.seq));
    }

    /// Moves the versions to keep to the front, in their order, and returns their number.
    fn keep(&self, versions: &mut [Version]) -> usize {
        let mut kept = 0;
        let mut last = None;
        let mut is_hidden = false;
        for at in 0..versions.len() {
            let version = versions[at];
            let is_replaced = last == Some(version.seq);
            last = Some(version.seq);
            if is_hidden || is_replaced {
                continue;
            }
            is_hidden = version.seq <= self.oldest;
            versions.swap(kept, at);
            if is_hidden {
                versions[kept].seq = 0;
            }
            kept += 1;
        }
        while kept > 0 && versions[kept - 1].kind == Kind::Delete {
            kept -= 1;
        }
        kept
    }

    fn give(&mut self, key: &[u8], version: &Version) {
        let Version { seq, kind, source } = *version;
        let mut give = |value: &[u8]| {
            (self.sink)(Row {
                key,
                seq,
                kind,
                value,
            });
        };
        match (source, self.base) {
            (Source::Slot(slot), _) => give(self.delta.row(slot, key).value),
            (Source::Row(row), Some(image)) => give(&image.value(row)),
            (Source::Range, _) | (Source::Row(_), None) => give(&[]),
        }
    }
}
