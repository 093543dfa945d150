//! All tests of the codecs in one test program, so that only one program is built and linked.

mod arbitrary;
mod brp_codec;
mod brp_session;
mod client_handshake;
mod common;
mod pair;
mod server_handshake;
mod server_tls;
mod transmission;
