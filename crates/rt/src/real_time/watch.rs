//! Waits until a descriptor has data to read, for libraries that own the descriptor and read it
//! themselves.

use std::io;
use std::os::fd::BorrowedFd;

use super::file::count;
use super::{Handle, Owned, Request};
use crate::executor::Rt;

/// A descriptor that is watched for data. It is a duplicate, so the owner of the original
/// descriptor can close the original at any time.
pub struct Watch {
    handle: Handle,
}

impl Watch {
    /// Prepares to watch `fd`.
    ///
    /// # Errors
    /// The errors of `dup(2)`; `Unsupported` in virtual time.
    pub fn new(rt: &Rt, fd: BorrowedFd<'_>) -> io::Result<Watch> {
        Ok(Watch {
            handle: Handle::new(rt, fd.try_clone_to_owned()?)?,
        })
    }

    /// Waits until there is data to read, or until the other end has closed the connection.
    ///
    /// # Errors
    /// The errors of `poll(2)`.
    pub async fn readable(&self) -> io::Result<()> {
        let watched = self.handle.ask(Request::Readable, Owned::Nothing).await;
        count(watched.0)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;
    use crate::UringOptions;

    #[test]
    fn a_watch_waits_for_bytes_and_survives_the_owner() {
        let rt = Rt::real_time(UringOptions::default()).unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let watch = Rc::new(Watch::new(&rt, near.as_fd()).unwrap());
        let waiting = {
            let watch = Rc::clone(&watch);
            rt.spawn(async move { watch.readable().await })
        };
        rt.block_on(crate::yield_now());
        assert!(!waiting.is_finished());
        far.write_all(b"x").unwrap();
        rt.block_on(waiting).unwrap();
        near.read_exact(&mut [0]).unwrap();
        drop((near, far));
        // The other end has closed, which also ends the wait.
        rt.block_on(watch.readable()).unwrap();
    }
}
