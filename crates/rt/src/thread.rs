//! Threads with a runtime of their own. Such a thread is a shard, like the thread that starts it.
//!
//! The new thread receives no signals, since the main thread of the process handles them. Like the
//! main thread, it is marked as part of the I/O path. The two threads must share only data that is
//! `Send`.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::executor::Rt;
use crate::real_time::{UringOptions, begin_thread};

/// Starts a thread that creates a runtime and calls `main` with the runtime, or with the error that
/// prevented its creation. The thread ends when `main` returns. The kernel shows the first 15 bytes
/// of `name`.
///
/// # Errors
/// If no thread can be created.
pub fn start(
    name: &str,
    options: UringOptions,
    main: impl FnOnce(io::Result<Rt>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    // The kernel's name for the thread ends at a zero byte.
    let name = name.replace('\0', "?");
    Builder::new().name(name).spawn(move || {
        begin_thread();
        main(Rt::real_time(options));
    })
}
