//! How many blocks may be appended now, and how much cleaning is due: the law that keeps writes and
//! cleaning in step.
//!
//! A side that admits writes freely until its space has ended, and cleans then, stops all writes
//! for as long as whole segments are moved. Here every appended block owes a share of cleaning long
//! before that, and appends may run ahead of what they owe only a little. The law counts blocks and
//! needs no time: where the device, and not the law, decides how fast cleaning proceeds, appends
//! follow at the corresponding rate.
//!
//! # The law
//!
//! Space is counted in blocks:
//!
//! - `level` = the free blocks and the blocks that are *coming*: the part of a segment being
//!   cleaned that is paid for by the blocks moved out of it so far. So the level does not jump when
//!   a segment becomes free.
//! - `floor` = the reserve and one segment, which cleaning occupies before it gives one back.
//! - `target` = the level at which cleaning keeps up with appends exactly.
//! - `surplus` = level - floor, at least 0.
//!
//! **Debt.** Each appended block adds `f` blocks of space to the debt. The factor `f` is SPDK's
//! (`ftl_nv_cache.c`), inverted, because it applies to cleaning here and not to admission:
//!
//! ```text
//! f = 1 + clamp(slope x (target - level), -1, +0.8)
//! slope = 20 / all, but at least 0.8 / (target - floor)
//! ```
//!
//! So cleaning gains as much space as appends take when the level is at its target, up to 1.8 times
//! as much below, and less above. A twentieth of the side above the target, or nearer where the
//! slope is steeper, it gains nothing, and then all debt is forgotten: a side with that much free
//! space is not cleaned, because the blocks in its segments will die without any work. (SPDK stops
//! at half. A side that has just been filled to one half would then clean segments that are 99 %
//! live, at 50 moved blocks for each appended one.) The steeper slope makes sure that `f` reaches
//! 1.8 before the surplus ends. It also keeps the level close to its target: the next victims lose
//! blocks before it is their turn, so their price is an upper bound, and the level settles a little
//! above the target.
//!
//! **Payment.** A moved block pays the space that moving gains: (1 - v)/v blocks at the live share
//! v. At the target and above, v is the mean over the next victims, so that admission does not
//! follow the differences between single victims. At the floor, v is the share of the victim from
//! which the block comes, so that appends never take more than was really gained. In between, both
//! count in proportion to the surplus.
//!
//! **Cleaning due.** The debt is worth debt x w moved blocks, where w is
//! [the price](super::victims::Yield::moved_per_appended) over the next victims. Whenever this is a
//! whole piece (8 MiB), a piece is due; so no request waits for a whole victim. Half of the lead
//! that appends are allowed also makes cleaning due, in smaller pieces.
//!
//! **Admission.** Appends may run ahead of cleaning by an eighth of the surplus:
//!
//! ```text
//! may append = surplus / 8 - debt
//! ```
//!
//! If victims suddenly are 99 % live, the debt in space and so the admission stay the same at that
//! moment; only the payments become smaller. While cleaning limits the rate, its gains `g` and the
//! appends `a` stand in the relation
//!
//! ```text
//! a = g x (1 + 1/8) / (f + 1/8)
//! ```
//!
//! which is between 0.58 g near the floor and g at the target. It is never zero while cleaning
//! gains anything, and at the floor it is below g, so the level rises.
//!
//! **Liveness.** Whenever nothing may be appended, cleaning is due, as long as there is a victim.
//! If there is no victim, appends are admitted until the reserve is reached; whether the side is
//! full is not decided here.
//!
//! **Order.** Blocks that idle time puts in the order of the volume take space, and gain none
//! before whole segments have died. They are appended only while `f` is at most 0.5, so that
//! clients that come back find more free space than cleaning aims at. While there is less, idle
//! time cleans.
//!
//! More cleaning than is due is always allowed, for example in idle time.
//!
//! The module must never admit an append into the reserve.

use super::victims::Yield;

/// Divisor of the surplus that gives the lead which appends are allowed. With a large lead, appends
/// would run freely for long and then slow down abruptly.
const LEAD_DIVISOR: f64 = 8.0;

/// Slope of the factor per share of the side, as in SPDK.
const SLOPE: f64 = 20.0;

/// Highest excess of the factor over 1, as in SPDK.
const EXCESS_MAX: f64 = 0.8;

/// Highest factor at which blocks are put in order.
const ORDER_FACTOR_MAX: f64 = 0.5;

/// Number of blocks of 4 KiB in a piece of cleaning of 8 MiB.
pub const PIECE_BLOCKS: u64 = 2048;

/// Size of a side and the levels of free space for which cleaning aims, all in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Size of the side.
    pub all_blocks: u64,
    /// Size of a segment.
    pub segment_blocks: u64,
    /// Free space that appends never use. It is the sum of the segments that must remain free, the
    /// segments that wait to become free until a checkpoint is durable, and one segment for each
    /// stream, because the rest of an open segment counts as free.
    pub reserve_blocks: u64,
    /// Free space at which cleaning keeps up with appends exactly. It must be larger than the
    /// reserve and one segment. A higher target allows longer bursts, and costs writes, because
    /// what is kept free holds no dead blocks.
    pub target_blocks: u64,
}

/// The free space of a side now, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Blocks in free segments and in the rest of open segments.
    pub free_blocks: u64,
    /// Space that is paid for but not free yet. The segment that is being cleaned counts with the
    /// share of its live blocks that has been moved. A segment that is completely moved and waits
    /// for a checkpoint counts whole.
    pub coming_blocks: u64,
}

/// The state of the law for one side; see the module.
#[derive(Clone, Debug)]
pub struct Admission {
    bounds: Bounds,
    /// Blocks of space that appends have taken and for which cleaning has not been done.
    debt_blocks: f64,
}

impl Admission {
    /// Creates the law of a side without debt.
    ///
    /// # Panics
    /// If the target is not above the reserve and one segment, or above the size of the side.
    pub fn new(bounds: Bounds) -> Admission {
        let floor = bounds.reserve_blocks + bounds.segment_blocks;
        assert!(floor < bounds.target_blocks && bounds.target_blocks <= bounds.all_blocks);
        Admission {
            bounds,
            debt_blocks: 0.0,
        }
    }

    /// Returns level - `from_blocks`, which can be negative.
    fn above(level: &Level, from_blocks: u64) -> f64 {
        (level.free_blocks + level.coming_blocks) as f64 - from_blocks as f64
    }

    /// Returns true when the level is below its target.
    pub fn is_below_target(&self, level: &Level) -> bool {
        Self::above(level, self.bounds.target_blocks) < 0.0
    }

    fn floor_blocks(&self) -> u64 {
        self.bounds.reserve_blocks + self.bounds.segment_blocks
    }

    /// Returns the distance of the target from the floor.
    fn room_blocks(&self) -> f64 {
        (self.bounds.target_blocks - self.floor_blocks()) as f64
    }

    /// Returns the factor f of the law: the blocks of space that cleaning must gain for each
    /// appended block, 0 to 1.8.
    pub fn factor(&self, level: &Level) -> f64 {
        let slope = (SLOPE / self.bounds.all_blocks as f64).max(EXCESS_MAX / self.room_blocks());
        1.0 + (-slope * Self::above(level, self.bounds.target_blocks)).clamp(-1.0, EXCESS_MAX)
    }

    /// Returns the blocks by which appends may be ahead of cleaning.
    fn lead_blocks(&self, level: &Level) -> f64 {
        Self::above(level, self.floor_blocks()).max(0.0) / LEAD_DIVISOR
    }

    /// Returns the number of blocks that may be appended now. `next` is the expected yield of the
    /// next victims.
    pub fn may_append_blocks(&self, level: &Level, next: &Yield) -> u64 {
        let free = level.free_blocks.saturating_sub(self.bounds.reserve_blocks);
        if next.is_nothing() {
            return free;
        }
        let ahead = self.lead_blocks(level) - self.debt_at(level);
        free.min(ahead.max(0.0) as u64)
    }

    /// Returns true when appends are limited by the space that is free, and not by what they owe.
    /// Then they go on as soon as segments that are paid for become free.
    pub fn is_limited_by_space(&self, level: &Level, next: &Yield) -> bool {
        let free = level.free_blocks.saturating_sub(self.bounds.reserve_blocks);
        let ahead = self.lead_blocks(level) - self.debt_at(level);
        next.is_nothing() || (free as f64) < ahead
    }

    /// Records that `blocks` blocks of clients were appended. `level` is the level after them. The
    /// factor is taken in the middle of these blocks.
    pub fn note_appended(&mut self, blocks: u64, level: &Level) {
        let before = Level {
            free_blocks: level.free_blocks + blocks,
            ..*level
        };
        let factor = (self.factor(&before) + self.factor(level)) / 2.0;
        self.debt_blocks = self.debt_at(level) + blocks as f64 * factor;
    }

    /// Returns true when so much is free that blocks may be put in order. `level` is the level
    /// after them.
    pub fn may_order(&self, level: &Level) -> bool {
        self.factor(level) <= ORDER_FACTOR_MAX
    }

    /// Returns the debt, which is forgotten where the factor is 0.
    fn debt_at(&self, level: &Level) -> f64 {
        match self.factor(level) > 0.0 {
            true => self.debt_blocks,
            false => 0.0,
        }
    }

    /// Records that cleaning moved `blocks` blocks out of a victim. `victim` is the yield of the
    /// whole victim when it was chosen, `next` the expected yield of the next victims, and `level`
    /// the level after the move.
    pub fn note_moved(&mut self, blocks: u64, level: &Level, victim: &Yield, next: &Yield) {
        let surplus = Self::above(level, self.floor_blocks());
        let share = (surplus / self.room_blocks()).clamp(0.0, 1.0);
        let gained = share * next.gained_per_moved() + (1.0 - share) * victim.gained_per_moved();
        self.debt_blocks = (self.debt_blocks - blocks as f64 * gained).max(0.0);
    }

    /// Returns the number of blocks that cleaning must move now, 0 to [`PIECE_BLOCKS`]. `next` is
    /// the expected yield of the next victims.
    pub fn due_blocks(&self, level: &Level, next: &Yield) -> u64 {
        if next.is_nothing() {
            return 0;
        }
        let debt = self.debt_at(level);
        let owed = (debt * next.moved_per_appended()).ceil() as u64;
        if owed >= PIECE_BLOCKS || self.may_append_blocks(level, next) == 0 {
            return PIECE_BLOCKS;
        }
        match debt >= self.lead_blocks(level) / 2.0 {
            true => owed,
            false => 0,
        }
    }

    /// Returns the debt in blocks of space at `level`, for statistics.
    pub fn debt_blocks(&self, level: &Level) -> u64 {
        self.debt_at(level) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A side of 100,000 blocks in segments of 100. The floor is 600 and the target 1600. The slope
    /// is 0.8 / 1000 a block, because 20 / 100,000 is less.
    fn law() -> Admission {
        Admission::new(Bounds {
            all_blocks: 100_000,
            segment_blocks: 100,
            reserve_blocks: 500,
            target_blocks: 1600,
        })
    }

    fn free(free_blocks: u64) -> Level {
        Level {
            free_blocks,
            coming_blocks: 0,
        }
    }

    /// Returns the yield of segments of which `percent` is live.
    fn live(percent: u64) -> Yield {
        Yield {
            moved_blocks: percent,
            gained_blocks: 100 - percent,
        }
    }

    fn is_near(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-9
    }

    #[test]
    fn the_factor_falls_from_one_and_eight_tenths_to_zero() {
        let factor = |free_blocks| law().factor(&free(free_blocks));
        let expected = [
            (0, 1.8),
            (600, 1.8),
            (1100, 1.4),
            (1600, 1.0),
            (2100, 0.6),
            (2850, 0.0),
        ];
        for (free_blocks, value) in expected {
            assert!(is_near(factor(free_blocks), value), "{free_blocks}");
        }
        assert_eq!(factor(100_000), 0.0);
        // With a target that is 9400 blocks above the floor, 20 / 100,000 is the larger slope.
        let wide = Admission::new(Bounds {
            target_blocks: 10_000,
            ..law().bounds
        });
        assert!(is_near(wide.factor(&free(12_500)), 0.5));
        assert!(is_near(wide.factor(&free(15_000)), 0.0));
    }

    /// At the target, the lead is an eighth of 1000 blocks. Each appended block lowers it by an
    /// eighth and adds a debt of about one block.
    #[test]
    fn appends_run_ahead_by_an_eighth_of_the_surplus() {
        let mut law = law();
        let next = live(50);
        assert_eq!(law.may_append_blocks(&free(1600), &next), 125);
        law.note_appended(100, &free(1500));
        // The factor is 1 before and 1.08 after these 100 blocks, so the debt is 104.
        assert!(is_near(law.debt_blocks, 104.0));
        assert_eq!(law.may_append_blocks(&free(1500), &next), 8);
        law.note_moved(50, &free(1500), &next, &next);
        // Moving a block of a half live victim gains one block.
        assert!(is_near(law.debt_blocks, 54.0));
        let level = Level {
            free_blocks: 1450,
            coming_blocks: 100,
        };
        assert_eq!(law.may_append_blocks(&level, &next), 118 - 54);
    }

    /// A moved block gains 1 block in the victim, but 1/4 block in the mean of the next ones. The
    /// surplus is 1000 blocks at the target and 500 in the middle.
    #[test]
    fn space_limits_appends_where_what_is_paid_for_is_not_free() {
        let law = law();
        let level = |free_blocks, coming_blocks| Level {
            free_blocks,
            coming_blocks,
        };
        // The reserve is 500 and the floor 600, so 1000 blocks are 400 above it, and 50 may be
        // appended: more than the 10 free blocks above the reserve, and less than 60.
        assert!(law.is_limited_by_space(&level(510, 490), &live(50)));
        assert!(!law.is_limited_by_space(&level(560, 440), &live(50)));
        assert!(law.is_limited_by_space(&level(560, 440), &Yield::default()));
    }

    #[test]
    fn the_mean_pays_at_the_target_and_the_victim_at_the_floor() {
        for (level, paid) in [(600, 40.0), (1100, 25.0), (1600, 10.0), (5000, 10.0)] {
            let mut law = law();
            law.debt_blocks = 100.0;
            law.note_moved(40, &free(level), &live(50), &live(80));
            assert!(is_near(law.debt_blocks, 100.0 - paid), "{level}");
        }
    }

    #[test]
    fn the_same_debt_is_more_cleaning_where_space_is_dearer() {
        let mut law = law();
        law.note_appended(100, &free(1500));
        // The debt of 104 blocks is more than half of the lead of 112 blocks.
        assert_eq!(law.due_blocks(&free(1500), &live(50)), 104);
        assert_eq!(law.due_blocks(&free(1500), &live(90)), 9 * 104);
        assert_eq!(law.due_blocks(&free(1500), &live(99)), PIECE_BLOCKS);
        assert_eq!(law.may_append_blocks(&free(1500), &live(50)), 8);
        assert_eq!(law.may_append_blocks(&free(1500), &live(99)), 8);
        // It is less than half of the lead at 2600 blocks, which is 250.
        assert_eq!(law.due_blocks(&free(2600), &live(50)), 0);
    }

    #[test]
    fn a_side_with_much_free_space_is_not_cleaned() {
        let mut law = law();
        let next = live(99);
        law.note_appended(100, &free(1500));
        assert_eq!(law.debt_blocks(&free(1500)), 104);
        assert_eq!(law.debt_blocks(&free(2850)), 0);
        assert_eq!(law.due_blocks(&free(2850), &next), 0);
        let level = free(50_600);
        assert_eq!(law.may_append_blocks(&level, &next), 50_000 / 8);
        law.note_appended(6000, &level);
        assert_eq!(law.debt_blocks, 0.0);
    }

    #[test]
    fn cleaning_is_due_where_nothing_may_be_appended() {
        let law = law();
        for free_blocks in [0, 499, 500, 600, 607] {
            assert_eq!(law.may_append_blocks(&free(free_blocks), &live(50)), 0);
            assert_eq!(law.due_blocks(&free(free_blocks), &live(50)), PIECE_BLOCKS);
        }
        // The reserve is kept from appends, however much is coming.
        let level = Level {
            free_blocks: 503,
            coming_blocks: 1000,
        };
        assert_eq!(law.may_append_blocks(&level, &live(50)), 3);
    }

    #[test]
    fn without_a_victim_appends_go_on_until_the_reserve() {
        let law = law();
        let nothing = Yield::default();
        assert_eq!(law.may_append_blocks(&free(510), &nothing), 10);
        assert_eq!(law.may_append_blocks(&free(500), &nothing), 0);
        assert_eq!(law.due_blocks(&free(500), &nothing), 0);
    }

    /// The slope is 0.8 / 1000 a block, so the factor is 0.5 at 1600 + 625 blocks.
    #[test]
    fn what_is_put_in_order_leaves_more_space_than_cleaning_aims_at() {
        assert!(law().may_order(&free(2225)) && !law().may_order(&free(2224)));
    }
}
