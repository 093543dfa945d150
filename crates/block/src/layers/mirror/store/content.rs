//! Checksums of the content of a change, made once when it is admitted and used by every side.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;

use crate::BLOCK_BYTES;
use crate::extent_map::Cut;

/// The CRC32C of each block of some content. Cutting shares them.
#[derive(Clone, Debug)]
pub(in super::super) struct Crcs {
    all: Rc<[u32]>,
    blocks: Range<usize>,
}

impl Crcs {
    /// Of content that is zeroes, and of none.
    pub(in super::super) fn none() -> Crcs {
        Crcs::new(Vec::new())
    }

    /// From values that are known.
    pub(super) fn new(values: Vec<u32>) -> Crcs {
        Crcs {
            blocks: 0..values.len(),
            all: values.into(),
        }
    }

    /// Of a payload of whole blocks.
    pub(in super::super) fn of(payload: &Payload) -> Crcs {
        let mut values = Vec::with_capacity(payload.len() / BLOCK_BYTES as usize);
        let (mut crc, mut left) = (0, BLOCK_BYTES as usize);
        for slice in payload.slices() {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let (part, after) = rest.split_at(rest.len().min(left));
                crc = crc32c::crc32c_append(crc, part);
                left -= part.len();
                rest = after;
                if left == 0 {
                    values.push(crc);
                    (crc, left) = (0, BLOCK_BYTES as usize);
                }
            }
        }
        assert_eq!(left, BLOCK_BYTES as usize, "content is whole blocks");
        Crcs::new(values)
    }

    /// One value for each block.
    pub(super) fn values(&self) -> &[u32] {
        &self.all[self.blocks.clone()]
    }

    /// True when a payload is what these were made of.
    pub(super) fn agree_with(&self, payload: &Payload) -> bool {
        Crcs::of(payload).values() == self.values()
    }
}

impl Cut for Crcs {
    /// The checksums of a part; no checksums stay none.
    fn cut(&self, range: Range<u64>) -> Crcs {
        if self.blocks.is_empty() {
            return self.clone();
        }
        assert!(
            range.start.is_multiple_of(BLOCK_BYTES) && range.end.is_multiple_of(BLOCK_BYTES),
            "content is cut between blocks"
        );
        let at = |bytes: u64| self.blocks.start + (bytes / BLOCK_BYTES) as usize;
        let blocks = at(range.start)..at(range.end);
        assert!(blocks.end <= self.blocks.end, "a part lies inside");
        Crcs {
            all: Rc::clone(&self.all),
            blocks,
        }
    }
}
