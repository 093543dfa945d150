//! Whatever a client may send to an NBD server: the handshake, with and without TLS, and requests.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::nbd_server(data));
