//! Reading the images of index nodes: the bytes of an image are checked once, then its rows can be
//! accessed.

use super::arena::Shared;
use super::column::{Column, Ints, Sections, Sorted, Start};
use super::error::ImageError;
use super::header::{Form, Header, Seal, Sort};
use super::range::KeyRange;
use super::spread::Spread;
use super::{
    HEADER_BYTES, IMAGE_BYTES_MAX, KEY_BYTES_MAX, Kind, NodeId, PADDING_BYTES, Seq, VALUE_BYTES_MAX,
};
use std::cmp::Ordering;
use std::ops::{Bound, Deref, Range};

/// Header fields of an image whose checksum was not verified. They are enough to scan a segment
/// image by image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peek {
    /// Number of the node or blob.
    pub node: NodeId,
    /// LSN at which the image was written.
    pub lsn: u64,
    /// Length of the image in bytes: a multiple of [`GRANULE_BYTES`](super::GRANULE_BYTES).
    pub len_bytes: usize,
    /// Place that the image was sealed for.
    pub seal: Seal,
    /// Kind of content.
    pub sort: Sort,
    /// Level of the node; 0 for a leaf and for a blob.
    pub level: u8,
    /// Class of the update interval, as the writer gave it.
    pub interval: u8,
}

/// Value in an image: a slice of the image, or a copy of up to 8 unpacked bytes.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a>(Cell<'a>);

#[derive(Clone, Copy, Debug)]
enum Cell<'a> {
    Slice(&'a [u8]),
    Unpacked { bytes: [u8; 8], len: u8 },
}

impl Value<'_> {
    /// Returns the bytes of the value.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Cell::Slice(bytes) => bytes,
            Cell::Unpacked { bytes, len } => &bytes[..usize::from(*len)],
        }
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// Buffer into which a row is unpacked.
#[derive(Debug, Default)]
pub(super) struct RowMemory {
    /// Key of the row. It begins with the common prefix of all keys of the image.
    key: Vec<u8>,
    value: [u8; 8],
}

impl RowMemory {
    /// Creates a buffer that is not yet prepared for an image.
    pub const fn new() -> Self {
        Self {
            key: Vec::new(),
            value: [0; 8],
        }
    }
}

/// A packed node whose bytes have been checked. Clones share the bytes.
#[derive(Clone, Debug)]
pub struct Image(Shared<Parsed>);

/// Decoded header and columns of an image. The fields that a get needs come first.
#[derive(Debug)]
#[repr(C)]
struct Parsed {
    keys: Column,
    spread: Spread,
    /// Start of the common prefix of all keys.
    start: Start,
    rows: u32,
    /// Position of the kinds of the rows, two bits each.
    kinds_at: Option<u32>,
    values: Column,
    /// Sequence numbers of the rows. Few images have any, so they are boxed to keep the other
    /// fields close together.
    seqs: Option<Box<Ints>>,
    lsn: u64,
    /// LSN of the image on the storage. It differs from `lsn` only if this image was made in
    /// memory, by merging changes into the image on the storage.
    stored_lsn: u64,
    node: NodeId,
    level: u8,
    interval: u8,
    is_patch: bool,
    /// Position of the range of keys that the leaf covers.
    range_at: Option<u32>,
}

impl Parsed {
    /// Finds the columns and checks that each of them is inside the image. The content of the
    /// columns is not checked yet.
    fn divide(padded: &[u8], header: &Header, stored_lsn: u64) -> Result<Parsed, ImageError> {
        let rows = usize::from(header.rows);
        let prefix_len = usize::from(header.prefix_len);
        let mut sections = Sections {
            bytes: padded,
            at: HEADER_BYTES,
            end: header.len_bytes as usize,
        };
        let prefix_at = sections.take(1, prefix_len)?;
        let start = Start::of(&padded[prefix_at..][..prefix_len]);
        let (base, max) = (Some(header.key_base), KEY_BYTES_MAX - prefix_len);
        let keys = Column::parse(&mut sections, &header.keys, rows, base, max)?;
        let values = Column::parse(&mut sections, &header.values, rows, None, VALUE_BYTES_MAX)?;
        let mut seqs = None;
        if header.has_seqs {
            let base = sections.take_u64()?;
            let column = Ints::parse(&mut sections, rows, header.seq_width, base)?;
            seqs = Some(Box::new(column));
        }
        let mut kinds_at = None;
        if header.has_kinds {
            let at = sections.take(rows.div_ceil(4), 1)?;
            kinds_at = Some(u32::try_from(at).expect("an image is shorter than 4 MiB"));
        }
        // The length of the range is known only once the keys can be read.
        let range_at = header.has_range.then_some(sections.at as u32);
        Ok(Parsed {
            keys,
            spread: keys.spread(padded, rows),
            start,
            rows: header.rows.into(),
            kinds_at,
            values,
            seqs,
            lsn: header.lsn,
            stored_lsn,
            node: header.node,
            level: header.level,
            interval: header.interval,
            is_patch: header.sort == Sort::Patch,
            range_at,
        })
    }
}

impl Image {
    /// Parses the image of a node that was read from `meant`, the location of the image with its
    /// segment generation. Copies the image into the memory for images. Bytes after the image are
    /// ignored.
    ///
    /// # Errors
    /// If the bytes are not a complete, unchanged image of a node that was sealed for `meant`.
    pub fn parse(bytes: &[u8], meant: impl Into<Seal>) -> Result<Self, ImageError> {
        let header = Header::open(bytes, meant.into(), IMAGE_BYTES_MAX)?;
        Self::of(bytes, &header, header.lsn)
    }

    /// Checks an image that was merged in memory. Its sources are an image with the LSN
    /// `stored_lsn`, and later changes. The merged image can be longer than an image on the
    /// storage.
    pub(crate) fn parse_for_memory(
        bytes: &[u8],
        location: u64,
        stored_lsn: u64,
    ) -> Result<Self, ImageError> {
        let header = Header::open(bytes, location.into(), u32::MAX as usize)?;
        Self::of(bytes, &header, stored_lsn)
    }

    /// Returns the image in `bytes`, whose header [`Header::open`] has checked.
    fn of(bytes: &[u8], header: &Header, stored_lsn: u64) -> Result<Self, ImageError> {
        if header.sort == Sort::Blob {
            return Err(ImageError::Malformed("a blob where a node belongs"));
        }
        let bytes = &bytes[..header.len_bytes as usize];
        let divide = |padded: &[u8]| Parsed::divide(padded, header, stored_lsn);
        let image = Image(Shared::new(bytes, PADDING_BYTES, divide)?);
        image.check(header)?;
        Ok(image)
    }

    /// Returns the bytes of the image and of the padding after it.
    #[inline(always)]
    fn padded(&self) -> &[u8] {
        self.0.tail()
    }

    /// Checks the properties that the accessors and the search rely on.
    fn check(&self, header: &Header) -> Result<(), ImageError> {
        let malformed = |what| Err(ImageError::Malformed(what));
        if self.0.kinds_at.is_some() && (0..self.rows()).any(|row| self.kind_bits(row) > 2) {
            return malformed("a row of unknown kind");
        }
        if self.0.is_patch {
            let says_itself = (0..self.rows()).all(|row| self.kind(row) != Kind::Blob);
            if self.0.level > 0 || header.has_seqs || !says_itself {
                return malformed("a patch of other rows than changes");
            }
        }
        if self.0.level > 0 {
            let numbers = header.values.form != Form::Var && header.values.len == 4;
            if header.has_seqs || header.has_kinds || (self.0.rows > 0 && !numbers) {
                return malformed("an inner node of other rows than children");
            }
        }
        if let (Column::Ints { ints, len }, Some(last)) = (&self.0.keys, self.rows().checked_sub(1))
        {
            // The offsets ascend, as is checked below: if the last number fits, all numbers fit.
            let highest = header
                .key_base
                .checked_add(ints.offset(self.padded(), last));
            let bits = 8 * u32::from(*len);
            if highest.is_none_or(|n| n.checked_shr(bits).unwrap_or(0) != 0) {
                return malformed("a key that is too large");
            }
        }
        if !(1..self.rows()).all(|row| self.is_behind_previous(row)) {
            return malformed("rows out of order");
        }
        if header.has_range && (self.0.is_patch || self.0.level > 0) {
            return malformed("a range in an image that is not a leaf");
        }
        self.read_range().map(|_| ())
    }

    fn read_range(&self) -> Result<Option<KeyRange>, ImageError> {
        let Some(at) = self.0.range_at else {
            return Ok(None);
        };
        let (mut first, mut last) = (Vec::new(), Vec::new());
        let ends = self.rows().checked_sub(1).map(|last_row| {
            self.key(0, &mut first);
            self.key(last_row, &mut last);
            (&first[..], &last[..])
        });
        KeyRange::parse(&self.bytes()[at as usize..], ends).map(Some)
    }

    /// Returns the range of keys that the leaf covers, if the image has that range. Images of
    /// leaves have it since version 4 of the index format, except for images that were merged in
    /// memory.
    pub fn range(&self) -> Option<KeyRange> {
        self.read_range().expect("it was read before")
    }

    /// Returns true if `row` is greater than the row before it: the key is greater, or the version
    /// of the same key is older.
    fn is_behind_previous(&self, row: usize) -> bool {
        match self.compare_rows(row - 1, row) {
            Ordering::Less => true,
            Ordering::Equal => self.seq_of(row - 1) > self.seq_of(row),
            Ordering::Greater => false,
        }
    }

    /// Compares the keys of two rows.
    #[inline]
    fn compare_rows(&self, one: usize, other: usize) -> Ordering {
        if let Column::Ints { ints, .. } = &self.0.keys {
            let offset = |row| ints.offset(self.padded(), row);
            return offset(one).cmp(&offset(other));
        }
        let string = |row| self.0.keys.string(self.padded(), row);
        string(one).cmp(&string(other))
    }

    /// Returns the header fields at the start of `bytes`, if they look like a header.
    /// [`HEADER_BYTES`] bytes are enough. The checksum is not verified.
    pub fn peek(bytes: &[u8]) -> Option<Peek> {
        let header = Header::decode(bytes).ok()?;
        Some(Peek {
            node: header.node,
            lsn: header.lsn,
            len_bytes: header.len_bytes as usize,
            seal: header.seal,
            sort: header.sort,
            level: header.level,
            interval: header.interval,
        })
    }

    /// Returns the bytes of the image as they are on flash. To move the image,
    /// [`seal`](super::seal) a copy of these bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.padded()[..self.len_bytes()]
    }

    /// Returns the number of the node.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Returns the level of the node: 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.0.level
    }

    /// Returns true if the image holds only changes of a leaf.
    pub fn is_patch(&self) -> bool {
        self.0.is_patch
    }

    /// Returns the LSN at which the image was written.
    pub fn lsn(&self) -> u64 {
        self.0.lsn
    }

    /// Returns the LSN of the image on the storage. If this image was merged in memory, this is the
    /// LSN of the stored image from which it was made. Otherwise it is the LSN of this image.
    pub(crate) fn stored_lsn(&self) -> u64 {
        self.0.stored_lsn
    }

    /// Returns the class of the leaf's update interval, which the writer has stored in the image.
    pub fn interval(&self) -> u8 {
        self.0.interval
    }

    /// Returns the length on flash in bytes.
    pub fn len_bytes(&self) -> usize {
        self.padded().len() - PADDING_BYTES
    }

    /// Returns the memory of the image in bytes, including unused capacity and this struct.
    pub fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Returns the number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.0.rows as usize
    }

    /// Returns true if any row has a sequence number other than 0.
    pub fn is_versioned(&self) -> bool {
        self.0.seqs.is_some()
    }

    /// Returns the common prefix of all keys.
    #[inline]
    fn prefix(&self) -> &[u8] {
        &self.padded()[HEADER_BYTES..][..self.0.start.len()]
    }

    /// Returns the first row whose key is not less than `key`, and whether the key of that row is
    /// equal to `key`.
    #[inline]
    fn locate(&self, key: &[u8]) -> (usize, bool) {
        let suffix = match self.0.start.compare(key, || self.prefix()) {
            Ordering::Equal => &key[self.0.start.len()..],
            Ordering::Less => return (0, false),
            Ordering::Greater => return (self.rows(), false),
        };
        let rows = Sorted {
            bytes: self.padded(),
            count: self.rows(),
            spread: &self.0.spread,
        };
        self.0.keys.locate(rows, suffix)
    }

    /// Returns the first row whose key is not less than `key` (of several versions the newest), or
    /// the number of rows.
    #[inline]
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.locate(key).0
    }

    /// Replaces `out` with the key of a row.
    ///
    /// # Panics
    /// If there is no such row. The other functions that take a row panic in this case, too.
    pub fn key(&self, row: usize, out: &mut Vec<u8>) {
        out.clear();
        self.append_key(row, out);
    }

    /// Appends the key of a row to `out`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn append_key(&self, row: usize, out: &mut Vec<u8>) {
        assert!(row < self.rows(), "there is no row {row}");
        if self.0.start.len() > 0 {
            out.extend_from_slice(self.prefix());
        }
        if let Column::Ints { ints, len } = &self.0.keys {
            out.extend_from_slice(&ints.key(self.padded(), row, *len));
            out.truncate(out.len() - 8 + usize::from(*len));
        } else if let Some(suffix) = self.0.keys.string(self.padded(), row) {
            out.extend_from_slice(suffix);
        }
    }

    /// Compares the key of a row with `key`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn compare_key(&self, row: usize, key: &[u8]) -> Ordering {
        assert!(row < self.rows(), "there is no row {row}");
        let prefix = self.prefix();
        let common = prefix.len().min(key.len());
        let suffix = || self.0.keys.compare(self.padded(), row, &key[common..]);
        prefix.cmp(&key[..common]).then_with(suffix)
    }

    /// Returns the value of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn value(&self, row: usize) -> Value<'_> {
        assert!(row < self.rows(), "there is no row {row}");
        if let Column::Ints { ints, len } = self.0.values {
            let bytes = ints.number(self.padded(), row).to_le_bytes();
            return Value(Cell::Unpacked { bytes, len });
        }
        let bytes = self.0.values.string(self.padded(), row);
        Value(Cell::Slice(bytes.expect("this is a column of strings")))
    }

    /// Returns true if all rows hold values: no row is a deletion or a reference to a blob.
    pub(super) fn says_values(&self) -> bool {
        self.0.kinds_at.is_none()
    }

    /// Prepares `memory` for [`unpack`](Self::unpack).
    pub(super) fn prepare(&self, memory: &mut RowMemory) {
        memory.key.clear();
        memory.key.extend_from_slice(self.prefix());
        memory.key.extend_from_slice(&[0; 8]);
    }

    /// Returns key and value of a row, as slices of the image or of `memory`, which was
    /// [prepared](Self::prepare) for this image.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub(super) fn unpack<'a>(
        &'a self,
        row: usize,
        memory: &'a mut RowMemory,
    ) -> (&'a [u8], &'a [u8]) {
        assert!(row < self.rows(), "there is no row {row}");
        let prefix_len = self.0.start.len();
        let key = match (&self.0.keys, self.0.keys.string(self.padded(), row)) {
            (_, Some(suffix)) if prefix_len == 0 => suffix,
            (_, Some(suffix)) => {
                memory.key.truncate(prefix_len);
                memory.key.extend_from_slice(suffix);
                &memory.key
            }
            (Column::Ints { ints, len }, None) => {
                let eight = ints.key(self.padded(), row, *len);
                memory.key[prefix_len..][..8].copy_from_slice(&eight);
                &memory.key[..prefix_len + usize::from(*len)]
            }
            (Column::Fixed { .. } | Column::Var { .. }, None) => {
                unreachable!("these are columns of strings")
            }
        };
        let value = match &self.0.values {
            Column::Ints { ints, len } => {
                memory.value = ints.number(self.padded(), row).to_le_bytes();
                &memory.value[..usize::from(*len)]
            }
            strings => {
                let value = strings.string(self.padded(), row);
                value.expect("these are columns of strings")
            }
        };
        (key, value)
    }

    /// Returns the sequence number of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn seq(&self, row: usize) -> Seq {
        assert!(row < self.rows(), "there is no row {row}");
        self.seq_of(row)
    }

    /// Returns the sequence number of a row. The base of the column is one below the lowest
    /// sequence number other than 0, and the offset 0 encodes the sequence number 0.
    #[inline]
    fn seq_of(&self, row: usize) -> Seq {
        self.0
            .seqs
            .as_ref()
            .map_or(0, |seqs| match seqs.offset(self.padded(), row) {
                0 => 0,
                _ => seqs.number(self.padded(), row),
            })
    }

    /// Returns the kind of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn kind(&self, row: usize) -> Kind {
        assert!(row < self.rows(), "there is no row {row}");
        match self.kind_bits(row) {
            0 => Kind::Put,
            1 => Kind::Delete,
            _ => Kind::Blob,
        }
    }

    #[inline]
    fn kind_bits(&self, row: usize) -> u8 {
        self.0.kinds_at.map_or(0, |at| {
            (self.padded()[at as usize + row / 4] >> (2 * (row % 4))) & 3
        })
    }

    /// Returns the child that a row of an inner node refers to.
    ///
    /// # Panics
    /// If the node is a leaf.
    #[inline]
    pub fn child(&self, row: usize) -> NodeId {
        assert!(self.0.level > 0, "a leaf has no children");
        let value = self.value(row);
        let number = value.first_chunk().expect("an inner node was checked");
        NodeId::from_le_bytes(*number)
    }

    /// Returns the rows of the keys between two bounds.
    pub(super) fn between(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Range<usize> {
        let start = match from {
            Bound::Included(key) => self.lower_bound(key),
            Bound::Excluded(key) => self.rows_of(key).end,
            Bound::Unbounded => 0,
        };
        let end = match to {
            Bound::Included(key) => self.rows_of(key).end,
            Bound::Excluded(key) => self.lower_bound(key),
            Bound::Unbounded => self.rows(),
        };
        start..end.max(start)
    }

    /// Returns the rows of `key`; if there are none, an empty range at the position where these
    /// rows would be.
    pub(super) fn rows_of(&self, key: &[u8]) -> Range<usize> {
        let (first, equal) = self.locate(key);
        first..if equal { self.run_end(first) } else { first }
    }

    /// Row `row` holds a version of a key. Returns the first row after the last version of that
    /// key.
    pub(super) fn run_end(&self, row: usize) -> usize {
        let mut end = row + 1;
        if self.0.seqs.is_some() {
            while end < self.rows() && self.compare_rows(row, end).is_eq() {
                end += 1;
            }
        }
        end
    }

    /// Returns the first row that has the same key as the row `row`. The first row has the newest
    /// version of that key.
    pub(super) fn run_start(&self, row: usize) -> usize {
        let mut start = row;
        if self.0.seqs.is_some() {
            while start > 0 && self.compare_rows(start - 1, row).is_eq() {
                start -= 1;
            }
        }
        start
    }

    /// Returns the newest version of `key` that is not newer than `seq`. The version may be a
    /// deletion.
    #[inline]
    pub fn find(&self, key: &[u8], seq: Seq) -> Option<(Kind, Value<'_>)> {
        self.0.fetch_ahead();
        let (first, equal) = self.locate(key);
        if !equal {
            return None;
        }
        let row = self.visible(first, seq)?;
        Some((self.kind(row), self.value(row)))
    }

    /// Returns the row of the newest version that is not newer than `seq`, among the versions of
    /// the key whose newest version is in row `first`.
    #[inline]
    pub(super) fn visible(&self, first: usize, seq: Seq) -> Option<usize> {
        if self.0.seqs.is_none() {
            return Some(first);
        }
        let mut row = first;
        while self.seq_of(row) > seq {
            row += 1;
            if row == self.rows() || self.compare_rows(first, row).is_ne() {
                return None;
            }
        }
        Some(row)
    }
}
