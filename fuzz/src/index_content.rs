//! A whole index, changed anywhere, all its checksums right: no panic, and no circles.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::content(data));
