//! The sides of a volume by number. Sides may come and go while it is in use: one that comes gets
//! the next number, and that of one that has gone is not given again, because requests of old know
//! sides by their numbers.

use std::cell::{Cell, OnceCell};
use std::ops::Index;

use super::side::Side;

/// Sides that a volume may have had, from its opening on.
pub(super) const NUMBERS_MAX: usize = 64;

/// See the module.
pub(super) struct Sides {
    numbers: Box<[OnceCell<Side>]>,
    used: Cell<usize>,
}

impl Sides {
    /// The sides that a volume is opened with.
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

    /// Adds a side with the next number.
    ///
    /// # Panics
    /// When there are none left, or the side has another number.
    pub(super) fn push(&self, side: Side) {
        let number = self.used.get();
        assert_eq!(side.index, number, "a side has the next number");
        let taken = self.numbers[number].set(side);
        assert!(taken.is_ok(), "a number is given once");
        self.used.set(number + 1);
    }

    /// How many numbers have been given.
    pub(super) fn len(&self) -> usize {
        self.used.get()
    }

    /// The sides that the volume has now.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Side> {
        self.numbered().filter(|side| !side.life.is_removed())
    }

    /// All sides in the order of their numbers, without a gap: those that were removed as well.
    /// Only for what is kept by number.
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
