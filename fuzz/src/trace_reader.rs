//! Fuzzes every reader of traces with arbitrary bytes: no panic, no invalid record, and the same
//! pages whether records are read one by one or as runs.

#![no_main]

use bimetal_fuzz::File;
use bimetal_trace::{Accesses, Collector, Key, Record};
use libfuzzer_sys::fuzz_target;

const PAGE_BYTES: u64 = 4096;
/// Maximum number of pages of all records together. An input with more pages is skipped, because a
/// record of a few bytes can cover a million pages.
const PAGES_MAX: u64 = 1 << 16;

/// Returns the number of pages that a record touches. Computes it by division, independently of the
/// library under test.
fn pages_of(record: &Record) -> u64 {
    let last = record.offset_bytes + (record.length_bytes - 1);
    last / PAGE_BYTES - record.offset_bytes / PAGE_BYTES + 1
}

fuzz_target!(|data: &[u8]| {
    let Some(file) = File::from_fuzzer(data) else {
        return;
    };
    let Some((records, complete)) = file.records() else {
        return;
    };
    let pages: u64 = records.iter().map(pages_of).sum();
    if pages > PAGES_MAX {
        return;
    }
    let key = Key::Page {
        page_bytes: PAGE_BYTES,
    };
    let mut collector = Collector::new(key);
    for record in &records {
        collector.push(record).expect("there is room for so few");
    }
    let one_by_one = collector.finish();
    assert_eq!(one_by_one.counts().iter().sum::<u64>(), pages);

    let mut reader = file.reader().expect("it was read before");
    match Accesses::collect(&mut reader, key) {
        Ok(runs) => {
            assert!(complete, "an error was lost");
            assert!(runs.iter().eq(one_by_one.iter()));
            assert_eq!(runs.pages(), one_by_one.pages());
        }
        Err(error) => assert!(!complete, "{error}"),
    }
});
