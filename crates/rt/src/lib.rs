//! One single-threaded executor with three drivers: `io_uring` or threads in real time, and virtual
//! time.
//!
//! All code above this crate (layers, media, exports) is written once and runs in real and in
//! virtual time: the poll order, the timers and the wakers are the same, only the [driver](Rt)
//! differs. In real time the executor parks in `io_uring_enter`, or where that is forbidden in
//! `epoll_wait`, with a few threads that wait for files; in virtual time it parks by moving the
//! clock to the next timer. A shard is one thread, one [`Rt`], and one stack of devices. Nothing
//! here is `Send` except the types for crossing between shards: the ends of a [`mailbox`] and a
//! [`DetachedBuf`].
//!
//! # The ownership contract of submitted operations
//!
//! 1. A submitted operation owns its buffers and its file until it has completed, as reported by
//!    the kernel or by the thread that executes it. The operation's slot is `InFlight`, `Done` or
//!    `Orphan`. Dropping the future of an operation in flight turns its slot into an `Orphan` and
//!    asks the driver to cancel it; the buffers return to the pool only when the completion
//!    arrives. No future, dropped at any time, frees memory that the kernel may still read or
//!    write.
//! 2. [`Rt::timeout`] only stops waiting. It never undoes a write: a caller whose write timed out
//!    has a range of unknown content, and must fence it until the completion.
//! 3. Only the edges cancel: a disconnected client, a network peer, a shutdown. A layer in between
//!    never races a child's write against a timer. It may race reads, since their buffers may be
//!    orphaned.
//! 4. Closing drains: [`Rt::drain`] waits until no operation is in flight, and dropping the last
//!    [`Rt`] blocks on the driver until then.
//! 5. No `RefCell` borrow lives across an `.await` (a lint forbids it).
//!
//! # What this crate must never do
//!
//! Know about devices, requests or protocols; read the wall clock outside `real_time`; draw a
//! random number that does not come from the seed.

mod awake;
#[allow(
    unsafe_code,
    reason = "owns the memory that the kernel reads and writes"
)]
pub mod buf;
mod executor;
pub mod mailbox;
pub mod net;
pub mod notices;
#[allow(unsafe_code, reason = "talks to the kernel")]
pub mod real_time;
mod rng;
pub mod sync;
pub mod thread;
mod time;
mod timers;
pub mod turn;
mod virtual_time;

pub use buf::{Buf, BufMut, BufPool, DetachedBuf, Payload};
pub use executor::{Elapsed, Rt, Sleep, Task, yield_now};
pub use notices::{Notice, Notices};
pub use real_time::{Driven, DriverChoice, DriverKind, UringOptions};
pub use rng::Rng;
pub use time::Instant;
pub use virtual_time::VirtualOptions;

/// Maps and sets whose iteration order depends only on the program: hashed with a fixed seed, so
/// that a simulation replays.
pub mod collections {
    /// A hash map with a fixed seed.
    pub type Map<K, V> = hashbrown::HashMap<K, V, foldhash::fast::FixedState>;
    /// A hash set with a fixed seed.
    pub type Set<K> = hashbrown::HashSet<K, foldhash::fast::FixedState>;
}
