//! Fuzzes a BRP session with arbitrary messages of targets, and with paths that connect and fail.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::brp_initiator(data));
