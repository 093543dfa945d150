//! Fuzzes the log of an index with arbitrary blocks and frames: the frames are refused, or replayed
//! with the same result each time the index is opened.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::log(data));
