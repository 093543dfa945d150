//! The verbs and RDMA CM, made safe: what a connection needs of them and no more.
//!
//! This module may use `unsafe`: it hands memory to a device, through libraries of C. It must never
//! touch a buffer that the device may touch, nor free one before the queue pair that knows of it is
//! gone. It knows nothing of credits nor of streams.

mod abi;
mod cm;
mod library;
mod queues;

pub(crate) use cm::{CmChannel, CmEvent, CmId, Happened};
pub(crate) use queues::{Depths, Done, Queues, Work};

use std::io;

/// The result of a function that answers 0, or -1 with `errno`.
fn checked(result: i32, what: &str) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(last_error(what))
    }
}

/// The error of a call that has just failed, with what it was for.
fn last_error(what: &str) -> io::Error {
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => "; is the limit of locked memory too low (ulimit -l)?",
        Some(libc::ENODEV | libc::ENOENT) => "; is there an RDMA device (rdma link)?",
        _ => "",
    };
    io::Error::new(error.kind(), format!("{what}: {error}{hint}"))
}
