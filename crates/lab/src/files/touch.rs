//! Effects of an operation on metadata: the blocks that the operation reads or changes, or the
//! error that the device is full.

/// A block of metadata that an operation reads or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub block: u32,
    /// Whether the operation changes the block.
    pub changes: bool,
    /// Whether the block has no content yet, so that it need not be read.
    pub is_new: bool,
}

/// Error: the device has no free block or no free inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;
