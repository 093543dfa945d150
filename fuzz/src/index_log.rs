//! Any blocks and frames as the log of an index: refused, or taken up, and the same when opened
//! again.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::log(data));
