//! Tests of admission under steps of load, on a model of a device that appends and moves blocks.
//!
//! A step of the model is the time in which the device can move 1,000 blocks. A client offers a
//! number of blocks in each step. The step has 50 slices. In each slice the client appends as many
//! blocks as are offered and admitted, and the device moves 20 blocks if cleaning is due.

use crate::cleaning::admission::{Admission, Bounds, Level};
use crate::cleaning::victims::Yield;

const SEGMENT: u64 = 500;
/// Free segments that must remain: one for each stream, and one.
const RESERVE: u64 = 5;
/// Cleaned segments that become free only together, as after a checkpoint.
const FREED_TOGETHER: u64 = 2;
const MOVED_IN_STEP: u64 = 1000;
const SLICES: u64 = 50;

/// A segment that is being cleaned.
struct Victim {
    whole: Yield,
    moved: u64,
}

/// The device, its free space, and the law that is tested.
struct Device {
    law: Admission,
    free: u64,
    /// Live blocks in each of the victims that follow, as a percentage.
    live_percent: u64,
    victim: Option<Victim>,
    waiting_segments: u64,
    /// Blocks of the current piece of cleaning that have not been moved yet.
    piece: u64,
}

/// The blocks that were appended and moved in a step.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    appended: u64,
    moved: u64,
}

fn of_live_percent(percent: u64) -> Yield {
    let live = SEGMENT * percent / 100;
    Yield {
        moved_blocks: live,
        gained_blocks: SEGMENT - live,
    }
}

impl Device {
    /// Returns a device with 1,024 segments, of which `free_segments` are free. The target is 8
    /// segments above the floor.
    fn new(free_segments: u64) -> Device {
        let reserve = RESERVE + FREED_TOGETHER - 1;
        Device {
            law: Admission::new(Bounds {
                all_blocks: 1024 * SEGMENT,
                segment_blocks: SEGMENT,
                reserve_blocks: reserve * SEGMENT,
                target_blocks: (reserve + 1 + 8) * SEGMENT,
            }),
            free: free_segments * SEGMENT,
            live_percent: 50,
            victim: None,
            waiting_segments: 0,
            piece: 0,
        }
    }

    fn level(&self) -> Level {
        let paid = |victim: &Victim| victim.moved * SEGMENT / victim.whole.moved_blocks;
        Level {
            free_blocks: self.free,
            coming_blocks: self.waiting_segments * SEGMENT + self.victim.as_ref().map_or(0, paid),
        }
    }

    fn next_yield(&self) -> Yield {
        of_live_percent(self.live_percent)
    }

    /// Runs one step in which `offered` blocks are offered.
    fn step(&mut self, offered: u64) -> Done {
        let mut done = Done::default();
        for slice in 1..=SLICES {
            let wanted = offered * slice / SLICES - done.appended.min(offered * slice / SLICES);
            let appended = wanted.min(
                self.law
                    .may_append_blocks(&self.level(), &self.next_yield()),
            );
            self.free -= appended;
            self.law.note_appended(appended, &self.level());
            done.appended += appended;
            done.moved += self.clean(MOVED_IN_STEP / SLICES);
            assert!(self.free >= RESERVE * SEGMENT, "free: {}", self.free);
        }
        done
    }

    /// Moves up to `blocks` blocks if they are due; returns their number.
    fn clean(&mut self, blocks: u64) -> u64 {
        let mut moved = 0;
        while moved < blocks {
            if self.piece == 0 {
                self.piece = self.law.due_blocks(&self.level(), &self.next_yield());
            }
            if self.piece == 0 {
                break;
            }
            moved += self.move_blocks(self.piece.min(blocks - moved));
        }
        moved
    }

    fn move_blocks(&mut self, blocks: u64) -> u64 {
        let whole = self.next_yield();
        let victim = self.victim.get_or_insert(Victim { whole, moved: 0 });
        let blocks = blocks.min(victim.whole.moved_blocks - victim.moved);
        victim.moved += blocks;
        self.free -= blocks;
        self.piece -= blocks;
        let of = victim.whole;
        if victim.moved == victim.whole.moved_blocks {
            self.victim = None;
            self.waiting_segments += 1;
        }
        if self.waiting_segments == FREED_TOGETHER {
            self.free += FREED_TOGETHER * SEGMENT;
            self.waiting_segments = 0;
        }
        self.law.note_moved(blocks, &self.level(), &of, &whole);
        blocks
    }

    /// Runs `steps` steps and returns what was done in each of them.
    fn run(&mut self, steps: usize, offered: u64) -> Vec<Done> {
        let done: Vec<Done> = (0..steps).map(|_| self.step(offered)).collect();
        for step in &done {
            assert!(offered == 0 || step.appended > 0, "{step:?}");
        }
        done
    }

    /// Returns the free blocks above the target; negative below.
    fn above_target(&self) -> i64 {
        let level = self.level();
        (level.free_blocks + level.coming_blocks) as i64 - ((RESERVE + 10) * SEGMENT) as i64
    }
}

fn mean_appended(steps: &[Done]) -> f64 {
    steps.iter().map(|of| of.appended as f64).sum::<f64>() / steps.len() as f64
}

/// Asserts that the mean of the steps is within 3 % of `expected`, and that no step is below half
/// of it. A step of the model ends anywhere in a slice, which is 2 % of a step, and the appends in
/// one step are few where victims are almost live.
#[track_caller]
fn assert_even(steps: &[Done], expected: f64) {
    let mean = mean_appended(steps);
    assert!(
        (mean / expected - 1.0).abs() < 0.03,
        "{mean}, not {expected}"
    );
    let least = steps.iter().map(|of| of.appended).min().unwrap_or(0) as f64;
    assert!(least >= mean / 2.0, "{least} of {mean}");
}

/// With victims of live share v, moving 1,000 blocks gains 1,000 x (1 - v)/v blocks. If more is
/// offered, this is admitted, in every step alike.
#[test]
fn a_client_that_offers_too_much_is_given_what_cleaning_gains() {
    for (live_percent, offered) in [(20, 9000), (50, 2000), (63, 1200), (80, 500), (99, 100)] {
        let mut device = Device::new(15);
        device.live_percent = live_percent;
        let v = live_percent as f64 / 100.0;
        let gained = 1000.0 * (1.0 - v) / v;
        // The level settles within about 10,000 appended blocks.
        let settling = (10_000.0 / gained) as usize;
        let steps = device.run(settling + 200, offered);
        assert_even(&steps[settling..], gained);
    }
}

/// A client that offers less than cleaning can gain is given everything, cleaning does what this
/// costs and not more, and the free space stays at its target.
#[test]
fn a_client_that_offers_less_is_not_slowed_down() {
    let mut device = Device::new(15);
    let steps = device.run(400, 700);
    assert!(steps.iter().all(|of| of.appended == 700));
    let moved = steps[200..].iter().map(|of| of.moved).sum::<u64>();
    assert!(moved.abs_diff(200 * 700) < 200 * 70, "{moved}");
    assert!(device.above_target().unsigned_abs() < SEGMENT);
}

/// After idle time there is much free space. A burst uses it at the rate at which it is offered.
/// Then the rate falls step by step, and never abruptly, to what cleaning gains.
#[test]
fn a_burst_is_admitted_and_then_slows_down_gradually() {
    let mut device = Device::new(200);
    let steps = device.run(200, 5000);
    let burst = steps.iter().take_while(|of| of.appended == 5000).count();
    // Cleaning begins 10 segments above the target of 15: the slope is 0.8 for the 8 segments
    // between the floor and the target. 175 of the 200 segments, or 87,500 blocks, are 17 steps.
    assert!(burst >= 17, "{burst}");
    let least_of_before = |pair: &[Done]| pair[1].appended as f64 / pair[0].appended as f64;
    let worst = steps.windows(2).map(least_of_before).fold(1.0, f64::min);
    assert!(worst > 0.3, "{worst}");
    assert_even(&steps[150..], 1000.0);
}

/// A load of 70 % is doubled, the victims suddenly are 99 % live, then half live again, then the
/// client is idle, and then it offers everything at once. Free segments and the appends of each
/// step are checked in every step of the model.
#[test]
fn steps_of_load_and_of_victims_neither_stop_the_client_nor_use_the_reserve() {
    let mut device = Device::new(15);
    assert_even(&device.run(100, 700), 700.0);
    assert_even(&device.run(100, 1400)[50..], 1000.0);
    device.live_percent = 99;
    assert_even(&device.run(1200, 1400)[1000..], 1000.0 / 99.0);
    device.live_percent = 50;
    assert_even(&device.run(100, 1400)[50..], 1000.0);
    device.run(20, 0);
    assert_even(&device.run(100, 100_000)[50..], 1000.0);
}

/// The victims change with every step, between 2 % and 99 % live, as do the offers.
#[test]
fn changing_victims_and_offers_neither_stop_the_client_nor_use_the_reserve() {
    let mut device = Device::new(15);
    let mut random = super::loads::Random::new(7);
    let mut limited = 0;
    for _ in 0..5000 {
        device.live_percent = 2 + u64::from(random.below(98));
        let offered = 1 + u64::from(random.below(20_000));
        limited += u32::from(device.run(1, offered)[0].appended < offered);
    }
    assert!(limited > 1000, "{limited}");
}
