//! One single-threaded executor with three drivers: `io_uring` or threads in real time, and virtual
//! time.
//!
//! All code above this crate (layers, media, exports) is written once and runs in real and in
//! virtual time: the poll order, the timers and the wakers are the same, only the [driver](Rt)
//! differs. In real time the executor sleeps in `io_uring_enter` or, where `io_uring` is forbidden,
//! in `epoll_wait`, while a few threads wait for files. In virtual time, instead of sleeping, the
//! executor moves the clock to the next timer. A shard is one thread, one [`Rt`], and one stack of
//! devices. Runtimes, tasks, buffers and streams stay on their thread. The types for communication
//! between threads are the ends of a [`mailbox`], [`DetachedBuf`] and [`Notices`].
//!
//! # The ownership contract of submitted operations
//!
//! 1. A submitted operation owns its buffers and its file until it has completed, as reported by
//!    the kernel or by the thread that executes it. The operation's slot is `InFlight`, `Done` or
//!    `Orphan`. Dropping the future of an operation in flight turns its slot into an `Orphan` and
//!    asks the driver to cancel the operation; the buffers return to the pool only when the
//!    completion arrives. No future, dropped at any time, frees memory that the kernel can still
//!    read or write.
//! 2. [`Rt::timeout`] only stops waiting. It never undoes a write: after a write has timed out, the
//!    content of its range is unknown, and the caller must fence the range until the write
//!    completes.
//! 3. Only the edges cancel operations: a disconnected client, a network peer, a shutdown. A layer
//!    in between never races a child's write against a timer. It is allowed to race reads, since
//!    the buffers of a read can be orphaned.
//! 4. Closing drains: [`Rt::drain`] waits until no operation is in flight, and dropping the last
//!    [`Rt`] blocks on the driver until then.
//! 5. No `RefCell` borrow lives across an `.await` (a lint forbids it).
//!
//! # What this crate must never do
//!
//! This crate must never know about devices, requests or protocols, read the wall clock outside
//! `real_time`, or draw a random number that does not come from the seed.

mod awake;
#[allow(
    unsafe_code,
    reason = "owns the memory that the kernel reads and writes"
)]
pub mod buf;
mod executor;
pub mod growth;
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
