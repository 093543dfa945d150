//! Whatever targets may send to a BRP session, and when paths come and go.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::brp_initiator(data));
