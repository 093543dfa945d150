//! The pointer of asymmetric buffer management: how many pages the write buffer may hold.
//!
//! Source: section 3.3 of the ABM paper, which says only in which direction a ghost hit moves it. The
//! paper's rule counts every ghost hit as one page. The others weigh what the hit would have saved: a
//! page that was flushed and is written again would have saved a flush, and one read again a read,
//! each at what the device was last seen to take. It must never move the pointer past the capacity.

use crate::replacement::{Access, DeviceCost};

/// What moves the pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PointerRule {
    /// Nothing: the write buffer has this share of the pages.
    Fixed(f64),
    /// A ghost hit counts as one page (the paper).
    Ghost,
    /// A ghost hit counts as many pages as reads it would have saved the time of.
    Cost,
    /// The side with the greater saving for each further page grows, the saving taken over the pages
    /// remembered and decayed over as many accesses as the buffer has pages.
    Gain,
}

/// Which buffer a page was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

/// How fast measured costs follow the device: the weight of one page.
const COST_WEIGHT: f64 = 1.0 / 256.0;
/// [`PointerRule::Gain`] crosses the whole buffer in this many ghost hits that all say the same.
const GAIN_STEPS: f64 = 256.0;

/// The pointer and what it knows of the device.
#[derive(Clone, Debug)]
pub struct Pointer {
    rule: PointerRule,
    capacity: f64,
    write_target: f64,
    read_us: f64,
    flush_us: f64,
    /// Accesses so far.
    now: f64,
    read_gain: Gain,
    write_gain: Gain,
}

/// Microseconds saved for each further page, decayed.
#[derive(Clone, Copy, Debug, Default)]
struct Gain {
    us: f64,
    at: f64,
}

impl Gain {
    fn now(&self, now: f64, half_life: f64) -> f64 {
        self.us * (-(now - self.at) / half_life).exp2()
    }

    fn add(&mut self, us: f64, now: f64, half_life: f64) {
        *self = Gain {
            us: self.now(now, half_life) + us,
            at: now,
        };
    }
}

impl Pointer {
    /// A pointer in the middle of `capacity` pages, or where the fixed split says; `read_us` and
    /// `flush_us` are the costs of a page until measured ones come.
    pub fn new(rule: PointerRule, capacity: usize, read_us: f64, flush_us: f64) -> Pointer {
        let share = match rule {
            PointerRule::Fixed(share) => share.clamp(0.0, 1.0),
            _ => 0.5,
        };
        Pointer {
            rule,
            capacity: capacity as f64,
            write_target: capacity as f64 * share,
            read_us,
            flush_us,
            now: 0.0,
            read_gain: Gain::default(),
            write_gain: Gain::default(),
        }
    }

    /// Pages that the write buffer may hold.
    pub fn write_target(&self) -> f64 {
        self.write_target
    }

    /// True if costs move it.
    pub fn weighs_costs(&self) -> bool {
        matches!(self.rule, PointerRule::Cost | PointerRule::Gain)
    }

    /// An access happened.
    pub(super) fn tick(&mut self) {
        self.now += 1.0;
    }

    /// The device took this.
    pub(super) fn learn(&mut self, cost: DeviceCost) {
        let (known, pages, time_us) = match cost {
            DeviceCost::Read { pages, time_us } => (&mut self.read_us, pages, time_us),
            DeviceCost::Flush { pages, time_us } => (&mut self.flush_us, pages, time_us),
        };
        if pages == 0 || !time_us.is_finite() || time_us < 0.0 {
            return;
        }
        let weight = 1.0 - (1.0 - COST_WEIGHT).powi(pages.min(1 << 20) as i32);
        *known += weight * (time_us / f64::from(pages) - *known);
    }

    /// What it would have saved to hold a page for longer that was in the buffer of `side`.
    fn saved_us(&self, side: Side, access: Access) -> f64 {
        match (side, access) {
            (Side::Read, Access::Read) | (Side::Write, Access::Read) => self.read_us,
            (Side::Write, Access::Write) => self.flush_us,
            // A clean page that is overwritten saves nothing by being there.
            (Side::Read, Access::Write) => 0.0,
        }
    }

    /// A page is asked for that the buffer of `side` gave up and that is among the `remembered` pages
    /// of that side.
    pub(super) fn ghost_hit(&mut self, side: Side, access: Access, remembered: usize) {
        let towards = match side {
            Side::Read => -1.0,
            Side::Write => 1.0,
        };
        let step = match self.rule {
            PointerRule::Fixed(_) => 0.0,
            PointerRule::Ghost => towards,
            PointerRule::Cost => towards * self.saved_us(side, access) / self.read_us.max(1e-3),
            PointerRule::Gain => self.gain_step(side, access, remembered),
        };
        self.write_target = (self.write_target + step).clamp(0.0, self.capacity);
    }

    /// A page that was flushed and is still held is written again, which a larger write buffer would
    /// have saved; the paper's rule knows pages that left only.
    pub(super) fn flushed_too_early(&mut self, remembered: usize) {
        if self.weighs_costs() {
            self.ghost_hit(Side::Write, Access::Write, remembered);
        }
    }

    fn gain_step(&mut self, side: Side, access: Access, remembered: usize) -> f64 {
        let per_page = self.saved_us(side, access) / remembered.max(1) as f64;
        let gain = match side {
            Side::Read => &mut self.read_gain,
            Side::Write => &mut self.write_gain,
        };
        gain.add(per_page, self.now, self.capacity);
        let read = self.read_gain.now(self.now, self.capacity);
        let write = self.write_gain.now(self.now, self.capacity);
        let sum = read + write;
        if sum > 0.0 {
            (write - read) / sum * (self.capacity / GAIN_STEPS).max(1.0)
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_rule_counts_every_ghost_hit_as_one_page() {
        let mut pointer = Pointer::new(PointerRule::Ghost, 10, 25.0, 200.0);
        assert_eq!(pointer.write_target(), 5.0);
        pointer.ghost_hit(Side::Read, Access::Read, 3);
        assert_eq!(pointer.write_target(), 4.0);
        for _ in 0..20 {
            pointer.ghost_hit(Side::Write, Access::Write, 3);
        }
        assert_eq!(pointer.write_target(), 10.0, "it stops at the end");
    }

    #[test]
    fn the_cost_rule_counts_a_flush_for_the_reads_it_is_worth() {
        // 200 us a flushed page against 25 us a read: 8 pages.
        let mut pointer = Pointer::new(PointerRule::Cost, 100, 25.0, 200.0);
        pointer.ghost_hit(Side::Write, Access::Write, 3);
        assert_eq!(pointer.write_target(), 58.0);
        pointer.ghost_hit(Side::Read, Access::Read, 3);
        assert_eq!(pointer.write_target(), 57.0);
        pointer.ghost_hit(Side::Read, Access::Write, 3);
        assert_eq!(
            pointer.write_target(),
            57.0,
            "an overwritten page saved nothing"
        );
    }

    #[test]
    fn costs_follow_the_device_and_bad_ones_are_ignored() {
        let mut pointer = Pointer::new(PointerRule::Cost, 1000, 25.0, 200.0);
        for _ in 0..10_000 {
            pointer.learn(DeviceCost::Flush {
                pages: 64,
                time_us: 64.0 * 1000.0,
            });
        }
        pointer.learn(DeviceCost::Flush {
            pages: 0,
            time_us: 1.0,
        });
        pointer.learn(DeviceCost::Read {
            pages: 1,
            time_us: f64::NAN,
        });
        // 1000 us against 25: 40 pages.
        pointer.ghost_hit(Side::Write, Access::Write, 3);
        assert!((pointer.write_target() - 540.0).abs() < 1e-6);
    }

    #[test]
    fn the_gain_rule_grows_the_side_that_saves_more_for_each_page() {
        // Equal hits, but the write side's are spread over ten times the pages remembered, and a
        // flush is worth 8 reads: 8 / 100 against 1 / 10, so reads deserve the room.
        let mut pointer = Pointer::new(PointerRule::Gain, 100, 25.0, 200.0);
        for _ in 0..10 {
            pointer.tick();
            pointer.ghost_hit(Side::Read, Access::Read, 10);
            pointer.ghost_hit(Side::Write, Access::Write, 100);
        }
        assert!(pointer.write_target() < 50.0);
        // Spread alike, the flushes win.
        for _ in 0..100 {
            pointer.tick();
            pointer.ghost_hit(Side::Read, Access::Read, 10);
            pointer.ghost_hit(Side::Write, Access::Write, 10);
        }
        assert!(pointer.write_target() > 50.0);
    }
}
