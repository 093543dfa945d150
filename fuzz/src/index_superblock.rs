//! Fuzzes superblocks and a checkpoint of an index with arbitrary content and valid checksums.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::superblock(data));
