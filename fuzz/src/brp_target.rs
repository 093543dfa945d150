//! Fuzzes a BRP target with arbitrary messages of an initiator: the greeting, commands and fences.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::brp_target(data));
