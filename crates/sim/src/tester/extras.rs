//! Additions that the enabled classes make to a scenario. Each class draws from its own random
//! stream and applies to a third of the seeds, so a new class leaves the other seeds unchanged.

use bimetal_block::BLOCK_BYTES;
use bimetal_rt::Rng;

use super::ambush::{Ambush, Moment};
use super::changing::{Change, ChangeOfSides};
use super::classes::{Class, Classes};
use super::scenario::{
    AtRest, End, Extent, Fault, FaultKind, Life, MS, S, Scenario, US, draw_fault, pick, spread,
};
use super::switch::Astray;

/// Minimum size in bytes of the loaded part of the volume, for scenarios in which the load must
/// fill a log. In a smaller part, a new write often replaces an older write that still waits for a
/// side. The new write then takes no additional space in the log.
const FULL_LOG_SPAN_BYTES: u64 = 1 << 20;
/// Minimum size in bytes of the loaded part of the volume, for scenarios in which the concurrent
/// writes of many clients must exceed the length of a log.
const DEEP_QUEUE_SPAN_BYTES: u64 = 6 << 20;
/// Minimum sizes in bytes of the loaded part of a volume whose sides commit all the time: one page
/// of the map and several, and one that nearly fills the smallest logged side.
const COMMIT_SPANS_BYTES: [u64; 4] = [1 << 20, 4 << 20, 6 << 20, 12 << 20];
/// Maximum number of operations in a life of such a volume, unless the seed has drawn more.
const COMMIT_OPERATIONS_MAX: u64 = 2000;
/// Maximum length in bytes of an operation, for scenarios in which the load must fill a log.
const FILLING_BYTES_MAX: u64 = 256 << 10;

/// Sets the enabled classes of the scenario. Each class then makes its additions to the scenario
/// with a chance of one third.
pub(super) fn add(scenario: &mut Scenario, classes: Classes) {
    scenario.classes = classes;
    for class in classes.iter() {
        let rng = &mut Rng::labelled(scenario.seed, class.name());
        if rng.chance(1.0 / 3.0) {
            add_class(scenario, class, rng);
        }
    }
}

/// Adds up to `2 * factor` faults to each life of a heavy-tailed scenario, whose load is `factor`
/// times as long as usual.
pub(super) fn add_faults(scenario: &mut Scenario, extent: Extent, factor: f64) {
    if extent != Extent::HeavyTailed {
        return;
    }
    let rng = &mut Rng::labelled(scenario.seed, "more faults");
    for number in 0..scenario.lives.len() {
        for _ in 0..rng.below(1 + 2 * factor as u64) {
            let (side, span_ns) = (any_side(scenario, rng), span_ns(scenario));
            let fault = draw_fault(rng, side, span_ns);
            add_fault(scenario, number, fault);
        }
    }
}

/// Returns an estimate of the duration of the load, in nanoseconds.
fn span_ns(scenario: &Scenario) -> u64 {
    scenario.load.operations * (scenario.load.pause_ns + 5 * MS)
}

fn any_side(scenario: &Scenario, rng: &mut Rng) -> usize {
    rng.below(scenario.sides.len() as u64) as usize
}

/// Draws a side. If the scenario has a side without faults, that side is not drawn.
fn other_side(scenario: &Scenario, rng: &mut Rng) -> usize {
    let count = scenario.sides.len();
    let side = any_side(scenario, rng);
    if scenario.steadfast == Some(side) {
        (side + 1) % count
    } else {
        side
    }
}

fn add_fault(scenario: &mut Scenario, life: usize, fault: Fault) {
    if scenario.steadfast == Some(fault.side) {
        return;
    }
    let faults = &mut scenario.lives[life].faults;
    faults.push(fault);
    faults.sort_by_key(|fault| fault.at_ns);
}

/// Makes sure that one side has no faults, because the volume is required to repair corruption only
/// if such a side exists.
fn spare_a_side(scenario: &mut Scenario, rng: &mut Rng) {
    if scenario.steadfast.is_some() {
        return;
    }
    let spared = any_side(scenario, rng);
    scenario.steadfast = Some(spared);
    for life in &mut scenario.lives {
        life.faults.retain(|fault| fault.side != spared);
    }
}

/// Adds a few faults of one kind to each life, on sides that can have faults.
fn add_some(
    scenario: &mut Scenario,
    rng: &mut Rng,
    mut kind: impl FnMut(&mut Rng) -> (FaultKind, Option<u64>),
) {
    for life in 0..scenario.lives.len() {
        for _ in 0..1 + rng.below(3) {
            let side = other_side(scenario, rng);
            let at_ns = rng.between(0, span_ns(scenario));
            let (kind, for_ns) = kind(rng);
            let fault = Fault {
                side,
                at_ns,
                for_ns,
                kind,
            };
            add_fault(scenario, life, fault);
        }
    }
}

fn add_astray(scenario: &mut Scenario, rng: &mut Rng, how: Astray) {
    spare_a_side(scenario, rng);
    add_some(scenario, rng, |rng| {
        let count = pick(rng, &[1, 1, 5]);
        (FaultKind::Astray { how, count }, Some(0))
    });
}

/// Adds the corruption of a class to the scenario. Does nothing without formatted sides, because
/// only formatted sides have the checksums that detect corruption. A change that only one side
/// holds has no second copy yet, so the mirror is configured to acknowledge a change only when all
/// sides have stored it.
fn add_corruption(scenario: &mut Scenario, class: Class, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    scenario.corrupts = true;
    scenario.mirror.acknowledge_all = true;
    match class {
        Class::Rot => add_rot(scenario, rng),
        Class::AllCopies => {
            spare_a_side(scenario, rng);
            add_some(scenario, rng, |rng| {
                let blocks = pick(rng, &[1, 3]);
                (FaultKind::RotOfAllCopies { blocks }, Some(0))
            });
        }
        Class::LostWrites => add_astray(scenario, rng, Astray::LostWrite),
        Class::MisdirectedWrites => add_astray(scenario, rng, Astray::MisdirectedWrite),
        _ => add_astray(scenario, rng, Astray::MisdirectedRead),
    }
}

fn add_class(scenario: &mut Scenario, class: Class, rng: &mut Rng) {
    match class {
        Class::Torn => scenario.torn = true,
        Class::LongHangs => add_some(scenario, rng, |rng| {
            let for_ns = rng.chance(0.8).then(|| spread(rng, S, 120 * S));
            (FaultKind::Frozen, for_ns)
        }),
        Class::Flapping => add_some(scenario, rng, |rng| {
            let times = pick(rng, &[2, 5, 20]);
            let for_ns = spread(rng, 10 * MS, 10 * S);
            (FaultKind::Flapping { times }, Some(for_ns))
        }),
        Class::Kill | Class::Unfenced => add_kills(scenario, class, rng),
        Class::Rot
        | Class::AllCopies
        | Class::LostWrites
        | Class::MisdirectedWrites
        | Class::MisdirectedReads => add_corruption(scenario, class, rng),
        Class::SuperblockCopy | Class::SuperblockBoth => add_superblock_loss(scenario, class, rng),
        Class::OlderSide => add_older_side(scenario, rng),
        Class::ForeignSide => {
            scenario.foreign = scenario.superblocks.then(|| any_side(scenario, rng));
        }
        Class::Alone => scenario.boots_alone = scenario.superblocks,
        Class::CutOpening => {
            for life in scenario.lives.iter_mut().filter(|_| scenario.superblocks) {
                let at_ns = spread(rng, 10 * US, 50 * MS);
                life.cut_openings_ns
                    .extend(rng.chance(0.7).then_some(at_ns));
            }
        }
        Class::DeathsInOpening => add_deaths_in_opening(scenario, rng),
        Class::FirstAnswer => add_quiet_lives(scenario, rng),
        Class::FullLog => fill_logs(scenario, rng),
        Class::AcknowledgeAll => scenario.mirror.acknowledge_all = true,
        Class::DeepQueue => queue_deeply(scenario, rng),
        Class::LoggedSides => log_sides(scenario, rng),
        Class::CrashInCommit => crash_in_commits(scenario, rng),
        Class::SmallMap => keep_few_pages(scenario, rng),
        Class::ConvertedSides => convert_a_side(scenario, rng),
        Class::LimitedRoom => limit_room(scenario, rng),
        Class::ChangeOfSides => change_sides(scenario, rng),
        Class::CrashInScrub | Class::CrashInResync | Class::CrashAtEpoch => {
            add_ambushes(scenario, class, rng);
        }
    }
}

/// Makes sides logged: all of them with a chance of one half, otherwise each with a chance of one
/// half.
fn log_sides(scenario: &mut Scenario, rng: &mut Rng) {
    let all = rng.chance(0.5);
    scenario.cleans_always = rng.chance(0.7);
    // The last one is for a side that is added.
    let count = scenario.sides.len() + 1;
    scenario.logged = (0..count).map(|_| all || rng.chance(0.5)).collect();
    use_idle_time(scenario);
}

/// Makes some logged sides disks that are put in order, in most scenarios: after pauses of clients
/// that are short enough to occur, or all the time. From a stream of its own, so that the other
/// choices of a seed do not depend on it.
fn use_idle_time(scenario: &mut Scenario) {
    let rng = &mut Rng::labelled(scenario.seed, "idle time");
    if rng.chance(0.3) {
        return;
    }
    scenario.order_after_ns = Some(match rng.chance(0.3) {
        true => spread(rng, 20 * US, 50 * MS),
        false => 0,
    });
    for side in 0..scenario.sides.len() {
        scenario.sides[side].rotational |= scenario.is_logged(side) && rng.chance(0.7);
    }
}

/// Makes sides logged if none is. Returns false if none is even then.
fn has_or_gets_logged_side(scenario: &mut Scenario, rng: &mut Rng) -> bool {
    if !scenario.has_logged_side() {
        log_sides(scenario, rng);
    }
    scenario.has_logged_side()
}

fn add_kills(scenario: &mut Scenario, class: Class, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    scenario.arrives_late = true;
    if class == Class::Unfenced {
        scenario.fenced = false;
    }
    let span_ns = span_ns(scenario).max(10 * MS);
    for life in &mut scenario.lives {
        match life.end {
            End::Crash { at_ns } if rng.chance(0.7) => life.end = End::Kill { at_ns },
            End::Clean if rng.chance(0.3) => {
                let at_ns = rng.between(0, span_ns);
                life.end = End::Kill { at_ns };
            }
            _ => {}
        }
    }
}

/// Makes lives end with a power cut under a load that fills the logs, and adds power cuts during
/// several successive openings of each life.
fn add_deaths_in_opening(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    scenario.watches_openings = true;
    if rng.chance(0.7) {
        fill_logs(scenario, rng);
    }
    at_least_lives(scenario, 2);
    let span_ns = span_ns(scenario).max(10 * MS);
    for life in &mut scenario.lives {
        if matches!(life.end, End::Clean) && rng.chance(0.7) {
            let at_ns = rng.between(0, span_ns);
            life.end = End::Crash { at_ns };
        }
        let deaths = pick(rng, &[0, 1, 2, 4, 8]);
        for _ in 0..deaths {
            life.cut_openings_ns.push(spread(rng, 10 * US, 500 * MS));
        }
    }
}

/// While a side is frozen, makes the clients write more bytes than the smallest log can hold.
/// Raises the bounds of the mirror so that the frozen side is not ejected meanwhile.
fn fill_logs(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks || scenario.extent == Extent::Small {
        return;
    }
    let settings = &mut scenario.mirror;
    settings.exposure_bytes = 64 << 20;
    settings.exposure_age_ns = pick(rng, &[5 * S, 60 * S]);
    settings.absent_after_ns = settings.absent_after_ns.max(spread(rng, S, 10 * S));
    settings.silence_ns = None;
    let load = &mut scenario.load;
    scenario.span_bytes = scenario.span_bytes.max(FULL_LOG_SPAN_BYTES);
    load.units_max = (FILLING_BYTES_MAX / scenario.unit_bytes) as usize;
    load.weights[1] += 60;
    load.pause_ns = load.pause_ns.min(MS);
    let total = spread(rng, 100, 400);
    load.operations = load.operations.max(total / load.clients as u64 + 1);
    add_some(scenario, rng, |rng| {
        let for_ns = spread(rng, 100 * MS, 20 * S);
        (FaultKind::Frozen, Some(for_ns))
    });
}

/// Makes many clients write concurrently, so that their requests exceed the smallest log, while
/// sides freeze for a shorter time than the timeout after which a side is ejected. Applies to 30 %
/// of the seeds only, because these runs take long.
fn queue_deeply(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks || scenario.extent == Extent::Small || rng.chance(0.7) {
        return;
    }
    let settings = &mut scenario.mirror;
    settings.exposure_bytes = 64 << 20;
    settings.exposure_age_ns = pick(rng, &[5 * S, 60 * S]);
    settings.absent_after_ns = settings.absent_after_ns.max(spread(rng, 5 * S, 20 * S));
    settings.silence_ns = None;
    let frozen_ns_max = settings.absent_after_ns / 4;
    let load = &mut scenario.load;
    scenario.span_bytes = scenario.span_bytes.max(DEEP_QUEUE_SPAN_BYTES);
    load.units_max = (FILLING_BYTES_MAX / scenario.unit_bytes) as usize;
    load.weights[1] += 100;
    load.pause_ns = 0;
    load.clients = spread(rng, 48, 192) as usize;
    let total = spread(rng, 200, 600);
    load.operations = total / load.clients as u64 + 1;
    add_some(scenario, rng, |rng| {
        let for_ns = spread(rng, 10 * MS, frozen_ns_max);
        (FaultKind::Frozen, Some(for_ns))
    });
}

/// Makes logged sides keep one to a few pages of their map and of their checksums in memory, and
/// spreads the load over more of the volume than these describe.
fn keep_few_pages(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    if !has_or_gets_logged_side(scenario, rng) {
        return;
    }
    scenario.map_pages = Some(pick(rng, &[1, 2, 4]));
    // A page of the map describes almost 4 MiB, and the first one always stays in memory.
    let span_bytes = pick(rng, &[6 << 20, 12 << 20]);
    if scenario.extent != Extent::Small {
        scenario.span_bytes = scenario.span_bytes.max(span_bytes);
    }
    // A page that is needed cannot be read, or cannot be written, for a while.
    let class = rng.below(3) as usize;
    if class < 2 {
        add_some(scenario, rng, |rng| {
            let chance = pick(rng, &[0.1, 0.5]);
            (
                FaultKind::Errors { class, chance },
                Some(spread(rng, MS, S)),
            )
        });
    }
}

/// Makes the clients of a volume with logged sides write several times what a log holds, so that
/// entries are folded and segments are cleaned all the time, and adds an ambush at one of the first
/// commits of each life.
fn crash_in_commits(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks || scenario.extent == Extent::Small {
        return;
    }
    if !has_or_gets_logged_side(scenario, rng) {
        return;
    }
    scenario.fills_newest_first = rng.chance(0.7);
    if rng.chance(0.5) {
        // Cleaning of such a side reads from another one.
        let side = any_side(scenario, rng);
        scenario.sides[side].rotational = scenario.is_logged(side);
    }
    let span_bytes = pick(rng, &COMMIT_SPANS_BYTES);
    scenario.span_bytes = scenario.span_bytes.max(span_bytes);
    let load = &mut scenario.load;
    let bytes_max = pick(rng, &[16 << 10, 64 << 10, FILLING_BYTES_MAX]);
    load.units_max = (bytes_max / scenario.unit_bytes) as usize;
    load.weights[1] += 60;
    load.weights[3] += 5;
    load.pause_ns = load.pause_ns.min(MS);
    // An operation has half of the maximum length on average.
    let total = (2 * spread(rng, 4 << 20, 32 << 20) / bytes_max).min(COMMIT_OPERATIONS_MAX);
    load.operations = load.operations.max(total / load.clients as u64 + 1);
    at_least_lives(scenario, 2);
    for life in &mut scenario.lives {
        let kills = rng.chance(0.3);
        let ambush = Ambush {
            moment: Moment::Commit(spread(rng, 1, 80)),
            boundaries: spread(rng, 1, 60),
            kills,
        };
        if rng.chance(0.7) {
            scenario.arrives_late |= kills;
            life.ambushes.push(ambush);
        }
    }
    if rng.chance(0.5) {
        // A commit that fails must be repeated.
        add_some(scenario, rng, |rng| {
            let (class, count) = (1 + rng.below(2) as usize, pick(rng, &[1, 3]));
            (FaultKind::FailNext { class, count }, Some(S))
        });
    }
}

fn change_sides(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    let side = any_side(scenario, rng);
    let change = pick(
        rng,
        &[Change::Add, Change::Replace(side), Change::Remove(side)],
    );
    let boundaries = rng.chance(0.8).then(|| spread(rng, 1, 1000));
    scenario.changes_sides = Some(ChangeOfSides { change, boundaries });
}

/// Converts a side of a volume with a logged side, which is so small that each side has room for it
/// in both layouts.
fn convert_a_side(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    if !has_or_gets_logged_side(scenario, rng) {
        scenario.logged[0] = true;
    }
    let change = Change::Convert(any_side(scenario, rng));
    let boundaries = rng.chance(0.9).then(|| spread(rng, 1, 1000));
    scenario.changes_sides = Some(ChangeOfSides { change, boundaries });
}

/// Lets only a part of the loaded part of the volume have content at a time. Only logged sides
/// record that, so no side is converted.
fn limit_room(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    // The last one is for a side that is added.
    scenario.logged = vec![true; scenario.sides.len() + 1];
    scenario.cleans_always |= rng.chance(0.5);
    let converts = |change: &ChangeOfSides| matches!(change.change, Change::Convert(_));
    scenario.changes_sides = scenario.changes_sides.filter(|change| !converts(change));
    let blocks = scenario.span_bytes / BLOCK_BYTES;
    scenario.room_blocks = Some(1 + rng.below(blocks));
    scenario.load.weights[4] += 5;
}

/// Adds ambushes during the operation that the class names (a scrub, a resync or a change of a
/// side's health), and adds the scrubs and faults that cause the operation.
fn add_ambushes(scenario: &mut Scenario, class: Class, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    let kills = rng.chance(0.3);
    scenario.arrives_late |= kills;
    let (span_ns, absent_after_ns) = (span_ns(scenario), scenario.mirror.absent_after_ns);
    if class != Class::CrashInScrub {
        add_some(scenario, rng, |rng| {
            let for_ns = spread(rng, MS, S);
            match rng.chance(0.7) {
                true => (FaultKind::Offline, Some(for_ns)),
                false => (FaultKind::Frozen, Some(for_ns + absent_after_ns)),
            }
        });
    }
    for life in &mut scenario.lives {
        let (moment, boundaries_max) = match class {
            Class::CrashInScrub => {
                life.scrub_ns = Some(rng.between(0, span_ns));
                (Moment::Scrub, 300)
            }
            Class::CrashInResync => (Moment::Resync, 300),
            _ => (Moment::Epoch(rng.below(4) as u32), 40),
        };
        let boundaries = spread(rng, 1, boundaries_max);
        if rng.chance(0.7) {
            life.ambushes.push(Ambush {
                moment,
                boundaries,
                kills,
            });
        }
    }
}

fn add_rot(scenario: &mut Scenario, rng: &mut Rng) {
    spare_a_side(scenario, rng);
    for number in 1..scenario.lives.len() {
        let side = other_side(scenario, rng);
        let blocks = pick(rng, &[1, 3, 20]);
        scenario.lives[number]
            .at_rest
            .push(AtRest::Rot { side, blocks });
    }
    add_some(scenario, rng, |rng| {
        let blocks = pick(rng, &[1, 3, 20]);
        (FaultKind::Rot { blocks }, Some(0))
    });
}

fn add_superblock_loss(scenario: &mut Scenario, class: Class, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    at_least_lives(scenario, 2);
    // Every life loses the same copy of the superblock, because a side that is absent in some lives
    // does not write its lost copy again. If a later life lost the other copy, the side would have
    // no superblock.
    let first = rng.chance(0.5);
    for number in 1..scenario.lives.len() {
        let side = other_side(scenario, rng);
        let both = class == Class::SuperblockBoth;
        let loss = AtRest::SuperblockLost {
            side,
            first: both || first,
            second: both || !first,
            garbage: rng.chance(0.5),
        };
        if rng.chance(0.7) {
            scenario.lives[number].at_rest.push(loss);
        }
    }
}

fn add_older_side(scenario: &mut Scenario, rng: &mut Rng) {
    if !scenario.superblocks {
        return;
    }
    at_least_lives(scenario, 3);
    let last = scenario.lives.len() - 1;
    let back = 2 + rng.below(last as u64 - 1) as usize;
    scenario.snapshot_after = Some(rng.below(back as u64 - 1) as usize);
    let side = any_side(scenario, rng);
    scenario.lives[back].at_rest.push(AtRest::Older { side });
}

fn at_least_lives(scenario: &mut Scenario, count: usize) {
    while scenario.lives.len() < count {
        scenario.lives.push(Life::calm());
    }
}

/// Adds, after each life that ends with a crash or a kill, one or two lives that read the whole
/// volume, have no load, and end with a crash or a kill as well.
fn add_quiet_lives(scenario: &mut Scenario, rng: &mut Rng) {
    let mut lives = Vec::new();
    for life in std::mem::take(&mut scenario.lives) {
        let badly = matches!(life.end, End::Crash { .. } | End::Kill { .. });
        lives.push(life);
        let idle = if badly { 1 + rng.below(2) } else { 0 };
        for _ in 0..idle {
            let at_ns = pick(rng, &[0, MS, S]);
            let end = if scenario.arrives_late && rng.chance(0.5) {
                End::Kill { at_ns }
            } else {
                End::Crash { at_ns }
            };
            lives.push(Life {
                idle: true,
                end,
                ..Life::calm()
            });
        }
    }
    scenario.lives = lives;
}
