//! The lives of the program: each opens the volume, runs a load and faults, and ends, cleanly or
//! not.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::Device;
use bimetal_block::layers::mirror::formatting;
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, MirrorStatus};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt, yield_now};
use futures_util::future::{Either, select};

use super::ambush;
use super::changing;
use super::client;
use super::faults;
use super::notes::{note_counts, note_log};
use super::opening::{Opening, attempt};
use super::plant;
use super::platter::{Platter, until_idle};
use super::probes;
use super::rest::{self, Snapshot};
use super::scenario::{AtRest, End, Life};
use super::stack::{Platters, SideStack, map_of, platters_of, top_of};
use super::switch::{FaultCounts, Switch};
use super::world::{Program, World};

/// Totals over the disks of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disks {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests and blocks that each kind of fault has affected.
    pub faults: FaultCounts,
}

/// How the last life of the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Closed without an error.
    Cleanly,
    /// The volume was closed with an error, or the opening or the close was interrupted. It is
    /// unknown whether the sides are marked as clean.
    Badly,
    /// Killed, or ended by a power cut.
    Killed,
}

/// Time limit of a run, far longer than any scenario takes; a life that exceeds it is a finding.
const FOR_EVER: Duration = Duration::from_secs(12 * 60 * 60);

/// Runs every life of the scenario, and returns the totals over the disks.
pub fn run(rt: &Rt, world: &Rc<World>) -> Disks {
    let disks = Rc::new(Cell::new(Disks::default()));
    let lives = {
        let (world, disks) = (Rc::clone(world), Rc::clone(&disks));
        rt.spawn(async move { live(&world, &disks).await })
    };
    rt.block_on(async {
        let ended = || world.findings.any() || lives.is_finished();
        // No event signals that the task `lives` has ended, so the loop polls it.
        while !ended() {
            let looked = world.findings.added.until(ended);
            // The loop checks again in both cases: after an event, and after the timeout.
            let _ = rt.timeout(Duration::from_millis(50), looked).await;
            if rt.now().as_ns() > u64::try_from(FOR_EVER.as_nanos()).expect("a few hours") {
                let status = world.running().map(|program| program.mirror.status());
                let what = format!("a life does not come to an end: {status:?}");
                world.findings.add(what);
            }
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

async fn live(world: &Rc<World>, disks: &Rc<Cell<Disks>>) {
    let platters = platters_of(&world.rt, &world.scenario);
    let maps = platters.iter().enumerate();
    let maps = maps.map(|(index, platters)| map_of(&world.scenario, index, platters));
    world.around.rule.set_sides(maps.collect());
    let mut run = Run {
        world: Rc::clone(world),
        disks: Rc::clone(disks),
        power: RefCell::new(Rng::labelled(world.scenario.seed, "power")),
        formatted: false,
        whole: vec![true; platters.len()],
        snapshot: None,
        may_stay_shut: false,
        platters,
    };
    run.all_lives().await;
    run.until_idle().await;
    let arrived = run.platters.iter().flatten();
    let arrived: u64 = arrived.map(|disk| disk.borrow().arrived_late()).sum();
    world.count_faults(|c| c.arrived_late += arrived);
    // The rule holds the last references to the platters; dropping them frees their buffers.
    world.around.rule.set_sides(Vec::new());
}

/// State of a run that outlives each life of the program.
struct Run {
    world: Rc<World>,
    disks: Rc<Cell<Disks>>,
    power: RefCell<Rng>,
    platters: Vec<Platters>,
    formatted: bool,
    /// For each side, whether it was healthy at the end of the last life.
    whole: Vec<bool>,
    snapshot: Option<Snapshot>,
    /// Whether the sides have lost so much that a refusal to open is correct from now on.
    may_stay_shut: bool,
}

/// Outcome of opening the volume for a life.
enum Opened {
    Program(Rc<Program>),
    /// The power was cut, or an injected failure made the open fail: the caller must open again.
    Interfered,
    /// The volume refused to open.
    Not,
}

impl Run {
    async fn all_lives(&mut self) {
        let world = Rc::clone(&self.world);
        let mut last = Ended::Cleanly;
        for number in 0.. {
            let lives = &world.scenario.lives;
            let calm = (world.scenario.superblocks && last != Ended::Cleanly).then(Life::calm);
            let life = match lives.get(number) {
                Some(life) => life.clone(),
                // After an unclean end, one more life checks the state of the volume.
                None => match calm {
                    Some(calm) => calm,
                    None => return,
                },
            };
            self.rest(number, &life, &mut last).await;
            if world.findings.any() {
                return;
            }
            let Some(program) = self.open(number, &life, last).await else {
                return;
            };
            last = self.live_once(number, &life, program).await;
            if world.findings.any() {
                return;
            }
            if world.scenario.snapshot_after == Some(number) {
                // The snapshot is restored later as a past state of the side. So it contains only
                // durable content: content that a power cut can still revert is not a past state.
                let copy = |disk: &Rc<RefCell<Platter>>| disk.borrow().durable_copy();
                let forks = |side: &Platters| side.iter().map(copy).collect();
                self.snapshot = Some(self.platters.iter().map(forks).collect());
            }
        }
    }

    /// Waits until no request of a dead program is in flight in any disk.
    async fn until_idle(&self) {
        for platter in self.platters.iter().flatten() {
            until_idle(platter).await;
        }
    }

    /// Runs the probes and applies the events between two lives.
    async fn rest(&mut self, number: usize, life: &Life, last: &mut Ended) {
        let world = Rc::clone(&self.world);
        let scenario = &world.scenario;
        let probes = number > 0
            && (scenario.boots_alone
                || scenario.foreign.is_some()
                || scenario.changes_sides.is_some());
        if !probes && life.at_rest.is_empty() {
            return;
        }
        self.until_idle().await;
        if number > 0 && scenario.boots_alone {
            probes::boot_alone(&world, &self.platters).await;
            if *last != Ended::Badly {
                probes::look_at_each(&world, &self.platters).await;
            }
        }
        // The probe needs a superblock on every side of the volume. If only the foreign side (from
        // another volume) had one, it would be opened as the volume.
        let others_are_there = world.blank.borrow().is_empty();
        if let Some(place) = scenario.foreign.filter(|_| number > 0 && others_are_there) {
            probes::boot_with_foreign(&world, &self.platters, place).await;
        }
        if let Some(change) = scenario.changes_sides.filter(|_| number > 0) {
            changing::change_sides(&world, &self.platters, change).await;
        }
        for what in &life.at_rest {
            let lost = matches!(
                what,
                AtRest::SuperblockLost {
                    first: true,
                    second: true,
                    ..
                }
            );
            if let AtRest::Older { side } = what {
                // The side that the older copy replaces was possibly ahead of all other sides. Data
                // that was flushed or intact only on the replaced side is then lost, and the older
                // copy does not always reveal the loss.
                let whole = self.whole.iter().all(|whole| *whole) && *last == Ended::Cleanly;
                let whole = whole && !scenario.corrupts;
                self.may_stay_shut = true;
                if !whole && !probes::holds_without(&world, &self.platters, *side).await {
                    world.reach("at rest: only the older side had everything");
                    continue;
                }
            }
            self.may_stay_shut |= lost;
            let (snapshot, rng) = (self.snapshot.as_ref(), &mut self.power.borrow_mut());
            rest::happen(&world, *what, &mut self.whole, snapshot, rng);
            let (AtRest::SuperblockLost { side, .. }
            | AtRest::Older { side }
            | AtRest::Rot { side, .. }) = *what;
            // A clean close can leave only one side with a clean mark, although others are in sync.
            // If damage at rest can hit the marked side, the close is not treated as clean.
            let spared = world.scenario.steadfast;
            if *last == Ended::Cleanly && spared.is_none_or(|spared| spared == side) {
                *last = Ended::Badly;
            }
        }
    }

    /// Opens the volume. If a power cut or an injected failure ends the attempt, tries again.
    async fn open(&mut self, number: usize, life: &Life, last: Ended) -> Option<Rc<Program>> {
        let mut last = last;
        let mut cuts = life.cut_openings_ns.iter().copied();
        let watched = self.world.scenario.watches_openings && life.at_rest.is_empty();
        let mut held = match watched && number > 0 {
            true => Some(self.held_by_each().await),
            false => None,
        };
        loop {
            let cut_after = cuts.next().map(Duration::from_nanos);
            let opened = self.try_to_open(number, last, cut_after).await;
            if let Some(before) = held.take() {
                let after = self.held_by_each().await;
                probes::check_kept(&self.world, &before, &after);
                held = Some(after);
            }
            match opened {
                Opened::Program(program) => return Some(program),
                Opened::Interfered => last = Ended::Badly,
                Opened::Not => return None,
            }
            if self.world.findings.any() {
                return None;
            }
        }
    }

    /// Waits until no request of a dead program is in flight, and returns the content of the sides.
    async fn held_by_each(&self) -> probes::Held {
        self.until_idle().await;
        probes::held_by_each(&self.world, &self.platters).await
    }

    async fn try_to_open(
        &mut self,
        number: usize,
        last: Ended,
        cut_after: Option<Duration>,
    ) -> Opened {
        let world = Rc::clone(&self.world);
        let (rt, scenario) = (&world.rt, &world.scenario);
        let side = |(index, platters)| {
            let map = map_of(scenario, index, platters);
            SideStack::build(rt, scenario, index, map, world.plant, &world.around)
        };
        let sides: Rc<Vec<SideStack>> =
            Rc::new(self.platters.iter().enumerate().map(side).collect());
        if !self.formatted {
            self.formatted = true;
            if let Err(why) = format(&world, &sides).await {
                world.findings.add(why);
                return Opened::Not;
            }
            world.around.boundaries.begin();
        }
        let struck = world.around.boundaries.struck();
        let (mirror, cut) = {
            let opening = pin!(open_sides(&world, &sides, last));
            let cut = pin!(until_cut(&world, cut_after));
            match select(opening, cut).await {
                Either::Left((mirror, _)) => (mirror, cut_after.is_some() || is_cut(&world)),
                Either::Right(((), opening)) => {
                    world.reach("power cut while opening");
                    self.cut_power(&sides);
                    let opened = rt.timeout(world.patience(), opening).await;
                    let dead = Err("an opening without power does not end".to_owned());
                    (opened.unwrap_or(dead), true)
                }
            }
        };
        let interfered = cut || struck != world.around.boundaries.struck();
        if interfered && (cut || mirror.is_err()) {
            self.cut_power(&sides);
            if let Ok(mirror) = mirror {
                end_mirror(&world, &mirror).await;
            }
            self.end_sides(&sides).await;
            return Opened::Interfered;
        }
        match mirror {
            Ok(mirror) => Opened::Program(self.program_of(number, mirror, sides)),
            Err(why) => {
                // Corruption at the end of a log makes a side look like an older copy, so allow a
                // refusal.
                let shortened = world.scenario.corrupts && why.contains("an older copy");
                if self.may_stay_shut || shortened {
                    world.reach("stayed shut");
                } else {
                    world.findings.add(why);
                }
                self.end_sides(&sides).await;
                Opened::Not
            }
        }
    }

    fn program_of(&self, number: usize, mirror: Mirror, sides: Rc<Vec<SideStack>>) -> Rc<Program> {
        let world = &self.world;
        let opened = world.rt.now();
        world.trace.event(&[5], || format!("life {number} starts"));
        Rc::new(Program {
            life: number,
            top: top_of(&world.rt, &world.scenario, &mirror, &sides, world.plant),
            mirror,
            sides,
            opened,
            calm_at: Cell::new(None),
            closing: Cell::new(false),
            ambush: Cell::new(None),
        })
    }

    async fn live_once(&mut self, number: usize, life: &Life, program: Rc<Program>) -> Ended {
        let world = Rc::clone(&self.world);
        world.run_program(Some(Rc::clone(&program)));
        world.volume.borrow_mut().begin_history();
        let background = TaskGroup::new(&world.rt);
        background.spawn(faults::start(
            Rc::clone(&world),
            life.clone(),
            Rc::clone(&program),
            background.clone(),
        ));
        background.spawn(look_regularly(Rc::clone(&world)));
        for ambush in &life.ambushes {
            let (world, program) = (Rc::clone(&world), Rc::clone(&program));
            background.spawn(ambush::lie_in_wait(world, program, *ambush));
        }
        if let Some(scrub_ns) = life.scrub_ns {
            background.spawn(ambush::scrub(
                Rc::clone(&world),
                Rc::clone(&program),
                scrub_ns,
            ));
        }
        let clients = TaskGroup::new(&world.rt);
        let (ended, cut, struck) = {
            let body = pin!(go_through(&world, &program, number, life, &clients));
            let cut = pin!(until_cut(&world, None));
            match select(body, cut).await {
                Either::Left((ended, _)) => (ended, is_cut(&world), false),
                Either::Right(((), body)) => {
                    self.note_end(&program, Ended::Killed);
                    world.run_program(None);
                    self.strike(&program);
                    background.cancel().await;
                    if world.rt.timeout(world.patience(), body).await.is_err() {
                        let status = program.mirror.status();
                        let what = format!("a program without power does not end: {status:?}");
                        world.findings.add(what);
                    }
                    (Ended::Killed, true, true)
                }
            }
        };
        if !cut {
            self.note_end(&program, ended);
        }
        world.run_program(None);
        background.cancel().await;
        let killed = matches!(life.end, End::Kill { .. }) && ended == Ended::Killed;
        if killed && !cut {
            self.kill(&program.sides);
        } else if !struck && (ended != Ended::Cleanly || is_cut(&world)) {
            self.cut_power(&program.sides);
        }
        world.around.boundaries.restore();
        clients.cancel().await;
        if world.scenario.arrives_late {
            leave_queues(&program.sides);
        }
        let closing = program.closing.get();
        self.end_program(program).await;
        match (cut, closing) {
            (false, _) => ended,
            (true, false) => Ended::Killed,
            (true, true) => Ended::Badly,
        }
    }

    /// Kills the program or cuts the power, because an injected fault or an ambush is due at this
    /// I/O boundary.
    fn strike(&self, program: &Program) {
        let boundaries = &self.world.around.boundaries;
        let ambush = program.ambush.get().filter(|_| boundaries.is_ambushed());
        for disk in program.sides.iter().flat_map(|side| &side.disks) {
            disk.keep_shadow();
        }
        if ambush.is_some_and(|ambush| ambush.kills) {
            self.kill(&program.sides);
            boundaries.restore();
        } else {
            self.cut_power(&program.sides);
        }
    }

    fn note_end(&mut self, program: &Program, ended: Ended) {
        if ended == Ended::Killed {
            ambush::note_death(&self.world, program);
        }
        note_log(&self.world, program);
        let sides = program.mirror.status().sides;
        self.whole = sides.iter().map(|side| side.health == "healthy").collect();
    }

    /// Cuts the power: no later request of the program reaches the platters, and data that is not
    /// durable can be lost.
    fn cut_power(&self, sides: &[SideStack]) {
        let world = &self.world;
        for disk in sides.iter().flat_map(|side| &side.disks) {
            disk.switch().die();
        }
        let (mut rng, torn) = (self.power.borrow_mut(), world.scenario.torn);
        let mut lost = 0;
        for platter in self.platters.iter().flatten() {
            let cut = platter.borrow_mut().cut_power(&mut rng, torn);
            world.count_faults(|c| {
                c.lost_blocks += cut.lost;
                c.torn_blocks += cut.torn;
            });
            lost += cut.lost;
        }
        self.crash_model();
        world.around.boundaries.restore();
        if lost > 0 {
            world.reach("blocks lost in a power cut");
        }
        world
            .trace
            .event(&[4, lost], || format!("crash, {lost} blocks lost"));
    }

    fn crash_model(&self) {
        // After a finding, the model can be inconsistent, so it is not told of the crash.
        if !self.world.findings.any() {
            self.world.volume.borrow_mut().crash();
        }
    }

    /// Kills the program. The disks keep their power, and can still apply the requests in flight.
    fn kill(&self, sides: &[SideStack]) {
        for disk in sides.iter().flat_map(|side| &side.disks) {
            disk.switch().die();
        }
        leave_queues(sides);
        self.crash_model();
        self.world.reach("killed");
        self.world.trace.event(&[11], || "killed".to_owned());
    }

    /// Stops the tasks of a program after its end, and closes its mirror, even if the program was
    /// killed. The disks of the program are dead by then, so they change no platter.
    async fn end_program(&self, program: Rc<Program>) {
        for disk in program.sides.iter().flat_map(|side| &side.disks) {
            disk.switch().die();
        }
        end_mirror(&self.world, &program.mirror).await;
        self.end_sides(&program.sides).await;
    }

    async fn end_sides(&self, sides: &[SideStack]) {
        let mut total = self.disks.get();
        for side in sides {
            if let Err(error) = side.close().await {
                self.world
                    .findings
                    .add(format!("a side does not close: {error}"));
            }
            for disk in &side.disks {
                total.add(&disk.switch());
            }
        }
        self.disks.set(total);
    }
}

fn leave_queues(sides: &[SideStack]) {
    for disk in sides.iter().flat_map(|side| &side.disks) {
        disk.switch().die();
        disk.leave_queue();
    }
}

fn is_cut(world: &World) -> bool {
    world.around.boundaries.is_cut()
}

/// Sleeps for `after`, or, if `after` is `None`, waits until the power is cut at a boundary.
async fn until_cut(world: &World, after: Option<Duration>) {
    match after {
        Some(after) => world.rt.sleep(after).await,
        None => {
            let boundaries = &world.around.boundaries;
            boundaries.cut.until(|| boundaries.is_cut()).await;
        }
    }
}

/// Closes the mirror of a program whose disks are dead, and adds a finding if the close takes too
/// long. The close changes no platter.
async fn end_mirror(world: &World, mirror: &Mirror) {
    let closed = world.rt.timeout(world.patience(), mirror.close());
    if closed.await.is_err() {
        let status = mirror.status();
        world
            .findings
            .add(format!("the volume does not close: {status:?}"));
    }
}

/// Runs an opened program to the end of its life, unless a power cut at a boundary interrupts it.
async fn go_through(
    world: &Rc<World>,
    program: &Rc<Program>,
    number: usize,
    life: &Life,
    clients: &TaskGroup,
) -> Ended {
    if life.reads_all {
        read_all(world, program).await;
    }
    if !life.idle {
        start_clients(world, program, number, clients);
    }
    match life.end {
        End::Crash { at_ns } | End::Kill { at_ns } => {
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
                drain(world, life, program).await;
            }
            stop(world, program).await
        }
    }
}

/// Reads the whole volume, which settles the value of each unit that was uncertain after a crash.
async fn read_all(world: &Rc<World>, program: &Rc<Program>) {
    let unit_bytes = world.scenario.unit_bytes;
    let read = client::read_all(world, &program.top, |units, start, found| {
        if !world.is_running(program.life) {
            return Ok(());
        }
        match found {
            Ok(found) => {
                let mut volume = world.volume.borrow_mut();
                volume.check_read(units.start, &found, start)
            }
            Err(error) => {
                let (start, end) = (units.start as u64, units.end as u64);
                let rule = &world.around.rule;
                let explained =
                    world.may_refuse(error) || rule.may_fail(start * unit_bytes, end * unit_bytes);
                // If every side has faults, a fault can be the reason for the error.
                if explained || world.scenario.steadfast.is_none() {
                    return Ok(());
                }
                Err(format!("reading {units:?}: {error}"))
            }
        }
    });
    let read = read.await;
    if let Err(why) = read
        && world.is_running(program.life)
    {
        world.findings.add(format!("reading everything: {why}"));
    }
    world.reach("read everything");
}

impl Disks {
    fn add(&mut self, switch: &Switch) {
        self.requests += switch.requests.get();
        self.faults.add(&switch.counts.get());
    }
}

async fn format(world: &World, sides: &[SideStack]) -> Result<(), String> {
    if !world.scenario.superblocks {
        return Ok(());
    }
    let (candidates, how) = (candidates_of(sides), world.scenario.formatting());
    let formatted = formatting::format(&world.rt, "sim", &candidates, &how).await;
    formatted
        .map(|_| ())
        .map_err(|error| format!("formatting: {error}"))
}

fn candidates_of(sides: &[SideStack]) -> Vec<Candidate> {
    let sides = sides.iter().enumerate();
    sides
        .map(|(index, side)| side.candidate(format!("side-{index}")))
        .collect()
}

/// Opens the mirror over the sides. `last`, the end of the last life, is for the error message.
async fn open_sides(world: &World, sides: &[SideStack], last: Ended) -> Result<Mirror, String> {
    let (rt, scenario) = (&world.rt, &world.scenario);
    let config = scenario.config(sides.len());
    if !scenario.superblocks {
        let sides = sides.iter().enumerate();
        let sides = sides.map(|(index, side)| side.bare(format!("side-{index}")));
        return Ok(Mirror::new(
            rt,
            &config,
            sides.collect(),
            scenario.span_bytes,
        ));
    }
    match attempt(rt, &config, candidates_of(sides), plant::start(world.plant)).await {
        Opening::Opened(mirror) => Ok(mirror),
        Opening::Refused(refusal) => Err(format!(
            "a volume does not open, whose last life ended {last:?}: {}",
            refusal.why
        )),
    }
}

fn start_clients(world: &Rc<World>, program: &Program, life: usize, clients: &TaskGroup) {
    for number in 0..world.scenario.load.clients {
        let top: Rc<dyn Device> = Rc::clone(&program.top);
        clients.spawn(client::run(Rc::clone(world), top, life, number));
    }
}

/// Runs the periodic checks. The interval between the checks is short at first and then becomes
/// longer, because a run can last a millisecond or an hour.
async fn look_regularly(world: Rc<World>) {
    let mut pause = Duration::from_millis(2);
    loop {
        world.rt.sleep(pause).await;
        world.look();
        pause = (pause * 9 / 8).min(Duration::from_secs(5));
    }
}

/// After the load and the faults, waits until every side without a permanent fault is in sync and
/// no scrub runs. If no side has a permanent fault, also waits until the exposure is zero.
async fn drain(world: &Rc<World>, life: &Life, program: &Program) {
    if world.around.rule.any_hopeless() {
        // A block without an intact copy stays out of sync until it is written again. The wait
        // might never end, so it is skipped.
        return;
    }
    let dead = || !world.is_running(program.life);
    let deadline = world.rt.now() + world.patience();
    while program.calm_at.get().is_none() && world.rt.now() < deadline && !dead() {
        world.rt.sleep(Duration::from_millis(5)).await;
    }
    if dead() {
        return;
    }
    let calm_at = program.calm_at.get().unwrap_or(deadline);
    let calm = pin!(world.rt.sleep_until(calm_at));
    // The loop below checks whether the faults have ended or the power was cut.
    let _ = select(calm, pin!(until_cut(world, None))).await;
    let drained = |status: &MirrorStatus| {
        let sides = status.sides.iter().enumerate();
        let mut sides = sides.filter(|(index, _)| !faults::lasts_for_ever(world, life, *index));
        let all = (0..status.sides.len()).all(|index| !faults::lasts_for_ever(world, life, index));
        let whole = sides.all(|(_, side)| {
            let left = side.waiting_bytes + side.in_flight_bytes + side.out_of_sync_bytes;
            side.health == "healthy" && left == 0
        });
        let scrub = status.scrub.as_ref();
        let scrubbed = scrub.is_none_or(|scrub| scrub.state != "running");
        whole && scrubbed && (!all || status.exposed_bytes == 0)
    };
    let deadline = world.rt.now() + world.patience();
    loop {
        if dead() {
            return;
        }
        let status = program.mirror.status();
        if drained(&status) {
            world.reach("drained");
            return super::room::check(world, program).await;
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

/// Closes the volume, and compares the content of the sides after a clean close.
async fn stop(world: &Rc<World>, program: &Program) -> Ended {
    program.closing.set(true);
    let before = program.mirror.status();
    // If every side has faults, the close can hang until the faults have ended, so wait longer.
    let now = world.rt.now();
    let calm_at = program
        .calm_at
        .get()
        .filter(|_| world.scenario.steadfast.is_none());
    let faults_left = calm_at.map_or(Duration::ZERO, |calm_at| calm_at.max(now).since(now));
    let patience = faults_left + world.patience();
    let closed = world.rt.timeout(patience, program.mirror.close());
    let status = program.mirror.status();
    note_counts(world, &before);
    let closed = closed.await;
    if !world.is_running(program.life) {
        return Ended::Killed;
    }
    match closed {
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
            let hopeless = world.around.rule.any_hopeless();
            if spared && !hopeless && world.scenario.mirror.on_degraded != "stop" {
                world.findings.add(format!(
                    "closing fails although a side has no faults: {error} {status:?}"
                ));
            }
            world.reach("closing failed");
            Ended::Badly
        }
    }
}
