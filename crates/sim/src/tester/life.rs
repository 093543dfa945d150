//! The lives of the program: opening the volume, putting it under load and faults, and its end,
//! clean or not.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::Device;
use bimetal_block::layers::mirror::superblock::{self, Formatting};
use bimetal_block::layers::mirror::{Mirror, MirrorStatus};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Instant, Rng, Rt, yield_now};

use super::client;
use super::disk::{FaultCounts, Switch};
use super::plant::Plant;
use super::scenario::{End, Fault, FaultKind, Life};
use super::stack::{Platters, SideStack, platters_of, top_of};
use super::world::{Program, World};

/// What the disks of a run have seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disks {
    /// Requests.
    pub requests: u64,
    /// Faults that were hit.
    pub faults: FaultCounts,
}

/// How the last life of the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Closed, and nothing was wrong.
    Cleanly,
    /// Closed with an error; whether the sides are marked as clean is open.
    Badly,
    /// Killed.
    Killed,
}

/// Runs every life of the scenario.
pub fn run(rt: &Rt, world: &Rc<World>, plant: Option<Plant>) -> Disks {
    let disks = Rc::new(Cell::new(Disks::default()));
    let lives = {
        let (world, disks) = (Rc::clone(world), Rc::clone(&disks));
        rt.spawn(async move { live(&world, plant, &disks).await })
    };
    rt.block_on(async {
        let ended = || world.findings.any() || lives.is_finished();
        // The lives themselves end without an event, so the time is looked at as well.
        while !ended() {
            let looked = world.findings.added.until(ended);
            // Whichever comes first, the loop looks.
            let _ = rt.timeout(Duration::from_millis(50), looked).await;
        }
        if world.findings.any() {
            return;
        }
        lives.await;
        world.run_program(None);
        for _ in 0..8 {
            yield_now().await;
        }
    });
    if !world.findings.any() {
        check_leaks(rt, world);
    }
    disks.get()
}

fn check_leaks(rt: &Rt, world: &World) {
    let left = (
        rt.live_tasks(),
        rt.live_timers(),
        rt.pool().heap_bytes_used(),
    );
    if left != (0, 0, 0) {
        let (tasks, timers, bytes) = left;
        world.findings.add(format!(
            "after the end {tasks} tasks, {timers} timers and {bytes} bytes of buffers are left"
        ));
    }
}

async fn live(world: &Rc<World>, plant: Option<Plant>, disks: &Rc<Cell<Disks>>) {
    let platters = platters_of(&world.scenario);
    let mut rng = Rng::labelled(world.scenario.seed, "power");
    let mut last = Ended::Cleanly;
    for (number, life) in world.scenario.lives.iter().enumerate() {
        let Some(program) = open(world, number, &platters, plant, last).await else {
            return;
        };
        world.run_program(Some(Rc::clone(&program)));
        let background = TaskGroup::new(&world.rt);
        background.spawn(start_faults(
            Rc::clone(world),
            life.clone(),
            Rc::clone(&program),
            background.clone(),
        ));
        background.spawn(look_regularly(Rc::clone(world)));
        let clients = start_clients(world, &program, number);
        last = match life.end {
            End::Crash { at_ns } => {
                let load = clients.join();
                let crashed = world.rt.timeout(Duration::from_nanos(at_ns), load).await;
                world.reach(if crashed.is_err() {
                    "crash under load"
                } else {
                    "crash without load"
                });
                Ended::Killed
            }
            End::Clean | End::CleanAtOnce => {
                clients.join().await;
                if life.end == End::Clean {
                    drain(world, life, &program).await;
                }
                stop(world, &program).await
            }
        };
        world.run_program(None);
        background.cancel().await;
        if last != Ended::Cleanly {
            die(world, &program, &platters, &mut rng);
        }
        clients.cancel().await;
        end_program(world, program, disks).await;
        if world.findings.any() {
            return;
        }
    }
}

/// From here on nothing reaches the platters; what was not durable may be lost.
fn die(world: &World, program: &Program, platters: &[Platters], rng: &mut Rng) {
    for disk in program.sides.iter().flat_map(|side| &side.disks) {
        disk.switch().die();
    }
    let platters = platters.iter().flatten();
    let lost: u64 = platters.map(|p| p.borrow_mut().cut_power(rng)).sum();
    world.volume.borrow_mut().crash();
    if lost > 0 {
        world.reach("blocks lost in a power cut");
    }
    world
        .trace
        .event(&[4, lost], || format!("crash, {lost} blocks lost"));
}

/// Ends the tasks of a program that is closed, or that is dead and does not know it.
async fn end_program(world: &World, program: Rc<Program>, disks: &Cell<Disks>) {
    for disk in program.sides.iter().flat_map(|side| &side.disks) {
        disk.switch().die();
    }
    // The dead program's own end reaches nothing; only that it ends is of interest.
    let closed = world.rt.timeout(world.patience(), program.mirror.close());
    if closed.await.is_err() {
        let status = program.mirror.status();
        world
            .findings
            .add(format!("the volume does not close: {status:?}"));
    }
    let mut total = disks.get();
    for side in program.sides.iter() {
        if let Err(error) = side.close().await {
            world
                .findings
                .add(format!("a side does not close: {error}"));
        }
        for disk in &side.disks {
            total.add(&disk.switch());
        }
    }
    disks.set(total);
}

impl Disks {
    fn add(&mut self, switch: &Switch) {
        let counts = switch.counts.get();
        let sum = &mut self.faults;
        self.requests += switch.requests.get();
        sum.frozen += counts.frozen;
        sum.slowed += counts.slowed;
        sum.failed_reads += counts.failed_reads;
        sum.failed_writes += counts.failed_writes;
        sum.failed_flushes += counts.failed_flushes;
        sum.offline += counts.offline;
        sum.after_death += counts.after_death;
    }
}

async fn open(
    world: &Rc<World>,
    number: usize,
    platters: &[Platters],
    plant: Option<Plant>,
    last: Ended,
) -> Option<Rc<Program>> {
    let (rt, scenario) = (&world.rt, &world.scenario);
    let side =
        |(index, platters)| SideStack::build(rt, scenario, index, platters, plant, &world.findings);
    let sides: Rc<Vec<SideStack>> = Rc::new(platters.iter().enumerate().map(side).collect());
    let config = scenario.mirror.config(sides.len());
    let mirror = if scenario.superblocks {
        open_formatted(world, number, &sides, last).await?
    } else {
        let sides = sides.iter().enumerate();
        let sides = sides.map(|(index, side)| side.bare(format!("side-{index}")));
        Mirror::new(rt, &config, sides.collect(), scenario.span_bytes)
    };
    let opened = rt.now();
    world.trace.event(&[5], || format!("life {number} starts"));
    Some(Rc::new(Program {
        life: number,
        top: top_of(rt, scenario, &mirror, &sides, plant),
        mirror,
        sides,
        opened,
        calm_at: Cell::new(None),
    }))
}

/// Opens a formatted volume; one that was not stopped cleanly must be refused at first.
async fn open_formatted(
    world: &World,
    number: usize,
    sides: &Rc<Vec<SideStack>>,
    last: Ended,
) -> Option<Mirror> {
    let rt = &world.rt;
    let config = world.scenario.mirror.config(sides.len());
    let candidates: Vec<_> = sides
        .iter()
        .enumerate()
        .map(|(index, side)| side.candidate(format!("side-{index}")))
        .collect();
    if number == 0 {
        let formatted = superblock::format(rt, "sim", &candidates, Formatting::default()).await;
        if let Err(error) = formatted {
            world.findings.add(format!("formatting: {error}"));
            return None;
        }
    }
    let plain = Mirror::open(rt, &config, candidates.clone(), false).await;
    let error = match plain {
        Ok(mirror) if last != Ended::Killed => return Some(mirror),
        Ok(_) => {
            world
                .findings
                .add("a volume opens although it was not stopped cleanly".to_owned());
            return None;
        }
        Err(error) => error,
    };
    if last == Ended::Cleanly {
        world.findings.add(format!(
            "a volume that was stopped cleanly does not open: {error}"
        ));
        return None;
    }
    world.reach("opened with a resync");
    match Mirror::open(rt, &config, candidates, true).await {
        Ok(mirror) => Some(mirror),
        Err(error) => {
            world
                .findings
                .add(format!("a volume does not open with a resync: {error}"));
            None
        }
    }
}

/// When every fault that ends has ended, and every other one has begun.
fn calm_at(life: &Life, opened: Instant) -> Instant {
    let ends = life
        .faults
        .iter()
        .map(|fault| fault.at_ns + fault.for_ns.unwrap_or(0));
    opened + Duration::from_nanos(ends.max().unwrap_or(0))
}

/// Starts the faults: after a crash, once the side without faults holds everything again, because
/// until then the volume stands on a side that has faults.
async fn start_faults(world: Rc<World>, life: Life, program: Rc<Program>, tasks: TaskGroup) {
    if let Some(spared) = world.scenario.steadfast {
        while program.mirror.status().sides[spared].health != "healthy" {
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
    // Without a side that is spared, faults for ever would say nothing about the volume: they end
    // when the others have.
    world
        .rt
        .sleep_until(calm_at + Duration::from_nanos(1))
        .await;
    for disk in program.sides.iter().flat_map(|side| &side.disks) {
        disk.switch().heal();
    }
    world.trace.event(&[6], || "every fault ends".to_owned());
}

async fn cause(world: Rc<World>, fault: Fault, switch: Rc<Switch>) {
    world.rt.sleep(Duration::from_nanos(fault.at_ns)).await;
    world
        .trace
        .event(&[7, fault.side as u64], || format!("fault {fault:?}"));
    match fault.kind {
        FaultKind::Frozen => switch.set_frozen(true),
        FaultKind::Slow(factor) => switch.set_slowness(factor),
        FaultKind::Errors { class, chance } => switch.set_error_chance(class, chance),
        FaultKind::FailNext { class, count } => switch.fail_next(class, count),
        FaultKind::Offline => switch.set_offline(true),
    }
    let Some(for_ns) = fault.for_ns else { return };
    world.rt.sleep(Duration::from_nanos(for_ns)).await;
    match fault.kind {
        FaultKind::Frozen => switch.set_frozen(false),
        FaultKind::Slow(_) => switch.set_slowness(1),
        FaultKind::Errors { class, .. } => switch.set_error_chance(class, 0.0),
        FaultKind::FailNext { .. } => {}
        FaultKind::Offline => switch.set_offline(false),
    }
    world
        .trace
        .event(&[8, fault.side as u64], || format!("end of {fault:?}"));
}

fn start_clients(world: &Rc<World>, program: &Program, life: usize) -> TaskGroup {
    let clients = TaskGroup::new(&world.rt);
    for number in 0..world.scenario.load.clients {
        let top: Rc<dyn Device> = Rc::clone(&program.top);
        clients.spawn(client::run(Rc::clone(world), top, life, number));
    }
    clients
}

/// Often at first, then less often: a run may be a millisecond long or an hour.
async fn look_regularly(world: Rc<World>) {
    let mut pause = Duration::from_millis(2);
    loop {
        world.rt.sleep(pause).await;
        world.look();
        pause = (pause * 9 / 8).min(Duration::from_secs(5));
    }
}

/// Faults for ever, which only exist beside a side without faults.
fn faulty_for_ever(world: &World, life: &Life, side: usize) -> bool {
    let lasting = |fault: &&Fault| fault.side == side && fault.for_ns.is_none();
    world.scenario.steadfast.is_some() && life.faults.iter().any(|fault| lasting(&fault))
}

/// After the load and the faults, every side becomes whole and the exposure zero.
async fn drain(world: &Rc<World>, life: &Life, program: &Program) {
    let deadline = world.rt.now() + world.patience();
    while program.calm_at.get().is_none() && world.rt.now() < deadline {
        world.rt.sleep(Duration::from_millis(5)).await;
    }
    world
        .rt
        .sleep_until(program.calm_at.get().unwrap_or(deadline))
        .await;
    let drained = |status: &MirrorStatus| {
        let sides = status.sides.iter().enumerate();
        let mut sides = sides.filter(|(index, _)| !faulty_for_ever(world, life, *index));
        let all = (0..status.sides.len()).all(|index| !faulty_for_ever(world, life, index));
        let whole = sides.all(|(_, side)| {
            let left = side.waiting_bytes + side.in_flight_bytes + side.stale_bytes;
            side.health == "healthy" && left == 0
        });
        whole && (!all || status.exposed_bytes == 0)
    };
    let deadline = world.rt.now() + world.patience();
    loop {
        let status = program.mirror.status();
        if drained(&status) {
            world.reach("drained");
            return;
        }
        if world.rt.now() > deadline {
            world
                .findings
                .add(format!("the lag does not drain: {status:?}"));
            return;
        }
        world.rt.sleep(Duration::from_millis(20)).await;
    }
}

/// Closes the volume.
async fn stop(world: &Rc<World>, program: &Program) -> Ended {
    let before = program.mirror.status();
    let closed = world.rt.timeout(world.patience(), program.mirror.close());
    let status = program.mirror.status();
    note_counts(world, &before);
    match closed.await {
        Err(_) => {
            let status = program.mirror.status();
            world
                .findings
                .add(format!("the volume does not close: {status:?}"));
            Ended::Badly
        }
        Ok(Ok(())) => {
            world.reach("closed cleanly");
            world.compare_sides(program, &program.mirror.status());
            Ended::Cleanly
        }
        Ok(Err(error)) => {
            let spared = world.scenario.steadfast.is_some();
            if spared && world.scenario.mirror.on_degraded != "stop" {
                world.findings.add(format!(
                    "closing fails although a side has no faults: {error} {status:?}"
                ));
            }
            world.reach("closing failed");
            Ended::Badly
        }
    }
}

fn note_counts(world: &World, status: &MirrorStatus) {
    let sides = &status.sides;
    let some = |count: fn(&bimetal_block::layers::mirror::SideStatus) -> u64| {
        sides.iter().map(count).sum::<u64>() > 0
    };
    for (state, reached) in [
        ("acknowledged early", status.acknowledged_early > 0),
        ("held back", status.held_back > 0),
        ("merged", some(|s| s.merged)),
        ("resynced", some(|s| s.resynced_bytes)),
        ("mode switched", some(|s| s.mode_switches)),
        ("stopped degraded", status.degraded),
    ] {
        if reached {
            world.reach(state);
        }
    }
}
