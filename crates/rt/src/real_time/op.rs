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

/// Memory that the kernel may touch while an operation is in flight.
pub(crate) enum Owned {
    /// No user memory.
    Nothing,
    /// A buffer being filled.
    Fill(BufMut),
    /// Slices being written, with the vector and the message header that point at them.
    Gather(#[expect(dead_code, reason = "owned for the kernel")] Box<Gather>),
    /// The two parts of a message being filled, with the vector that points at them.
    Message(Box<MessageBuf>),
    /// The address of a connection being made.
    Address(Box<SocketAddress>),
    /// An accept: its result is a file descriptor, which is closed if the future was dropped.
    Accept,
}

/// Slices and the kernel structures that describe them; boxed, so that they never move.
pub(crate) struct Gather {
    #[expect(dead_code, reason = "owned for the kernel")]
    payload: Payload,
    pub(crate) vectors: Vec<libc::iovec>,
    pub(crate) message: libc::msghdr,
}

impl Gather {
    /// Describes the payload from `skip` bytes on, at most `vectors_max` slices of it.
    pub(crate) fn new(payload: Payload, skip: usize, vectors_max: usize) -> Box<Gather> {
        let mut vectors = Vec::with_capacity(payload.slices().len().min(vectors_max));
        let mut position = 0;
        for slice in payload.slices() {
            let from = skip.saturating_sub(position).min(slice.len());
            position += slice.len();
            if from < slice.len() && vectors.len() < vectors_max {
                vectors.push(libc::iovec {
                    // SAFETY: `from` is inside the slice. The kernel only reads through it.
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
    /// Releases the memory of an orphan. An accepted connection whose future was dropped is closed.
    pub(super) fn discard(self, result: i32) {
        if let Owned::Accept = self
            && result >= 0
        {
            super::sys::close(result);
        }
    }
}

/// A file of the runtime, through which files, sockets and others start operations.
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

    /// Takes ownership of an open file, for operations of `real_time`.
    pub(super) fn of(real_time: &Rc<RealTime>, fd: OwnedFd) -> Handle {
        Handle {
            real_time: Rc::clone(real_time),
            file: Rc::new(Descriptor::new(real_time, fd)),
        }
    }

    /// Returns the runtime's operations that the file belongs to.
    pub(super) fn real_time(&self) -> &Rc<RealTime> {
        &self.real_time
    }

    /// Returns the descriptor, for calls that are not operations.
    pub(crate) fn fd(&self) -> &OwnedFd {
        self.file.fd()
    }

    /// Returns an operation that is started when it is first polled. `request` may point only at
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

/// The future of an operation. It yields the result as the kernel returned it (negative errno on
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
