//! A thread with a runtime of its own: a shard beside the one that starts it.
//!
//! It takes no signals, which are for the thread that the process began with, and tells the kernel
//! that it is part of the I/O path as that one does. It must never share anything with the other
//! thread but what is `Send`.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::executor::Rt;
use crate::real_time::{UringOptions, begin_thread};

/// Starts a thread; the kernel shows the first 15 bytes of `name`. `main` is given the runtime, or
/// why the kernel refuses one; the thread ends with it.
///
/// # Errors
/// When there is no thread to be had.
pub fn start(
    name: &str,
    options: UringOptions,
    main: impl FnOnce(io::Result<Rt>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    // What the kernel is told ends at a zero.
    let name = name.replace('\0', "?");
    Builder::new().name(name).spawn(move || {
        begin_thread();
        main(Rt::real_time(options));
    })
}
