//! Cache of ranges that were freed recently, for allocations of the same length.
//!
//! A leaf that is rewritten frees its memory and allocates a range of the same or nearly the same
//! length, many thousand times a second. Searching all free ranges for the best fit each time took
//! a sixth of the time of a commit. [`Ranges`](super::Ranges) counts the cached ranges as
//! allocated, so a cached range is not merged with its neighbours, and a chunk with a cached range
//! is not unmapped. The cache must never hold more than a small, fixed amount of memory.

use super::ranges::Range;

/// Limit on the length of a cached range, in units.
const UNITS_MAX: u32 = 128;
/// Limit on the total length of the cached ranges, in units of 64 bytes: 1 MiB.
const KEPT_UNITS_MAX: u32 = 1 << 14;

/// Cached ranges by length.
pub(super) struct Kept {
    by_units: [Vec<Range>; UNITS_MAX as usize + 1],
    units: u32,
}

impl Kept {
    /// Creates an empty cache.
    pub const fn new() -> Kept {
        Kept {
            by_units: [const { Vec::new() }; UNITS_MAX as usize + 1],
            units: 0,
        }
    }

    /// Takes a cached range of exactly `units` units, if there is one.
    pub fn take(&mut self, units: u32) -> Option<Range> {
        let range = self.by_units.get_mut(units as usize)?.pop()?;
        self.units -= units;
        Some(range)
    }

    /// Caches a range. Returns false if the range is too long or the cache is full: then the caller
    /// must free the range and all cached ranges.
    #[must_use]
    pub fn keep(&mut self, range: Range) -> bool {
        if range.units > UNITS_MAX || self.units + range.units > KEPT_UNITS_MAX {
            return false;
        }
        self.units += range.units;
        self.by_units[range.units as usize].push(range);
        true
    }

    /// Empties the cache and returns its ranges.
    pub fn drain(&mut self) -> impl Iterator<Item = Range> {
        self.units = 0;
        self.by_units.iter_mut().flat_map(|ranges| ranges.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(at: u32, units: u32) -> Range {
        Range {
            chunk: 0,
            at,
            units,
        }
    }

    #[test]
    fn who_wants_as_much_gets_what_was_given_back_last() {
        let mut kept = Kept::new();
        assert!(kept.keep(range(0, 60)) && kept.keep(range(60, 60)) && kept.keep(range(120, 59)));
        assert_eq!(kept.take(60), Some(range(60, 60)));
        assert_eq!(kept.take(58), None, "a longer one would be wasted");
        assert_eq!(
            kept.drain().collect::<Vec<_>>(),
            [range(120, 59), range(0, 60)]
        );
        assert_eq!((kept.take(60), kept.take(59), kept.units), (None, None, 0));
    }

    #[test]
    fn neither_long_ranges_are_kept_nor_many() {
        let mut kept = Kept::new();
        assert!(!kept.keep(range(0, UNITS_MAX + 1)));
        let count = KEPT_UNITS_MAX / UNITS_MAX;
        let fits = (0..count).all(|n| kept.keep(range(n * UNITS_MAX, UNITS_MAX)));
        assert!(fits && !kept.keep(range(count * UNITS_MAX, 1)));
        assert!(kept.take(UNITS_MAX).is_some());
        assert!(kept.keep(range(count * UNITS_MAX, 1)));
    }
}
