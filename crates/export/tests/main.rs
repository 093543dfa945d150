//! All tests of the server's protocols in one program, so that it is built and linked once. Tests
//! that measure their own process (`sockets.rs`, `storm.rs`) are separate programs.

mod access;
mod bounds;
mod brp;
mod brp_session;
mod common;
mod common_tls;
mod remote;
mod server;
mod tls;
