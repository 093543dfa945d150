//! Fuzzes an NBD server with arbitrary messages of a client: the handshake, with and without TLS,
//! and requests.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::nbd_server(data));
