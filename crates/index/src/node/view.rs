//! Scans: what one reader sees of a leaf.

use super::merge::{Merge, Shared};
use super::{Delta, Image, Kind, Seq};
use std::ops::{Bound, Range};

/// Rows in one flat buffer that can be reused.
#[derive(Debug, Default)]
pub struct Rows {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Memory for the keys of a walk.
    key: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: usize,
    value_len: u32,
    key_len: u16,
    kind: Kind,
}

impl Rows {
    /// No rows, and no memory yet.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            entries: Vec::new(),
            key: Vec::new(),
        }
    }

    /// The same memory without rows.
    pub fn emptied(mut self) -> Self {
        self.clear();
        self
    }

    /// Adds a row behind the others.
    ///
    /// # Panics
    /// If the key is longer than 64 KiB or the value longer than 4 GiB.
    pub fn push(&mut self, kind: Kind, key: &[u8], value: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.enter(kind, at, key.len());
    }

    /// Makes a row of what has been appended from `at` on.
    #[inline]
    fn enter(&mut self, kind: Kind, at: usize, key_len: usize) {
        let value_len = self.bytes.len() - at - key_len;
        self.entries.push(Entry {
            at,
            value_len: u32::try_from(value_len).expect("a value is shorter than 4 GiB"),
            key_len: u16::try_from(key_len).expect("a key is at most 4 KiB"),
            kind,
        });
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Kind, key and value of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn get(&self, row: usize) -> (Kind, &[u8], &[u8]) {
        let entry = &self.entries[row];
        let (key, rest) = self.bytes[entry.at..].split_at(usize::from(entry.key_len));
        (entry.kind, key, &rest[..entry.value_len as usize])
    }
}

/// Appends to `out` what a reader at `seq` sees of the keys between `from` (the lower bound) and
/// `to` (the upper one), ascending, or descending with `reverse`. At most `rows_max` rows are added
/// and at most `bytes_max` bytes of keys and values, but one row is added even if it is longer.
/// Returns true if a limit has cut it short: there is at least one more row, beyond the last one.
#[expect(clippy::too_many_arguments, reason = "what a scan asks for")]
pub fn view(
    base: Option<&Image>,
    delta: Option<&Delta>,
    seq: Seq,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    reverse: bool,
    rows_max: usize,
    bytes_max: usize,
    out: &mut Rows,
) -> bool {
    let delta = delta.filter(|delta| !delta.is_empty());
    let mut merge = Merge::new(base, delta, from, to, reverse, std::mem::take(&mut out.key));
    let mut scan = Scan {
        base,
        delta,
        seq,
        reverse,
        rows_end: out.len().saturating_add(rows_max),
        bytes_end: out.bytes().saturating_add(bytes_max),
        first: out.len(),
        out,
    };
    let mut cut = false;
    while !cut && let Some(step) = merge.next() {
        cut = scan.alone(step.alone);
        if let (false, Some(shared)) = (cut, step.shared) {
            cut = scan.shared(&merge.key, &shared);
        }
    }
    scan.out.key = merge.key;
    cut
}

struct Scan<'a> {
    base: Option<&'a Image>,
    delta: Option<&'a Delta>,
    seq: Seq,
    reverse: bool,
    /// `out` may have this many rows and bytes at the end.
    rows_end: usize,
    bytes_end: usize,
    /// Rows that `out` had at the start.
    first: usize,
    out: &'a mut Rows,
}

impl Scan<'_> {
    /// Rows of the image alone. True if a limit has cut it short.
    fn alone(&mut self, rows: Range<usize>) -> bool {
        let Some(image) = self.base else {
            return false;
        };
        let has_ranges = self.delta.is_some_and(|delta| !delta.ranges().is_empty());
        let may_hide = has_ranges || image.is_versioned();
        if let (false, Some(row_bytes)) = (may_hide, image.row_bytes()) {
            return self.run(image, rows, row_bytes);
        }
        match (may_hide, self.reverse) {
            (false, false) => rows.into_iter().any(|row| self.row(image, row)),
            (false, true) => rows.rev().any(|row| self.row(image, row)),
            (true, _) => self.versions(image, rows),
        }
    }

    /// Rows of one length that are all seen: as many as the limits admit, at once. True if that is not all.
    fn run(&mut self, image: &Image, rows: Range<usize>, row_bytes: usize) -> bool {
        let at = self.out.bytes.len();
        let least = usize::from(self.out.len() == self.first);
        let by_bytes = self.bytes_end.saturating_sub(at) / row_bytes.max(1);
        let by_rows = self.rows_end - self.out.len();
        let count = rows.len().min(by_bytes.max(least)).min(by_rows);
        let taken = match self.reverse {
            false => rows.start..rows.start + count,
            true => rows.end - count..rows.end,
        };
        image.append_rows(taken, self.reverse, &mut self.out.bytes);
        let key_len = image
            .key_bytes()
            .expect("rows of one length have keys of one length");
        let entry = Entry {
            at,
            value_len: (row_bytes - key_len) as u32,
            key_len: key_len as u16,
            kind: Kind::Put,
        };
        let entries = (0..count).map(|n| Entry {
            at: at + n * row_bytes,
            ..entry
        });
        self.out.entries.extend(entries);
        count < rows.len()
    }

    /// Rows of which some may be older versions, or deleted by a range.
    fn versions(&mut self, image: &Image, mut rows: Range<usize>) -> bool {
        while !rows.is_empty() {
            let run = if self.reverse {
                let run = image.run_start(rows.end - 1)..rows.end;
                rows.end = run.start;
                run
            } else {
                let run = rows.start..image.run_end(rows.start);
                rows.start = run.end;
                run
            };
            if let Some(row) = image.visible(run.start, self.seq)
                && !self.is_deleted(image, row)
                && self.row(image, row)
            {
                return true;
            }
        }
        false
    }

    /// True if a range deletion hides a row.
    fn is_deleted(&mut self, image: &Image, row: usize) -> bool {
        let Some(delta) = self.delta.filter(|delta| !delta.ranges().is_empty()) else {
            return false;
        };
        image.key(row, &mut self.out.key);
        let deleted = delta.deleted_at(&self.out.key, self.seq);
        deleted.is_some_and(|deleted| deleted >= image.seq(row))
    }

    /// A key that the delta has versions of. True if a limit has cut it short.
    fn shared(&mut self, key: &[u8], shared: &Shared) -> bool {
        let (delta, seq) = (self.delta, self.seq);
        let slot = delta.and_then(|delta| {
            let slot = delta.visible(shared.slots.clone(), seq)?;
            Some(delta.row(slot, key))
        });
        let deleted = delta.and_then(|delta| delta.deleted_at(key, seq));
        let image = self.base.filter(|_| !shared.rows.is_empty());
        let row = image.and_then(|image| Some((image, image.visible(shared.rows.start, seq)?)));
        // Of one batch, what the delta has is later than a range deletion, and both than the image.
        let in_row = row.map(|(image, row)| image.seq(row));
        let in_slot = slot.map(|slot| slot.seq);
        match (slot, row) {
            (Some(slot), _) if in_slot >= deleted && in_slot >= in_row => {
                slot.kind == Kind::Put && self.put(slot.key, slot.value)
            }
            (_, Some((image, row))) if in_row > deleted => self.row(image, row),
            _ => false,
        }
    }

    /// Adds a row of the image, if it is not a deletion. True if a limit does not admit it.
    #[inline]
    fn row(&mut self, image: &Image, row: usize) -> bool {
        let kind = image.kind(row);
        if kind == Kind::Delete {
            return false;
        }
        let at = self.out.bytes.len();
        image.append_key(row, &mut self.out.bytes);
        let key_len = self.out.bytes.len() - at;
        image.append_value(row, &mut self.out.bytes);
        self.enter(kind, at, key_len)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        let at = self.out.bytes.len();
        self.out.bytes.extend_from_slice(key);
        self.out.bytes.extend_from_slice(value);
        self.enter(Kind::Put, at, key.len())
    }

    /// Makes a row of what has been appended, or takes it away again.
    #[inline]
    fn enter(&mut self, kind: Kind, at: usize, key_len: usize) -> bool {
        let rows = self.out.len();
        let is_long = self.out.bytes.len() > self.bytes_end && rows > self.first;
        if is_long || rows >= self.rows_end {
            self.out.bytes.truncate(at);
            return true;
        }
        self.out.enter(kind, at, key_len);
        false
    }
}
