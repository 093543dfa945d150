//! Digests of the content of a change, computed once when the change is admitted and used by every
//! side with the same digest algorithm.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;

use crate::BLOCK_BYTES;
use crate::extent_map::Cut;
use crate::layers::mirror::digest::BlockDigest;

/// The digests of the blocks of some content. If the content is cut, the digests of each part share
/// the stored values of the whole.
#[derive(Clone, Debug)]
pub(in super::super) struct Digests {
    made_by: BlockDigest,
    all: Rc<[u32]>,
    blocks: Range<usize>,
}

impl Digests {
    /// Creates digests from known values.
    pub(super) fn new(made_by: BlockDigest, values: Vec<u32>) -> Digests {
        Digests {
            made_by,
            blocks: 0..values.len(),
            all: values.into(),
        }
    }

    /// Computes the digests of the blocks of a payload.
    ///
    /// # Panics
    /// When the payload is not a whole number of blocks.
    pub(in super::super) fn of(made_by: BlockDigest, payload: &Payload) -> Digests {
        Digests::new(made_by, made_by.of_each(payload))
    }

    /// Returns the algorithm that computed the values.
    pub(super) fn made_by(&self) -> BlockDigest {
        self.made_by
    }

    /// Returns the digest of each block, in order.
    pub(super) fn values(&self) -> &[u32] {
        &self.all[self.blocks.clone()]
    }

    /// Returns true when the digests of a payload equal these digests.
    pub(super) fn agree_with(&self, payload: &Payload) -> bool {
        self.made_by.of_each(payload) == self.values()
    }
}

impl Cut for Digests {
    fn cut(&self, range: Range<u64>) -> Digests {
        assert!(
            range.start.is_multiple_of(BLOCK_BYTES) && range.end.is_multiple_of(BLOCK_BYTES),
            "content is cut between blocks"
        );
        let at = |bytes: u64| self.blocks.start + (bytes / BLOCK_BYTES) as usize;
        let blocks = at(range.start)..at(range.end);
        assert!(blocks.end <= self.blocks.end, "a part lies inside");
        Digests {
            made_by: self.made_by,
            all: Rc::clone(&self.all),
            blocks,
        }
    }
}
