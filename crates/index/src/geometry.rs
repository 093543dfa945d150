//! Fixed properties of an index, chosen at its creation, and the location of its parts.

use crate::storage::BLOCK_BYTES;

/// Byte of the storage at which the log begins.
pub(crate) const LOG_OFFSET: u64 = 64 << 10;
/// Minimum length of a segment in bytes.
pub(crate) const MIN_SEGMENT_BYTES: u32 = 64 << 10;
pub(crate) const MAX_SEGMENT_BYTES: u32 = 4 << 20;
/// Minimum number of blocks of the log.
pub(crate) const MIN_LOG_BLOCKS: u64 = 64;
pub(crate) const MAX_LOG_BLOCKS: u64 = 1 << 28;

/// Properties of an index that are fixed at its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Identifies the index, so that bytes of another index are recognised.
    pub id: u64,
    /// Maximum number of blocks of the log.
    pub log_blocks: u64,
    pub segment_bytes: u32,
    /// Number of blocks at the front of the storage, before the segments, that the log can use.
    pub front_blocks: u64,
}

impl Geometry {
    /// Returns the geometry of a new index. Its log begins with the blocks that fit before the
    /// first segment, but at least with the minimum length of a log.
    pub(crate) fn new(id: u64, log_blocks: u64, segment_bytes: u32) -> Geometry {
        let before_segments = u64::from(segment_bytes).saturating_sub(LOG_OFFSET);
        let front_blocks = (before_segments / BLOCK_BYTES as u64).max(MIN_LOG_BLOCKS);
        // If the maximum length of the log is less than twice the front, the log has its maximum
        // length from the beginning.
        let front_blocks = match log_blocks < front_blocks * 2 {
            true => log_blocks,
            false => front_blocks,
        };
        Geometry {
            id,
            log_blocks,
            segment_bytes,
            front_blocks,
        }
    }

    /// Returns true if an index can have this geometry.
    pub(crate) fn is_possible(&self) -> bool {
        self.segment_bytes.is_power_of_two()
            && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&self.segment_bytes)
            && (MIN_LOG_BLOCKS..=MAX_LOG_BLOCKS).contains(&self.log_blocks)
            && (MIN_LOG_BLOCKS..=self.log_blocks).contains(&self.front_blocks)
    }

    /// Returns the byte at which the segments begin.
    pub(crate) fn segments_offset(&self) -> u64 {
        let front_end = LOG_OFFSET + self.front_blocks * BLOCK_BYTES as u64;
        front_end.next_multiple_of(u64::from(self.segment_bytes))
    }

    /// Returns the byte at which a segment begins.
    pub(crate) fn segment_offset(&self, segment: u32) -> u64 {
        self.segments_offset() + u64::from(segment) * u64::from(self.segment_bytes)
    }

    /// Returns the number of segments of a storage of this length.
    pub(crate) fn segments(&self, len_bytes: u64) -> u32 {
        let bytes = len_bytes.saturating_sub(self.segments_offset());
        u32::try_from(bytes / u64::from(self.segment_bytes)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_come_after_the_front_at_a_multiple_of_their_length() {
        let geometry = Geometry::new(1, 512, 1 << 20);
        // The segments begin at 1 MiB. The space in front of them consists of 64 KiB before the
        // log, and of the front of the log, which has 240 blocks of 4 KiB.
        assert_eq!(geometry.segments_offset(), 1 << 20);
        assert_eq!(geometry.segment_offset(3), 4 << 20);
        assert_eq!(geometry.segments((4 << 20) + 100), 3);
        assert_eq!(geometry.segments(0), 0);
        // Up to version 4 of the format, the whole log was at the front: 64 KiB, then 512 blocks of
        // 4 KiB.
        let old = Geometry {
            front_blocks: 512,
            ..geometry
        };
        assert_eq!(old.segments_offset(), 3 << 20);
        for (log_blocks, segment_bytes, front_blocks) in [
            (64, 64 << 10, 64),
            (127, 64 << 10, 127),
            (1 << 20, 64 << 10, 64),
            (1 << 20, 1 << 20, 240),
            (1 << 20, 4 << 20, 1008),
        ] {
            let geometry = Geometry::new(1, log_blocks, segment_bytes);
            assert_eq!(geometry.front_blocks, front_blocks);
            assert!(geometry.is_possible());
        }
    }
}
