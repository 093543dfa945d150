//! Effects of an operation on metadata: the blocks that it touches, or the error that no block is
//! left.

/// A block of metadata that an operation reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub block: u32,
    /// Whether the operation changes the block.
    pub changes: bool,
    /// Whether the block is new, so that it need not be read.
    pub is_new: bool,
}

/// Error: no free block, or no free inode, is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;
