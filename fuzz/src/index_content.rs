//! Fuzzes a whole index: arbitrary bytes of the index are changed, and the checksums are then
//! corrected. The index must neither panic nor loop endlessly.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::content(data));
