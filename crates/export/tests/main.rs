//! All protocol tests of the server in one program, so that it is built and linked only once. Tests
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
