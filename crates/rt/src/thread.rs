//! A thread with a runtime of its own: a shard beside the thread that starts it.
//!
//! The new thread takes no signals, which are for the main thread of the process, and is marked as
//! part of the I/O path like the main thread. It must share only data that is `Send` with the other
//! thread.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::executor::Rt;
use crate::real_time::{UringOptions, begin_thread};

/// Starts a thread; the kernel shows the first 15 bytes of `name`. `main` gets the runtime, or the
/// error of creating it; the thread ends when `main` returns.
///
/// # Errors
/// When no thread can be created.
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
