//! Digests of the content of a change, made once when it is admitted and used by every side that
//! makes them in the same way.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;

use crate::BLOCK_BYTES;
use crate::extent_map::Cut;
use crate::layers::mirror::digest::BlockDigest;

/// The digest of each block of some content. Parts that are cut out share them.
#[derive(Clone, Debug)]
pub(in super::super) struct Digests {
    made_by: BlockDigest,
    all: Rc<[u32]>,
    blocks: Range<usize>,
}

impl Digests {
    /// From values that are known.
    pub(super) fn new(made_by: BlockDigest, values: Vec<u32>) -> Digests {
        Digests {
            made_by,
            blocks: 0..values.len(),
            all: values.into(),
        }
    }

    /// Of a payload.
    ///
    /// # Panics
    /// When it is not whole blocks.
    pub(in super::super) fn of(made_by: BlockDigest, payload: &Payload) -> Digests {
        Digests::new(made_by, made_by.of_each(payload))
    }

    /// How they were made.
    pub(super) fn made_by(&self) -> BlockDigest {
        self.made_by
    }

    /// One value for each block.
    pub(super) fn values(&self) -> &[u32] {
        &self.all[self.blocks.clone()]
    }

    /// True when a payload is what these were made of.
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
