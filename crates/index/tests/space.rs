//! How long an index becomes by what is done to it.

use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Batch, Db, Durability, Options};
use std::sync::Arc;

const RECORDS: u64 = 40_000;

/// Where the log is too short for the changes that memory would hold, it is the log that makes leaves go
/// to the disk, a few changes at a time. What is left of them behind has to be cleaned all the same.
#[test]
fn a_log_shorter_than_the_buffer_does_not_let_rubbish_pile_up() {
    let options = Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 16 << 20,
        log_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 4096,
        ..Options::default()
    };
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &options).expect("an index");
    let mut batch = Batch::new();
    for number in 0..RECORDS * 4 {
        // The factor has no divisor in common with the number of records: each is written four times.
        let key = (number * 7919 % RECORDS).to_be_bytes();
        batch.put(&key, &[number as u8; 100]);
        if batch.len() == 500 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
        }
    }
    let figures = db.figures();
    assert!(figures.upkeep.folds > 10_000, "{figures:?}");
    let space = figures.space;
    // A part of 0.85 is in use at least, beside the spare segments and what a checkpoint gives back.
    let segments_bytes = u64::from(space.segments) * u64::from(space.segment_bytes);
    let spare_bytes = 40 * u64::from(space.segment_bytes);
    let most = space.live_bytes * 100 / 85 + spare_bytes;
    assert!(
        segments_bytes <= most,
        "{segments_bytes} of {most}: {space:?}"
    );
}

/// A load touches every leaf again before the eviction has come round, and reads none.
#[test]
fn a_load_that_reads_nothing_keeps_within_its_memory() {
    let options = Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 128 << 10,
        log_bytes: 8 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 1024,
        ..Options::default()
    };
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &options).expect("an index");
    let mut batch = Batch::new();
    let mut content_bytes = 0;
    for number in 0..RECORDS {
        let key = (number * 7919 % (RECORDS / 2)).to_be_bytes();
        batch.put(&key, &[number as u8; 100]);
        if batch.len() == 2000 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
            let figures = db.figures();
            // What has not landed comes on top: docs/index.md.
            let most = options.memory_bytes + 4 * u64::from(options.segment_bytes);
            let bytes = figures.content_bytes + figures.delta_bytes;
            assert!(bytes <= most, "{bytes} of {most} after {number} records");
            content_bytes = content_bytes.max(figures.content_bytes);
        }
    }
    assert!(
        content_bytes > options.memory_bytes / 2,
        "memory is made use of: {content_bytes}"
    );
}
