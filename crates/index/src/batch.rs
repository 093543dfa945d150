//! Changes that happen together or not at all, in the form in which they stand in the log.
//!
//! An operation is a kind (1 byte), the length of the key and the key, and for a put the length of the
//! value and the value; lengths are LEB128. A range deletion has its start where others have the key,
//! and its end, with one byte before that says whether there is one, where others have the value.
//! Reading believes nothing: what ends too early or has an unknown kind is an error.

use crate::error::Error;
use crate::node::KEY_BYTES_MAX;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
/// Stands after the last operation of a batch.
pub(crate) const END: u8 = 4;

/// Puts and deletes that become visible and durable together. A later one of the same key wins.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    operations: usize,
    refused: Option<Error>,
    /// Bytes of the longest value.
    longest_value: usize,
}

/// One operation, as read from a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        key: &'a [u8],
    },
    /// From `start` to before `end`; `None` is the end of all keys.
    DeleteRange {
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

/// Appends one operation.
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
            push_field(bytes, start);
            bytes.push(u8::from(end.is_some()));
            push_field(bytes, end.unwrap_or_default());
        }
        Operation::End => bytes.push(END),
    }
}

impl Batch {
    /// An empty batch.
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

    /// `key` has `value` from now on. A key that is too long makes the write of the batch fail.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.longest_value = self.longest_value.max(value.len());
        self.push(key, Operation::Put { key, value });
    }

    /// `key` is gone, if it was there.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(key, Operation::Delete { key });
    }

    /// All keys from `start` to before `end` are gone; without an end, all from `start` on.
    pub fn delete_range(&mut self, start: &[u8], end: Option<&[u8]>) {
        let longer = end.filter(|end| end.len() > start.len()).unwrap_or(start);
        self.push(longer, Operation::DeleteRange { start, end });
    }

    /// Operations so far.
    pub fn len(&self) -> usize {
        self.operations
    }

    /// True without operations.
    pub fn is_empty(&self) -> bool {
        self.operations == 0
    }

    /// Takes everything out again, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.operations = 0;
        self.refused = None;
        self.longest_value = 0;
    }

    /// Its operations as they stand in the log, without the end.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`] if one of its keys is.
    pub(crate) fn bytes(&self) -> Result<&[u8], Error> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => Ok(&self.bytes),
        }
    }

    /// Bytes of its longest value.
    pub(crate) fn longest_value_bytes(&self) -> usize {
        self.longest_value
    }
}

/// Takes operations from bytes, one after the other.
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

    /// The next operation; an error if the bytes are none.
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
                let start = self.key()?;
                let has_end = self.byte()?;
                let end = self.key()?;
                Operation::DeleteRange {
                    start,
                    end: (has_end == 1).then_some(end),
                }
            }
            END => Operation::End,
            _ => return None,
        })
    }
}

/// Bytes that are no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAnOperation;

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
        let bytes = batch.bytes().unwrap();
        // 1 + (1 + 1) + (1 + 1) for the first; 300 takes two bytes.
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
        ];
        assert_eq!(all(bytes).unwrap(), expected);
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

    proptest! {
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
