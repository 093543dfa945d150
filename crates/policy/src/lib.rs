//! Policies of the data path, as state machines without I/O: time and events are arguments, and
//! decisions are return values.
//!
//! The crate depends on nothing that could do I/O, so a policy cannot cheat: the live stack, the
//! simulator and the lab drive the same code. Times are nanoseconds since any fixed start.

pub mod hedge;
pub mod hetero;
pub mod latency;
pub mod lists;
pub mod read_ahead;
pub mod readers;
pub mod replacement;
pub mod scheduler;
pub mod write_back;
