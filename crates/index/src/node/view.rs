//! Scans: what one reader sees of a leaf.

use super::{Delta, Image, Kind, Seq};
use std::ops::Bound;

/// Rows in one flat buffer that can be reused.
#[derive(Debug, Default)]
pub struct Rows {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
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
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row behind the others.
    ///
    /// # Panics
    /// If key or value is longer than [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) or 4 GiB.
    pub fn push(&mut self, kind: Kind, key: &[u8], value: &[u8]) {
        let entry = Entry {
            at: self.bytes.len(),
            value_len: u32::try_from(value.len()).expect("a value is shorter than 4 GiB"),
            key_len: u16::try_from(key.len()).expect("a key is at most 4 KiB"),
            kind,
        };
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.entries.push(entry);
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
    _base: Option<&Image>,
    _delta: Option<&Delta>,
    _seq: Seq,
    _from: Bound<&[u8]>,
    _to: Bound<&[u8]>,
    _reverse: bool,
    _rows_max: usize,
    _bytes_max: usize,
    _out: &mut Rows,
) -> bool {
    false
}
