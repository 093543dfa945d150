//! A history of operations and mishaps of an index, beside an ordered map.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::operations(data));
