//! Fuzzes a BRP session with arbitrary messages of targets, and paths that come and go.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::brp_initiator(data));
