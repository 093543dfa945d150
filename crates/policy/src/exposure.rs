//! The pace at which writes are acknowledged before every side has stored them.
//!
//! The exposure of a mirror (the acknowledged bytes that not all sides have stored) is a buffer for
//! the time in which a side stores nothing: while its flash is cleaned, or while its arm is
//! elsewhere. If clients that always have another write may fill this buffer, it is full whenever
//! such a time begins, and every write waits for its end. Then the oldest exposed byte may also be
//! older than is allowed, and nothing is acknowledged before most of the buffer is drained.
//!
//! The law, with the bound B of the exposure in bytes, the bound A of its age, the exposure E, and
//! the rate r at which the sides are expected to store what is exposed:
//!
//! - The **level** L is B/2, and at most what is stored in a fifth of the age: r A / 5, but at
//!   least B/64, so that sides that answer late are given several writes. Up to it, writes are
//!   acknowledged at once. So after idleness, a burst of half the exposure is as fast as the
//!   fastest side.
//! - Above the level, a write takes its bytes from a **credit**. Half of the bytes that the sides
//!   store is added to it, so the exposure shrinks to its level while the sides make progress. It
//!   then stays there, and clients are served as fast as the sides store.
//! - While the sides store nothing, for more than 20 ms, the credit grows with time: by r/2. A load
//!   that the sides cannot sustain so becomes slow, and does not stand still. With more than r/2, a
//!   side that stores nothing half of the time would not get back to its level.
//! - Above the **knee** K, in the middle between L and the cap C, the credit grows more slowly, in
//!   proportion to the room that is left: its growth with time falls to nothing at C, and its
//!   growth by stored bytes to half of what it is below K. The cap is B, and at most 4 L.
//! - The credit is at most three quarters of C - L. A load that the sides can sustain takes no
//!   credit most of the time, so it has this much, and is served without waiting until the exposure
//!   is nearly full. A load that they cannot sustain spends the credit as it grows.
//!
//! The rate r is the lower one of two, which both count the time in which more than half of the
//! level is exposed: with less, the sides store what arrives, and not what they can store. One rate
//! forgets with a time of 10 s. The other one forgets with a time of 1 s, but counts no more than
//! 300 ms of a time without progress: it falls at once when a side becomes slow, for example
//! because cleaning begins, and hardly during a freeze. If r is too low or too high, the sides
//! nevertheless have the level to work on, so no throughput is lost.
//!
//! This is the law of a mirror whose sides are all logged. A side with a home stores what its log
//! has no room for at the pace of its destager, which its log knows better. While a mirror has such
//! a side, its caller says whether the sides are in time. As long as they are, writes are
//! acknowledged at once. If not, they need credit at every level, and only stored bytes add to it:
//! the exposure shrinks to what the sides store in time.
//!
//! The law must never allow more than the bounds, which its caller checks.

/// Time in ns after the last progress from which the credit grows with time.
const STILL_AFTER_NS: u64 = 20_000_000;
/// Time constant in ns of the average rate.
const FORGETS_IN_NS: f64 = 10e9;
/// Time constant in ns of the rate of the last moments, in which a time without progress counts at
/// most [`FREEZE_NS`].
const FORGETS_SOON_IN_NS: f64 = 1e9;
/// Time in ns without progress from which a side is frozen, and not only slow.
const FREEZE_NS: f64 = 300e6;
/// Weight of the rate that is assumed at first, as the time in ns in which it would have been
/// measured. The rate is half of the bound in each second.
const ASSUMED_IN_NS: f64 = 2e9;
/// Growth of the credit with time, as a multiple of the rate.
const GROWTH: f64 = 0.5;
/// Maximum of the credit, as a part of the room above the level.
const CREDIT_MAX: f64 = 0.75;
/// Part of the age in which the level must be stored.
const IN_TIME_DIVISOR: f64 = 5.0;
/// Minimum of the level, as a part of the bound.
const LEVEL_MIN: f64 = 1.0 / 64.0;
/// Maximum of the cap, as a multiple of the level.
const CAP_MAX: f64 = 4.0;
/// Maximum of the credit in bytes while a side has a home.
const CREDIT_HOME_MAX: f64 = 262_144.0;
/// Part of the room above the knee that is left when the exposure is nearly full.
const NEARLY_FULL: f64 = 0.25;
/// Time in ns until the next write has credit, from which writes are nearly standing still.
const STANDING_NS: u64 = 100_000_000;

/// Bounds of the exposure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExposureBounds {
    /// Maximum number of exposed bytes.
    pub bytes_max: u64,
    /// Maximum age of the oldest exposed byte, in ns.
    pub age_ns_max: u64,
}

/// The sides of a mirror; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// All are logged.
    Logged,
    /// At least one has a home, or no log.
    WithHome {
        /// Whether the sides are expected to store what is exposed in time.
        in_time: bool,
    },
}

/// Levels of the exposure, in bytes; see the module.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Levels {
    level: f64,
    knee: f64,
    cap: f64,
}

/// The pace of acknowledgements; see the module.
#[derive(Clone, Debug)]
pub struct ExposurePace {
    bounds: ExposureBounds,
    exposed_bytes: f64,
    /// Time of the last change of this state.
    at_ns: u64,
    /// Time of the last progress of the sides.
    progress_ns: u64,
    credit_bytes: f64,
    /// Whether all sides were logged when a write last asked.
    are_logged: bool,
    /// The rate at which the sides have stored what was exposed.
    stored: Rate,
    /// The same for the last moments in which no side was frozen.
    stored_lately: Rate,
}

/// A rate whose measurements have less weight the longer ago they are.
#[derive(Clone, Copy, Debug)]
struct Rate {
    bytes: f64,
    in_ns: f64,
    forgets_in_ns: f64,
}

impl Rate {
    /// Returns a rate that is assumed to be half of `bytes_max` in each second.
    fn assumed(bytes_max: u64, forgets_in_ns: f64) -> Rate {
        Rate {
            bytes: bytes_max as f64 / 2.0 / 1e9 * ASSUMED_IN_NS,
            in_ns: ASSUMED_IN_NS,
            forgets_in_ns,
        }
    }

    fn pass(&mut self, ns: f64) {
        let kept = self.forgets_in_ns / (self.forgets_in_ns + ns);
        self.bytes *= kept;
        self.in_ns = self.in_ns * kept + ns;
    }

    fn per_ns(&self) -> f64 {
        self.bytes / self.in_ns
    }
}

impl ExposurePace {
    /// Creates the pace of an exposure without bytes at the time `now_ns`.
    pub fn new(now_ns: u64, bounds: ExposureBounds) -> ExposurePace {
        ExposurePace {
            bounds,
            exposed_bytes: 0.0,
            at_ns: now_ns,
            progress_ns: now_ns,
            credit_bytes: 0.0,
            are_logged: true,
            stored: Rate::assumed(bounds.bytes_max, FORGETS_IN_NS),
            stored_lately: Rate::assumed(bounds.bytes_max, FORGETS_SOON_IN_NS),
        }
    }

    /// Sets the bounds, which may have changed. The rate is assumed anew if they have.
    pub fn set_bounds(&mut self, bounds: ExposureBounds) {
        if bounds != self.bounds {
            self.bounds = bounds;
            self.stored = Rate::assumed(bounds.bytes_max, FORGETS_IN_NS);
            self.stored_lately = Rate::assumed(bounds.bytes_max, FORGETS_SOON_IN_NS);
        }
    }

    /// Records that `exposed_bytes` bytes are exposed at the time `now_ns`, after writes were
    /// acknowledged.
    pub fn note_exposed(&mut self, now_ns: u64, exposed_bytes: u64) {
        self.advance(now_ns);
        self.exposed_bytes = exposed_bytes as f64;
    }

    /// Records that the sides have stored some of the exposed bytes at the time `now_ns`, and that
    /// `exposed_bytes` are left.
    pub fn note_stored(&mut self, now_ns: u64, exposed_bytes: u64) {
        self.advance(now_ns);
        let stored = (self.exposed_bytes - exposed_bytes as f64).max(0.0);
        if self.is_deep() {
            self.stored.bytes += stored;
            self.stored_lately.bytes += stored;
        }
        self.exposed_bytes = exposed_bytes as f64;
        if stored > 0.0 {
            self.progress_ns = now_ns;
            let share = match self.are_logged {
                true => self.room().max(0.5),
                false => 1.0,
            };
            self.add_credit(stored / 2.0 * share);
        }
    }

    /// Returns true when a write of `len` bytes may be acknowledged at the time `now_ns`, and takes
    /// its bytes from the credit if it needs any.
    pub fn takes(&mut self, now_ns: u64, len: u64, sides: Sides) -> bool {
        self.advance(now_ns);
        self.are_logged = sides == Sides::Logged;
        self.add_credit(0.0);
        let bytes = len as f64;
        let is_free = match sides {
            Sides::Logged => self.exposed_bytes + bytes <= self.levels().level,
            Sides::WithHome { in_time } => in_time,
        };
        if self.exposed_bytes == 0.0 || is_free {
            return true;
        }
        // On logged sides, a long write leaves a debt. If it had to wait for all of its credit, the
        // credit would have to be as large as the longest write.
        let has_credit = match self.are_logged {
            true => self.credit_bytes > 0.0,
            false => self.credit_bytes >= bytes,
        };
        if has_credit {
            self.credit_bytes -= bytes;
        }
        has_credit
    }

    /// Returns the time in ns after `now_ns` at which a write that waits for credit may have it
    /// although the sides store nothing; `None` when it never may.
    pub fn credit_in_ns(&self, now_ns: u64) -> Option<u64> {
        let grows_from = (self.progress_ns + STILL_AFTER_NS).max(self.at_ns);
        let per_ns = self.growth_per_ns();
        let lacks = (-self.credit_bytes).max(0.0) + 1.0;
        let wait_ns = grows_from.saturating_sub(now_ns);
        // The rate of a side that was frozen for long is so low that the sum could overflow.
        (per_ns > 0.0).then(|| wait_ns.saturating_add((lacks / per_ns) as u64))
    }

    /// Returns true when writes are nearly standing still at the time `now_ns`: the exposure has
    /// little room left, or the next write has credit only after a long time.
    pub fn is_nearly_full(&self, now_ns: u64) -> bool {
        let of = self.levels();
        let is_full = of.cap - self.exposed_bytes <= (of.cap - of.knee) * NEARLY_FULL;
        let credit_in_ns = self.credit_in_ns(now_ns);
        !self.are_logged || is_full || credit_in_ns.is_none_or(|ns| ns > STANDING_NS)
    }

    /// Returns the bytes per ns at which the sides are expected to store what is exposed.
    fn rate_per_ns(&self) -> f64 {
        self.stored.per_ns().min(self.stored_lately.per_ns())
    }

    fn levels(&self) -> Levels {
        let bytes_max = self.bounds.bytes_max as f64;
        let in_time = self.rate_per_ns() * self.bounds.age_ns_max as f64 / IN_TIME_DIVISOR;
        let level = in_time.clamp(bytes_max * LEVEL_MIN, bytes_max / 2.0);
        let cap = bytes_max.min(CAP_MAX * level);
        Levels {
            level,
            knee: (level + cap) / 2.0,
            cap,
        }
    }

    /// Returns true when the backlog of the sides is long enough to measure at which rate they can
    /// store it.
    fn is_deep(&self) -> bool {
        self.exposed_bytes > self.levels().level / 2.0
    }

    /// Returns the room that is left as a share of that above the knee, from 0 to 1.
    fn room(&self) -> f64 {
        let of = self.levels();
        let room = (of.cap - self.exposed_bytes) / (of.cap - of.knee).max(1.0);
        room.clamp(0.0, 1.0)
    }

    fn growth_per_ns(&self) -> f64 {
        match self.are_logged {
            true => GROWTH * self.rate_per_ns() * self.room(),
            false => 0.0,
        }
    }

    fn add_credit(&mut self, bytes: f64) {
        let of = self.levels();
        let credit_max = match self.are_logged {
            true => (of.cap - of.level) * CREDIT_MAX,
            false => CREDIT_HOME_MAX,
        };
        self.credit_bytes = (self.credit_bytes + bytes).min(credit_max);
    }

    fn advance(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns) as f64;
        let grows_from = (self.progress_ns + STILL_AFTER_NS).max(self.at_ns);
        let still_ns = now_ns.saturating_sub(grows_from) as f64;
        if still_ns > 0.0 && self.exposed_bytes > 0.0 {
            self.add_credit(self.growth_per_ns() * still_ns);
        }
        if self.is_deep() {
            let before_ns = self.at_ns.saturating_sub(self.progress_ns) as f64;
            let lately_ns = passed_ns.min((FREEZE_NS - before_ns).max(0.0));
            self.stored.pass(passed_ns);
            self.stored_lately.pass(lately_ns);
        }
        self.at_ns = self.at_ns.max(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MS: u64 = 1_000_000;
    const MB: u64 = 1_000_000;
    const WRITE: u64 = 256_000;
    const BOUNDS: ExposureBounds = ExposureBounds {
        bytes_max: 64 * MB,
        age_ns_max: 5_000 * MS,
    };

    /// A side that stores `stores` bytes in each ms, but nothing in some of them.
    struct Side<'f> {
        stores: u64,
        is_frozen: &'f dyn Fn(u64) -> bool,
    }

    /// Result of a load.
    #[derive(Debug, Default)]
    struct Outcome {
        acknowledged_bytes: u64,
        /// Longest time in ms without an acknowledgement while a write waited.
        longest_gap: u64,
        /// Number of ms in which the side was not frozen and had nothing to store.
        idle: u64,
        exposed_bytes: u64,
        exposed_bytes_peak: u64,
    }

    /// Runs a load of `arrives` bytes in each ms, for `count` ms. At most 32 writes are
    /// outstanding, and the other side stores them at once.
    fn run(side: &Side<'_>, arrives: u64, count: u64, is_paced: bool) -> Outcome {
        let mut pace = ExposurePace::new(0, BOUNDS);
        let (mut exposed, mut waiting, mut last) = (0, 0, 0);
        let mut of = Outcome::default();
        for ms in 0..count {
            let now = ms * MS;
            if !(side.is_frozen)(ms) {
                of.idle += u64::from(exposed == 0);
                exposed -= exposed.min(side.stores);
                pace.note_stored(now, exposed);
            }
            waiting = (waiting + arrives).min(32 * WRITE);
            while waiting >= WRITE {
                let fits = exposed + WRITE <= BOUNDS.bytes_max;
                if !fits || is_paced && !pace.takes(now, WRITE, Sides::Logged) {
                    of.longest_gap = of.longest_gap.max(ms - last);
                    break;
                }
                (waiting, exposed, last) = (waiting - WRITE, exposed + WRITE, ms);
                of.acknowledged_bytes += WRITE;
                pace.note_exposed(now, exposed);
            }
            if waiting < WRITE {
                last = ms;
            }
            of.exposed_bytes_peak = of.exposed_bytes_peak.max(exposed);
        }
        of.exposed_bytes = exposed;
        of
    }

    /// Frozen for 0.5 s in each second, and for 3.5 s after 60 s.
    fn freezes(ms: u64) -> bool {
        ms % 1000 < 500 || (60_000..63_500).contains(&ms)
    }

    /// Without the pace, the exposure is full when the long freeze begins.
    #[test]
    fn a_load_that_cannot_be_sustained_does_not_stand_still_in_a_freeze() {
        let side = Side {
            stores: MB / 25,
            is_frozen: &freezes,
        };
        let greedy = run(&side, 10 * MB, 80_000, false);
        assert!(greedy.longest_gap >= 3500, "{greedy:?}");
        let paced = run(&side, 10 * MB, 80_000, true);
        assert!(paced.longest_gap <= 300, "{paced:?}");
        assert_eq!(paced.idle, 0, "the side always has something to store");
        let lost = greedy.acknowledged_bytes - paced.acknowledged_bytes;
        assert!(lost <= BOUNDS.bytes_max, "{paced:?}");
    }

    /// The side stores 20 MB/s on average, and 14 MB/s arrive. In the freeze of 3.5 s, 49 MB
    /// arrive.
    #[test]
    fn a_load_that_can_be_sustained_waits_little_in_a_freeze() {
        let side = Side {
            stores: MB / 25,
            is_frozen: &freezes,
        };
        let greedy = run(&side, 14_000, 80_000, false);
        assert_eq!(greedy.longest_gap, 0, "{greedy:?}");
        let paced = run(&side, 14_000, 80_000, true);
        assert!(paced.longest_gap <= 100, "{paced:?}");
    }

    /// The rate falls while a side is frozen for long, and with it the level. Afterwards the side
    /// must be given enough to show what it can store.
    #[test]
    fn a_side_that_was_frozen_for_long_is_used_as_before() {
        let side = |until| Side {
            stores: MB / 25,
            is_frozen: until,
        };
        let before = |ms: u64| (5_000..605_000).contains(&ms);
        let frozen = run(&side(&before), 10 * MB, 610_000, true);
        let after = run(&side(&before), 10 * MB, 620_000, true);
        let in_10_s = after.acknowledged_bytes - frozen.acknowledged_bytes;
        assert!(in_10_s >= 360 * MB, "{in_10_s} of 400 MB");
    }

    /// Whatever arrives, a side that answers after 2 s has a 64th of the bound to work on.
    #[test]
    fn a_side_that_answers_late_is_given_several_writes() {
        let mut pace = ExposurePace::new(0, BOUNDS);
        let (mut exposed, mut ends, mut all) = (0, VecDeque::new(), 0);
        for ms in 0..300_000 {
            let before = exposed;
            while ends.front().is_some_and(|end| *end <= ms) {
                ends.pop_front();
                exposed -= WRITE;
            }
            if exposed < before {
                pace.note_stored(ms * MS, exposed);
            }
            while pace.takes(ms * MS, WRITE, Sides::Logged) && exposed + WRITE <= BOUNDS.bytes_max {
                ends.push_back(ms + 2_000);
                (exposed, all) = (exposed + WRITE, all + WRITE);
                pace.note_exposed(ms * MS, exposed);
            }
        }
        assert!(all >= BOUNDS.bytes_max / 64 * 150, "{} MB", all / MB);
    }

    /// An hour without progress leaves a rate of nearly nothing.
    #[test]
    fn a_long_freeze_leaves_a_time_that_can_be_represented() {
        let mut pace = ExposurePace::new(0, BOUNDS);
        let (hour, second) = (3_600_000 * MS, 1_000 * MS);
        for now in (0..hour).step_by(second as usize) {
            pace.note_exposed(now, 40 * MB);
        }
        // What is left is little enough that the credit may grow.
        pace.note_stored(hour, 2 * MB);
        let end = 2 * hour;
        for now in (hour..=end).step_by(second as usize) {
            pace.note_exposed(now, 2 * MB);
        }
        while pace.takes(end, WRITE, Sides::Logged) {}
        assert_eq!(pace.credit_in_ns(end - MS), Some(u64::MAX));
    }

    #[test]
    fn a_burst_of_half_the_bound_is_acknowledged_at_once() {
        let mut pace = ExposurePace::new(0, BOUNDS);
        let mut exposed = 0;
        while pace.takes(0, WRITE, Sides::Logged) {
            exposed += WRITE;
            pace.note_exposed(0, exposed);
        }
        assert_eq!(exposed, 32 * MB / WRITE * WRITE);
    }

    #[test]
    fn the_exposure_to_a_steady_side_stays_near_its_level() {
        let side = Side {
            stores: 80_000,
            is_frozen: &|_| false,
        };
        let steady = run(&side, 10 * MB, 10_000, true);
        assert_eq!(
            steady.idle, 1,
            "the side has nothing to store only at first"
        );
        assert!(steady.longest_gap <= 7, "{steady:?}");
        let level = 30 * MB..=33 * MB;
        assert!(level.contains(&steady.exposed_bytes), "{steady:?}");
        assert!(level.contains(&steady.exposed_bytes_peak), "{steady:?}");
        // 2 MB/s store 2 MB in a fifth of the age.
        let side = Side {
            stores: 2_000,
            ..side
        };
        let slow = run(&side, 10 * MB, 120_000, true);
        assert!(slow.exposed_bytes <= 4 * MB, "{slow:?}");
    }

    /// A side that completes writes which are not exposed makes no progress with those that are.
    #[test]
    fn only_stored_bytes_are_progress() {
        let mut pace = ExposurePace::new(0, BOUNDS);
        pace.note_exposed(0, 40 * MB);
        pace.note_stored(100 * MS, 40 * MB);
        assert!(
            pace.takes(100 * MS, WRITE, Sides::Logged),
            "the credit has grown"
        );
    }

    #[test]
    fn sides_with_a_home_are_paced_only_while_they_are_not_in_time() {
        let (in_time, late) = (
            Sides::WithHome { in_time: true },
            Sides::WithHome { in_time: false },
        );
        let mut pace = ExposurePace::new(0, BOUNDS);
        assert!(pace.takes(0, 20 * MB, late), "nothing is exposed");
        pace.note_exposed(0, 60 * MB);
        assert!(pace.takes(0, WRITE, in_time));
        assert!(!pace.takes(0, WRITE, late));
        pace.note_stored(MS, 60 * MB - 2 * WRITE);
        assert!(pace.takes(MS, WRITE, late), "half of what was stored");
        assert!(!pace.takes(900 * MS, WRITE, late), "time adds no credit");
        pace.note_stored(900 * MS, 30 * MB);
        assert!(pace.takes(900 * MS, WRITE, late));
        assert!(!pace.takes(900 * MS, WRITE, late), "the credit is bounded");
    }

    /// The time until a write has credit is that after which it has, and not one before.
    #[test]
    fn the_time_until_there_is_credit_is_exact() {
        let mut pace = ExposurePace::new(0, BOUNDS);
        pace.note_exposed(0, 40 * MB);
        let in_ns = pace.credit_in_ns(0).expect("there is room");
        assert!(in_ns > STILL_AFTER_NS);
        assert!(!pace.clone().takes(STILL_AFTER_NS, WRITE, Sides::Logged));
        assert!(pace.takes(in_ns, WRITE, Sides::Logged));
        let in_ns = pace.credit_in_ns(in_ns).expect("there is room") + in_ns;
        assert!(!pace.clone().takes(in_ns - 2 * MS, WRITE, Sides::Logged));
        assert!(pace.takes(in_ns + MS, WRITE, Sides::Logged));
        pace.note_exposed(in_ns, 64 * MB);
        assert!(pace.is_nearly_full(in_ns));
        assert_eq!(pace.credit_in_ns(in_ns), None);
    }
}
