//! The time between two lives: the end of a program, the effect of the end on the disk, and the
//! next opening of the index.

use std::ops::Bound;

use bimetal_index::model::{Found, Survivors, collect};
use bimetal_index::storage::Storage;
use bimetal_index::storage::memory::{Faults, Hit};
use bimetal_index::{Db, Error, Verified, verify};

use super::life::{LogPlaces, Program};
use super::scenario::{End, Life};
use super::world::{Checked, World};

/// Identifier of the index, which is stored in its blocks.
const ID: u64 = 7;

/// Runs all lives of a seed.
pub fn run(world: &mut World<'_>) -> Checked {
    let scenario = world.scenario;
    let made = Db::create(world.disk.clone(), ID, &scenario.options);
    let mut db = made.map_err(|error| format!("an index on an empty disk: {error}"))?;
    for life in &scenario.lives {
        let log = Program::new(db, world).live(life)?;
        stop(world, life);
        try_to_open(world, life)?;
        match open(world, &log)? {
            Some(opened) => db = opened,
            None => return Ok(()),
        }
        note(world, "opened");
    }
    Ok(())
}

fn note(world: &mut World<'_>, what: &str) {
    let (given, len_bytes) = (world.history.given() as u64, world.disk.len_bytes());
    let crc = crc32c::crc32c(&world.disk.content());
    world.trace.event(&[given, len_bytes, u64::from(crc)], || {
        format!("{what}: {given} batches, {len_bytes} bytes, content {crc:08x}")
    });
}

/// Applies the effects of the end of a life to the disk: a power cut, and bit rot.
fn stop(world: &mut World<'_>, life: &Life) {
    if world.disk.is_off() || life.end == End::PowerCut {
        cut(world, life);
        world.reach("power cut");
    } else {
        world.reach(match life.end {
            End::Clean => "stopped",
            _ => "killed",
        });
    }
    world.disk.set_faults(Faults::default());
    for (place, mask) in &life.rot {
        let at = (world.disk.len_bytes() * u64::from(*place)) >> 32;
        world.disk.rot(at, *mask);
        world.reach("bytes have rotted");
    }
    note(world, "stopped");
}

fn cut(world: &mut World<'_>, life: &Life) {
    let draw = &mut world.draw;
    let mut choose = || match life.loses_all {
        true => 0,
        false => draw.number(),
    };
    let found = world.disk.after_power_cut(&mut choose);
    world.replace_disk(found);
}

/// Tries to open the index several times. Each attempt has a failing disk operation or a power cut,
/// which can end the attempt.
fn try_to_open(world: &mut World<'_>, life: &Life) -> Checked {
    for number in &life.failures_in_opening {
        let faults = Faults {
            fail_at: Some(world.disk.counts().operations + number),
            ..Faults::default()
        };
        attempt(world, faults, "opening failed")?;
    }
    for number in &life.cuts_in_opening {
        let faults = Faults {
            power_cut_at: Some(world.disk.counts().operations + number),
            ..Faults::default()
        };
        attempt(world, faults, "power cut while opening")?;
        cut(world, life);
    }
    world.disk.set_faults(Faults::default());
    Ok(())
}

fn attempt(world: &mut World<'_>, faults: Faults, state: &str) -> Checked {
    let failures = world.disk.counts().failures;
    world.disk.set_faults(faults);
    let Err(error) = Db::open(world.disk.clone(), &world.scenario.options) else {
        return Ok(());
    };
    world.reach(state);
    let has_failed = world.disk.counts().failures > failures;
    let is_right = match error {
        Error::Storage { .. } => has_failed,
        Error::Damaged { .. } | Error::NotAnIndex { .. } | Error::Version { .. } => {
            world.has_hits()
        }
        _ => false,
    };
    match is_right {
        true => Ok(()),
        false => Err(format!("an opening: {error}")),
    }
}

/// Opens the index, and compares its whole content with the model. Returns `None` if damage
/// prevents the opening or makes some content unreadable; the run then ends.
fn open(world: &mut World<'_>, log: &LogPlaces) -> Checked<Option<Db>> {
    let has_hits = world.has_hits();
    let verified = verify(&world.disk, &mut |_, _| {});
    let is_said_to_be_whole = matches!(&verified, Ok(verified) if verified.problems_found == 0);
    if !has_hits && !is_said_to_be_whole {
        return Err(format!(
            "the content that is found is not intact: {}",
            told(&verified)
        ));
    }
    let db = match Db::open(world.disk.clone(), &world.scenario.options) {
        Ok(db) => db,
        Err(Error::Damaged { .. } | Error::NotAnIndex { .. } | Error::Version { .. })
            if has_hits =>
        {
            world.reach("stayed shut");
            return match is_said_to_be_whole {
                true => Err("verify finds no problem in an index that cannot be opened".to_owned()),
                false => Ok(None),
            };
        }
        Err(error) => return Err(format!("it does not open: {error}")),
    };
    let (found, is_all) = look_through(world, &db)?;
    if !is_all && is_said_to_be_whole {
        return Err("verify finds no problem in an index that cannot be read".to_owned());
    }
    let hits = world.disk.hits();
    // No later structure refers to the end of the log or to the newest superblock. So if either of
    // them is lost, the index cannot detect the loss.
    let is_in_log = |hit: &Hit| {
        hit.offset < log.front_end || log.ranges.iter().any(|range| range.contains(&hit.offset))
    };
    let survivors = match hits.iter().any(is_in_log) {
        true => Survivors::AnyBeginning,
        false => Survivors::Durable,
    };
    let durable = world.history.durable();
    world.history.reopened(&found, survivors)?;
    if is_all && world.history.given() < durable {
        world.reach("the end of the log was lost");
    }
    if !is_all {
        world.reach("opened in part");
        return Ok(None);
    }
    match has_hits || !world.history.given().is_multiple_of(2) {
        true => Ok(Some(db)),
        false => open_unread(world, db).map(Some),
    }
}

/// Opens the index again, so that the new handle has read no leaf. The comparison has read every
/// leaf through the first handle, but a usual program opens an index without reading all leaves
/// first.
fn open_unread(world: &mut World<'_>, examined: Db) -> Checked<Db> {
    drop(examined);
    let opened = Db::open(world.disk.clone(), &world.scenario.options);
    opened.map_err(|error| format!("it does not open a second time: {error}"))
}

fn told(verified: &Result<Verified, Error>) -> String {
    match verified {
        Ok(verified) => format!("{:?}", verified.problems),
        Err(error) => error.to_string(),
    }
}

/// Reads the whole index by scans in both directions, or key by key if damage makes a scan fail.
/// Also returns whether both scans succeeded.
fn look_through(world: &World<'_>, db: &Db) -> Checked<(Found, bool)> {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let upwards = collect(&mut db.scan(all));
    let downwards = collect(&mut db.scan_reverse(all));
    if let (Ok(upwards), Ok(downwards)) = (&upwards, &downwards) {
        if !upwards.iter().eq(downwards.iter().rev()) {
            return Err("a scan down is not the reverse of a scan up".to_owned());
        }
        let rows = upwards.iter().cloned();
        let found = rows.map(|(key, value)| (key, Some(Some(value)))).collect();
        return Ok((found, true));
    }
    let mut found = Found::new();
    for key in world.history.keys() {
        let answer = match db.get(key) {
            Ok(answer) => Some(answer),
            Err(error) => {
                let failures = world.disk.counts().failures;
                world.judge_read(&error, failures, world.history.given())?;
                None
            }
        };
        found.insert(key.to_vec(), answer);
    }
    for error in [upwards.err(), downwards.err()].into_iter().flatten() {
        let failures = world.disk.counts().failures;
        world.judge_read(&error, failures, world.history.given())?;
    }
    Ok((found, false))
}
