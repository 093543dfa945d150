//! The tester's probes of the sides between two lives (runs of the program). A probe uses copies of
//! the sides: it opens the volume from each side alone, or with a foreign side (a side of another
//! volume) in place of a side. A probe does not affect the volume itself.

use std::cell::RefCell;
use std::rc::Rc;

use bimetal_block::Device;
use bimetal_block::layers::mirror::superblock::{SideState, Superblock};
use bimetal_block::layers::mirror::{Mirror, formatting};

use super::boundaries::Boundaries;
use super::client;
use super::disk::Around;
use super::opening::{How, Lost, Opening, attempt, check_lost};
use super::plant;
use super::platter::Platter;
use super::stack::{Platters, SideStack, map_of, platters_of, top_of};
use super::world::World;

/// Returns independent copies of all platters.
pub fn forks(platters: &[Platters]) -> Vec<Platters> {
    copies(platters, Platter::fork)
}

fn copies(platters: &[Platters], copy: impl Fn(&Platter) -> Platter) -> Vec<Platters> {
    let copy_of = |side: &Platters| {
        let disks = side.iter();
        disks
            .map(|disk| Rc::new(RefCell::new(copy(&disk.borrow()))))
            .collect()
    };
    platters.iter().map(copy_of).collect()
}

/// Builds sides over copies of platters (contents of disks). The sides have I/O boundaries of their
/// own, so that no power cut or failure injected into the run affects them. A side that is not in
/// the scenario is built like the first side.
pub fn sides_over(
    world: &World,
    platters: &[Platters],
    boundaries: &Rc<Boundaries>,
) -> Rc<Vec<SideStack>> {
    let around = Rc::new(Around {
        findings: Rc::clone(&world.findings),
        boundaries: Rc::clone(boundaries),
        rule: Rc::clone(&world.around.rule),
        arrives_late: false,
        fenced: false,
        flushes_lose: true,
    });
    let known = world.scenario.sides.len();
    let sides = platters.iter().enumerate().map(|(index, platters)| {
        let index = if index < known { index } else { 0 };
        let map = map_of(&world.scenario, index, platters);
        SideStack::build(&world.rt, &world.scenario, index, map, None, &around)
    });
    Rc::new(sides.collect())
}

async fn try_to_open(world: &World, sides: &[SideStack], how: How) -> Option<Opening> {
    let config = world.scenario.config(sides.len());
    let candidates = sides.iter().enumerate();
    let candidates = candidates.map(|(index, side)| side.candidate(format!("side-{index}")));
    let opening = attempt(&world.rt, &config, candidates.collect(), how);
    let opened = world.rt.timeout(world.patience(), opening).await;
    if opened.is_err() {
        let what = "an opening on copies of the sides does not end";
        world.findings.add(what.to_owned());
    }
    opened.ok()
}

/// Reads the whole volume, checks that the model allows the content of every unit, and closes the
/// volume.
async fn check_open(world: &World, sides: &Rc<Vec<SideStack>>, mirror: &Mirror, what: &str) {
    let top: Rc<dyn Device> = top_of(&world.rt, &world.scenario, mirror, sides, None);
    let unit_bytes = world.scenario.unit_bytes;
    let read = client::read_all(world, &top, |units, _, found| match found {
        Ok(found) => client::check_allowed(&world.volume.borrow(), units.start, &found),
        Err(error) => {
            let (start, end) = (units.start as u64, units.end as u64);
            // The present sides might have only corrupt copies of these units, so the read is
            // allowed to fail.
            let corrupt = world.scenario.corrupts && world.around.rule.any_corrupt();
            if corrupt
                || world
                    .around
                    .rule
                    .may_fail(start * unit_bytes, end * unit_bytes)
            {
                return Ok(());
            }
            Err(format!("reading {units:?}: {error}"))
        }
    });
    if let Err(why) = read.await {
        world.findings.add(format!("{what}: {why}"));
    }
    close(world, mirror, what).await;
}

async fn close(world: &World, mirror: &Mirror, what: &str) {
    let closed = world.rt.timeout(world.patience(), mirror.close()).await;
    if closed.is_err() {
        world.findings.add(format!("{what}: it does not close"));
    }
}

/// Returns the superblock of each side, read from a copy of the side; `None` if the side has no
/// valid superblock.
async fn superblocks_of(world: &World, platters: &[Platters]) -> Vec<Option<Superblock>> {
    let sides = sides_over(world, &forks(platters), &Rc::default());
    let mut superblocks = Vec::new();
    for (index, stack) in sides.iter().enumerate() {
        let candidate = stack.candidate(format!("side-{index}"));
        superblocks.push(candidate.superblock().await.ok().flatten());
    }
    end(world, &sides).await;
    superblocks
}

/// Returns true if a side could not learn that another side is ahead. The superblock of the side
/// says that no peer is ahead, although another side knows a later epoch without this side. The
/// side was silent when the volume was used again, so its superblock could not be updated (T7).
/// Epochs in which the side still is a member can come between: another side was silent, too, and
/// was ejected first.
async fn could_not_be_told(world: &World, platters: &[Platters], side: usize) -> bool {
    let mut superblocks = superblocks_of(world, platters).await;
    let Some(own) = superblocks[side].take() else {
        return false;
    };
    let current = own.history.current().id;
    let left_it = |other: &Superblock| {
        let later = other.history.after(&current);
        later.is_some_and(|epochs| epochs.iter().any(|epoch| !epoch.has_member(own.place())))
    };
    own.state.is_complete() && superblocks.iter().flatten().any(left_it)
}

/// Closes the devices of sides whose program has ended.
pub async fn end(world: &World, sides: &[SideStack]) {
    for side in sides {
        for disk in &side.disks {
            disk.switch().die();
        }
        if let Err(error) = side.close().await {
            world
                .findings
                .add(format!("a side does not close: {error}"));
        }
    }
}

/// Stamps of all units of a volume; `None` for each unit that cannot be read.
type Stamps = Vec<Option<u64>>;

/// Opens copies of the sides read-only, without the sides for which `missing` returns true, and
/// returns the content of the volume.
///
/// # Errors
/// The reason why the volume does not open, or an answer that a correct volume never gives.
async fn look_without(
    world: &World,
    platters: &[Platters],
    missing: impl Fn(usize) -> bool,
) -> Result<Stamps, String> {
    let sides = sides_over(world, &forks(platters), &Rc::default());
    let away = sides.iter().enumerate().filter(|(side, _)| missing(*side));
    for disk in away.flat_map(|(_, side)| &side.disks) {
        disk.switch().set_offline(true);
    }
    let held = match try_to_open(world, &sides, How::ReadOnly).await {
        None => Err("the opening does not end".to_owned()),
        Some(Opening::Refused(refusal)) => Err(refusal.why),
        Some(Opening::Opened(mirror)) => {
            let top: Rc<dyn Device> = top_of(&world.rt, &world.scenario, &mirror, &sides, None);
            let held = client::read_each(world, &top).await;
            let closed = world.rt.timeout(world.patience(), mirror.close()).await;
            if closed.is_err() {
                let what = "a volume that was opened to be looked at does not close";
                world.findings.add(what.to_owned());
            }
            held
        }
    };
    end(world, &sides).await;
    held
}

/// Returns all stamps, or `None` if any unit could not be read.
fn all_of(held: Stamps) -> Option<Vec<u64>> {
    held.into_iter().collect()
}

fn holds_everything(world: &World, held: &[u64]) -> bool {
    let volume = world.volume.borrow();
    let mut units = held.iter().enumerate();
    units.all(|(unit, stamp)| volume.allows(unit, *stamp))
}

/// Returns true if the volume without this side holds all content that it must hold, even after a
/// power cut.
pub async fn holds_without(world: &World, platters: &[Platters], side: usize) -> bool {
    let platters = copies(platters, Platter::worst_copy);
    let held = look_without(world, &platters, |other| other == side).await;
    let held = held.ok().and_then(all_of);
    held.is_some_and(|held| holds_everything(world, &held))
}

/// Content that the sides hold in the worst case: after any power cut, and with every undetected
/// error of their disks.
pub struct Held {
    /// Content of the volume opened from each side alone, or the reason why it does not open.
    alone: Vec<Result<Stamps, String>>,
    /// For each side, whether the side counts: it is a consistent member of the newest epoch that
    /// any side knows.
    count: Vec<bool>,
    /// For each unit, whether it is readable in a volume opened with all sides. An opening must
    /// keep each readable unit readable. If the volume does not open with all sides, every unit
    /// counts as readable, so every unit is checked.
    given: Vec<bool>,
    /// For each side, whether its log or another of its metadata areas has a corrupt block.
    corrupt: Vec<bool>,
}

/// Returns the content of each side alone and of all sides together, read from copies in their
/// worst state after a power cut.
///
/// If blocks can be corrupt, the result includes a unit of content only if the unit is also
/// readable in two further copies: a copy of the present content, and a copy that a power cut can
/// leave. A further copy can reveal that the log of a side has lost a durable entry: a later entry
/// proves that an earlier, corrupt entry is part of the log. The side must then be rebuilt from the
/// other sides. The entry was lost before the opening, so the result excludes its content.
pub async fn held_by_each(world: &World, platters: &[Platters]) -> Held {
    let count = newest_epoch_members(world, platters).await;
    let mut held = held_by_copies(world, &copies(platters, Platter::worst_copy), &count).await;
    if world.scenario.corrupts {
        for copy in [Platter::worst_present_copy, Platter::revealing_copy] {
            let other = held_by_copies(world, &copies(platters, copy), &count).await;
            held.limit_to(other);
        }
    }
    held
}

async fn held_by_copies(world: &World, platters: &[Platters], count: &[bool]) -> Held {
    let mut alone = Vec::new();
    for this in 0..platters.len() {
        alone.push(look_without(world, platters, |side| side != this).await);
    }
    let together = look_without(world, platters, |_| false).await;
    let given = together.map(|held| held.iter().map(Option::is_some).collect());
    let sides = platters.iter().enumerate();
    let maps = sides.map(|(index, platters)| map_of(&world.scenario, index, platters));
    let rule = &world.around.rule;
    Held {
        alone,
        count: count.to_vec(),
        corrupt: maps.map(|map| rule.has_corrupt_areas(&map)).collect(),
        given: given.unwrap_or_else(|_| vec![true; world.scenario.units()]),
    }
}

impl Held {
    /// Removes from this content each unit that is not readable in `other`, the content found in
    /// copies of the same sides in another state.
    fn limit_to(&mut self, other: Held) {
        for (own, other) in self.alone.iter_mut().zip(other.alone) {
            match (own.as_mut(), other) {
                (Ok(own), Ok(other)) => {
                    let units = own.iter_mut().zip(other);
                    let unread = units.filter(|(_, other)| other.is_none());
                    unread.for_each(|(own, _)| *own = None);
                }
                (Ok(_), Err(why)) => *own = Err(why),
                (Err(_), _) => {}
            }
        }
        for (own, other) in self.given.iter_mut().zip(other.given) {
            *own &= other;
        }
        for (own, other) in self.corrupt.iter_mut().zip(other.corrupt) {
            *own |= other;
        }
    }
}

/// Returns, for each side, whether it is a consistent member of the newest epoch that any side
/// knows.
async fn newest_epoch_members(world: &World, platters: &[Platters]) -> Vec<bool> {
    let superblocks = superblocks_of(world, platters).await;
    let known = superblocks.iter().flatten();
    let newest = known.max_by_key(|superblock| superblock.history.current().number);
    let newest = newest.map(|superblock| *superblock.history.current());
    let is_member = |superblock: &Option<Superblock>| {
        let (Some(superblock), Some(newest)) = (superblock, newest) else {
            return false;
        };
        newest.has_member(superblock.place()) && superblock.state != SideState::Inconsistent
    };
    superblocks.iter().map(is_member).collect()
}

/// Checks that each member of the newest epoch still has, after an opening that succeeded or
/// failed, all content that it could serve without the other sides before the opening (T14). There
/// are two exceptions. First, a side with corrupt metadata can become unable to read a block when
/// it learns that the corrupt part belongs to its log. Second, any side can become unable to read a
/// block when it learns of a newer change of the block, if the content of that change is corrupt on
/// every side that has it (T11).
pub fn check_kept(world: &World, before: &Held, after: &Held) {
    for (side, (held, after)) in before.alone.iter().zip(&after.alone).enumerate() {
        let Some(held) = held.as_ref().ok().filter(|_| before.count[side]) else {
            continue;
        };
        world.reach("a side alone was looked at before and after an opening");
        let kept = match after {
            Ok(after) if before.corrupt[side] => check_side_kept(world, held, after, |_| false),
            Ok(after) => check_side_kept(world, held, after, |unit| before.given[unit]),
            Err(why) => Err(format!("it does not open any more: {why}")),
        };
        if let Err(why) = kept {
            let what = format!("an opening has taken something from side {side}: {why}");
            world.findings.add(what);
        }
    }
}

fn check_side_kept(
    world: &World,
    before: &Stamps,
    after: &Stamps,
    must_be_read: impl Fn(usize) -> bool,
) -> Result<(), String> {
    let (mut was, mut is) = (Vec::new(), Vec::new());
    for (unit, (before, after)) in before.iter().zip(after).enumerate() {
        match (before, after) {
            (Some(_), None) if must_be_read(unit) => {
                return Err(format!("unit {unit} cannot be read any more"));
            }
            (Some(before), Some(after)) => {
                was.push((unit, *before));
                is.push(*after);
            }
            _ => {}
        }
    }
    world.volume.borrow().check_not_older(&was, &is)
}

/// Opens the volume read-only from each side alone. The content of each side must be a consistent
/// point-in-time image of the volume, and at least one side must hold all content that the volume
/// must hold (T6).
pub async fn look_at_each(world: &World, platters: &[Platters]) {
    let mut whole = false;
    for alone in 0..platters.len() {
        let held = look_without(world, platters, |side| side != alone).await;
        let Some(held) = held.ok().and_then(all_of) else {
            continue;
        };
        world.reach("a side alone was looked at");
        if let Err(why) = world.volume.borrow().check_moment(&held) {
            let what = format!("side {alone} alone is not the volume at one moment: {why}");
            world.findings.add(what);
        }
        whole |= holds_everything(world, &held);
    }
    if !whole && !world.around.rule.any_corrupt() {
        let what = "no side alone holds everything that was promised";
        world.findings.add(what.to_owned());
    }
}

/// Opens the volume from each side alone. The mirror must either hold all content that the volume
/// must hold, or refuse to open and report all lost data. A side that could not learn of a later
/// epoch is not checked.
pub async fn boot_alone(world: &World, platters: &[Platters]) {
    for alone in 0..platters.len() {
        let sides = sides_over(world, &forks(platters), &Rc::default());
        let others = sides.iter().enumerate().filter(|(side, _)| *side != alone);
        for disk in others.flat_map(|(_, side)| &side.disks) {
            disk.switch().set_offline(true);
        }
        match try_to_open(world, &sides, plant::start(world.plant)).await {
            None => return,
            Some(Opening::Opened(mirror)) if could_not_be_told(world, platters, alone).await => {
                world.reach("a side alone could not be told of what came after");
                close(world, &mirror, &format!("side {alone} alone")).await;
            }
            Some(Opening::Opened(mirror)) => {
                world.reach("a side alone opened");
                let what = format!("side {alone} alone");
                check_open(world, &sides, &mirror, &what).await;
            }
            Some(Opening::Refused(refusal)) => {
                world.reach(match refusal.lost {
                    Lost::Unsaid => "a side alone refused without a list",
                    Lost::Ranges(_) => "a side alone refused with a list",
                    Lost::UnknownAfter(_) => "a side alone refused, the loss unknown",
                });
                let unit_bytes = world.scenario.unit_bytes;
                let map = sides[alone].map();
                let volume = world.volume.borrow();
                let checked = match map.home {
                    Some(home) => {
                        let held = |unit: usize| {
                            let place = home + unit as u64 * unit_bytes;
                            map.unit_ends_at(place, unit_bytes as usize).0
                        };
                        check_lost(&volume, unit_bytes, held, &refusal.lost)
                    }
                    // Only the map of the side says where it holds a unit.
                    None => Ok(0),
                };
                match checked {
                    Ok(0) => {}
                    Ok(_) => world.reach("a side alone had lost something"),
                    Err(why) => world
                        .findings
                        .add(format!("side {alone} alone: {}: {why}", refusal.why)),
                }
            }
        }
        end(world, &sides).await;
    }
}

/// Opens the volume with a side of another volume (the foreign side) in place of one of its own
/// sides. The opening must fail or ignore the foreign side, and must never write to the foreign
/// side.
pub async fn boot_with_foreign(world: &World, platters: &[Platters], place: usize) {
    let foreign = platters_of(&world.rt, &world.scenario);
    let others = sides_over(world, &foreign, &Rc::default());
    let candidates = others.iter().enumerate();
    let candidates = candidates.map(|(index, side)| side.candidate(format!("other-{index}")));
    let candidates: Vec<_> = candidates.collect();
    if let Err(error) = formatting::format(
        &world.rt,
        "other",
        &candidates,
        &formatting::Formatting::with_homes(),
    )
    .await
    {
        world.findings.add(format!("formatting: {error}"));
        return;
    }
    end(world, &others).await;
    let writes = |side: &Platters| side.iter().map(|disk| disk.borrow().writes()).sum::<u64>();
    let before = writes(&foreign[place]);
    let mut mixed = forks(platters);
    mixed[place] = foreign[place].clone();
    let sides = sides_over(world, &mixed, &Rc::default());
    match try_to_open(world, &sides, plant::start(world.plant)).await {
        None => return,
        Some(Opening::Opened(mirror)) => {
            world.reach("opened beside a foreign side");
            let what = format!("with a foreign side {place}");
            check_open(world, &sides, &mirror, &what).await;
        }
        Some(Opening::Refused(_)) => world.reach("a foreign side refused"),
    }
    end(world, &sides).await;
    if writes(&foreign[place]) != before {
        world
            .findings
            .add(format!("a foreign side {place} was written to"));
    }
}
