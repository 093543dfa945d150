//! Ranges that were just given back, for whoever wants one as long next.
//!
//! A leaf that is written anew gives its memory back and takes as much or nearly as much again,
//! many thousand times a second; looking for the best of all free ranges each time took a sixth of
//! the time of a commit. What is kept here is free but not known to be ([`Ranges`](super::Ranges)),
//! so it can neither be joined with its neighbours nor let its chunk go. It must never be more than
//! a small, fixed amount.

use super::ranges::Range;

/// Longer ranges are not kept.
const UNITS_MAX: u32 = 128;
/// Units that are kept, at most: 1 MiB.
const KEPT_UNITS_MAX: u32 = 1 << 14;

/// Ranges by length.
pub(super) struct Kept {
    by_units: [Vec<Range>; UNITS_MAX as usize + 1],
    units: u32,
}

impl Kept {
    /// None.
    pub const fn new() -> Kept {
        Kept {
            by_units: [const { Vec::new() }; UNITS_MAX as usize + 1],
            units: 0,
        }
    }

    /// A range of exactly so many units, if one is kept.
    pub fn take(&mut self, units: u32) -> Option<Range> {
        let range = self.by_units.get_mut(units as usize)?.pop()?;
        self.units -= units;
        Some(range)
    }

    /// Keeps a range. False if it is too long, or there would be too much: then all of it is to be
    /// given back.
    #[must_use]
    pub fn keep(&mut self, range: Range) -> bool {
        if range.units > UNITS_MAX || self.units + range.units > KEPT_UNITS_MAX {
            return false;
        }
        self.units += range.units;
        self.by_units[range.units as usize].push(range);
        true
    }

    /// All that is kept, which is not kept any more.
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
