//! How long a mirror waits for a silent side while writes wait because of that side.
//!
//! A side that is ejected has to be rebuilt when it returns, and until then its content has one
//! copy less. A side that is silent again and again is therefore not ejected each time as soon as
//! the first time. The law, with the shortest patience p and the longest patience P:
//!
//! - The first patience is p.
//! - Each ejection for silence doubles the patience, up to P.
//! - Each whole hour since the last ejection for silence halves the patience, down to p.
//!
//! A [`Patience`] must never decide whether a side may be spared: it knows only this side.

/// Time without an ejection that halves the patience, in nanoseconds: one hour.
const HALVED_EVERY_NS: u64 = 3_600_000_000_000;

/// The patience with one side; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    ns_min: u64,
    ns_max: u64,
    /// Time of the last ejection for silence in nanoseconds, and the patience right after it;
    /// `None` before the first one.
    ejected: Option<(u64, u64)>,
}

impl Patience {
    /// Creates the patience with a side that was never ejected for silence. It starts at `ns_min`
    /// nanoseconds and never exceeds `ns_max`, unless `ns_min` does.
    pub fn new(ns_min: u64, ns_max: u64) -> Patience {
        Patience {
            ns_min,
            ns_max: ns_max.max(ns_min),
            ejected: None,
        }
    }

    /// Returns the patience at the time `now_ns`, in nanoseconds.
    pub fn ns(&self, now_ns: u64) -> u64 {
        let Some((at_ns, then_ns)) = self.ejected else {
            return self.ns_min;
        };
        let hours = now_ns.saturating_sub(at_ns) / HALVED_EVERY_NS;
        // A shift by 64 bits or more would overflow.
        let hours = u32::try_from(hours).unwrap_or(u32::MAX);
        then_ns.checked_shr(hours).unwrap_or(0).max(self.ns_min)
    }

    /// Records that the side was ejected for silence at the time `now_ns`, which doubles the
    /// patience.
    pub fn was_ejected(&mut self, now_ns: u64) {
        let doubled_ns = self.ns(now_ns).saturating_mul(2);
        self.ejected = Some((now_ns, doubled_ns.min(self.ns_max)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const HOUR: u64 = 3_600 * S;

    /// Returns the patience in seconds right after each of `times` ejections, a second apart.
    fn after_each(patience: &mut Patience, times: u64) -> Vec<u64> {
        let ejected = (0..times).map(|at| {
            patience.was_ejected(at * S);
            patience.ns(at * S) / S
        });
        ejected.collect()
    }

    #[test]
    fn each_ejection_doubles_the_patience_up_to_its_bound() {
        let mut patience = Patience::new(S, 30 * S);
        assert_eq!(patience.ns(0), S);
        assert_eq!(after_each(&mut patience, 7), [2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn each_whole_hour_without_an_ejection_halves_the_patience() {
        let mut patience = Patience::new(S, 600 * S);
        assert_eq!(after_each(&mut patience, 4), [2, 4, 8, 16]);
        let last = 3 * S;
        for (hours, expected_s) in [
            (0, 16),
            (1, 8),
            (2, 4),
            (3, 2),
            (4, 1),
            (5, 1),
            (100_000, 1),
        ] {
            let begins = last + hours * HOUR;
            assert_eq!(patience.ns(begins), expected_s * S, "after {hours} h");
            assert_eq!(patience.ns(begins + HOUR - 1), expected_s * S, "{hours} h");
        }
        // The doubling starts from the patience at that time, and the hours count anew.
        patience.was_ejected(last + 2 * HOUR + HOUR / 2);
        assert_eq!(patience.ns(last + 3 * HOUR), 8 * S);
        assert_eq!(patience.ns(last + 3 * HOUR + HOUR / 2), 4 * S);
    }

    #[test]
    fn the_shortest_patience_holds_even_above_the_longest() {
        let mut patience = Patience::new(40 * S, 30 * S);
        assert_eq!(after_each(&mut patience, 2), [40, 40]);
        let mut patience = Patience::new(u64::MAX / 2 + 1, u64::MAX);
        patience.was_ejected(0);
        assert_eq!(patience.ns(0), u64::MAX);
        assert_eq!(patience.ns(u64::MAX), u64::MAX / 2 + 1);
    }
}
