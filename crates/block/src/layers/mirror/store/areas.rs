//! Result of checking the areas of a side, except its data area.

/// Result of checking some pages of the areas other than the data area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct CheckedAreas {
    pub(in super::super) read_bytes: u64,
    /// Number of corrupt pages. They are rewritten. Blocks whose checksums were on a corrupt page
    /// are recorded as possibly corrupt.
    pub(in super::super) wrong_pages: u64,
    /// Checksum page at which the next call must begin; `None` when all pages were checked.
    pub(in super::super) next: Option<u64>,
}
