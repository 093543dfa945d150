//! Tests that run one short workload, which uses every operation of an index, and repeat it once
//! for each possible failure: a power cut at every disk call of the workload, and at every disk
//! call of the opening after such a cut; every write lost, torn or misdirected; every block
//! reverted to an earlier version; and no space at every growth.

use crate::world;
use crate::world::mishap::{Mishap, Mishaps};
use crate::world::past::{self, Part, assert_not_wrong};
use crate::world::{Change, Disk, Draw, Shape, World};
use bimetal_index::storage::memory::{Faults, MemoryStorage};
use bimetal_index::storage::{BLOCK_BYTES, Storage, StorageError};
use bimetal_index::{Clusters, Db, Durability, Error, Options, PaperRules};
use std::sync::Arc;

fn options() -> Options {
    Options {
        memory_bytes: 256 << 10,
        buffer_bytes: 4 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 100,
        ..Options::default()
    }
}

const SHAPE: Shape = Shape {
    keys: 60,
    integers: false,
    long_values: true,
    ranges: true,
};

/// Runs the life of the index until the first error: relaxed and durable batches, write-backs,
/// checkpoints, a compaction, and an opening in between. After the opening, leaves are not in
/// memory, so their changes are written as patches.
fn live(world: &mut World, storage: &(impl Storage + Clone + 'static)) -> Result<(), Error> {
    let mut draw = Draw::new(21);
    for turn in 0..70 {
        let durability = match draw.below(3) {
            0 => Durability::Relaxed,
            _ => Durability::Durable,
        };
        world.write(&SHAPE.batch(&mut draw), durability)?;
        match turn {
            20 | 50 => world.db.write_back()?,
            30 => world.db.checkpoint()?,
            60 => world.db.compact(|_| {})?,
            40 => {
                world.db.sync()?;
                world.history.synced();
                world.open_again(storage.clone())?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Functions that choose which sectors survive a power cut, among the sectors that were not
/// durable.
const LEFT: [fn(u64) -> u64; 4] = [
    |_| 0,
    |_| u64::MAX / 2,
    // The first of the next two functions keeps every other sector. The second function keeps every
    // other group of 40 sectors.
    |sector| sector % 2,
    |sector| sector / 40 % 2,
];

fn after_cut(disk: &Disk, left: fn(u64) -> u64) -> Disk {
    let mut sector = 0;
    let mut choose = || {
        sector += 1;
        left(sector)
    };
    Arc::new(disk.after_power_cut(&mut choose))
}

fn cut_at(disk: &Disk, number: u64) {
    let from = disk.counts().operations;
    disk.set_faults(Faults {
        power_cut_at: Some(from + number),
        ..Faults::default()
    });
}

/// Opens a disk repeatedly, with the power cut at each call in turn, until an opening succeeds.
fn cut_while_opening(world: &mut World, disk: &Disk, left: fn(u64) -> u64) -> u64 {
    for number in 0.. {
        // Each attempt starts with the original content of the disk and an empty cache.
        let disk = Arc::new(MemoryStorage::with_content(disk.content()));
        cut_at(&disk, number);
        let opened = Db::open(disk.clone(), &world.options);
        let was_cut = disk.is_off();
        match opened {
            Ok(db) => drop(db),
            Err(error) => assert!(was_cut && matches!(error, Error::Storage { .. }), "{error}"),
        }
        let history = world.history.clone();
        world.reopen(after_cut(&disk, left)).expect("it opens");
        if !was_cut {
            return number;
        }
        world.history = history;
    }
    unreachable!("an opening ends")
}

/// Runs the life once for each call that it makes to the disk, and cuts the power at that call. If
/// the number of the call is a multiple of `step`, the following opening is also repeated, with a
/// power cut at each of its calls.
fn cuts(step: u64) -> (u64, u64) {
    let mut again = 0;
    for number in 0.. {
        let mut was_cut = true;
        for (kind, left) in LEFT.into_iter().enumerate() {
            let disk = Disk::default();
            let storage = disk.clone();
            let mut world = World::over(disk, storage.clone(), options()).expect("an index");
            cut_at(&storage, number);
            was_cut = live(&mut world, &storage).is_err();
            let disk = after_cut(&storage, left);
            // Each kind in turn is followed by a second cut.
            if number % step == 0 && number / step % LEFT.len() as u64 == kind as u64 {
                again += cut_while_opening(&mut world, &disk, left);
            } else {
                world.reopen(disk).expect("it opens");
            }
        }
        if !was_cut {
            return (number, again);
        }
    }
    unreachable!("a life ends")
}

/// Cuts the power once at every call. After the cut at every seventh call (with
/// `BIMETAL_EVERY_BOUNDARY`, at every call), the following opening is also repeated, with a power
/// cut at each of its own calls.
#[test]
fn the_power_is_cut_at_every_call_and_at_every_call_of_the_opening_after_it() {
    let step = match std::env::var_os("BIMETAL_EVERY_BOUNDARY") {
        Some(_) => 1,
        None => 7,
    };
    let (boundaries, again) = cuts(step);
    assert!(boundaries > 100, "{boundaries}");
    assert!(again > boundaries / step * 5, "{again}");
}

fn every_write(mishap: Mishap) -> (u64, u64) {
    let (mut harmless, mut noticed) = (0, 0);
    for number in 6.. {
        let disk = Disk::default();
        let storage = Mishaps::at(disk.clone(), number, mishap);
        let mut world = World::over(disk, storage.clone(), options()).expect("an index");
        let lived = live(&mut world, &storage);
        if let Err(error) = &lived {
            let is_typed = matches!(error, Error::Damaged { .. } | Error::ReadOnly { .. });
            let is_beyond = matches!(
                error,
                Error::Storage {
                    source: StorageError::OutOfRange,
                    ..
                }
            );
            assert!(is_typed || is_beyond, "{mishap:?} at {number}: {error}");
        } else if !storage.has_happened() {
            // The mishap has not happened. Up to 400, operation `number` can be a sync, which the
            // mishap does not affect. Above 400, the life has ended before operation `number`.
            if number > 400 {
                return (harmless, noticed);
            }
            continue;
        }
        let how = format!("{mishap:?} at {number}");
        match assert_not_wrong(world.disk.clone(), &world.options, &world.history, &how) {
            true => harmless += 1,
            false => noticed += 1,
        }
    }
    unreachable!("a life ends")
}

#[test]
fn every_write_is_lost_once() {
    let (harmless, noticed) = every_write(Mishap::Lost);
    assert!(harmless > 20 && noticed > 20, "{harmless} and {noticed}");
}

#[test]
fn every_write_is_torn_once() {
    // In most written blocks, all bytes after the first sector are zero. A torn write of such a
    // block changes nothing, so it is harmless.
    let (harmless, noticed) = every_write(Mishap::Torn);
    assert!(harmless > 20 && noticed > 5, "{harmless} and {noticed}");
}

#[test]
fn every_write_goes_elsewhere_once() {
    for blocks in [1, 7, 64] {
        let (harmless, noticed) = every_write(Mishap::Misdirected(blocks));
        assert!(harmless > 20 && noticed > 20, "{harmless} and {noticed}");
    }
}

/// Reverts superblocks and blocks of the log to earlier versions, one block at a time.
#[test]
fn no_block_that_comes_back_is_believed() {
    let (harmless, noticed) = past::blocks_come_back(options(), Part::Log);
    assert!(harmless > 20 && noticed > 20, "{harmless} and {noticed}");
}

/// Reverts blocks of segments to earlier versions, one block at a time. An earlier version often
/// has an older image of the same node, which the index must not accept.
#[test]
fn no_image_that_comes_back_is_believed() {
    let paper = Options {
        paper: Some(PaperRules {
            clusters: Clusters::HotAndCold {
                hot_segments: 7,
                cold_segments: 10,
            },
            fill: 0.69,
        }),
        ..options()
    };
    for options in [options(), paper] {
        let (harmless, noticed) = past::blocks_come_back(options, Part::Segments);
        assert!(harmless > 20 && noticed > 20, "{harmless} and {noticed}");
    }
}

/// Changes the same byte of both superblocks, so that there is no intact superblock to fall back
/// to.
#[test]
fn a_byte_in_both_superblocks_is_noticed() {
    let world = world::lives::example();
    let content = world.disk.content();
    for at in 0..BLOCK_BYTES {
        let mut content = content.clone();
        content[at] ^= 1 << (at % 8);
        content[BLOCK_BYTES + at] ^= 1 << (at % 8);
        let opened = Db::open(MemoryStorage::with_content(content), &world.options);
        let error = opened.err().expect("there is no whole superblock");
        let is_typed = matches!(error, Error::Damaged { .. } | Error::NotAnIndex { .. });
        assert!(is_typed, "byte {at}: {error}");
    }
}

/// Makes every growth fail for lack of space, once or permanently. A write that does not fit is
/// refused and changes nothing, a full disk can be read and opened, and once there is space again
/// all operations work.
#[test]
fn there_is_no_space_for_every_growth() {
    let mut refusals = 0;
    for for_good in [false, true] {
        for number in 6.. {
            let disk = Disk::default();
            let storage = Mishaps::at(disk.clone(), number, Mishap::Full { for_good });
            let mut world = World::over(disk, storage.clone(), options()).expect("an index");
            let is_refused = fill(&mut world);
            if !storage.has_happened() {
                if number > 300 {
                    break;
                }
                continue;
            }
            refusals += u64::from(is_refused);
            world.check_all().expect("a scan");
            let keys: Vec<_> = world.now().keys().cloned().collect();
            for key in keys.chunks(20) {
                let deletes: Vec<_> = key.iter().cloned().map(Change::Delete).collect();
                let deleted = world.write(&deletes, Durability::Durable);
                // If leaves cannot be written back for lack of space, deletions are refused like
                // all other writes.
                let is_refused = for_good && matches!(deleted, Err(Error::Full { .. }));
                assert!(is_refused || deleted == Ok(()), "{number}: {deleted:?}");
            }
            let disk = world.disk.clone();
            world.reopen(disk).expect("a full disk can be opened");
            world.open_again(storage.clone()).expect("it opens");
            storage.end();
            assert!(!fill(&mut world), "there is space");
            world.db.write_back().expect("there is space");
            world.check_all().expect("a scan");
        }
    }
    assert!(refusals > 3, "{refusals}");
}

/// Writes batches. Returns true if a batch was refused for lack of space.
fn fill(world: &mut World) -> bool {
    let mut draw = Draw::new(5);
    let mut is_refused = false;
    for turn in 0..60 {
        let value = vec![draw.number() as u8; 3000];
        let change = Change::Put(vec![draw.below(200) as u8], value);
        let mut done = world.write(&[change.clone(), change], Durability::Durable);
        if turn % 10 == 9 && done.is_ok() {
            done = world.db.write_back();
        }
        match done {
            Ok(()) => {}
            Err(Error::Full { .. }) => is_refused = true,
            Err(error) => panic!("{error}"),
        }
    }
    is_refused
}
