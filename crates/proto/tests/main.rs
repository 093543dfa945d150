//! All tests of the codecs in one program, so that it is built and linked once.

mod arbitrary;
mod brp_codec;
mod brp_session;
mod client_handshake;
mod common;
mod pair;
mod server_handshake;
mod server_tls;
mod transmission;
