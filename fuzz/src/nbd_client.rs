//! Whatever a server may send to an NBD client: the handshake, and replies.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bimetal_proto::fuzz::nbd_client(data));
