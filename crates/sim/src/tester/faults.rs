//! The faults of a life: their start, their end, and the choice of the blocks to corrupt.

use std::rc::Rc;
use std::time::Duration;

use bimetal_block::device::Statistic;
use bimetal_block::{BLOCK_BYTES, Device};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Instant, Payload, Rng, Rt};

use super::platter::{Block, Platter};
use super::scenario::{Fault, FaultKind, Life};
use super::switch::Switch;
use super::world::{Program, World};

/// Returns the time at which every temporary fault has ended and every permanent fault has begun.
fn calm_at(life: &Life, opened: Instant) -> Instant {
    let ends = life
        .faults
        .iter()
        .map(|fault| fault.at_ns + fault.for_ns.unwrap_or(0));
    opened + Duration::from_nanos(ends.max().unwrap_or(0))
}

/// Starts the faults of a life. First waits until the side without faults holds all content. After
/// a crash that side can lack content, and the volume then depends on a side that has faults.
pub async fn start(world: Rc<World>, life: Life, program: Rc<Program>, tasks: TaskGroup) {
    if let Some(spared) = world.scenario.steadfast {
        while !counts(&program, spared) {
            world.rt.sleep(Duration::from_millis(5)).await;
        }
    }
    let calm_at = calm_at(&life, world.rt.now());
    program.calm_at.set(Some(calm_at));
    for fault in &life.faults {
        let disks = &program.sides[fault.side].disks;
        let switch = disks[fault.at_ns as usize % disks.len()].switch();
        tasks.spawn(cause(Rc::clone(&world), fault.clone(), switch));
    }
    if world.scenario.steadfast.is_some() {
        return;
    }
    // If every side can have faults, the volume can guarantee nothing while a permanent fault
    // lasts. So once the temporary faults have ended, the permanent faults are ended here.
    world
        .rt
        .sleep_until(calm_at + Duration::from_nanos(1))
        .await;
    for disk in program.sides.iter().flat_map(|side| &side.disks) {
        disk.switch().heal();
    }
    world.trace.event(&[6], || "every fault ends".to_owned());
}

/// Returns true if a side is healthy and no longer marked as inconsistent. As long as the result is
/// false, the volume depends on the other sides.
fn counts(program: &Program, side: usize) -> bool {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    program.mirror.statistics(&mut statistics);
    let side = &program.mirror.status().sides[side];
    let joins = |(part, name, statistic): &(String, String, Statistic)| {
        let marked = matches!(statistic, Statistic::State(mark) if mark == "inconsistent");
        *part == side.name && name == "mark" && marked
    };
    side.health == "healthy" && !statistics.iter().any(joins)
}

async fn cause(world: Rc<World>, fault: Fault, switch: Rc<Switch>) {
    world.rt.sleep(Duration::from_nanos(fault.at_ns)).await;
    world
        .trace
        .event(&[7, fault.side as u64], || format!("fault {fault:?}"));
    let for_time = fault.for_ns.map(Duration::from_nanos);
    match fault.kind {
        FaultKind::Frozen => switch.set_frozen(true),
        FaultKind::Slow(factor) => switch.set_slowness(factor),
        FaultKind::Errors { class, chance } => switch.set_error_chance(class, chance),
        FaultKind::FailNext { class, count } => switch.fail_next(class, count),
        FaultKind::Offline => switch.set_offline(true),
        FaultKind::Flapping { times } => {
            flap(&world.rt, &switch, times, for_time.unwrap_or_default()).await;
            return;
        }
        FaultKind::Rot { blocks } => {
            let label = format!("rot {} {}", fault.side, fault.at_ns);
            let mut rng = Rng::labelled(world.scenario.seed, &label);
            rot(&world, fault.side, blocks, &mut rng);
        }
        FaultKind::RotOfAllCopies { blocks } => {
            let label = format!("rot of all copies {}", fault.at_ns);
            let mut rng = Rng::labelled(world.scenario.seed, &label);
            rot_all_copies(&world, blocks, &mut rng);
        }
        FaultKind::Astray { how, count } => switch.astray_next(how, count),
    }
    let Some(for_time) = for_time else { return };
    world.rt.sleep(for_time).await;
    match fault.kind {
        FaultKind::Frozen => switch.set_frozen(false),
        FaultKind::Slow(_) => switch.set_slowness(1),
        FaultKind::Errors { class, .. } => switch.set_error_chance(class, 0.0),
        FaultKind::Offline => switch.set_offline(false),
        // These faults end by themselves after a given number of operations, repetitions or blocks.
        FaultKind::FailNext { .. }
        | FaultKind::Flapping { .. }
        | FaultKind::Rot { .. }
        | FaultKind::RotOfAllCopies { .. }
        | FaultKind::Astray { .. } => {}
    }
    world
        .trace
        .event(&[8, fault.side as u64], || format!("end of {fault:?}"));
}

async fn flap(rt: &Rt, switch: &Switch, times: u32, for_time: Duration) {
    let half = for_time / (2 * times);
    for _ in 0..times {
        switch.set_offline(true);
        rt.sleep(half).await;
        switch.set_offline(false);
        rt.sleep(half).await;
    }
}

/// Returns true if the side is faulty permanently. This is the case if both copies of its
/// superblock are lost. It is also the case if one of its faults in this life has no end, and the
/// scenario keeps another side free of faults.
pub fn lasts_for_ever(world: &World, life: &Life, side: usize) -> bool {
    if world.blank.borrow().contains(&side) {
        return true;
    }
    let lasting = |fault: &&Fault| fault.side == side && fault.for_ns.is_none();
    world.scenario.steadfast.is_some() && life.faults.iter().any(|fault| lasting(&fault))
}

/// Maximum number of random blocks to try until the rule allows the corruption of one of them.
const TRIES: usize = 64;

/// Corrupts durable blocks of a side. Only blocks that the volume could still repair afterwards are
/// chosen. With a chance of 80 %, a block is in the used part of the volume; otherwise it is
/// anywhere on the side.
pub fn rot(world: &World, side: usize, blocks: u32, rng: &mut Rng) {
    let rule = &world.around.rule;
    let map = rule.side(side);
    for _ in 0..blocks {
        for _ in 0..TRIES {
            let (start, bytes) = match map.home.filter(|_| rng.chance(0.8)) {
                Some(home) => (home, world.scenario.span_bytes),
                None => (0, map.size_bytes()),
            };
            let offset = start + rng.below(bytes / BLOCK_BYTES) * BLOCK_BYTES;
            let (disk, at) = map.on_disk(offset);
            let index = (at / BLOCK_BYTES) as usize;
            let fits = {
                let platter = map.platters[disk].borrow();
                let used = platter.block(index as u64).is_some();
                used && platter.is_durable(index) && !platter.is_corrupt(index)
            };
            if fits && rule.may_corrupt(side, disk, index) {
                decay(world, &mut map.platters[disk].borrow_mut(), index, rng);
                break;
            }
        }
    }
}

/// Corrupts `blocks` blocks of the volume. The copies on all sides are corrupted.
fn rot_all_copies(world: &World, blocks: u32, rng: &mut Rng) {
    let rule = &world.around.rule;
    for _ in 0..blocks {
        for _ in 0..TRIES {
            let offset = rng.below(world.scenario.span_bytes / BLOCK_BYTES) * BLOCK_BYTES;
            if !rule.is_stored(offset) || !rule.is_everywhere(offset) {
                continue;
            }
            for side in 0..world.scenario.sides.len() {
                let map = rule.side(side);
                let place = rule.place_at_rest(side, offset);
                let (disk, at) = map.on_disk(place.expect("it is stored everywhere"));
                let index = (at / BLOCK_BYTES) as usize;
                decay(world, &mut map.platters[disk].borrow_mut(), index, rng);
            }
            rule.add_hopeless();
            world.reach("all copies of a block corrupt");
            break;
        }
    }
}

fn decay(world: &World, platter: &mut Platter, index: usize, rng: &mut Rng) {
    let content = corrupt(&world.rt, platter.block(index as u64), rng);
    platter.decay(index, content);
    world.count_faults(|c| c.corrupt_blocks += 1);
    world
        .trace
        .event(&[9, index as u64], || format!("block {index} decays"));
}

/// Returns a corrupt version of a block: some bits changed, all bytes changed, or zeroes. The
/// result always differs from the original.
fn corrupt(rt: &Rt, content: Option<&Payload>, rng: &mut Rng) -> Block {
    let kind = rng.below(4);
    if kind == 0 && content.is_some() {
        return None;
    }
    let mut block = rt.pool().alloc_now(BLOCK_BYTES as usize);
    match content {
        Some(content) => content.copy_to(&mut block),
        None => block.fill(0),
    }
    if kind == 1 {
        rng.fill(&mut block);
    } else {
        // Each flipped bit is in a different byte, so no flip undoes an earlier one.
        let first = rng.below(BLOCK_BYTES) as usize;
        for step in 0..1 + rng.below(8) as usize {
            let at = (first + step * 97) % BLOCK_BYTES as usize;
            block[at] ^= 1 << rng.below(8);
        }
    }
    Some(block.freeze().into())
}
