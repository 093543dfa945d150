//! Packs rows, added in order, into the bytes of an image.

use super::column::{number, width};
use super::header::{ColumnHead, Form, Header, Seal, Sort};
use super::range::{Ends, KeyRange, common_prefix};
use super::{
    GRANULE_BYTES, HEADER_BYTES, IMAGE_BYTES_MAX, KEY_BYTES_MAX, Kind, NodeId, ROWS_MAX, Row, Seq,
    VALUE_BYTES_MAX,
};
use std::cmp::Ordering;

/// Collects rows and packs them into an image. Its buffers are reused after [`Builder::clear`].
#[derive(Debug, Default)]
pub struct Builder {
    plain: bool,
    shape: Shape,
    keys: Strings,
    values: Strings,
    seqs: Vec<Seq>,
    kinds: Vec<Kind>,
    range: Option<KeyRange>,
}

/// Byte strings, one after the other.
#[derive(Debug, Default)]
struct Strings {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Strings {
    fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        let end = u32::try_from(self.bytes.len()).expect("the strings are shorter than 4 GiB");
        self.ends.push(end);
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let start = |i: usize| i.checked_sub(1).map_or(0, |before| self.ends[before]);
        (0..self.ends.len()).map(move |i| &self.bytes[start(i) as usize..self.ends[i] as usize])
    }

    fn first(&self) -> Option<&[u8]> {
        self.iter().next()
    }

    fn last(&self) -> Option<&[u8]> {
        let last = self.ends.len().checked_sub(1)?;
        let start = last.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start as usize..])
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Lengths of the strings of one column.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    count: usize,
    total: usize,
    first: usize,
    differ: bool,
}

impl Lengths {
    fn with(mut self, len: usize) -> Self {
        if self.count == 0 {
            self.first = len;
        }
        self.differ |= len != self.first;
        self.count += 1;
        self.total += len;
        self
    }

    /// Returns the common length of the strings, or `None` if their lengths differ.
    fn common(&self) -> Option<usize> {
        (!self.differ).then_some(self.first)
    }
}

/// Properties of the rows. Together with the first and the last key, they determine the lengths of
/// the columns.
#[derive(Clone, Copy, Debug)]
struct Shape {
    keys: Lengths,
    values: Lengths,
    value_min: u64,
    value_max: u64,
    /// Lowest sequence number other than 0.
    seq_min: Seq,
    seq_max: Seq,
    has_kinds: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            keys: Lengths::default(),
            values: Lengths::default(),
            value_min: u64::MAX,
            value_max: 0,
            seq_min: Seq::MAX,
            seq_max: 0,
            has_kinds: false,
        }
    }
}

impl Shape {
    fn with(mut self, row: &Row<'_>) -> Self {
        self.keys = self.keys.with(row.key.len());
        self.values = self.values.with(row.value.len());
        // For values longer than 8 bytes, `value_min` and `value_max` are not used.
        let value = little_endian(row.value);
        self.value_min = self.value_min.min(value);
        self.value_max = self.value_max.max(value);
        if row.seq != 0 {
            self.seq_min = self.seq_min.min(row.seq);
        }
        self.seq_max = self.seq_max.max(row.seq);
        self.has_kinds |= row.kind != Kind::Put;
        self
    }

    fn rows(&self) -> usize {
        self.keys.count
    }

    /// Returns the base that is added to the stored offsets to get the sequence numbers of rows.
    /// The offset 0 is reserved for the sequence number 0.
    fn seq_base(&self) -> Seq {
        self.seq_min.saturating_sub(1)
    }

    /// Returns the header of the image, and the length of the image before it is rounded up. Header
    /// fields that do not affect the packing are 0.
    fn header(&self, plain: bool, first: &[u8], last: &[u8]) -> (Header, usize) {
        let rows = self.rows();
        let short = self.keys.common().is_some_and(|len| len <= 8);
        let prefix = if plain || short {
            0
        } else {
            common_prefix(first, last)
        };
        let (keys, key_base, key_bytes) = self.key_column(plain, &first[prefix..], &last[prefix..]);
        let (values, value_bytes) = self.value_column(plain);
        let mut bytes = HEADER_BYTES + prefix + key_bytes + value_bytes;
        let mut seq_width = 0;
        let has_seqs = self.seq_max != 0;
        if has_seqs {
            seq_width = width(self.seq_max - self.seq_base());
            bytes += 8 + rows * usize::from(seq_width);
        }
        if self.has_kinds {
            bytes += rows.div_ceil(4);
        }
        let header = Header {
            sort: Sort::Node,
            level: 0,
            has_seqs,
            has_kinds: self.has_kinds,
            has_range: false,
            len_bytes: small(bytes.next_multiple_of(GRANULE_BYTES)),
            seal: Seal::default(),
            lsn: 0,
            node: 0,
            rows: u16::try_from(rows).unwrap_or(u16::MAX),
            prefix_len: u16::try_from(prefix).expect("a key is at most 4 KiB"),
            interval: 0,
            keys,
            values,
            seq_width,
            key_base,
        };
        (header, bytes)
    }

    /// Returns three properties of the column of keys without their common prefix: the head of the
    /// column, its base, and its length in bytes.
    fn key_column(&self, plain: bool, first: &[u8], last: &[u8]) -> (ColumnHead, u64, usize) {
        let rows = self.rows();
        match self.keys.common() {
            Some(_) if !plain && first.len() <= 8 => {
                let base = number(first);
                let width = width(number(last).saturating_sub(base));
                (ints(width, first.len()), base, rows * usize::from(width))
            }
            Some(_) => (fixed(first.len()), 0, rows * first.len()),
            None => {
                // The same prefix is cut from every key. Its length is the full length of the first
                // key, minus the length of the first key without the prefix.
                let cut = self.keys.first - first.len();
                let (head, bytes) = var(rows, self.keys.total - rows * cut);
                (head, 0, bytes)
            }
        }
    }

    fn value_column(&self, plain: bool) -> (ColumnHead, usize) {
        let rows = self.rows();
        let Some(len) = self.values.common() else {
            return var(rows, self.values.total);
        };
        if !plain && len <= 8 && rows > 0 {
            let width = width(self.value_max - self.value_min);
            let bytes = 8 + rows * usize::from(width);
            if bytes < rows * len {
                return (ints(width, len), bytes);
            }
        }
        (fixed(len), rows * len)
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn ints(width: u8, len: usize) -> ColumnHead {
    ColumnHead {
        form: Form::Ints,
        width,
        len: small(len),
    }
}

fn fixed(len: usize) -> ColumnHead {
    ColumnHead {
        form: Form::Fixed,
        width: 0,
        len: small(len),
    }
}

fn var(rows: usize, total: usize) -> (ColumnHead, usize) {
    let width = width(total as u64);
    let head = ColumnHead {
        form: Form::Var,
        width,
        len: 0,
    };
    (head, (rows + 1) * usize::from(width) + total)
}

/// Returns the first bytes, at most 8, as a little-endian number.
fn little_endian(bytes: &[u8]) -> u64 {
    number(bytes).swap_bytes() >> (64 - 8 * bytes.len().clamp(1, 8))
}

fn append_offset(out: &mut Vec<u8>, offset: u64, width: u8) {
    out.extend_from_slice(&offset.to_le_bytes());
    out.truncate(out.len() - 8 + usize::from(width));
}

impl Builder {
    /// Creates an empty builder. With `plain`, keys and values are not packed: no common prefix is
    /// cut, and no column of numbers is made.
    pub fn new(plain: bool) -> Self {
        Self {
            plain,
            ..Self::default()
        }
    }

    /// Selects the plain or the packed layout, also for rows that were added before.
    pub fn set_plain(&mut self, plain: bool) {
        self.plain = plain;
    }

    /// Adds a row after the rows added so far.
    ///
    /// # Panics
    /// If the row does not follow the previous row in order (keys ascend, and the versions of a key
    /// descend from newest to oldest), or if it exceeds a limit: [`KEY_BYTES_MAX`],
    /// [`VALUE_BYTES_MAX`], [`ROWS_MAX`].
    pub fn push(&mut self, row: Row<'_>) {
        assert!(row.key.len() <= KEY_BYTES_MAX, "a key is at most 4 KiB");
        assert!(
            row.value.len() <= VALUE_BYTES_MAX,
            "a value is at most 64 KiB"
        );
        assert!(self.rows() < ROWS_MAX, "an image has at most 65,535 rows");
        if let (Some(last), Some(&seq)) = (self.keys.last(), self.seqs.last()) {
            let order = last.cmp(row.key).then(row.seq.cmp(&seq));
            assert!(order == Ordering::Less, "rows are pushed in their order");
        }
        self.shape = self.shape.with(&row);
        self.keys.push(row.key);
        self.values.push(row.value);
        self.seqs.push(row.seq);
        self.kinds.push(row.kind);
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.seqs.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Sets the range of keys that the leaf covers. [`Builder::clear`] removes it.
    ///
    /// If a row is outside the range, [`Builder::finish`] returns an image that no reader accepts.
    pub fn set_range(&mut self, range: KeyRange) {
        self.range = Some(range);
    }

    fn ends(&self) -> Ends<'_> {
        self.keys.first().zip(self.keys.last())
    }

    fn header(&self) -> (Header, usize) {
        self.header_of(&self.shape, self.ends())
    }

    /// Returns the header of an image whose first and last key are `ends`, and the length of that
    /// image before it is rounded up. Both account for the key range, if it is set.
    fn header_of(&self, shape: &Shape, ends: Ends<'_>) -> (Header, usize) {
        let (first, last) = ends.unwrap_or_default();
        let (mut header, mut bytes) = shape.header(self.plain, first, last);
        if let Some(range) = &self.range {
            bytes += range.packed_bytes(ends);
            header.has_range = true;
            header.len_bytes = small(bytes.next_multiple_of(GRANULE_BYTES));
        }
        (header, bytes)
    }

    /// Returns the exact length in bytes of the image that [`Builder::finish`] would return. This
    /// costs one comparison of two keys.
    pub fn estimated_bytes(&self) -> usize {
        self.header().0.len_bytes as usize
    }

    /// Returns the exact length in bytes that the image would have with `row` added.
    pub fn estimated_bytes_with(&self, row: &Row<'_>) -> usize {
        let first = self.keys.first().unwrap_or(row.key);
        let shape = self.shape.with(row);
        let (header, _) = self.header_of(&shape, Some((first, row.key)));
        header.len_bytes as usize
    }

    /// Returns the image of the rows, to be sealed with [`seal`](super::seal). The rows stay in the
    /// builder; see [`Builder::clear`].
    ///
    /// # Panics
    /// If the image would be longer than [`IMAGE_BYTES_MAX`]. If `level` is above 0 and a row has a
    /// sequence number, is not a [`Kind::Put`], or has a value other than the 4 bytes of a node
    /// number.
    pub fn finish(&mut self, node: NodeId, level: u8, lsn: u64, interval: u8) -> Vec<u8> {
        self.image(Sort::Node, node, level, lsn, interval, 0, IMAGE_BYTES_MAX)
    }

    /// Returns the image of a leaf that stays in memory. The image can be longer than
    /// [`IMAGE_BYTES_MAX`].
    ///
    /// # Panics
    /// If the image would be longer than 4 GiB.
    pub(crate) fn finish_for_memory(&mut self, node: NodeId, lsn: u64, interval: u8) -> Vec<u8> {
        self.image(Sort::Node, node, 0, lsn, interval, 0, u32::MAX as usize)
    }

    /// Returns the image of the rows like [`Builder::finish`], padded with zeroes to at least
    /// `least_bytes`. So all images that need at most `least_bytes` have the same length.
    ///
    /// # Panics
    /// As [`Builder::finish`].
    pub fn finish_padded(
        &mut self,
        node: NodeId,
        level: u8,
        lsn: u64,
        interval: u8,
        least_bytes: usize,
    ) -> Vec<u8> {
        self.image(
            Sort::Node,
            node,
            level,
            lsn,
            interval,
            least_bytes,
            IMAGE_BYTES_MAX,
        )
    }

    /// Returns the image of the rows as a patch: the changes of a leaf. Otherwise it works like
    /// [`finish`](Self::finish).
    ///
    /// # Panics
    /// As [`finish`](Self::finish), and if a row has a sequence number or a value that is stored
    /// out of line.
    pub fn finish_patch(&mut self, node: NodeId, lsn: u64, interval: u8) -> Vec<u8> {
        assert!(
            self.shape.seq_max == 0 && !self.kinds.contains(&Kind::Blob),
            "every reader sees what a patch says, and it says it itself"
        );
        self.image(Sort::Patch, node, 0, lsn, interval, 0, IMAGE_BYTES_MAX)
    }

    #[expect(clippy::too_many_arguments, reason = "what an image says of itself")]
    fn image(
        &mut self,
        sort: Sort,
        node: NodeId,
        level: u8,
        lsn: u64,
        interval: u8,
        least_bytes: usize,
        bytes_max: usize,
    ) -> Vec<u8> {
        let (header, len) = self.header();
        let least_bytes = small(least_bytes.next_multiple_of(GRANULE_BYTES));
        let header = Header {
            sort,
            len_bytes: header.len_bytes.max(least_bytes),
            node,
            level,
            lsn,
            interval,
            ..header
        };
        assert!(
            header.len_bytes as usize <= bytes_max,
            "the caller has cut the rows in time"
        );
        if level > 0 && !self.is_empty() {
            let children = !header.has_seqs && !header.has_kinds;
            let children = children && self.shape.values.common() == Some(4);
            assert!(children, "the rows of an inner node are children");
        }
        let len_bytes = header.len_bytes as usize;
        let mut out = Vec::with_capacity(len_bytes);
        out.extend_from_slice(&header.encode());
        self.append_keys(&header, &mut out);
        self.append_values(&header.values, &mut out);
        self.append_versions(&header, &mut out);
        if let Some(range) = &self.range {
            range.append(self.ends(), &mut out);
        }
        assert_eq!(out.len(), len, "the columns have the computed length");
        out.resize(len_bytes, 0);
        out
    }

    fn append_keys(&self, header: &Header, out: &mut Vec<u8>) {
        let prefix = usize::from(header.prefix_len);
        out.extend_from_slice(&self.keys.first().unwrap_or_default()[..prefix]);
        let suffixes = self.keys.iter().map(|key| &key[prefix..]);
        let ColumnHead { form, width, .. } = header.keys;
        match form {
            Form::Ints => {
                suffixes.for_each(|s| append_offset(out, number(s) - header.key_base, width));
            }
            Form::Fixed => suffixes.for_each(|s| out.extend_from_slice(s)),
            Form::Var => append_var(suffixes, width, out),
        }
    }

    fn append_values(&self, head: &ColumnHead, out: &mut Vec<u8>) {
        match head.form {
            Form::Ints => {
                let base = self.shape.value_min;
                out.extend_from_slice(&base.to_le_bytes());
                for value in self.values.iter() {
                    append_offset(out, little_endian(value) - base, head.width);
                }
            }
            Form::Fixed => out.extend_from_slice(&self.values.bytes),
            Form::Var => append_var(self.values.iter(), head.width, out),
        }
    }

    fn append_versions(&self, header: &Header, out: &mut Vec<u8>) {
        if header.has_seqs {
            let base = self.shape.seq_base();
            out.extend_from_slice(&base.to_le_bytes());
            for &seq in &self.seqs {
                // The sequence number 0 is not above the base, so its offset is 0.
                append_offset(out, seq.saturating_sub(base), header.seq_width);
            }
        }
        if header.has_kinds {
            for four in self.kinds.chunks(4) {
                let bits = four
                    .iter()
                    .rev()
                    .fold(0, |bits, &kind| bits << 2 | kind as u8);
                out.push(bits);
            }
        }
    }

    /// Removes all rows and the range, and keeps the buffers.
    pub fn clear(&mut self) {
        self.shape = Shape::default();
        self.keys.clear();
        self.values.clear();
        self.seqs.clear();
        self.kinds.clear();
        self.range = None;
    }
}

/// Appends the boundaries of the strings, then the strings.
fn append_var<'a>(strings: impl Iterator<Item = &'a [u8]> + Clone, width: u8, out: &mut Vec<u8>) {
    let mut end = 0;
    append_offset(out, 0, width);
    for string in strings.clone() {
        end += string.len() as u64;
        append_offset(out, end, width);
    }
    strings.for_each(|s| out.extend_from_slice(s));
}
