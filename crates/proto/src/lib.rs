//! Network block protocols as codecs and state machines, without I/O.
//!
//! The server (`bimetal-export`) and the remote medium (`bimetal-block`) speak the same protocols
//! from opposite ends. Both use this crate, so that each specification is implemented once and can
//! be tested byte by byte, in virtual time and under a fuzzer.
//!
//! This crate must never open a socket, read a clock, wait, or grow without a stated bound. Bytes
//! come in as slices and are written to buffers of the caller, and this crate must never panic
//! because of input of the other party.

pub mod brp;
mod escaped;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod nbd;

pub use escaped::Escaped;
