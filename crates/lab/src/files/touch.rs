//! What an operation says of metadata: the blocks that it touches, or that there are none left.

/// A block of metadata that an operation looks at or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub block: u32,
    /// It is changed.
    pub changes: bool,
    /// It is new, so there is nothing to read.
    pub is_new: bool,
}

/// No block, or no inode, is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;
