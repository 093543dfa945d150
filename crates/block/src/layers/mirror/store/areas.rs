//! Result of a check of the areas of a side other than its data.

/// Result of a check of areas other than the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct CheckedAreas {
    pub(in super::super) read_bytes: u64,
    /// Number of corrupt pages. They are being rewritten; blocks described by corrupt checksum
    /// pages are among the suspects of the store.
    pub(in super::super) wrong_pages: u64,
    /// The checksum page at which the next call begins, if there are more.
    pub(in super::super) next: Option<u64>,
}
