//! Lives of an index that tests share, each from a seed or a number: what is done and what goes wrong, held
//! against the map. The tests of the tests (`src/planted/`) lead the same lives with bugs planted.

use super::{Disk, Draw, Map, Shape, World, check_scan, collect, small_options};
use bimetal_index::storage::memory::{Faults, MemoryStorage};
use bimetal_index::{Db, Durability, Error, Options, Snapshot, UpkeepFigures};
use std::ops::Bound;
use std::sync::Arc;

/// Writes until the disk stops, or for so many batches.
pub fn write_some(world: &mut World, shape: &Shape, draw: &mut Draw, batches: u64) {
    for _ in 0..batches {
        let relaxed = draw.once_in(3);
        let durability = if relaxed {
            Durability::Relaxed
        } else {
            Durability::Durable
        };
        let result = match draw.below(30) {
            0 => world.db.checkpoint(),
            1 => world.db.write_back(),
            _ => world.write(&shape.batch(draw), durability),
        };
        if result.is_err() {
            return;
        }
    }
}

/// The disk after its power was cut, with any subset of what was not durable.
pub fn cut(disk: &Disk, draw: &mut Draw) -> Disk {
    let keeps = draw.below(3);
    let mut choose = || match keeps {
        0 => 0,
        _ => draw.number(),
    };
    Arc::new(disk.after_power_cut(&mut choose))
}

/// Lives that end with a power cut, the openings after it perhaps as well.
pub fn crash(seed: u64, options: fn(&mut Draw) -> Options, reached: &mut UpkeepFigures) {
    let mut draw = Draw::new(seed);
    let options = options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options).expect("an index on an empty disk");
    for _ in 0..4 {
        let from = world.disk.counts().operations;
        let scale = draw.below(12);
        let cut_at = from + draw.below(1 << scale);
        world.disk.set_faults(Faults {
            power_cut_at: Some(cut_at),
            ..Faults::default()
        });
        write_some(&mut world, &shape, &mut draw, 300);
        add_up(reached, &world.db.figures().upkeep);
        let mut disk = cut(&world.disk, &mut draw);
        // Opening writes too, and may be cut like everything else.
        for _ in 0..draw.below(3) {
            disk.set_faults(Faults {
                power_cut_at: Some(draw.below(12)),
                ..Faults::default()
            });
            let opened = Db::open(disk.clone(), &world.options);
            if let Err(error) = &opened {
                assert!(
                    matches!(error, Error::Storage { .. }),
                    "seed {seed}: {error}"
                );
            }
            drop(opened);
            disk = cut(&disk, &mut draw);
        }
        disk.set_faults(Faults::default());
        if let Err(error) = world.reopen(disk) {
            panic!("seed {seed}: {error}");
        }
    }
}

fn add_up(sum: &mut UpkeepFigures, figures: &UpkeepFigures) {
    sum.folds += figures.folds;
    sum.patches += figures.patches;
    sum.splits += figures.splits;
    sum.joins += figures.joins;
    sum.blobs += figures.blobs;
    sum.carried += figures.carried;
    sum.cleaned_segments += figures.cleaned_segments;
    sum.checkpoints += figures.checkpoints;
}

/// A life in which one operation fails: writing ends, reading goes on, and what was durable is there. False
/// if the life was over before.
pub fn failure(number: u64) -> bool {
    let mut draw = Draw::new(9);
    let options = small_options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options).expect("an index on an empty disk");
    let from = world.disk.counts().operations;
    world.disk.set_faults(Faults {
        fail_at: Some(from + number),
        ..Faults::default()
    });
    write_some(&mut world, &shape, &mut draw, 60);
    let has_failed = world.disk.counts().operations > from + number;
    world.disk.set_faults(Faults::default());
    let disk = Arc::new(world.disk.after_power_cut(&mut || number));
    world.reopen(disk).expect("it opens");
    has_failed
}

/// One life of many operations.
pub fn ordered_map(seed: u64, options: fn(&mut Draw) -> Options, operations: usize) {
    let mut draw = Draw::new(seed);
    let options = options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options).expect("an index on an empty disk");
    let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
    for _ in 0..operations {
        match draw.below(20) {
            0..=12 => {
                let relaxed = draw.once_in(2);
                let durability = if relaxed {
                    Durability::Relaxed
                } else {
                    Durability::Durable
                };
                world
                    .write(&shape.batch(&mut draw), durability)
                    .expect("a batch is taken");
            }
            13..=15 => world.check_get(&shape.key(&mut draw)).expect("a get"),
            16 => {
                let (a, b) = (shape.key(&mut draw), shape.key(&mut draw));
                let bounds = match draw.below(3) {
                    0 => (Bound::Included(&a[..]), Bound::Excluded(&b[..])),
                    1 => (Bound::Excluded(&a[..]), Bound::Included(&b[..])),
                    _ => (Bound::Unbounded, Bound::Included(&b[..])),
                };
                check_scan(&world.db, world.now(), bounds).expect("a scan");
            }
            17 if snapshots.len() < 3 => {
                snapshots.push((world.db.snapshot(), world.now().clone()));
            }
            17 | 18 => {
                if let Some((snapshot, map)) = snapshots.pop() {
                    let all = collect(&mut snapshot.scan((Bound::Unbounded, Bound::Unbounded)));
                    let all: Map = all.expect("a scan").into_iter().collect();
                    assert!(all == map, "a snapshot is what it was");
                    let key = shape.key(&mut draw);
                    assert_eq!(snapshot.get(&key).expect("a get").as_ref(), map.get(&key));
                }
            }
            _ => match draw.below(6) {
                0 => {
                    snapshots.clear();
                    world.db.sync().expect("a sync");
                    world.durable = world.history.len() - 1;
                    let disk = world.disk.clone();
                    world.reopen(disk).expect("it opens");
                }
                1 => world.db.checkpoint().expect("a checkpoint"),
                2 => world.db.write_back().expect("a write-back"),
                3 => world.db.compact(|_| {}).expect("a compaction"),
                _ => world.check_all().expect("a scan"),
            },
        }
    }
    world.check_all().expect("a scan");
}

/// Settings of [`example`].
pub fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 8 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 200,
        ..Options::default()
    }
}

/// A small index with every kind of structure, the log not empty.
pub fn example() -> World {
    let mut world = World::new(small()).expect("an index");
    let shape = Shape {
        keys: 60,
        integers: false,
        long_values: true,
        ranges: true,
    };
    let mut draw = Draw::new(11);
    for number in 0..120 {
        world
            .write(&shape.batch(&mut draw), Durability::Durable)
            .expect("a write");
        if number == 80 {
            world.db.write_back().expect("a write-back");
        }
    }
    world
}

/// Everything that an index says it has.
pub fn all(db: &Db) -> Result<Map, Error> {
    let pairs = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)))?;
    Ok(pairs.into_iter().collect())
}

/// Bytes of everything that was written, one at a time. The last frame of the log may have been torn
/// by a power cut, for all that can be known, so without it is right as well.
/// Returns how many times opening or reading was refused.
pub fn changed_bytes(step: usize) -> usize {
    let world = example();
    let content = world.disk.content();
    let (mut refused, mut same, mut torn) = (0, 0, 0);
    let before_last = &world.history[world.history.len() - 2];
    for at in (0..content.len()).step_by(step) {
        let block = at / 4096 * 4096;
        if content[block..block + 4096].iter().all(|byte| *byte == 0) {
            continue;
        }
        let mut flipped = content.clone();
        flipped[at] ^= 1 << (at % 8);
        let disk = Arc::new(MemoryStorage::with_content(flipped));
        match Db::open(disk, &small()).and_then(|db| all(&db)) {
            Ok(map) if map == *world.now() => same += 1,
            Ok(map) if map == *before_last => torn += 1,
            Ok(_) => panic!("byte {at} has changed what is there"),
            Err(Error::Damaged { .. } | Error::NotAnIndex { .. } | Error::Version { .. }) => {
                refused += 1;
            }
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(torn <= 2 * 4096, "{torn} in the last frame");
    assert!(same > 0, "zeroes that nothing refers to may change");
    refused
}
