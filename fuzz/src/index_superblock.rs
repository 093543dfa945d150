//! Superblocks and a checkpoint of an index with anything in them, behind checksums that are right.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_index::fuzz::superblock(data));
