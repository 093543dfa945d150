//! Prints the bytes written and the flushes of an index, counted on a disk in memory, so that only
//! the index determines them: `bytes KEYS [8|16] [BUFFER_PERCENT] [LOG_MIB]`.

mod records;

use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Batch, Db, Durability, Options};
use records::{Draw, key, mix};
use std::sync::Arc;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| {
        words
            .get(at)
            .and_then(|w| w.parse().ok())
            .unwrap_or(default)
    };
    let (keys, shape, percent, log_mib) = (
        number(1, 200_000),
        number(2, 8),
        number(3, 10),
        number(4, 51),
    );
    let long = shape == 16;
    let entry = if long { 160 } else { 48 };
    let options = Options {
        memory_bytes: 2 << 30,
        buffer_bytes: keys * percent / 100 * entry,
        log_bytes: log_mib << 20,
        ..Options::default()
    };
    let disk = Arc::new(MemoryStorage::new());
    let db = Db::create(disk.clone(), 1, &options).expect("an index");
    let mut numbers = Draw::new(1);
    let mut draw = || numbers.number();
    let mut value = vec![0; if long { 100 } else { 8 }];
    let mut batch = Batch::new();
    for id in 0..keys {
        value.fill_with(|| draw() as u8);
        batch.put(&key(mix(id) % keys * 2, long), &value);
        if batch.len() == 1000 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
        }
    }
    for id in 0..keys {
        value.fill_with(|| draw() as u8);
        batch.put(&key(id * 2, long), &value);
        if batch.len() == 1000 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
        }
    }
    db.write(&batch, Durability::Durable).expect("a write");
    db.write_back().expect("a write-back");
    let space = db.statistics().space;
    let user = keys * if long { 116 } else { 16 };
    println!(
        "space: in use {:.3} of user bytes, segments that are not free {:.3}, all {:.3}",
        space.live_bytes as f64 / user as f64,
        (u64::from(space.segments - space.free_segments) * u64::from(space.segment_bytes)) as f64
            / user as f64,
        (u64::from(space.segments) * u64::from(space.segment_bytes)) as f64 / user as f64
    );
    for (size, commits) in [(1, keys * 2), (100, keys / 10), (1000, keys / 100)] {
        let mut from = disk.counts();
        let mut before = db.statistics();
        for round in 0..commits {
            if round == commits / 2 {
                (from, before) = (disk.counts(), db.statistics());
            }
            batch.clear();
            for _ in 0..size {
                value.fill_with(|| draw() as u8);
                batch.put(&key(draw() % keys * 2, long), &value);
            }
            let durability = if size == 1000 {
                Durability::Relaxed
            } else {
                Durability::Durable
            };
            db.write(&batch, durability).expect("a write");
        }
        let (counts, statistics) = (disk.counts(), db.statistics());
        let updates = size * (commits - commits / 2);
        println!(
            "updates of {size}: {:.1} B an update ({:.1} in segments, {:.1} in checkpoints), {:.3} flushes a commit; {} folds, {} carried, {} cleaned ({} MiB moved), {} checkpoints, delta {} of {} KiB",
            (counts.written_bytes - from.written_bytes) as f64 / updates as f64,
            (statistics.segment_written_bytes - before.segment_written_bytes) as f64
                / updates as f64,
            (statistics.maintenance.checkpoint_bytes - before.maintenance.checkpoint_bytes) as f64
                / updates as f64,
            (counts.flushes - from.flushes) as f64 / (commits - commits / 2) as f64,
            statistics.maintenance.consolidations - before.maintenance.consolidations,
            statistics.maintenance.relogged - before.maintenance.relogged,
            statistics.maintenance.cleaned_segments - before.maintenance.cleaned_segments,
            (statistics.maintenance.moved_bytes - before.maintenance.moved_bytes) >> 20,
            statistics.maintenance.checkpoints - before.maintenance.checkpoints,
            statistics.delta_bytes >> 10,
            options.buffer_bytes >> 10,
        );
    }
}
