//! Fuzzes conversion: records from a reader, written in the compact form and read again, are the
//! same.

#![no_main]

use bimetal_fuzz::File;
use bimetal_trace::{CompactWriter, Options};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((records, _)) = File::from_fuzzer(data).and_then(|file| file.records()) else {
        return;
    };
    let mut writer = CompactWriter::new(Vec::new()).expect("memory takes everything");
    for record in &records {
        writer.push(record).expect("memory takes everything");
    }
    let bytes = writer.finish().expect("memory takes everything");
    let again = File::new("trace", bytes, Options::default()).records();
    assert_eq!(again, Some((records, true)));
});
