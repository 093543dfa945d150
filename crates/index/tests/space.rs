//! How long an index becomes by what is done to it.

use bimetal_index::storage::memory::{Faults, MemoryStorage};
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

/// Values that do not pack.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn well_packed() -> Options {
    Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 256 << 10,
        log_bytes: 16 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 4096,
        ..Options::default()
    }
}

/// So many that the segments kept in reserve count little.
const SMALL_RECORDS: u64 = 600_000;

/// Loads records of 8 + 8 bytes and changes each once, in no order.
///
/// # Errors
/// The first batch that is refused.
fn change_all(db: &Db) -> Result<(), bimetal_index::Error> {
    let mut batch = Batch::new();
    for number in 0..SMALL_RECORDS * 2 {
        let key = (number * 7919 % SMALL_RECORDS).to_be_bytes();
        batch.put(&key, &spread(number).to_be_bytes());
        if batch.len() == 100 {
            db.write(&batch, Durability::Relaxed)?;
            batch.clear();
        }
    }
    Ok(())
}

/// Two bytes of the key and the whole value are what packing leaves of 16 bytes, and patches of some leaves. The rest is
/// for segments that are partly empty, which then are cleaned less: no more than the rows take unpacked.
#[test]
fn what_packing_saves_is_used_before_segments_are_cleaned() {
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &well_packed()).expect("an index");
    change_all(&db).expect("there is room");
    let space = db.figures().space;
    let segment_bytes = u64::from(space.segment_bytes);
    let total = u64::from(space.segments) * segment_bytes;
    let spare = 40 * segment_bytes;
    let unpacked = SMALL_RECORDS * 16;
    assert!(
        space.live_bytes * 100 < unpacked * 85,
        "it packs: {space:?}"
    );
    assert!(
        total <= unpacked + spare,
        "{total} of {unpacked}: {space:?}"
    );
    assert!(
        space.live_bytes * 100 < (total - spare / 4) * 80,
        "room is used: {space:?}"
    );
}

/// Where the storage cannot become longer, the same is done by cleaning: nothing is refused that fits.
#[test]
fn a_storage_of_fixed_length_is_cleaned_in_time() {
    let storage = MemoryStorage::new();
    // The log, and for the segments a tenth less than they would take.
    storage.set_faults(Faults {
        len_bytes_max: Some((16 << 20) + SMALL_RECORDS * 16),
        ..Faults::default()
    });
    let db = Db::create(Arc::new(storage), 1, &well_packed()).expect("an index");
    change_all(&db).expect("everything fits");
}
