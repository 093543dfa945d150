//! Fuzzes the decoders of node images, blobs and patches with arbitrary bytes: a decoder must
//! refuse the bytes, or return a value that can be read like that of a valid image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::node(data));
