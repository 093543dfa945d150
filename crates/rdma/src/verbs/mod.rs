//! Safe wrappers of the parts of verbs and RDMA CM that a connection needs.
//!
//! This module may use `unsafe`: it hands memory to a device, through C libraries. It must never
//! access a buffer that the device owns, nor free a buffer before the queue pair that uses it has
//! been destroyed. It knows nothing of credits or streams.

mod abi;
mod cm;
mod library;
mod queues;

pub(crate) use cm::{CmChannel, CmEvent, CmId, Happened};
pub(crate) use queues::{Depths, Done, Queues, Work};

use std::io;

/// Checks the result of a function that returns 0, or -1 with `errno`.
fn checked(result: i32, what: &str) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(last_error(what))
    }
}

/// Returns the error of a call that has just failed, with a description of the call.
fn last_error(what: &str) -> io::Error {
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => "; is the limit of locked memory too low (ulimit -l)?",
        Some(libc::ENODEV | libc::ENOENT) => "; is there an RDMA device (rdma link)?",
        _ => "",
    };
    io::Error::new(error.kind(), format!("{what}: {error}{hint}"))
}
