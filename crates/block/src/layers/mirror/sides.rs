//! The sides of a volume by index. Sides can be added and removed while the volume is in use. A new
//! side gets the next index. The index of a removed side must not be used again, because older
//! requests refer to sides by index.

use std::cell::{Cell, OnceCell};
use std::ops::Index;

use super::side::Side;

/// Maximum number of sides, including removed sides, that a volume can have between its opening and
/// its closing.
pub(super) const NUMBERS_MAX: usize = 64;

/// The sides of a volume; see the module.
pub(super) struct Sides {
    numbers: Box<[OnceCell<Side>]>,
    used: Cell<usize>,
}

impl Sides {
    /// Creates the list with the sides that the volume has when it is opened.
    pub(super) fn new(sides: impl IntoIterator<Item = Side>) -> Sides {
        let empty = Sides {
            numbers: (0..NUMBERS_MAX).map(|_| OnceCell::new()).collect(),
            used: Cell::new(0),
        };
        for side in sides {
            empty.push(side);
        }
        empty
    }

    /// Adds a side with the next index.
    ///
    /// # Panics
    /// When no index is left, or the side has another index.
    pub(super) fn push(&self, side: Side) {
        let number = self.used.get();
        assert_eq!(side.index, number, "a side has the next number");
        let taken = self.numbers[number].set(side);
        assert!(taken.is_ok(), "a number is given once");
        self.used.set(number + 1);
    }

    /// Returns the number of side indexes assigned so far, including those of removed sides.
    pub(super) fn len(&self) -> usize {
        self.used.get()
    }

    /// Returns the sides that have not been removed.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Side> {
        self.numbered().filter(|side| !side.life.is_removed())
    }

    /// Returns all sides by index, without a gap, including removed sides. Use only for tables that
    /// are indexed by side.
    pub(super) fn numbered(&self) -> impl Iterator<Item = &Side> {
        self.numbers.iter().map_while(OnceCell::get)
    }
}

impl Index<usize> for Sides {
    type Output = Side;

    fn index(&self, number: usize) -> &Side {
        self.numbers[number].get().expect("a side has this number")
    }
}
