//! Tests of power cuts and of operations that fail. The power is cut at any operation of the
//! storage, also while the index is opened again and after it is open.

use crate::world::lives::{self, cut, write_some};
use crate::world::{
    Change, Disk, Draw, Map, Shape, World, check_scan, small_growing_options, small_options,
    small_paper_options,
};
use bimetal_index::storage::memory::Faults;
use bimetal_index::{Batch, Db, Durability, Error, MaintenanceStatistics, Options};
use std::ops::Bound;
use std::sync::Arc;

#[test]
fn nothing_durable_is_lost_and_nothing_is_half_there() {
    let mut reached = MaintenanceStatistics::default();
    for seed in 0..400 {
        lives::crash(seed, small_options, &mut reached);
    }
    // Lives without such events prove nothing.
    assert!(reached.consolidations > 10_000, "{reached:?}");
    assert!(reached.splits > 1000 && reached.joins > 100, "{reached:?}");
    assert!(reached.patches > 300, "{reached:?}");
    assert!(
        reached.relogged > 1000 && reached.cleaned_segments > 100,
        "{reached:?}"
    );
    assert!(
        reached.checkpoints > 400 && reached.blobs > 100,
        "{reached:?}"
    );
}

/// The log moves to a longer ring, and later back to the ring at the front of the disk.
#[test]
fn nothing_durable_is_lost_where_the_log_grows() {
    let mut reached = MaintenanceStatistics::default();
    for seed in 0..100 {
        lives::crash(seed, small_growing_options, &mut reached);
    }
    assert!(reached.log_rings > 60, "{reached:?}");
    assert!(reached.checkpoints > 100, "{reached:?}");
}

#[test]
fn nothing_durable_is_lost_under_the_papers_rules() {
    let mut reached = MaintenanceStatistics::default();
    for seed in 0..100 {
        lives::crash(seed, small_paper_options, &mut reached);
    }
    assert!(reached.consolidations > 10_000, "{reached:?}");
    assert!(reached.splits > 500, "{reached:?}");
    assert!(reached.cleaned_segments > 20, "{reached:?}");
    assert!(reached.checkpoints > 100, "{reached:?}");
}

/// Runs the same short life of an index repeatedly. The first run has a power cut at its first
/// operation, the next run at its second operation, and so on. The test ends with the first run
/// that ends before its cut.
#[test]
fn a_cut_at_every_operation() {
    for number in 0.. {
        let mut draw = Draw::new(5);
        let options = small_options(&mut draw);
        let shape = Shape::draw(&mut draw);
        let mut world = World::new(options).expect("an index on an empty disk");
        let from = world.disk.counts().operations;
        world.disk.set_faults(Faults {
            power_cut_at: Some(from + number),
            ..Faults::default()
        });
        write_some(&mut world, &shape, &mut draw, 60);
        let was_cut = world.disk.is_off();
        let disk = cut(&world.disk, &mut Draw::new(number));
        world.reopen(disk).expect("it opens");
        if !was_cut {
            assert!(number > 50, "there were operations to be cut");
            return;
        }
    }
}

/// A killed program leaves its writes in the caches of the system and of the disk. The next program
/// reads these writes, and must not depend on them before they are durable.
#[test]
fn what_was_found_after_a_kill_survives_a_power_cut() {
    let options = Options {
        log_bytes: 4 << 20,
        ..small_options(&mut Draw::new(2))
    };
    let mut world = World::new(options).expect("an index on an empty disk");
    let put = |number: u8| [Change::Put(vec![number], vec![number; 60_000])];
    let written = world.write(&put(0), Durability::Durable);
    written.expect("a write");
    let durable = world.history.durable();
    // These batches need more than one frame of the log, so the first frames are written but not
    // durable.
    for number in 1..11 {
        let written = world.write(&put(number), Durability::Relaxed);
        written.expect("a write");
    }
    let disk = world.disk.clone();
    world.reopen(disk).expect("it opens");
    let found = world.history.durable();
    assert!(found > durable, "a kill loses only what was not written");
    let written = world.write(&put(11), Durability::Durable);
    written.expect("a write");
    let disk = Arc::new(world.disk.after_power_cut(&mut || 0));
    world.reopen(disk).expect("it opens");
    assert_eq!(world.history.durable(), found + 1);
}

#[test]
fn what_a_failed_sync_has_left_in_the_cache_is_written_again() {
    (0..10).for_each(lives::failed_sync);
}

#[test]
fn a_frame_that_was_left_over_is_not_taken_up() {
    (0..2).for_each(lives::leftover);
}

/// Number of lives: 24, unless the environment sets it (`BIMETAL_LIVES=1000`).
fn relaxed_lives() -> u64 {
    let wanted = std::env::var("BIMETAL_LIVES").ok();
    wanted.and_then(|lives| lives.parse().ok()).unwrap_or(24)
}

#[test]
fn frames_that_are_not_durable_survive_in_order_or_not_at_all() {
    (0..relaxed_lives()).for_each(lives::relaxed);
}

#[test]
fn a_failure_of_every_operation() {
    let failures = (0..).take_while(|number| lives::failure(*number)).count();
    assert!(failures > 50, "there were operations to fail");
}

/// On a disk without space, a write that does not fit is refused and damages nothing, and deletions
/// free space.
#[test]
fn a_full_disk_refuses_and_goes_on() {
    for seed in 0..30 {
        let mut draw = Draw::new(seed);
        let options = small_options(&mut draw);
        let shape = Shape {
            ranges: false,
            ..Shape::draw(&mut draw)
        };
        let mut world = World::new(options).expect("an index on an empty disk");
        let len_bytes = world.options.log_bytes + (64 << 10) * (8 + draw.below(12));
        world.disk.set_faults(Faults {
            len_bytes_max: Some(len_bytes),
            ..Faults::default()
        });
        let mut refused = 0;
        for _ in 0..3000 {
            match world.write(&shape.batch(&mut draw), Durability::Relaxed) {
                Ok(()) => {}
                Err(Error::Full { .. }) => refused += 1,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if refused > 20 {
                break;
            }
        }
        world.check_all().expect("a scan");
        world.disk.set_faults(Faults::default());
        world
            .write(&shape.batch(&mut draw), Durability::Durable)
            .expect("there is space again");
        let disk = world.disk.clone();
        world.reopen(disk).expect("it opens");
    }
}

/// The log to be replayed has more changes than memory can hold, so leaves are written back,
/// segments are cleaned and checkpoints are taken before the end of the log has been read.
#[test]
fn a_log_much_longer_than_the_memory_is_taken_up() {
    const KEYS: u64 = 180_000;
    let small = Options {
        log_bytes: 64 << 20,
        inline_value_bytes: 1024,
        ..small_options(&mut Draw::new(2))
    };
    let options = Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 48 << 20,
        ..small.clone()
    };
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 7, &options).expect("an index");
    let mut map = Map::new();
    let mut draw = Draw::new(6);
    let mut write = |from: u64, to: u64| {
        let mut batch = Batch::new();
        for number in from..to {
            // Keys ascend, so that leaves are written back in the order of the log.
            let key = (number % KEYS).to_be_bytes();
            let value = vec![draw.number() as u8; 200];
            batch.put(&key, &value);
            map.insert(key.to_vec(), value);
            if batch.len() == 500 {
                db.write(&batch, Durability::Relaxed).expect("a write");
                batch.clear();
            }
        }
    };
    write(0, KEYS);
    db.write_back().expect("a write-back");
    write(KEYS, KEYS * 2);
    db.sync().expect("a sync");
    let used = db.statistics().log_used_bytes;
    assert!(used > 33 << 20, "{used} bytes of the log are needed");
    drop(db);
    let db = Db::open(disk, &small).expect("it opens");
    let maintenance = db.statistics().maintenance;
    assert!(
        maintenance.consolidations > 1000 && maintenance.checkpoints > 0,
        "{maintenance:?}"
    );
    check_scan(&db, &map, (Bound::Unbounded, Bound::Unbounded)).expect("a scan");
}
