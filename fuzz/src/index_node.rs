//! Any bytes as the image of a node of the index, a blob or a patch: refused, or read like one.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::node(data));
