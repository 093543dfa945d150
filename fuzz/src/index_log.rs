//! Fuzzes the log of an index with arbitrary blocks and frames: they are refused, or replayed with
//! the same result when opened again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::log(data));
