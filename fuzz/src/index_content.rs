//! Fuzzes a whole index in which arbitrary bytes are changed, with valid checksums: it must neither
//! panic nor loop endlessly.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::content(data));
