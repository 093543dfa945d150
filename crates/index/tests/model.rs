//! An index beside an ordered map: random batches, gets, scans, snapshots and openings.

mod world;

use bimetal_index::{Durability, Options};
use std::ops::Bound;
use world::{Draw, Map, Shape, World, check_scan, collect, small_options, small_paper_options};

/// One life of many operations.
fn run(seed: u64, options: fn(&mut Draw) -> Options, operations: usize) {
    let mut draw = Draw::new(seed);
    let options = options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options).expect("an index on an empty disk");
    let mut snapshots: Vec<(bimetal_index::Snapshot, Map)> = Vec::new();
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
                    world.history.synced();
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

#[test]
fn an_index_is_an_ordered_map() {
    for seed in 0..60 {
        run(seed, small_options, 400);
    }
}

#[test]
fn an_index_under_the_papers_rules_is_an_ordered_map() {
    for seed in 0..30 {
        run(seed, small_paper_options, 400);
    }
}

#[test]
fn one_life_of_many_operations() {
    run(1_000_001, small_options, 8_000);
}
