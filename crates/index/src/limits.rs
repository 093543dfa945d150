//! Size limits of keys, values and batches. Each limit is checked when a write is called, before
//! anything has changed.

use crate::batch::{Batch, ranges_first};
use crate::error::Error;
use crate::layout::Geometry;
use crate::log::HEADER_BYTES;
use crate::node::{BLOB_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::storage::BLOCK_BYTES;
use crate::tree::blob::Reference;

/// Divisor of the length of the log: the quotient is the maximum length of a batch, so that the log
/// has room for several batches.
const LOG_SHARE: u64 = 8;
/// Exclusive upper bound of the length of a batch in bytes, for any length of the log. The bound
/// exists because the part of a batch that concerns one leaf is in memory as a whole.
const BATCH_BYTES_MAX: usize = 1 << 30;
/// Divisor of the length of a segment: the quotient is the maximum length of a row's value field.
const ROW_SHARE: usize = 8;

/// Size limits of keys, values and batches of an index, in bytes
/// ([`Db::limits`](crate::Db::limits)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a key.
    pub key_bytes_max: usize,
    /// Maximum length of a value. This limit depends on the length of a segment, which was chosen
    /// when the index was created.
    pub value_bytes_max: usize,
    /// Maximum length of a batch: its keys, its values, and 2 to 8 bytes for each operation. The
    /// limit is slightly below an eighth of the log, and always below 1 GiB. The length of the log
    /// was chosen when the index was created.
    pub batch_bytes_max: usize,
}

impl Limits {
    pub(crate) fn of(geometry: &Geometry) -> Limits {
        let log_bytes = geometry.log_blocks * BLOCK_BYTES as u64;
        let share = usize::try_from(log_bytes / LOG_SHARE).unwrap_or(usize::MAX);
        let parts = Reference::parts_max(row_bytes_max(geometry.segment_bytes));
        Limits {
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max: parts.saturating_mul(blob_bytes_max(geometry.segment_bytes)),
            batch_bytes_max: share.min(BATCH_BYTES_MAX) - HEADER_BYTES - 1,
        }
    }
}

impl Limits {
    /// Checks a batch, and returns its operations in the order of the log: range deletions first.
    ///
    /// # Errors
    ///
    /// If a key, a value or the whole batch is too long.
    pub(crate) fn check(&self, batch: &Batch) -> Result<Vec<u8>, Error> {
        let operations = batch.bytes()?;
        let (value_bytes, bytes) = (batch.longest_value_bytes(), operations.len());
        if value_bytes > self.value_bytes_max {
            return Err(Error::ValueTooLong {
                bytes: value_bytes,
                max: self.value_bytes_max,
            });
        }
        match bytes > self.batch_bytes_max {
            true => Err(Error::BatchTooLong {
                bytes,
                max: self.batch_bytes_max,
            }),
            false if batch.ranges() == 0 => Ok(operations.to_vec()),
            false => {
                let ordered = ranges_first(operations);
                Ok(ordered.expect("a batch is operations").into_owned())
            }
        }
    }
}

/// Returns the maximum length in bytes of the value field of a row. The field holds the value or a
/// reference to it.
pub(crate) fn row_bytes_max(segment_bytes: u32) -> usize {
    (segment_bytes as usize / ROW_SHARE).min(VALUE_BYTES_MAX)
}

/// Returns the maximum bytes of one part of an out-of-line value.
pub(crate) fn blob_bytes_max(segment_bytes: u32) -> usize {
    BLOB_BYTES_MAX.min(segment_bytes as usize / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_as_the_page_says() {
        let limits =
            |log_blocks, segment_bytes| Limits::of(&Geometry::new(1, log_blocks, segment_bytes));
        // docs/index.md, "Limits": 64 MiB of log, segments of 1 MiB.
        let usual = limits(16 << 10, 1 << 20);
        assert_eq!(usual.batch_bytes_max, (8 << 20) - 97);
        // A row's value field has at most 64 KiB; an eighth of the segment would be more. A
        // reference to a value takes 12 bytes of this field, and 4 bytes for each part of the
        // value. So a value has at most (64 KiB - 12) / 4 parts, of 512 KiB each.
        assert_eq!(usual.value_bytes_max, 16_381 * (512 << 10));
        // The smallest possible index: a row's value field has at most 8 KiB, an eighth of a
        // segment. So a value has at most (8 KiB - 12) / 4 parts, of 32 KiB each.
        let least = limits(64, 64 << 10);
        assert_eq!(least.batch_bytes_max, (32 << 10) - 97);
        assert_eq!(least.value_bytes_max, 2_045 * (32 << 10));
        // 1 TiB of log.
        assert_eq!(limits(1 << 28, 4 << 20).batch_bytes_max, (1 << 30) - 97);
    }
}
