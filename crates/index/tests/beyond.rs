//! Tests with ten times as much data as memory: the cost of a change in bytes written, and the cost
//! of a get in reads.

use crate::world::Draw;
use bimetal_index::storage::memory::{MemoryStorage, StorageCounters};
use bimetal_index::{Batch, Db, Durability, Options};
use std::sync::Arc;

const RECORDS: u64 = 100_000;
const KEY_BYTES: u64 = 16;
const VALUE_BYTES: u64 = 100;
/// Number of batches of 100 changes each, the batch size of the benchmark in `docs/benchmarks.md`.
const BATCHES: u64 = 1_000;

/// Returns options with a memory of a tenth of the records' bytes, half of it for changes.
fn options() -> Options {
    let memory_bytes = RECORDS * (KEY_BYTES + VALUE_BYTES) / 10;
    Options {
        memory_bytes,
        buffer_bytes: memory_bytes / 2,
        log_bytes: 16 << 20,
        segment_bytes: 128 << 10,
        ..Options::default()
    }
}

/// Returns the key of a number. Keys are in an unpredictable order, and only those of even numbers
/// are loaded.
fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let spread = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    key[..8].copy_from_slice(&(spread ^ spread >> 29).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(draw: &mut Draw) -> Vec<u8> {
    let words = (0..VALUE_BYTES.div_ceil(8)).flat_map(|_| draw.number().to_le_bytes());
    words.take(VALUE_BYTES as usize).collect()
}

/// Creates an index and writes every record once, in an order unrelated to the key order.
fn loaded(storage: &Arc<MemoryStorage>, draw: &mut Draw) -> Db {
    let db = Db::create(storage.clone(), 1, &options()).expect("an index");
    for start in (0..RECORDS).step_by(1000) {
        let mut batch = Batch::new();
        for number in start..start + 1000 {
            batch.put(&key(number * 7919 % RECORDS * 2), &value(draw));
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
    }
    db
}

/// Puts and deletes random keys, in equal numbers. Returns the bytes of these changes.
fn change(db: &Db, draw: &mut Draw) -> u64 {
    let mut bytes = 0;
    for _ in 0..BATCHES {
        let mut batch = Batch::new();
        for _ in 0..100 {
            let key = key(draw.below(RECORDS * 2));
            bytes += KEY_BYTES;
            if draw.once_in(2) {
                batch.put(&key, &value(draw));
                bytes += VALUE_BYTES;
            } else {
                batch.delete(&key);
            }
        }
        db.write(&batch, Durability::Durable).expect("a write");
    }
    bytes
}

fn reads_of(storage: &MemoryStorage, run: impl FnOnce()) -> u64 {
    let StorageCounters { reads, .. } = storage.counts();
    run();
    storage.counts().reads - reads
}

/// The changes of a leaf are first collected in memory, and then written as patches to the storage.
/// The leaf is written as a whole only after that, or when its segment is cleaned. The limits are 8
/// bytes written for each byte changed, and 1.1 reads for each get.
#[test]
fn changes_are_written_a_few_times_and_a_get_reads_once() {
    let storage = Arc::new(MemoryStorage::new());
    let mut draw = Draw::new(1);
    let db = loaded(&storage, &mut draw);
    // After three rounds, patches, consolidations and cleaning are in a steady state.
    for _ in 0..3 {
        change(&db, &mut draw);
    }
    let before = storage.counts().written_bytes;
    let changed_bytes = change(&db, &mut draw) + change(&db, &mut draw);
    let written_bytes = storage.counts().written_bytes - before;
    let statistics = db.statistics();
    assert!(
        written_bytes <= changed_bytes * 8,
        "{written_bytes} for {changed_bytes}: {statistics:?}"
    );
    let gets = 10_000;
    let reads = reads_of(&storage, || {
        for _ in 0..gets {
            db.get(&key(draw.below(RECORDS * 2))).expect("a get");
        }
    });
    assert!(
        reads * 10 <= gets * 11,
        "{reads} for {gets}: {statistics:?}"
    );
}
