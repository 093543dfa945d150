//! One client's stream with the replies that wait to be sent and the account of what is in flight.
//!
//! Replies gather here while a send is under way, and the next send takes all of them. The account
//! bounds both directions: a request counts from its arrival until its reply has been sent, so a
//! client that does not read its replies is not read from either.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use bimetal_proto::nbd::Errno;
use bimetal_proto::nbd::reply::{error_chunk, offset_data_head, simple_reply};
use bimetal_rt::net::Stream;
use bimetal_rt::{Payload, Rt};

/// The largest head of a reply: that of a data chunk.
const HEAD_BYTES_MAX: usize = 28;
/// A send takes no further reply once it holds this much, so that a batch of large replies makes
/// visible progress.
const SEND_BYTES: usize = 4 << 20;

/// A wake-up for the one task that waits for something. The condition lives in the caller's state.
#[derive(Default)]
struct Signal(RefCell<Option<Waker>>);

impl Signal {
    fn notify(&self) {
        if let Some(waker) = self.0.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn until(&self, mut condition: impl FnMut() -> bool) {
        std::future::poll_fn(|context| {
            if condition() {
                return Poll::Ready(());
            }
            *self.0.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A reply that is ready to be sent.
pub(crate) struct Outgoing {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: u8,
    data: Payload,
    /// What the request counted for in the account.
    counted_bytes: u64,
}

impl Outgoing {
    fn with_head<const N: usize>(bytes: [u8; N], data: Payload, counted_bytes: u64) -> Outgoing {
        const { assert!(N <= HEAD_BYTES_MAX) };
        let mut head = [0; HEAD_BYTES_MAX];
        head[..N].copy_from_slice(&bytes);
        Outgoing {
            head,
            head_bytes: N as u8,
            data,
            counted_bytes,
        }
    }

    /// Success without data.
    ///
    /// A simple reply is allowed to every request but a read even when structured replies were
    /// negotiated (NBD, section "Simple reply message"), and it is the shorter one.
    pub(crate) fn done(cookie: u64, counted_bytes: u64) -> Outgoing {
        Outgoing::with_head(simple_reply(cookie, None), Payload::empty(), counted_bytes)
    }

    /// Failure; as a chunk where the request takes only those.
    pub(crate) fn error(cookie: u64, structured: bool, error: Errno, counted: u64) -> Outgoing {
        if structured {
            Outgoing::with_head(error_chunk(cookie, error), Payload::empty(), counted)
        } else {
            Outgoing::with_head(simple_reply(cookie, Some(error)), Payload::empty(), counted)
        }
    }

    /// The bytes of a read, `offset` being where they were asked for.
    pub(crate) fn data(cookie: u64, structured: bool, offset: u64, data: Payload) -> Outgoing {
        let counted_bytes = data.len() as u64;
        if structured {
            let head = offset_data_head(cookie, offset, data.len() as u32, true);
            Outgoing::with_head(head, data, counted_bytes)
        } else {
            Outgoing::with_head(simple_reply(cookie, None), data, counted_bytes)
        }
    }

    /// A message that is encoded already.
    pub(crate) fn encoded(message: Payload) -> Outgoing {
        Outgoing::with_head([], message, 0)
    }
}

/// What is in flight at most.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// See the module.
pub(crate) struct Link {
    pub(crate) stream: Stream,
    bounds: Bounds,
    /// Requests whose reply has not been sent, and their data.
    requests: Cell<u32>,
    bytes: Cell<u64>,
    replies: RefCell<Vec<Outgoing>>,
    /// No further reply comes: the sender ends when it has sent the last one.
    finished: Cell<bool>,
    /// The client is gone or was cut off: replies are dropped.
    dead: Cell<bool>,
    replies_changed: Signal,
    account_changed: Signal,
    /// True while the client keeps the server waiting in the middle of a message to it or of one
    /// from it.
    sending: Cell<bool>,
    receiving: Cell<bool>,
    /// Messages and pieces of large ones that went through, for the watch over stalled clients.
    progress: Cell<u64>,
}

impl Link {
    pub(crate) fn new(stream: Stream, bounds: Bounds) -> Rc<Link> {
        Rc::new(Link {
            stream,
            bounds,
            requests: Cell::new(0),
            bytes: Cell::new(0),
            replies: RefCell::new(Vec::new()),
            finished: Cell::new(false),
            dead: Cell::new(false),
            replies_changed: Signal::default(),
            account_changed: Signal::default(),
            sending: Cell::new(false),
            receiving: Cell::new(false),
            progress: Cell::new(0),
        })
    }

    /// Counts a request of `bytes` bytes of data, waiting until it fits the bounds.
    pub(crate) async fn admit(&self, bytes: u64) -> Admission<'_> {
        let (requests_max, bytes_max) = (self.bounds.requests, self.bounds.bytes);
        assert!(bytes <= bytes_max, "a valid request fits the bounds");
        self.account_changed
            .until(|| self.requests.get() < requests_max && self.bytes.get() + bytes <= bytes_max)
            .await;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        Admission { link: self, bytes }
    }

    fn settle(&self, requests: u32, bytes: u64) {
        self.requests.set(self.requests.get() - requests);
        self.bytes.set(self.bytes.get() - bytes);
        self.account_changed.notify();
    }

    /// Waits until every request has been answered and every answer sent or dropped.
    pub(crate) async fn until_settled(&self) {
        self.account_changed
            .until(|| self.requests.get() == 0)
            .await;
    }

    /// Hands over the reply to an admitted request.
    pub(crate) fn reply(&self, reply: Outgoing) {
        if self.dead.get() {
            return self.settle(1, reply.counted_bytes);
        }
        self.replies.borrow_mut().push(reply);
        self.replies_changed.notify();
    }

    /// Says that no further reply comes.
    pub(crate) fn finish(&self) {
        self.finished.set(true);
        self.replies_changed.notify();
    }

    /// Cuts the client off.
    pub(crate) fn cut(&self) {
        self.dead.set(true);
        self.stream.shutdown();
        self.replies_changed.notify();
    }

    /// Notes whether the client now owes the rest of a message.
    pub(crate) fn set_receiving(&self, receiving: bool) {
        self.receiving.set(receiving);
        self.advance();
    }

    fn set_sending(&self, sending: bool) {
        self.sending.set(sending);
        self.advance();
    }

    /// Something went through.
    fn advance(&self) {
        self.progress.set(self.progress.get().wrapping_add(1));
    }

    /// While the client keeps the server waiting, a number that stays the same.
    pub(crate) fn stall(&self) -> Option<u64> {
        let waiting = self.sending.get() || self.receiving.get();
        waiting.then(|| self.progress.get())
    }

    /// Sends replies until [`finish`](Self::finish), all that are there at a time. Calls `sent`
    /// after each send.
    pub(crate) async fn send_replies(&self, rt: &Rt, sent: impl Fn()) {
        let mut batch = Vec::new();
        loop {
            self.replies_changed
                .until(|| !self.replies.borrow().is_empty() || self.finished.get())
                .await;
            self.take_batch(&mut batch);
            if batch.is_empty() {
                return;
            }
            let (requests, bytes) = account(&batch);
            if !self.dead.get() {
                let payload = gather(rt, &mut batch);
                self.set_sending(true);
                let result = self.stream.send(payload).await;
                self.set_sending(false);
                if result.is_err() {
                    self.cut();
                }
                sent();
            }
            batch.clear();
            self.settle(requests, bytes);
        }
    }

    /// Takes the replies of the next send.
    fn take_batch(&self, batch: &mut Vec<Outgoing>) {
        let mut replies = self.replies.borrow_mut();
        let mut total_bytes = 0;
        let fits = |reply: &&Outgoing| {
            let fits = total_bytes < SEND_BYTES;
            total_bytes += reply.data.len();
            fits
        };
        let count = replies.iter().take_while(fits).count();
        if count == replies.len() {
            std::mem::swap(&mut *replies, batch);
        } else {
            batch.extend(replies.drain(..count));
        }
    }
}

/// A request that has been counted and not been started. Dropping it takes it out of the account.
#[must_use = "dropping an admission withdraws the request"]
pub(crate) struct Admission<'l> {
    link: &'l Link,
    bytes: u64,
}

impl Admission<'_> {
    /// The request starts: from now on its reply settles the account.
    pub(crate) fn start(self) {
        std::mem::forget(self);
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.link.settle(1, self.bytes);
    }
}

/// Requests and bytes that a batch settles.
fn account(batch: &[Outgoing]) -> (u32, u64) {
    let bytes = batch.iter().map(|reply| reply.counted_bytes).sum();
    (batch.len() as u32, bytes)
}

/// A batch as one payload: heads carved from one buffer, data by reference, neighbouring heads in
/// one slice.
fn gather(rt: &Rt, batch: &mut [Outgoing]) -> Payload {
    let heads_bytes = batch
        .iter()
        .map(|reply| usize::from(reply.head_bytes))
        .sum();
    let mut heads = rt.pool().alloc_now(heads_bytes);
    let mut filled = 0;
    for reply in batch.iter() {
        let head = &reply.head[..usize::from(reply.head_bytes)];
        heads[filled..filled + head.len()].copy_from_slice(head);
        filled += head.len();
    }
    let heads = heads.freeze();
    let mut payload = Payload::empty();
    let (mut start, mut end) = (0, 0);
    for reply in batch {
        end += usize::from(reply.head_bytes);
        if !reply.data.is_empty() {
            payload.push(heads.slice(start..end));
            payload.append(std::mem::take(&mut reply.data));
            start = end;
        }
    }
    payload.push(heads.slice(start..end));
    payload
}
