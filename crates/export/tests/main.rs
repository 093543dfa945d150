//! The tests of the server's protocols, one program: so it is built and linked once. What measures
//! its own process (`sockets.rs`, `storm.rs`) is a program of its own.

mod access;
mod bounds;
mod brp;
mod brp_session;
mod common;
mod common_tls;
mod remote;
mod server;
mod tls;
