//! One operation: its slot, its future, and the memory it owns.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::driver::{Descriptor, Request};
use super::{MessageBuf, RealTime};
use crate::Rt;
use crate::buf::{BufMut, Payload};

/// Memory that the kernel can access while an operation is in flight.
pub(crate) enum Owned {
    /// No user memory.
    Nothing,
    /// A buffer being filled.
    Fill(BufMut),
    /// Slices being written, with the I/O vectors and the message header that point at the slices.
    Gather(#[expect(dead_code, reason = "owned for the kernel")] Box<Gather>),
    /// The two parts of a message being filled, with the I/O vectors that point at the parts.
    Message(Box<MessageBuf>),
    /// The address of a connection being made.
    Address(Box<SocketAddress>),
    /// The accept operation holds no buffer. If its future was dropped, the result is a file
    /// descriptor that must be closed.
    Accept,
}

/// Slices and the kernel structures that describe them. It is used in a `Box`, so that the
/// structures never move in memory.
pub(crate) struct Gather {
    #[expect(dead_code, reason = "owned for the kernel")]
    payload: Payload,
    pub(crate) vectors: Vec<libc::iovec>,
    pub(crate) message: libc::msghdr,
}

impl Gather {
    /// Describes the payload after its first `skip` bytes, with at most `vectors_max` I/O vectors.
    pub(crate) fn new(payload: Payload, skip: usize, vectors_max: usize) -> Box<Gather> {
        let mut vectors = Vec::with_capacity(payload.slices().len().min(vectors_max));
        let mut position = 0;
        for slice in payload.slices() {
            let from = skip.saturating_sub(position).min(slice.len());
            position += slice.len();
            if from < slice.len() && vectors.len() < vectors_max {
                vectors.push(libc::iovec {
                    // SAFETY: `from` is inside the slice. The kernel only reads through the
                    // pointer.
                    iov_base: unsafe { slice.start().add(from) }.cast_mut().cast(),
                    iov_len: slice.len() - from,
                });
            }
        }
        // SAFETY: all-zero is a valid `msghdr`: no name, no vectors, no control data.
        let message = unsafe { std::mem::zeroed() };
        let mut gather = Box::new(Gather {
            payload,
            vectors,
            message,
        });
        gather.message.msg_iov = gather.vectors.as_mut_ptr();
        gather.message.msg_iovlen = gather.vectors.len();
        gather
    }

    /// Returns the number of bytes that the vectors describe.
    pub(crate) fn bytes(&self) -> usize {
        self.vectors.iter().map(|v| v.iov_len).sum()
    }
}

/// A socket address in the kernel's form.
pub(crate) struct SocketAddress {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) len: libc::socklen_t,
}

impl Owned {
    /// Drops the memory of an orphan (an operation whose future was dropped) that has completed
    /// with `result`. If the operation has accepted a connection, `result` is its descriptor, which
    /// is closed.
    pub(super) fn discard(self, result: i32) {
        if let Owned::Accept = self
            && result >= 0
        {
            super::sys::close(result);
        }
    }
}

/// An open file, together with the runtime that executes operations on the file. Files, sockets and
/// watches start their operations through a handle.
pub(crate) struct Handle {
    real_time: Rc<RealTime>,
    file: Rc<Descriptor>,
}

impl Handle {
    /// Takes ownership of an open file.
    ///
    /// # Errors
    /// `Unsupported` in virtual time.
    pub(crate) fn new(rt: &Rt, fd: OwnedFd) -> io::Result<Handle> {
        Ok(Handle::of(&super::of(rt)?, fd))
    }

    /// Takes ownership of an open file. `real_time` executes the operations on the file.
    pub(super) fn of(real_time: &Rc<RealTime>, fd: OwnedFd) -> Handle {
        Handle {
            real_time: Rc::clone(real_time),
            file: Rc::new(Descriptor::new(real_time, fd)),
        }
    }

    /// Returns the [`RealTime`] that executes the operations of the file.
    pub(super) fn real_time(&self) -> &Rc<RealTime> {
        &self.real_time
    }

    /// Returns the descriptor, for calls that are not operations.
    pub(crate) fn fd(&self) -> &OwnedFd {
        self.file.fd()
    }

    /// Returns an operation, which is started when it is first polled. `request` must point only at
    /// memory that `owned` owns.
    pub(super) fn ask(&self, request: Request, owned: Owned) -> Operation {
        Operation {
            real_time: Rc::clone(&self.real_time),
            stage: Stage::Unsubmitted(Rc::clone(&self.file), request, owned),
        }
    }
}

enum Stage {
    Unsubmitted(Rc<Descriptor>, Request, Owned),
    Submitted(usize),
    Finished,
}

/// Future of an operation. Its output is the result as the kernel returned it (negative errno on
/// failure), and the memory that the operation owned.
pub(super) struct Operation {
    real_time: Rc<RealTime>,
    stage: Stage,
}

impl Future for Operation {
    type Output = (i32, Owned);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(i32, Owned)> {
        match std::mem::replace(&mut self.stage, Stage::Finished) {
            Stage::Unsubmitted(file, request, owned) => {
                let waker = context.waker();
                let submitted = self.real_time.submit(&file, &request, owned, waker);
                self.stage = match submitted {
                    Ok(key) => Stage::Submitted(key),
                    Err(owned) => Stage::Unsubmitted(file, request, owned),
                };
                Poll::Pending
            }
            Stage::Submitted(key) => match self.real_time.poll(key, context.waker()) {
                Some(ended) => Poll::Ready(ended),
                None => {
                    self.stage = Stage::Submitted(key);
                    Poll::Pending
                }
            },
            Stage::Finished => panic!("an operation was polled after it finished"),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Stage::Submitted(key) = self.stage {
            self.real_time.abandon(key);
        }
    }
}
