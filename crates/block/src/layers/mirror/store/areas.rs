//! What a look at the areas of a side beside its data finds.

/// What was found beside the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct CheckedAreas {
    pub(in super::super) read_bytes: u64,
    /// Pages that were not what they should be. They are being written anew; what those of the
    /// checksums said is among the suspects of the store.
    pub(in super::super) wrong_pages: u64,
    /// The page of checksums to go on with, if there are more.
    pub(in super::super) next: Option<u64>,
}
