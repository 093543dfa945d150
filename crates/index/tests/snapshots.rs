//! Snapshots beside upkeep: what one sees stays, wherever it is moved and however long it is.

use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Db, Options};

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 16 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 100,
        ..Options::default()
    }
}

#[test]
fn versions_of_a_long_value_do_not_end_a_snapshot() {
    let db = Db::create(MemoryStorage::new(), 3, &small()).expect("an index");
    // Three of them are more than a segment; out of line they take next to nothing of their leaf.
    let long = |byte: u8| vec![byte; 22_000];
    let mut seen = Vec::new();
    for byte in 0..6 {
        db.put(b"key", &long(byte)).expect("a put");
        seen.push((byte, db.snapshot()));
        db.write_back().expect("a write-back");
    }
    for (byte, snapshot) in seen {
        assert_eq!(snapshot.get(b"key"), Ok(Some(long(byte))));
    }
}
