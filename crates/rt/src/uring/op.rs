//! One operation: its slot, its future, and what it owns.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use io_uring::squeue;

use super::{MessageBuf, State, Uring};
use crate::buf::{BufMut, Payload};

/// What the kernel may touch while an operation is in flight.
pub(crate) enum Owned {
    /// Nothing in user memory.
    Nothing,
    /// A buffer being filled.
    Fill(BufMut),
    /// Slices being written, with the vector and the message header that point at them.
    Gather(#[expect(dead_code, reason = "owned for the kernel")] Box<Gather>),
    /// The two parts of a message being filled, with the vector that points at them.
    Message(Box<MessageBuf>),
    /// Plain bytes being filled, for small control reads.
    Bytes(Box<[u8]>),
    /// The address of a connection being made.
    Address(#[expect(dead_code, reason = "owned for the kernel")] Box<SocketAddress>),
    /// An accept: the result is a file descriptor, to be closed when nobody wants it.
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
    /// The payload from `skip` bytes on, at most `vectors_max` slices of it.
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

    /// Bytes that the vectors describe.
    pub(crate) fn bytes(&self) -> usize {
        self.vectors.iter().map(|v| v.iov_len).sum()
    }
}

/// A socket address as the kernel wants it.
pub(crate) struct SocketAddress {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) len: libc::socklen_t,
}

impl Owned {
    /// Lets go of what an orphan owned. An accepted connection that nobody waits for is closed.
    pub(super) fn discard(self, result: i32) {
        if let Owned::Accept = self
            && result >= 0
        {
            super::sys::close(result);
        }
    }
}

enum Stage {
    Unsubmitted(Box<squeue::Entry>, Owned),
    Submitted(usize),
    Finished,
}

/// The future of an operation: its result as the kernel gave it (negative errno on failure), and
/// what the operation owned.
pub(crate) struct Operation {
    uring: Rc<Uring>,
    stage: Stage,
}

impl Operation {
    /// An operation that is submitted when it is first polled. `entry` may point only at what
    /// `owned` owns.
    pub(crate) fn new(uring: &Rc<Uring>, entry: squeue::Entry, owned: Owned) -> Operation {
        Operation {
            uring: Rc::clone(uring),
            stage: Stage::Unsubmitted(Box::new(entry), owned),
        }
    }
}

impl Future for Operation {
    type Output = (i32, Owned);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(i32, Owned)> {
        match std::mem::replace(&mut self.stage, Stage::Finished) {
            Stage::Unsubmitted(entry, owned) => {
                let submitted = self.uring.submit((*entry).clone(), owned, context.waker());
                self.stage = match submitted {
                    Ok(key) => Stage::Submitted(key),
                    Err(owned) => Stage::Unsubmitted(entry, owned),
                };
                Poll::Pending
            }
            Stage::Submitted(key) => {
                let mut slots = self.uring.slots.borrow_mut();
                let slot = slots.get_mut(key).expect("a future's slot exists");
                match &mut slot.state {
                    State::Done(result) => {
                        let result = *result;
                        let owned = slots.remove(key).owned;
                        drop(slots);
                        self.uring.wake_starved();
                        Poll::Ready((result, owned))
                    }
                    State::InFlight(Some(waker)) => {
                        waker.clone_from(context.waker());
                        drop(slots);
                        self.stage = Stage::Submitted(key);
                        Poll::Pending
                    }
                    State::InFlight(None) | State::Orphan => {
                        unreachable!("a future that lives is waited for")
                    }
                }
            }
            Stage::Finished => panic!("an operation was polled after it finished"),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Stage::Submitted(key) = self.stage {
            self.uring.abandon(key);
        }
    }
}
