//! Fuzzes a whole index, changed anywhere, with valid checksums: no panic, and no endless loop.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::content(data));
