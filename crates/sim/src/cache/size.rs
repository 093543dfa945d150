//! The size of a cache: a number of pages, or a share of the pages that a trace touches.

use std::fmt;
use std::str::FromStr;

/// Size of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheSize {
    /// Number of pages, at least 1.
    Pages(usize),
    /// Fraction of the number of pages that the trace touches, above 0.
    Share(f64),
}

/// Error for a text that is not the size of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSize(String);

impl fmt::Display for InvalidSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a size such as 1000 (pages) or 10% (of the pages of the trace)",
            self.0
        )
    }
}

impl std::error::Error for InvalidSize {}

impl FromStr for CacheSize {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<CacheSize, InvalidSize> {
        let invalid = || InvalidSize(text.to_owned());
        match text.trim().strip_suffix('%') {
            Some(percent) => {
                let share = percent.parse::<f64>().map_err(|_| invalid())? / 100.0;
                let possible = share.is_finite() && share > 0.0 && share <= 10.0;
                possible
                    .then_some(CacheSize::Share(share))
                    .ok_or_else(invalid)
            }
            None => {
                let pages: usize = text.trim().parse().map_err(|_| invalid())?;
                let possible = pages > 0 && pages <= u32::MAX as usize;
                possible
                    .then_some(CacheSize::Pages(pages))
                    .ok_or_else(invalid)
            }
        }
    }
}

impl CacheSize {
    /// Returns the size in pages, at least 1, for a trace that touches `footprint` pages.
    pub fn pages(self, footprint: usize) -> usize {
        match self {
            CacheSize::Pages(pages) => pages,
            CacheSize::Share(share) => ((footprint as f64 * share).round() as usize).max(1),
        }
    }
}
