//! Fuzzes a history of operations and failures of an index, compared with an ordered map.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::operations(data));
