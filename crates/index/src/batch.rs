//! Atomic batches of changes, in the form in which the log stores them.
//!
//! An operation is a kind (1 byte), the length of the key and the key; a put also has the length of
//! the value and the value. Lengths are LEB128. A range deletion has its start in place of the key.
//! In place of the value it has one byte, which says whether the range has an end, then the length
//! of the end and the end (length 0 if there is no end). A range deletion that has not reached
//! every leaf is relogged with the sequence number of its batch, in 8 bytes, before its start. The
//! parser trusts no input: an operation that ends too early or has an unknown kind is an error.

use crate::error::Error;
use crate::node::{KEY_BYTES_MAX, Seq};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
/// Kind of the operation that ends a batch.
pub(crate) const END: u8 = 4;
const RANGE_DELETED: u8 = 5;

/// Puts and deletes that become visible and durable together. If a batch changes the same key
/// twice, the later change wins.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    operations: usize,
    /// Number of range deletions among the operations.
    ranges: usize,
    refused: Option<Error>,
    /// Length of the longest value in bytes.
    longest_value: usize,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        key: &'a [u8],
    },
    /// Deletion of the keys from `start` to before `end`; if `end` is `None`, to the end of all
    /// keys.
    DeleteRange {
        start: &'a [u8],
        end: Option<&'a [u8]>,
    },
    /// Range deletion of the batch `seq` that not every leaf has applied. This operation occurs
    /// only in relogged records.
    RangeDeleted {
        seq: Seq,
        start: &'a [u8],
        end: Option<&'a [u8]>,
    },
    End,
}

fn push_length(bytes: &mut Vec<u8>, length: usize) {
    let mut rest = length;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

fn push_field(bytes: &mut Vec<u8>, field: &[u8]) {
    push_length(bytes, field.len());
    bytes.extend_from_slice(field);
}

fn push_range(bytes: &mut Vec<u8>, start: &[u8], end: Option<&[u8]>) {
    push_field(bytes, start);
    bytes.push(u8::from(end.is_some()));
    push_field(bytes, end.unwrap_or_default());
}

/// Appends one operation to `bytes`.
pub(crate) fn push_operation(bytes: &mut Vec<u8>, operation: Operation<'_>) {
    match operation {
        Operation::Put { key, value } => {
            bytes.push(PUT);
            push_field(bytes, key);
            push_field(bytes, value);
        }
        Operation::Delete { key } => {
            bytes.push(DELETE);
            push_field(bytes, key);
        }
        Operation::DeleteRange { start, end } => {
            bytes.push(DELETE_RANGE);
            push_range(bytes, start, end);
        }
        Operation::RangeDeleted { seq, start, end } => {
            bytes.push(RANGE_DELETED);
            bytes.extend_from_slice(&seq.to_le_bytes());
            push_range(bytes, start, end);
        }
        Operation::End => bytes.push(END),
    }
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    fn push(&mut self, key: &[u8], operation: Operation<'_>) {
        if key.len() > KEY_BYTES_MAX {
            self.refused.get_or_insert(Error::KeyTooLong {
                bytes: key.len(),
                max: KEY_BYTES_MAX,
            });
            return;
        }
        self.operations += 1;
        push_operation(&mut self.bytes, operation);
    }

    /// Sets the value of `key`. A key that is too long makes the write of the batch fail.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.longest_value = self.longest_value.max(value.len());
        self.push(key, Operation::Put { key, value });
    }

    /// Deletes `key`, if it exists.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(key, Operation::Delete { key });
    }

    /// Deletes all keys from `start` to before `end`; without an end, all keys from `start` on. The
    /// work for a long range is spread over this batch and later batches (docs/index.md, "Ranges"),
    /// but every later reader sees the whole deletion.
    pub fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        let longer = end.filter(|end| end.len() > start.len()).unwrap_or(start);
        self.ranges += usize::from(longer.len() <= KEY_BYTES_MAX);
        self.push(longer, Operation::DeleteRange { start, end });
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations
    }

    /// Returns true if there are no operations.
    pub fn is_empty(&self) -> bool {
        self.operations == 0
    }

    /// Removes all operations, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.operations = 0;
        self.ranges = 0;
        self.refused = None;
        self.longest_value = 0;
    }

    /// Returns the operations as the log stores them, without the operation that ends a batch.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`] if a key is too long.
    pub(crate) fn bytes(&self) -> Result<&[u8], Error> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => Ok(&self.bytes),
        }
    }

    /// Returns the number of range deletions.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges
    }

    /// Returns the length of the longest value in bytes.
    pub(crate) fn longest_value_bytes(&self) -> usize {
        self.longest_value
    }
}

/// Parser that takes operations from bytes, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operations<'a> {
    rest: &'a [u8],
}

impl<'a> Operations<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Operations<'a> {
        Operations { rest: bytes }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn length(&mut self) -> Option<usize> {
        let mut length = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            length |= usize::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(length);
            }
        }
        None
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        let (field, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(field)
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        self.field().filter(|key| key.len() <= KEY_BYTES_MAX)
    }

    /// Takes the start and the end of a range.
    fn range(&mut self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let start = self.key()?;
        let has_end = self.byte()?;
        let end = self.key()?;
        Some((start, (has_end == 1).then_some(end)))
    }

    /// Returns the bytes that have not been parsed.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the next operation, `None` at the end, or an error if the bytes are not an
    /// operation.
    pub(crate) fn take(&mut self) -> Result<Option<Operation<'a>>, NotAnOperation> {
        let Some(kind) = self.byte() else {
            return Ok(None);
        };
        self.body(kind).map(Some).ok_or(NotAnOperation)
    }

    fn body(&mut self, kind: u8) -> Option<Operation<'a>> {
        Some(match kind {
            PUT => Operation::Put {
                key: self.key()?,
                value: self.field()?,
            },
            DELETE => Operation::Delete { key: self.key()? },
            DELETE_RANGE => {
                let (start, end) = self.range()?;
                Operation::DeleteRange { start, end }
            }
            RANGE_DELETED => {
                let (seq, rest) = self.rest.split_first_chunk()?;
                self.rest = rest;
                let seq = Seq::from_le_bytes(*seq);
                let (start, end) = self.range()?;
                Operation::RangeDeleted { seq, start, end }
            }
            END => Operation::End,
            _ => return None,
        })
    }
}

/// Error for bytes that are not an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAnOperation;

/// Returns the changes of a batch with all range deletions first, and without the changes that a
/// later range deletion of the batch undoes. So each remaining put or delete is newer than every
/// range deletion of the batch, although all have the same sequence number.
///
/// # Errors
///
/// [`NotAnOperation`] if the bytes are not operations.
pub(crate) fn ranges_first(bytes: &[u8]) -> Result<Cow<'_, [u8]>, NotAnOperation> {
    let mut operations = Operations::new(bytes);
    let mut all = Vec::new();
    let mut is_in_order = true;
    while let Some(operation) = operations.take()? {
        if matches!(operation, Operation::DeleteRange { .. }) {
            let is_range = |other: &Operation<'_>| matches!(other, Operation::DeleteRange { .. });
            is_in_order &= all.last().is_none_or(is_range);
        }
        all.push(operation);
    }
    if is_in_order {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut deleted = Ranges::default();
    let (mut ranges, mut others) = (Vec::new(), Vec::new());
    for operation in all.into_iter().rev() {
        match operation {
            Operation::DeleteRange { start, end } => {
                deleted.add(start, end);
                ranges.push(operation);
            }
            Operation::Put { key, .. } | Operation::Delete { key } if deleted.has(key) => {}
            _ => others.push(operation),
        }
    }
    let mut ordered = Vec::with_capacity(bytes.len());
    let both = ranges.into_iter().rev().chain(others.into_iter().rev());
    both.for_each(|operation| push_operation(&mut ordered, operation));
    Ok(Cow::Owned(ordered))
}

/// Ranges of keys that do not touch each other. The map's key is the start of a range, and its
/// value is the end of the range; `None` means that the range has no end.
#[derive(Debug, Default)]
struct Ranges<'a>(BTreeMap<&'a [u8], Option<&'a [u8]>>);

impl<'a> Ranges<'a> {
    /// Returns the range that contains `key` or ends at `key`.
    fn around(&self, key: &[u8]) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let before = self
            .0
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (start, end) = before.last()?;
        end.is_none_or(|end| key <= end).then_some((*start, *end))
    }

    fn has(&self, key: &[u8]) -> bool {
        let around = self.around(key);
        around.is_some_and(|(_, end)| end.is_none_or(|end| key < end))
    }

    fn add(&mut self, start: &'a [u8], end: Option<&'a [u8]>) {
        if end.is_some_and(|end| end <= start) {
            return;
        }
        let (mut start, mut end) = (start, end);
        if let Some((first, its_end)) = self.around(start) {
            start = first;
            end = end.zip(its_end).map(|(one, other)| one.max(other));
        }
        // Ranges that begin in the merged range become a part of it, and may extend it further.
        while let Some((next, its_end)) = self.next_in(start, end) {
            self.0.remove(next);
            end = end.zip(its_end).map(|(one, other)| one.max(other));
        }
        self.0.insert(start, end);
    }

    /// Returns the first range that begins at or after `start`, and not after `end`.
    fn next_in(&self, start: &[u8], end: Option<&[u8]>) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let behind = self
            .0
            .range::<[u8], _>((Bound::Included(start), Bound::Unbounded));
        let (next, its_end) = behind.into_iter().next()?;
        end.is_none_or(|end| *next <= end)
            .then_some((*next, *its_end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Result<Vec<Operation<'_>>, NotAnOperation> {
        let mut operations = Operations::new(bytes);
        let mut all = Vec::new();
        while let Some(operation) = operations.take()? {
            all.push(operation);
        }
        Ok(all)
    }

    #[test]
    fn a_batch_is_read_as_it_was_made() {
        let long = vec![7; 300];
        let mut batch = Batch::new();
        batch.put(b"a", b"1");
        batch.put(b"", &long);
        batch.delete(b"b");
        batch.delete_range(b"c", Some(b"d"));
        batch.delete_range(b"e", None);
        let mut bytes = batch.bytes().unwrap().to_vec();
        let deleted = Operation::RangeDeleted {
            seq: 0x0102_0304_0506,
            start: b"f",
            end: Some(b"g"),
        };
        push_operation(&mut bytes, deleted);
        // The first operation takes five bytes: one for its kind, two for the key with its length,
        // and two for the value with its length. The length 300 in the second operation takes two
        // bytes.
        assert_eq!(bytes[..5], [1, 1, b'a', 1, b'1']);
        assert_eq!(bytes[5..9], [1, 0, 0xAC, 0x02]);
        let expected = [
            Operation::Put {
                key: b"a",
                value: b"1",
            },
            Operation::Put {
                key: b"",
                value: &long,
            },
            Operation::Delete { key: b"b" },
            Operation::DeleteRange {
                start: b"c",
                end: Some(b"d"),
            },
            Operation::DeleteRange {
                start: b"e",
                end: None,
            },
            deleted,
        ];
        assert_eq!(all(&bytes).unwrap(), expected);
    }

    #[test]
    fn a_key_that_is_too_long_refuses_the_batch() {
        let mut batch = Batch::new();
        batch.put(&[0; KEY_BYTES_MAX], b"");
        assert!(batch.bytes().is_ok());
        batch.delete(&[0; KEY_BYTES_MAX + 1]);
        let refused = Error::KeyTooLong {
            bytes: KEY_BYTES_MAX + 1,
            max: KEY_BYTES_MAX,
        };
        assert_eq!(batch.bytes(), Err(refused));
    }

    /// Applies a batch to an ordered map that initially has all keys of the test, and returns the
    /// map.
    fn applied(bytes: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let every_key = (0..=6).flat_map(|a| [vec![a], vec![a, 0]]);
        let mut map: BTreeMap<Vec<u8>, Vec<u8>> = every_key.map(|key| (key, vec![99])).collect();
        for operation in all(bytes).expect("operations") {
            match operation {
                Operation::Put { key, value } => {
                    map.insert(key.to_vec(), value.to_vec());
                }
                Operation::Delete { key } => {
                    map.remove(key);
                }
                Operation::DeleteRange { start, end } => {
                    map.retain(|key, _| **key < *start || end.is_some_and(|end| **key >= *end));
                }
                Operation::RangeDeleted { .. } | Operation::End => {}
            }
        }
        map
    }

    proptest! {
        #[test]
        fn ranges_may_come_first(
            drawn in proptest::collection::vec((0..4_u8, 0..7_u8, 0..7_u8), 0..14),
        ) {
            let mut batch = Batch::new();
            for (number, (kind, one, other)) in drawn.into_iter().enumerate() {
                match kind {
                    0 => batch.put(&[one], &[number as u8]),
                    1 => batch.delete(&[one]),
                    2 => batch.delete_range(&[one], Some(&[other])),
                    _ => batch.delete_range(&[one, 0], (other > 0).then_some(&[other])),
                }
            }
            let bytes = batch.bytes().expect("short keys");
            let ordered = ranges_first(bytes).expect("operations");
            prop_assert_eq!(applied(bytes), applied(&ordered));
            let operations = all(&ordered).expect("operations");
            let is_range = |o: &Operation<'_>| matches!(o, Operation::DeleteRange { .. });
            let ranges = operations.iter().take_while(|o| is_range(o)).count();
            prop_assert_eq!(ranges, batch.ranges());
            // All other changes come after the range deletions, so applying the operations in order
            // undoes none of those changes.
            prop_assert!(!operations[ranges..].iter().any(is_range));
        }

        #[test]
        fn no_bytes_are_believed_beyond_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(operations) = all(&bytes) {
                let mut again = Vec::new();
                for operation in operations {
                    push_operation(&mut again, operation);
                }
                prop_assert!(again.len() <= bytes.len());
            }
        }
    }
}
