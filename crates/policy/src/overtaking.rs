//! When an entry of a log that the device is late with is overtaken: its content is written again
//! behind it, so that what is behind it does not wait for it.
//!
//! A stall of an SSD concerns one command, and other commands go on beside it. A log that waits for
//! its entries in order would wait for the stalled one as long as the stall lasts. On a device that
//! stands still as a whole, overtaking is of no use and only writes more. So the time after which
//! an entry is late follows what overtaking was good for:
//!
//! - At first it is [`LATE_MIN_NS`], or [`LATE_MULTIPLE`] times the mean time of an entry if that
//!   is longer.
//! - Each overtaking doubles it, up to [`LATE_MAX_NS`].
//! - Each overtaking that was of use, because the content was stored a second time before it was
//!   stored the first time, divides it by four, down to the time at first.
//!
//! So while stalls concern single commands, the time stays at its minimum. On a device that stands
//! still, it grows with each freeze.
//!
//! The module must never decide what may be overtaken; it knows only times.

/// Minimum time in ns after which an entry is late: many times what flash needs to write it.
pub const LATE_MIN_NS: u64 = 1_000_000;
/// Maximum time in ns after which an entry is late.
pub const LATE_MAX_NS: u64 = 1_000_000_000;
/// Number of mean times of an entry after which it is late.
pub const LATE_MULTIPLE: u64 = 8;
/// Weight of a new entry in the mean time, as a divisor.
const MEAN_DIVISOR: i64 = 16;

/// The time after which entries are late; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Mean time in ns of an entry that was not overtaken; 0 before the first one.
    mean_ns: u64,
    /// How often the time was doubled and not divided again.
    doublings: u32,
}

impl Lateness {
    /// Returns the time in ns after which an entry is late.
    pub fn late_after_ns(&self) -> u64 {
        let first_ns = self.mean_ns.saturating_mul(LATE_MULTIPLE).max(LATE_MIN_NS);
        let doubled_ns = first_ns.saturating_mul(1 << self.doublings.min(32));
        doubled_ns.min(LATE_MAX_NS.max(first_ns))
    }

    /// Records that an entry that was not overtaken took `time_ns`.
    pub fn note(&mut self, time_ns: u64) {
        self.mean_ns = match self.mean_ns {
            0 => time_ns,
            mean_ns => {
                let change = (time_ns as i64 - mean_ns as i64) / MEAN_DIVISOR;
                mean_ns.saturating_add_signed(change)
            }
        };
    }

    /// Records that entries are overtaken.
    pub fn note_overtaken(&mut self) {
        if self.late_after_ns() < LATE_MAX_NS {
            self.doublings += 1;
        }
    }

    /// Records that overtaken content was stored a second time before it was stored the first time.
    pub fn note_use(&mut self) {
        self.doublings = self.doublings.saturating_sub(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_stalls_are_overtaken_at_once_each_time() {
        let mut lateness = Lateness::default();
        for _ in 0..100 {
            lateness.note(30_000);
            assert_eq!(lateness.late_after_ns(), LATE_MIN_NS);
            lateness.note_overtaken();
            lateness.note_use();
        }
    }

    /// A freeze of 3 s is overtaken after 1, 2, 4, 8, ... ms, in vain, and then each second.
    #[test]
    fn a_device_that_stands_still_is_hardly_overtaken() {
        let mut lateness = Lateness::default();
        let freeze = |lateness: &mut Lateness| {
            let (mut at_ns, mut count) = (0, 0);
            while at_ns + lateness.late_after_ns() < 3_000_000_000 {
                at_ns += lateness.late_after_ns();
                lateness.note_overtaken();
                count += 1;
            }
            count
        };
        assert_eq!(freeze(&mut lateness), 11);
        assert_eq!(freeze(&mut lateness), 2);
        assert_eq!(lateness.late_after_ns(), LATE_MAX_NS);
    }

    /// The time of an entry of a slow device is no reason to overtake it.
    #[test]
    fn an_entry_is_late_by_what_entries_take() {
        let mut lateness = Lateness::default();
        lateness.note(10_000_000);
        assert_eq!(lateness.late_after_ns(), 80_000_000);
        (0..200).for_each(|_| lateness.note(1_000_000));
        assert!((8_000_000..9_000_000).contains(&lateness.late_after_ns()));
        (0..200).for_each(|_| lateness.note(u64::MAX / 4));
        lateness.note_overtaken();
        assert!(lateness.late_after_ns() > LATE_MAX_NS, "of such a mean");
    }
}
