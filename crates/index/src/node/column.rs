//! Columns: the cells of one field of all rows, stored one after the other.
//!
//! A column stores only the position of its cells; callers pass in the bytes of the image.
//! [`Ints::parse`] and [`Column::parse`] check that every load of every row stays inside the image
//! and the padding after it. So the loads themselves only assert this.

use super::header::{ColumnHead, Form};
use super::search::partition;
use super::spread::Spread;
use super::{ImageError, PADDING_BYTES};
use std::cmp::Ordering;
use std::ops::Range;

/// Cursor that takes consecutive sections of an image, from the front.
pub(super) struct Sections<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    pub end: usize,
}

impl Sections<'_> {
    /// Takes the next section, of `count` cells of `each` bytes, and returns its offset.
    pub fn take(&mut self, count: usize, each: usize) -> Result<usize, ImageError> {
        let at = self.at;
        let len = count.saturating_mul(each);
        if len > self.end - at {
            return Err(ImageError::Malformed(
                "a column beyond the end of the image",
            ));
        }
        self.at += len;
        Ok(at)
    }

    /// Takes the next 8 bytes as a little-endian number.
    pub fn take_u64(&mut self) -> Result<u64, ImageError> {
        let at = self.take(1, 8)?;
        Ok(le_u64(self.bytes, at))
    }
}

/// Returns the eight bytes from `at` as a little-endian number. An image is followed by padding, so
/// these eight bytes exist for every position in the image.
#[inline(always)]
fn le_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(eight(bytes, at))
}

#[inline(always)]
fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    let end = at.wrapping_add(PADDING_BYTES);
    let bytes = bytes.get(at..end).expect("the padding is behind the image");
    *bytes.first_chunk().expect("the slice has 8 bytes")
}

/// Returns the first bytes, at most 8, as a big-endian number.
#[inline(always)]
pub(super) fn number(bytes: &[u8]) -> u64 {
    let ends = |first: u64, last: u64, width: usize| first << (8 * (bytes.len() - width)) | last;
    if let Some(all) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*all);
    }
    // The two loads overlap: a byte that is in both of them sets the same bits twice.
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_be_bytes(*first), u32::from_be_bytes(*last));
        return ends(first.into(), last.into(), 4);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u16::from_be_bytes(*first), u16::from_be_bytes(*last));
        return ends(first.into(), last.into(), 2);
    }
    bytes.first().copied().unwrap_or(0).into()
}

/// Returns the first 8 bytes as a big-endian number; a shorter string is padded with zeroes. If the
/// heads of two strings differ, the strings are in the order of their heads.
#[inline(always)]
pub(crate) fn head(bytes: &[u8]) -> u64 {
    match bytes.len() {
        0 => 0,
        len @ 1..8 => number(bytes) << (64 - 8 * len),
        _ => number(bytes),
    }
}

/// The first 8 bytes (the [head]) and the length of a prefix, kept beside the other fields that a
/// search reads first. The prefix itself is in a cache line of its own. A search reads that line
/// only if the prefix is longer than 8 bytes, or the key shorter than 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Start {
    /// The [head] of the prefix.
    head: u64,
    /// Length of the prefix.
    len: u16,
}

impl Start {
    /// Returns the start of `prefix`.
    pub fn of(prefix: &[u8]) -> Start {
        let len = u16::try_from(prefix.len());
        Start {
            head: head(prefix),
            len: len.expect("a prefix is no longer than a key"),
        }
    }

    /// Returns the length of the prefix in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Compares the beginning of `key` with `prefix`. The result is `Equal` exactly if `key` begins
    /// with `prefix`. A key that ends inside the prefix is less.
    #[inline(always)]
    pub fn compare<'a>(&self, key: &[u8], prefix: impl FnOnce() -> &'a [u8]) -> Ordering {
        match (key.first_chunk::<8>(), self.len()) {
            (_, 0) => Ordering::Equal,
            (Some(first), len @ 1..=8) => {
                let beyond = 64 - 8 * len;
                (u64::from_be_bytes(*first) >> beyond).cmp(&(self.head >> beyond))
            }
            (_, len) => key[..key.len().min(len)].cmp(prefix()),
        }
    }
}

/// Returns the number of bytes that `number` needs, 0 to 8.
pub(super) fn width(number: u64) -> u8 {
    u8::try_from(8 - number.leading_zeros() / 8).expect("at most 8")
}

/// Packed offsets of `width` bytes each, relative to a base.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ints {
    base: u64,
    at: u32,
    width: u8,
}

impl Ints {
    /// Takes the section with the offsets of `count` rows.
    pub fn parse(
        sections: &mut Sections<'_>,
        count: usize,
        width: u8,
        base: u64,
    ) -> Result<Self, ImageError> {
        let at = sections.take(count, width.into())?;
        Ok(Self {
            base,
            at: u32::try_from(at).expect("an image is shorter than 4 MiB"),
            width,
        })
    }

    /// Returns the offset of a row.
    #[inline(always)]
    pub fn offset(&self, bytes: &[u8], row: usize) -> u64 {
        let at = row.wrapping_mul(self.width.into());
        le_u64(bytes, at.wrapping_add(self.at as usize)) & mask(self.width)
    }

    /// Returns the number that a row encodes: the base plus the offset of the row.
    #[inline(always)]
    pub fn number(&self, bytes: &[u8], row: usize) -> u64 {
        self.base.wrapping_add(self.offset(bytes, row))
    }

    /// Returns the string of a row: the lowest `len` bytes of the row's number, highest byte first,
    /// followed by zeroes up to eight bytes. Because the result has a fixed length, the caller need
    /// not copy a variable number of bytes.
    #[inline(always)]
    pub fn key(&self, bytes: &[u8], row: usize, len: u8) -> [u8; 8] {
        let shift = 64 - 8 * u32::from(len);
        let number = self.number(bytes, row).checked_shl(shift);
        number.unwrap_or(0).to_be_bytes()
    }

    /// Returns the offset that encodes `number`; `None` if `number` is below the base.
    #[inline(always)]
    pub fn offset_of(&self, number: u64) -> Option<u64> {
        number.checked_sub(self.base)
    }

    /// Returns the first of ascending rows whose offset is not less than `offset`.
    #[inline]
    pub fn lower_bound(&self, rows: Sorted<'_>, offset: u64) -> usize {
        let bytes = &rows.bytes[self.at as usize..];
        match self.width {
            0 if offset == 0 => 0,
            0 => rows.count,
            1 => search::<1>(bytes, rows, offset),
            2 => search::<2>(bytes, rows, offset),
            3 => search::<3>(bytes, rows, offset),
            4 => search::<4>(bytes, rows, offset),
            5 => search::<5>(bytes, rows, offset),
            6 => search::<6>(bytes, rows, offset),
            7 => search::<7>(bytes, rows, offset),
            _ => search::<8>(bytes, rows, offset),
        }
    }
}

/// Returns a mask of the lowest `width` bytes.
#[inline(always)]
fn mask(width: u8) -> u64 {
    !u64::MAX.unbounded_shl(8 * u32::from(width))
}

/// Returns the first row whose offset is not less than `offset`. `bytes` begins with the offsets.
fn search<const WIDTH: usize>(bytes: &[u8], rows: Sorted<'_>, offset: u64) -> usize {
    let mask = const { u64::MAX >> (64 - 8 * WIDTH) };
    rows.spread.partition(rows.count, offset, |row| {
        le_u64(bytes, row.wrapping_mul(WIDTH)) & mask < offset
    })
}

/// Layout and position of the cells of one field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    /// Numbers that encode strings of `len` bytes.
    Ints { ints: Ints, len: u8 },
    /// Strings of one length.
    Fixed { at: u32, len: u32 },
    /// Strings of any length: row `i` lies between boundary `i` and boundary `i + 1`.
    Var { bounds: Ints, at: u32 },
}

impl Column {
    /// Takes a column of `rows` cells of at most `max` bytes, in the layout that `head` describes.
    /// Offsets are relative to `base`, or, if `base` is `None`, to a base that is stored in front
    /// of the offsets.
    pub fn parse(
        sections: &mut Sections<'_>,
        head: &ColumnHead,
        rows: usize,
        base: Option<u64>,
        max: usize,
    ) -> Result<Self, ImageError> {
        let small = |at| u32::try_from(at).expect("an image is shorter than 4 MiB");
        match head.form {
            Form::Ints => {
                let base = base.map_or_else(|| sections.take_u64(), Ok)?;
                let ints = Ints::parse(sections, rows, head.width, base)?;
                let len = u8::try_from(head.len).expect("the header was checked");
                Ok(Self::Ints { ints, len })
            }
            Form::Fixed => {
                let at = sections.take(rows, head.len as usize)?;
                let at = small(at);
                Ok(Self::Fixed { at, len: head.len })
            }
            Form::Var => {
                let bounds = Ints::parse(sections, rows + 1, head.width, 0)?;
                let all = ascending(sections.bytes, &bounds, rows, max as u64)?;
                let at = small(sections.take(1, usize::try_from(all).unwrap_or(usize::MAX))?);
                Ok(Self::Var { bounds, at })
            }
        }
    }

    /// Returns the cell of a row in a column of strings; `None` in a column of numbers.
    #[inline(always)]
    pub fn string<'a>(&self, bytes: &'a [u8], row: usize) -> Option<&'a [u8]> {
        let range = match *self {
            Self::Ints { .. } => return None,
            Self::Fixed { at, len } => fixed(at, len, row),
            Self::Var { bounds, at } => var(&bounds, at, bytes, row),
        };
        Some(&bytes[range])
    }

    /// Compares the cell of a row with `key`.
    pub fn compare(&self, bytes: &[u8], row: usize, key: &[u8]) -> Ordering {
        match *self {
            Self::Ints { ints, len } => {
                let number = ints.number(bytes, row).to_be_bytes();
                number[8 - usize::from(len)..].cmp(key)
            }
            Self::Fixed { at, len } => bytes[fixed(at, len, row)].cmp(key),
            Self::Var { bounds, at } => bytes[var(&bounds, at, bytes, row)].cmp(key),
        }
    }

    /// Returns the distribution of `rows` ascending cells, which lets a search guess the row of a
    /// key. It is computed from the numbers that [`locate`](Self::locate) compares.
    pub fn spread(&self, bytes: &[u8], rows: usize) -> Spread {
        match *self {
            Self::Ints { ints, .. } => Spread::of(rows, |row| ints.offset(bytes, row)),
            Self::Fixed { at, len } => Spread::of(rows, |row| fixed_head(at, len, bytes, row)),
            Self::Var { bounds, at } => Spread::of(rows, |row| var_head(&bounds, at, bytes, row)),
        }
    }

    /// Returns the first of the ascending `rows` whose cell is not less than `key`, or the number
    /// of rows if there is none. Also returns whether that cell is equal to `key`.
    #[inline]
    pub fn locate(&self, rows: Sorted<'_>, key: &[u8]) -> (usize, bool) {
        let bytes = rows.bytes;
        match *self {
            Self::Ints { ints, len } => locate_number(rows, &ints, len, key),
            Self::Fixed { at, len } => {
                let head = |row: usize| fixed_head(at, len, bytes, row);
                locate_string(rows, key, head, |row| &bytes[fixed(at, len, row)])
            }
            Self::Var { bounds, at } => {
                let head = |row: usize| var_head(&bounds, at, bytes, row);
                locate_string(rows, key, head, |row| &bytes[var(&bounds, at, bytes, row)])
            }
        }
    }
}

/// Ascending rows to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sorted<'a> {
    /// The image and the padding.
    pub bytes: &'a [u8],
    pub count: usize,
    pub spread: &'a Spread,
}

/// Returns the [head](head) of a cell of `len` bytes.
#[inline(always)]
fn fixed_head(at: u32, len: u32, bytes: &[u8], row: usize) -> u64 {
    let shift = 64 - 8 * len.clamp(1, 8);
    // The head of an empty cell is 0. A shift by 64 bits would overflow, so the mask `keep` sets
    // the head to 0 instead.
    let keep = if len == 0 { 0 } else { u64::MAX };
    let at = row.wrapping_mul(len as usize).wrapping_add(at as usize);
    u64::from_be_bytes(eight(bytes, at)) >> shift << shift & keep
}

/// Returns the [head](head) of a cell of variable length.
#[inline(always)]
fn var_head(bounds: &Ints, at: u32, bytes: &[u8], row: usize) -> u64 {
    let range = var(bounds, at, bytes, row);
    let len = range.end.wrapping_sub(range.start).min(8) as u32;
    let number = u64::from_be_bytes(eight(bytes, range.start));
    number & !u64::MAX.checked_shr(8 * len).unwrap_or(0)
}

#[inline(always)]
fn fixed(at: u32, len: u32, row: usize) -> Range<usize> {
    let start = row.wrapping_mul(len as usize).wrapping_add(at as usize);
    start..start.wrapping_add(len as usize)
}

#[inline(always)]
fn var(bounds: &Ints, at: u32, bytes: &[u8], row: usize) -> Range<usize> {
    let bound = |row| (bounds.offset(bytes, row) as usize).wrapping_add(at as usize);
    bound(row)..bound(row.wrapping_add(1))
}

/// Checks that the boundaries of `rows` strings start at 0 and ascend, and that no string is longer
/// than `max`. Returns the total length of the strings.
fn ascending(bytes: &[u8], bounds: &Ints, rows: usize, max: u64) -> Result<u64, ImageError> {
    let mut last = bounds.offset(bytes, 0);
    let mut fine = last == 0;
    for row in 1..=rows {
        let bound = bounds.offset(bytes, row);
        fine &= bound.checked_sub(last).is_some_and(|len| len <= max);
        last = bound;
    }
    if fine {
        Ok(last)
    } else {
        Err(ImageError::Malformed("invalid boundaries"))
    }
}

#[inline(always)]
fn locate_number(rows: Sorted<'_>, ints: &Ints, len: u8, key: &[u8]) -> (usize, bool) {
    let len = usize::from(len);
    let (target, same_len) = if key.len() == len {
        (Some(number(key)), true)
    } else if key.len() < len {
        // The first string that begins with the key is the key followed by zeroes.
        (Some(head(key) >> (64 - 8 * len)), false)
    } else {
        // A string that is a proper prefix of the key comes before the key, so the search looks for
        // the next larger number.
        (number(&key[..len]).checked_add(1), false)
    };
    let Some(target) = target else {
        return (rows.count, false);
    };
    let Some(offset) = ints.offset_of(target) else {
        return (0, false);
    };
    let row = ints.lower_bound(rows, offset);
    let equal = same_len && row < rows.count && ints.offset(rows.bytes, row) == offset;
    (row, equal)
}

#[inline(always)]
fn locate_string<'a>(
    sorted: Sorted<'_>,
    key: &[u8],
    head_of: impl Fn(usize) -> u64,
    string: impl Fn(usize) -> &'a [u8],
) -> (usize, bool) {
    let (rows, wanted) = (sorted.count, head(key));
    let row = sorted
        .spread
        .partition(rows, wanted, |row| head_of(row) < wanted);
    if row == rows || head_of(row) != wanted {
        return (row, false);
    }
    match string(row).cmp(key) {
        Ordering::Equal => (row, true),
        Ordering::Greater => (row, false),
        Ordering::Less => {
            let after = row + 1;
            let more = partition(rows - after, |more| string(after + more) < key);
            let row = after + more;
            (row, row < rows && string(row) == key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_start_compares_as_the_strings_do(
            key in vec(0..3_u8, 0..20),
            prefix in vec(0..3_u8, 0..12),
            goes_on in any::<bool>(),
        ) {
            let key = if goes_on { [&prefix[..], &key].concat() } else { key };
            let expected = match key.starts_with(&prefix) {
                true => Ordering::Equal,
                false => key.cmp(&prefix),
            };
            prop_assert_eq!(Start::of(&prefix).compare(&key, || &prefix), expected);
        }
    }
}
