//! The clients: random operations, each checked against the model of the volume.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::request::{Extent, Flags, IoResult, Op, Reply, Request};
use bimetal_block::{Device, IoError};
use bimetal_rt::{Payload, Rng};

use super::content::{stamp_of, tail_of};
use super::volume::{Volume, ZEROES};
use super::world::World;

/// Next operation of a client.
#[derive(Clone, Copy, Debug)]
struct Draw {
    op: Op,
    fua: bool,
    first: usize,
    units: usize,
}

const KINDS: [(Op, bool); 7] = [
    (Op::Read, false),
    (Op::Write, false),
    (Op::Write, true),
    (Op::Flush, false),
    (Op::Discard, false),
    (Op::WriteZeroes, false),
    (Op::Extents, false),
];

/// Runs the operations of one client.
pub async fn run(world: Rc<World>, top: Rc<dyn Device>, life: usize, number: usize) {
    let load = &world.scenario.load;
    let mut rng = Rng::labelled(world.scenario.seed, &format!("client {life}.{number}"));
    for _ in 0..load.operations {
        if world.findings.any() || !world.is_running(life) {
            return;
        }
        let pause_ns = rng.exponential(load.pause_ns as f64) as u64;
        if pause_ns > 0 {
            world.rt.sleep(Duration::from_nanos(pause_ns)).await;
        }
        let next = draw(&world, &mut rng);
        let leaves = load.leave > 0.0 && rng.chance(load.leave);
        let patience = leaves.then(|| Duration::from_nanos(rng.below(5_000_000)));
        operate(&world, &top, life, next, patience).await;
    }
}

fn draw(world: &World, rng: &mut Rng) -> Draw {
    let (load, total) = (&world.scenario.load, world.scenario.units());
    let sum = load.weights.iter().sum::<u32>();
    let mut ticket = rng.below(u64::from(sum)) as u32;
    let kind = load.weights.iter().position(|&weight| {
        let chosen = ticket < weight;
        ticket = ticket.wrapping_sub(weight);
        chosen
    });
    let (op, fua) = KINDS[kind.expect("a ticket is below the sum")];
    let units_max = load.units_max.min(total) as u64;
    let units = match rng.below(3) {
        0 => 1,
        1 => 1 + rng.below(units_max.min(4)),
        _ => 1 + rng.below(units_max),
    } as usize;
    let places = (total - units + 1) as u64;
    let places = if rng.chance(load.hot) {
        places.min(8)
    } else {
        places
    };
    Draw {
        op,
        fua: fua || op.changes_content() && rng.chance(0.02),
        first: rng.below(places) as usize,
        units,
    }
}

async fn operate(
    world: &Rc<World>,
    top: &Rc<dyn Device>,
    life: usize,
    next: Draw,
    patience: Option<Duration>,
) {
    let unit_bytes = world.scenario.unit_bytes;
    let (offset, len) = (
        next.first as u64 * unit_bytes,
        next.units as u64 * unit_bytes,
    );
    let range = next.first..next.first + next.units;
    let flags = if next.fua { Flags::FUA } else { Flags::NONE };
    let zeroes = next.op != Op::Write;
    let oldest = world.oldest_start();
    let (writing, start) = {
        let mut volume = world.volume.borrow_mut();
        let changes = next.op.changes_content();
        let writing = changes.then(|| volume.start_write(range.clone(), zeroes, oldest));
        (writing, volume.tick())
    };
    let id = world.started(start, next.op, &range);
    let request = match next.op {
        Op::Write => {
            let write = writing.as_ref().expect("a write changes content").write;
            Request::write(offset, world.stamped(write, &range), flags)
        }
        Op::Flush => Request::flush(),
        op => Request::without_data(op, offset, len, flags),
    };
    world
        .trace
        .event(&[1, id, next.op as u64, offset, len], || {
            let fua = if next.fua { " fua" } else { "" };
            let write = writing.as_ref().map_or(0, |w| w.write);
            format!(
                "start {id} {}{fua} {range:?} (write {write})",
                next.op.name()
            )
        });
    let done = match patience {
        None => Some(top.submit(request).await),
        Some(patience) => world.rt.timeout(patience, top.submit(request)).await.ok(),
    };
    if !world.is_running(life) {
        // The client died together with its program, so it ignores any answer.
        return;
    }
    let could_fail = world.ended(id);
    let Some(result) = done else {
        world.trace.event(&[2, id], || format!("left  {id}"));
        world.reach("client left");
        return;
    };
    world.count(next.op, next.fua, &result);
    let failed = result.as_ref().err().copied();
    if let Some(error) = failed {
        world.client_error(error, next.op, &range, could_fail);
    }
    let checked = match writing {
        Some(writing) => {
            let mut volume = world.volume.borrow_mut();
            volume.end_write(&writing, failed.is_none(), next.fua)
        }
        None => check(world, next, start, result),
    };
    world.trace.event(&[3, id, failed.map_or(0, code)], || {
        let outcome = failed.map_or("ok".to_owned(), |error| error.to_string());
        format!("end   {id} {outcome}")
    });
    if let Err(what) = checked {
        let what = format!("operation {id} ({} {range:?}): {what}", next.op.name());
        world.findings.add(what);
    }
    world.after_operation(next.op);
}

fn code(error: IoError) -> u64 {
    100 + error as u64
}

/// Checks the answer of a read, a flush or an extent query.
fn check(world: &World, next: Draw, start: u64, result: IoResult) -> Result<(), String> {
    match result {
        Err(_) => Ok(()),
        Ok(Reply::Data(data)) => check_data(world, next, start, &data),
        Ok(Reply::Extents(extents)) => check_extents(world, next, start, &extents),
        Ok(Reply::Done) => {
            world.volume.borrow_mut().flushed(start);
            Ok(())
        }
    }
}

fn check_data(world: &World, next: Draw, start: u64, data: &Payload) -> Result<(), String> {
    let unit_bytes = world.scenario.unit_bytes as usize;
    let found = stamps_of(data, unit_bytes, next.first, next.units)?;
    world.trace.event(&found, || {
        let writes: Vec<u64> = found.iter().map(|stamp| stamp >> 24).collect();
        format!("read  {}: {writes:?}", next.first)
    });
    world
        .volume
        .borrow_mut()
        .check_read(next.first, &found, start)
}

/// Returns the stamps (unique numbers of writes) of the units that were read. Each unit must be
/// completely filled with one stamp, and the stamp must belong to that unit.
fn stamps_of(
    data: &Payload,
    unit_bytes: usize,
    first: usize,
    units: usize,
) -> Result<Vec<u64>, String> {
    if data.len() != units * unit_bytes {
        return Err(format!("{} bytes were read", data.len()));
    }
    let mut found = Vec::with_capacity(units);
    let (mut stamp, mut within) = (ZEROES, 0);
    for slice in data.slices() {
        let mut rest: &[u8] = slice;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(unit_bytes - within));
            if within == 0 {
                stamp = word_at(part, 0);
            }
            within += part.len();
            let ends = within == unit_bytes;
            let unit = first + found.len();
            let placed = stamp == ZEROES || stamp == stamp_of(stamp >> 24, unit);
            if !placed || !is_filled(part, stamp, ends.then_some(unit_bytes)) {
                return Err(format!(
                    "unit {unit} is torn, corrupt or misplaced: {stamp:#x}"
                ));
            }
            if ends {
                found.push(stamp);
                within = 0;
            }
            rest = after;
        }
    }
    Ok(found)
}

/// Returns true if `bytes` is filled with the stamp. If `bytes` extends to the end of a unit,
/// `ends` contains the length of the unit, and the last eight bytes must be the [tail](tail_of) of
/// the stamp. A unit of zeroes has no tail.
fn is_filled(bytes: &[u8], stamp: u64, ends: Option<usize>) -> bool {
    let ends = ends.filter(|_| stamp != ZEROES);
    let body = bytes.len() - ends.map_or(0, |_| 8);
    let mut words = bytes[..body].chunks_exact(8);
    let expected = stamp.to_le_bytes();
    words.all(|word| word == expected)
        && ends.is_none_or(|unit_bytes| bytes[body..] == tail_of(stamp, unit_bytes))
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Reads the whole used part of the volume in order. For each read, calls `check` with the units,
/// the model time at which the read started, and the stamps or the error. Stops at the first
/// violation.
///
/// # Errors
/// The first violation, found in the data or returned by `check`.
pub async fn read_all(
    world: &World,
    top: &Rc<dyn Device>,
    mut check: impl FnMut(Range<usize>, u64, Result<Vec<u64>, IoError>) -> Result<(), String>,
) -> Result<(), String> {
    let unit_bytes = world.scenario.unit_bytes as usize;
    let (total, step) = (world.scenario.units(), (64 << 10) / unit_bytes);
    for first in (0..total).step_by(step) {
        let units = step.min(total - first);
        let start = world.volume.borrow_mut().tick();
        let request = Request::read(
            first as u64 * unit_bytes as u64,
            units as u64 * unit_bytes as u64,
        );
        let found = match top.submit(request).await {
            Ok(reply) => Ok(stamps_of(&reply.into_data(), unit_bytes, first, units)?),
            Err(error) => Err(error),
        };
        check(first..first + units, start, found)?;
    }
    Ok(())
}

/// Reads the used part of the volume; where a longer read fails, reads its units one by one. The
/// result contains `None` for each unit that cannot be read.
///
/// # Errors
/// An answer that a correct volume never gives.
pub async fn read_each(world: &World, top: &Rc<dyn Device>) -> Result<Vec<Option<u64>>, String> {
    let mut all = vec![None; world.scenario.units()];
    let mut unread = Vec::new();
    read_all(world, top, |units, _, found| {
        match found {
            Ok(found) => {
                all[units].copy_from_slice(&found.into_iter().map(Some).collect::<Vec<_>>())
            }
            Err(_) => unread.extend(units),
        }
        Ok(())
    })
    .await?;
    let unit_bytes = world.scenario.unit_bytes;
    for unit in unread {
        let request = Request::read(unit as u64 * unit_bytes, unit_bytes);
        if let Ok(reply) = top.submit(request).await {
            let stamps = stamps_of(&reply.into_data(), unit_bytes as usize, unit, 1)?;
            all[unit] = stamps.first().copied();
        }
    }
    Ok(all)
}

/// Checks the units from `first` on against the model, without changing the model.
///
/// # Errors
/// The first unit whose content the model does not allow.
pub fn check_allowed(volume: &Volume, first: usize, found: &[u64]) -> Result<(), String> {
    for (unit, stamp) in (first..).zip(found) {
        if !volume.allows(unit, *stamp) {
            return Err(format!("unit {unit} is write {}", stamp >> 24));
        }
    }
    Ok(())
}

/// Checks an extent list: the units of a hole must be zeroes.
fn check_extents(world: &World, next: Draw, start: u64, extents: &[Extent]) -> Result<(), String> {
    let unit_bytes = world.scenario.unit_bytes;
    let len: u64 = extents.iter().map(|extent| extent.len).sum();
    // The list is allowed to cover only a part of the range, but must not be empty.
    if len == 0 || len > next.units as u64 * unit_bytes || !len.is_multiple_of(unit_bytes) {
        return Err(format!("extents of {len} bytes"));
    }
    let mut position = 0;
    for extent in extents {
        let units = (extent.len / unit_bytes) as usize;
        if !extent.data {
            let zeroes = vec![ZEROES; units];
            let mut volume = world.volume.borrow_mut();
            volume.check_read(next.first + position, &zeroes, start)?;
        }
        position += units;
    }
    world
        .trace
        .event(&[extents.len() as u64], || format!("runs  {extents:?}"));
    Ok(())
}
