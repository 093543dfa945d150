//! Fuzzes an NBD client with arbitrary messages of a server: the handshake, and replies.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::nbd_client(data));
