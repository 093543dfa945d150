//! Policies of the data path, as state machines without I/O: time and events are arguments, and
//! decisions are return values.
//!
//! The crate depends on no crate that can do I/O, so a policy depends only on its arguments. The
//! live stack, the simulator and the lab can therefore run the same code. Times are nanoseconds
//! since any fixed start.

pub mod cleaning;
pub mod exposure;
pub mod hedge;
pub mod hetero;
pub mod latency;
pub mod lists;
pub mod overtaking;
pub mod pacing;
pub mod patience;
pub mod read_ahead;
pub mod readers;
pub mod replacement;
pub mod scheduler;
pub mod write_back;
