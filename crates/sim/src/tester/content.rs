//! Content of a unit of the volume: the same eight-byte stamp, unique to the write and the unit,
//! repeated up to a tail of eight bytes.
//!
//! Units imitate user data that ends with its own CRC32C. The CRC32C over a whole unit of that kind
//! is the same number for all units, so it does not distinguish one unit from another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Returns the stamp with which write number `write` fills the unit.
pub fn stamp_of(write: u64, unit: usize) -> u64 {
    assert!(unit < 1 << 24, "a stamp has room for the unit");
    write << 24 | unit as u64
}

/// Returns the last eight bytes of a unit of this length that is filled with the stamp: half of the
/// inverted stamp, and the CRC32C of all bytes before the checksum.
///
/// A CRC is linear in its input, so each bit of a tail is an exclusive or of bits of the stamp,
/// possibly inverted. A tail is therefore composed from the precomputed tails of stamps with one
/// bit set. Without this shortcut, a seed would spend half of its time on checksums.
pub fn tail_of(stamp: u64, unit_bytes: usize) -> [u8; 8] {
    thread_local! {
        static TAILS: RefCell<BTreeMap<usize, Rc<Tails>>> = const { RefCell::new(BTreeMap::new()) };
    }
    let tails = TAILS.with_borrow_mut(|all| {
        let made = || Rc::new(Tails::of_units(unit_bytes));
        Rc::clone(all.entry(unit_bytes).or_insert_with(made))
    });
    tails.of(stamp)
}

/// Precomputed values for units of one length. They give the tail (the last eight bytes) of a unit
/// that is filled with any stamp.
struct Tails {
    of_zero: u64,
    /// For each bit of the stamp (the eight bytes that fill a unit), the bits of the tail (the last
    /// eight bytes of the unit) that change if this bit changes.
    by_bit: [u64; 64],
}

impl Tails {
    fn of_units(unit_bytes: usize) -> Tails {
        let of_zero = summed_tail(0, unit_bytes);
        let by_bit = |bit: usize| summed_tail(1 << bit, unit_bytes) ^ of_zero;
        Tails {
            of_zero,
            by_bit: std::array::from_fn(by_bit),
        }
    }

    fn of(&self, stamp: u64) -> [u8; 8] {
        let (mut tail, mut left) = (self.of_zero, stamp);
        while left != 0 {
            tail ^= self.by_bit[left.trailing_zeros() as usize];
            left &= left - 1;
        }
        tail.to_le_bytes()
    }
}

/// Computes the tail of a unit (its last 8 bytes) from all bytes of the unit. `Tails` is the faster
/// way.
fn summed_tail(stamp: u64, unit_bytes: usize) -> u64 {
    let mut unit = stamp.to_le_bytes().repeat(unit_bytes / 8);
    let tail = unit_bytes - 8;
    unit[tail..].copy_from_slice(&(!stamp).to_le_bytes());
    let crc = crc32c::crc32c(&unit[..tail + 4]);
    unit[tail + 4..].copy_from_slice(&crc.to_le_bytes());
    u64::from_le_bytes(unit[tail..].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use bimetal_rt::Rng;

    use super::*;

    #[test]
    fn a_tail_is_what_its_definition_says() {
        let mut rng = Rng::new(1);
        for unit_bytes in [512, 4096] {
            for write in [0, 1, 2, 1 << 39, rng.below(1 << 40), rng.below(1 << 40)] {
                let stamp = stamp_of(write, rng.below(1 << 24) as usize);
                let expected = summed_tail(stamp, unit_bytes).to_le_bytes();
                assert_eq!(tail_of(stamp, unit_bytes), expected, "{stamp:x}");
            }
        }
    }

    #[test]
    fn the_crc_of_a_unit_with_its_own_crc_tells_nothing() {
        let crcs = [stamp_of(1, 2), stamp_of(3, 4)].map(|stamp| {
            let mut unit = stamp.to_le_bytes().repeat(64);
            unit[504..].copy_from_slice(&tail_of(stamp, 512));
            crc32c::crc32c(&unit)
        });
        assert_eq!(crcs[0], crcs[1]);
    }
}
