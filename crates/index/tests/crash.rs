//! Power cuts at any operation of the storage, also while an index is opened, and again after that; and
//! operations that fail.

mod world;

use bimetal_index::storage::memory::Faults;
use bimetal_index::{Durability, Error, Options, UpkeepFigures};
use std::sync::Arc;
use world::{Disk, Draw, Shape, World, small_options, small_paper_options};

/// Writes until the disk stops, or for so many batches.
fn write_some(world: &mut World, shape: &Shape, draw: &mut Draw, batches: u64) {
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
fn cut(disk: &Disk, draw: &mut Draw) -> Disk {
    let keeps = draw.below(3);
    let mut choose = || match keeps {
        0 => 0,
        _ => draw.number(),
    };
    Arc::new(disk.after_power_cut(&mut choose))
}

fn run(seed: u64, options: fn(&mut Draw) -> Options, reached: &mut UpkeepFigures) {
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
        add(reached, &world.db.figures().upkeep);
        let mut disk = cut(&world.disk, &mut draw);
        // Opening writes too, and may be cut like everything else.
        for _ in 0..draw.below(3) {
            disk.set_faults(Faults {
                power_cut_at: Some(draw.below(12)),
                ..Faults::default()
            });
            let opened = bimetal_index::Db::open(disk.clone(), &world.options);
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
        // Checking has read all leaves; most programs that open an index have read none.
        if draw.once_in(2) {
            world.db = bimetal_index::Db::open(world.disk.clone(), &world.options)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

#[test]
fn nothing_durable_is_lost_and_nothing_is_half_there() {
    let mut reached = UpkeepFigures::default();
    for seed in 0..400 {
        run(seed, small_options, &mut reached);
    }
    // Lives in which nothing happens prove nothing.
    assert!(reached.folds > 10_000, "{reached:?}");
    assert!(reached.splits > 1000 && reached.joins > 100, "{reached:?}");
    assert!(reached.patches > 300, "{reached:?}");
    assert!(
        reached.carried > 1000 && reached.cleaned_segments > 100,
        "{reached:?}"
    );
    assert!(
        reached.checkpoints > 400 && reached.blobs > 100,
        "{reached:?}"
    );
}

#[test]
fn nothing_durable_is_lost_under_the_papers_rules() {
    let mut reached = UpkeepFigures::default();
    for seed in 0..100 {
        run(seed, small_paper_options, &mut reached);
    }
    assert!(reached.folds > 10_000, "{reached:?}");
    assert!(reached.splits > 500, "{reached:?}");
    assert!(reached.cleaned_segments > 20, "{reached:?}");
    assert!(reached.checkpoints > 100, "{reached:?}");
}

fn add(sum: &mut UpkeepFigures, figures: &UpkeepFigures) {
    sum.folds += figures.folds;
    sum.patches += figures.patches;
    sum.splits += figures.splits;
    sum.joins += figures.joins;
    sum.blobs += figures.blobs;
    sum.carried += figures.carried;
    sum.cleaned_segments += figures.cleaned_segments;
    sum.checkpoints += figures.checkpoints;
}

/// A cut at every operation of a short life, one after the other, until a life passes without.
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

/// A failure of every operation: writing ends, reading goes on, and what was durable is there.
#[test]
fn a_failure_of_every_operation() {
    for number in 0.. {
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
        if !has_failed {
            assert!(number > 50, "there were operations to fail");
            return;
        }
    }
}

/// A disk without space: what does not fit is refused, nothing else is harmed, and deleting helps.
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
