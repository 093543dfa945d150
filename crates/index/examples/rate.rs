//! Prints the speed and the bytes written of an index in a file: `rate FILE KEYS [8|16]`.
//!
//! The workloads are those of docs/index.md: a load in random order, gets, scans of 100 rows, and
//! mixes of one get and one durable change, with single changes and with batches of a hundred.

mod records;

use bimetal_index::{Batch, Db, Durability, Options};
use records::{Draw, key};
use std::ops::Bound;
use std::time::Duration;

fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let start = now();
    let result = act();
    let took = now() - start;
    (result, Duration::try_from(took).expect("time goes on"))
}

fn value(draw: &mut Draw, long: bool) -> Vec<u8> {
    let words = if long { 13 } else { 1 };
    let mut value: Vec<u8> = (0..words)
        .flat_map(|_| draw.number().to_le_bytes())
        .collect();
    value.truncate(if long { 100 } else { 8 });
    value
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let path = std::path::PathBuf::from(words.get(1).expect("a file"));
    let keys: u64 = words
        .get(2)
        .and_then(|word| word.parse().ok())
        .unwrap_or(1_000_000);
    let long = words.get(3).is_some_and(|word| word == "16");
    if words.get(3).is_some_and(|word| word == "open") {
        let options = Options {
            memory_bytes: 1 << 30,
            buffer_bytes: 256 << 20,
            ..Options::default()
        };
        let (db, took) = timed(|| Db::open_path(&path, &options).expect("it opens"));
        println!(
            "opening          {:8.3} s, {} batches",
            took.as_secs_f64(),
            db.statistics().batches
        );
        return;
    }
    let _ = std::fs::remove_file(&path);
    let record_bytes = if long { 116 } else { 16 };
    let memory_bytes = if keys > 4_000_000 { 1 << 30 } else { 256 << 20 };
    let options = Options {
        memory_bytes,
        buffer_bytes: memory_bytes / 4,
        log_bytes: 256 << 20,
        ..Options::default()
    };
    let db = Db::open_path(&path, &options).expect("an index");
    let mut draw = Draw::new(1);
    let mut ids: Vec<u64> = (0..keys).map(|n| n * 2).collect();
    for at in (1..ids.len()).rev() {
        ids.swap(at, (draw.number() % (at as u64 + 1)) as usize);
    }
    let mut batch = Batch::new();
    let ((), took) = timed(|| {
        for ids in ids.chunks(10_000) {
            batch.clear();
            for id in ids {
                batch.put(&key(*id, long), &value(&mut draw, long));
            }
            db.write(&batch, Durability::Relaxed).expect("a write");
        }
    });
    println!(
        "random load      {:8.0} k/s",
        keys as f64 / took.as_secs_f64() / 1e3
    );
    let ((), took) = timed(|| db.write_back().expect("a write-back"));
    let statistics = db.statistics();
    println!(
        "written back in {:.1} s: {:.3} of the user bytes in use, {:.3} in segments; {} folds, {} checkpoints, {} cleaned",
        took.as_secs_f64(),
        statistics.space.live_bytes as f64 / (keys * record_bytes) as f64,
        (u64::from(statistics.space.segments - statistics.space.free_segments)
            * u64::from(statistics.space.segment_bytes)) as f64
            / (keys * record_bytes) as f64,
        statistics.maintenance.consolidations,
        statistics.maintenance.checkpoints,
        statistics.maintenance.cleaned_segments,
    );
    let mut out = Vec::new();
    let gets = 1_000_000;
    for round in 0..2 {
        let ((), took) = timed(|| {
            for _ in 0..gets {
                let id = draw.number() % keys * 2;
                assert!(db.get_into(&key(id, long), &mut out).expect("a get"));
            }
        });
        println!(
            "get, round {round}     {:8.0} ns",
            took.as_nanos() as f64 / f64::from(gets)
        );
    }
    let scans = 20_000;
    let ((), took) = timed(|| {
        for _ in 0..scans {
            let from = key(draw.number() % keys * 2, long);
            let mut scan = db.scan((Bound::Included(&from), Bound::Unbounded));
            let mut rows = 0;
            while rows < 100 && scan.next().expect("a row").is_some() {
                rows += 1;
            }
        }
    });
    println!(
        "scan of 100      {:8.2} us",
        took.as_micros() as f64 / f64::from(scans)
    );
    for (size, commits) in [(1_u64, 3_000_u64), (100, 40_000), (1000, 4000)] {
        let before = db.statistics();
        let durability = if size == 1000 {
            Durability::Relaxed
        } else {
            Durability::Durable
        };
        let ((), took) = timed(|| {
            for _ in 0..commits {
                batch.clear();
                for _ in 0..size {
                    let id = draw.number() % (keys * 2);
                    let _ = db.get_into(&key(id, long), &mut out).expect("a get");
                }
                for _ in 0..size {
                    let id = draw.number() % (keys * 2);
                    match draw.number() % 2 {
                        0 => batch.put(&key(id, long), &value(&mut draw, long)),
                        _ => batch.delete(&key(id, long)),
                    }
                }
                db.write(&batch, durability).expect("a write");
            }
        });
        let after = db.statistics();
        println!(
            "mix b={size:<4}       {:8.0} k op/s, {:6.1} us a commit; segments {:.0} B an update, {} folds, {} carried, {} checkpoints, {} cleaned, delta {} MiB",
            (2 * size * commits) as f64 / took.as_secs_f64() / 1e3,
            took.as_micros() as f64 / commits as f64,
            (after.segment_written_bytes - before.segment_written_bytes) as f64
                / (size * commits) as f64,
            after.maintenance.consolidations - before.maintenance.consolidations,
            after.maintenance.relogged - before.maintenance.relogged,
            after.maintenance.checkpoints - before.maintenance.checkpoints,
            after.maintenance.cleaned_segments - before.maintenance.cleaned_segments,
            after.delta_bytes >> 20,
        );
    }
    // The index is dropped without being closed, as if the process had been killed.
    drop(db);
    let (db, took) = timed(|| Db::open_path(&path, &options).expect("it opens"));
    println!(
        "opening          {:8.3} s, {} batches",
        took.as_secs_f64(),
        db.statistics().batches
    );
}
