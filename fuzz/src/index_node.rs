//! Fuzzes the image of a node of the index, a blob or a patch with arbitrary bytes: the bytes are
//! refused, or can be read like an image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::node(data));
