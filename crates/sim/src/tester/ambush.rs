//! Ambushes: the program is killed, or the power is cut, during a short operation such as a scrub.
//! This happens a chosen number of I/O boundaries after the start of the operation. A power cut at
//! a random time would rarely hit such a short operation.

use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::mirror::MirrorStatus;
use serde::Serialize;

use super::world::{Program, World};

/// Operation during which an ambush strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Moment {
    /// A scrub.
    Scrub,
    /// A resync of a side.
    Resync,
    /// A change of the health of a side, to absent, resyncing or healthy. Such a change can start a
    /// new epoch. The value is the index of the change, from 0, among all changes of health in a
    /// life.
    Epoch(u32),
    /// A commit of a logged side: a write of a segment record. The value is the number of such
    /// writes to all sides since the volume was opened, from 1.
    Commit(u64),
}

/// A kill or a power cut that is to hit a running operation: it happens a chosen number of I/O
/// boundaries after the start of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ambush {
    /// Operation during which the ambush strikes.
    pub moment: Moment,
    /// Number of I/O boundaries from the start of the operation to the strike.
    pub boundaries: u64,
    /// True to kill the program while the disks keep their power; false to cut the power.
    pub kills: bool,
}

/// Health of each side: healthy, absent or being rebuilt.
type Health = Vec<&'static str>;

fn health_of(status: &MirrorStatus) -> Health {
    status.sides.iter().map(|side| side.health).collect()
}

fn is_scrubbing(status: &MirrorStatus) -> bool {
    let scrub = status.scrub.as_ref();
    scrub.is_some_and(|scrub| scrub.state == "running")
}

fn is_resyncing(status: &MirrorStatus) -> bool {
    status.sides.iter().any(|side| side.health == "resyncing")
}

/// Waits until the operation of the ambush begins, then schedules the kill or the power cut.
pub async fn lie_in_wait(world: Rc<World>, program: Rc<Program>, ambush: Ambush) {
    let boundaries = &world.around.boundaries;
    let mut last = health_of(&program.mirror.status());
    let mut changes = 0;
    let records = boundaries.records();
    let has_come = || {
        let status = program.mirror.status();
        let health = health_of(&status);
        changes += u32::from(health != last);
        last = health;
        match ambush.moment {
            Moment::Scrub => is_scrubbing(&status),
            Moment::Resync => is_resyncing(&status),
            Moment::Epoch(number) => changes > number,
            Moment::Commit(number) => boundaries.records() >= records + number,
        }
    };
    boundaries.passing.until(has_come).await;
    // If a life has several ambushes, only the ambush whose operation begins first kills the
    // program or cuts the power.
    if program.ambush.get().is_none() {
        program.ambush.set(Some(ambush));
        boundaries.cut_after(ambush.boundaries);
    }
}

/// Starts a scrub of the volume after `after_ns`; the mirror can refuse the scrub.
pub async fn scrub(world: Rc<World>, program: Rc<Program>, after_ns: u64) {
    world.rt.sleep(Duration::from_nanos(after_ns)).await;
    world.reach(match program.mirror.start_scrub() {
        Ok(()) => "scrub begun",
        Err(_) => "scrub refused",
    });
}

/// Records whether the program died during a scrub or during a resync. Also records whether an
/// ambush (a death at a chosen I/O boundary) killed the program at a change of the health of a
/// side.
pub fn note_death(world: &World, program: &Program) {
    let status = program.mirror.status();
    if is_scrubbing(&status) {
        world.reach("crash in scrub");
    }
    if is_resyncing(&status) {
        world.reach("crash in resync");
    }
    let ambush = program.ambush.get();
    let ambush = ambush.filter(|_| world.around.boundaries.is_ambushed());
    match ambush.map(|ambush| ambush.moment) {
        Some(Moment::Epoch(_)) => world.reach("crash at a change of epoch"),
        Some(Moment::Commit(_)) => world.reach("crash at a commit"),
        Some(Moment::Scrub | Moment::Resync) | None => {}
    }
}
