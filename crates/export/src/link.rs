//! The link to one client: its stream, the replies that wait to be sent, and the account of
//! requests in flight.
//!
//! Replies that become ready while a send is in progress are queued, and the next send takes all of
//! them. The account provides backpressure: a request is in the account from its arrival until its
//! reply has been sent or dropped. If a client does not read its replies, the account becomes full,
//! and the server stops receiving from this client.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::net::Stream;
use bimetal_rt::{Payload, yield_now};

use crate::account::{Account, Admission, Signal, Weight};

/// Number of data bytes at which a batch is full: no further reply is added to it. The limit keeps
/// each send short, so that the server can see the progress of a client that receives large
/// replies.
const SEND_BYTES: usize = 4 << 20;

/// Number of queued replies at which the receiving task yields, so that the replies are sent before
/// further requests are started. The client can then process replies while the server works on
/// later requests.
const REPLIES_TOGETHER: usize = 16;

/// A reply that is ready to be sent, in the representation of its protocol.
pub(crate) trait Reply {
    /// Returns the number of data bytes that are sent with the reply.
    fn data_bytes(&self) -> usize;
}

/// Replies in the order of sending, and the admissions that their requests hold until the replies
/// are sent.
struct Batch<R> {
    replies: Vec<R>,
    admissions: Vec<Admission>,
}

impl<R> Batch<R> {
    fn new() -> Batch<R> {
        Batch {
            replies: Vec::new(),
            admissions: Vec::new(),
        }
    }

    fn push(&mut self, reply: R, admission: Admission) {
        self.replies.push(reply);
        self.admissions.push(admission);
    }

    /// Moves the first `count` replies to the end of `other`.
    fn move_to(&mut self, other: &mut Batch<R>, count: usize) {
        other.replies.extend(self.replies.drain(..count));
        other.admissions.extend(self.admissions.drain(..count));
    }

    /// Drops the replies and their data, and releases the admissions of their requests.
    fn clear(&mut self) {
        self.replies.clear();
        self.admissions.clear();
    }
}

/// The link to one client; see the module documentation.
pub(crate) struct Link<R> {
    pub(crate) stream: Stream,
    /// Account of the requests whose replies have not been sent, and of their data.
    account: Rc<Account>,
    replies: RefCell<Batch<R>>,
    /// Whether no further reply will be queued. The sending task then ends after it has sent the
    /// last reply.
    finished: Cell<bool>,
    /// Whether the client has disconnected or was cut off. If so, replies are dropped.
    dead: Cell<bool>,
    replies_changed: Signal,
    /// Whether a message to the client has been sent in part, and the server waits for the client
    /// to receive the rest. `receiving` is true if a message from the client has been received in
    /// part, and the server waits for the client to send the rest.
    sending: Cell<bool>,
    receiving: Cell<bool>,
    /// Number of messages, and pieces of large messages, that have been transferred. The task that
    /// detects stalled clients compares this number with the number at its previous check.
    progress: Cell<u64>,
}

impl<R: Reply> Link<R> {
    pub(crate) fn new(stream: Stream, account: Rc<Account>) -> Rc<Link<R>> {
        Rc::new(Link {
            stream,
            account,
            replies: RefCell::new(Batch::new()),
            finished: Cell::new(false),
            dead: Cell::new(false),
            replies_changed: Signal::default(),
            sending: Cell::new(false),
            receiving: Cell::new(false),
            progress: Cell::new(0),
        })
    }

    /// Waits until the requests fit the bounds, and counts them ([`Account::admit`]).
    pub(crate) async fn admit(&self, weight: Weight) -> Admission {
        self.account.admit(weight).await
    }

    /// Waits until every request has been answered and every reply has been sent or dropped.
    pub(crate) async fn until_settled(&self) {
        self.account.until_settled().await;
    }

    /// Queues the reply to an admitted request.
    pub(crate) fn reply(&self, reply: R, admission: Admission) {
        if self.dead.get() {
            return;
        }
        self.replies.borrow_mut().push(reply, admission);
        self.replies_changed.notify();
    }

    /// Yields when [`REPLIES_TOGETHER`] replies are queued, so that the sending task can send them.
    /// Without the yield, a series of requests that are answered immediately would delay their
    /// replies.
    pub(crate) async fn let_go(&self) {
        if self.replies.borrow().replies.len() >= REPLIES_TOGETHER {
            yield_now().await;
        }
    }

    /// Declares that no further reply will come.
    pub(crate) fn finish(&self) {
        self.finished.set(true);
        self.replies_changed.notify();
    }

    /// Cuts off the client.
    pub(crate) fn cut(&self) {
        self.dead.set(true);
        self.stream.shutdown();
        self.replies_changed.notify();
    }

    /// Records whether the server waits for the rest of a message from the client.
    pub(crate) fn set_receiving(&self, receiving: bool) {
        self.receiving.set(receiving);
        self.advance();
    }

    fn set_sending(&self, sending: bool) {
        self.sending.set(sending);
        self.advance();
    }

    /// Records that a message, or a piece of a large message, has been transferred.
    fn advance(&self) {
        self.progress.set(self.progress.get().wrapping_add(1));
    }

    /// Returns the progress counter if the server waits for the client in the middle of a message,
    /// and `None` otherwise. An unchanged counter means that the client has made no progress.
    pub(crate) fn stall(&self) -> Option<u64> {
        let waiting = self.sending.get() || self.receiving.get();
        waiting.then(|| self.progress.get())
    }

    /// Sends replies until [`finish`](Self::finish) is called and all replies have been sent. Each
    /// send takes the replies that are ready, at most `batch_max` and about [`SEND_BYTES`] of data.
    /// `gather` encodes a batch as bytes, and is called once for each send.
    pub(crate) async fn send_replies(
        &self,
        batch_max: usize,
        mut gather: impl FnMut(&mut Vec<R>) -> Payload,
    ) {
        let mut batch = Batch::new();
        loop {
            let has_work = || !self.replies.borrow().replies.is_empty() || self.finished.get();
            self.replies_changed.until(has_work).await;
            self.take_batch(&mut batch, batch_max);
            if batch.replies.is_empty() {
                return;
            }
            if !self.dead.get() {
                let payload = gather(&mut batch.replies);
                self.set_sending(true);
                let result = self.stream.send(payload).await;
                self.set_sending(false);
                if result.is_err() {
                    self.cut();
                }
            }
            batch.clear();
        }
    }

    /// Moves the replies of the next send into `batch`.
    fn take_batch(&self, batch: &mut Batch<R>, batch_max: usize) {
        let mut replies = self.replies.borrow_mut();
        let mut total_bytes = 0;
        let fits = |reply: &&R| {
            let fits = total_bytes < SEND_BYTES;
            total_bytes += reply.data_bytes();
            fits
        };
        let first = replies.replies.iter().take(batch_max);
        let count = first.take_while(fits).count();
        if count == replies.replies.len() {
            std::mem::swap(&mut *replies, batch);
        } else {
            replies.move_to(batch, count);
        }
    }
}

/// Interface through which the server detects stalled clients and cuts them off, for a link of any
/// protocol.
pub(crate) trait Watchable {
    /// Returns the progress counter if the server waits for the client in the middle of a message,
    /// and `None` otherwise. An unchanged counter means that the client has made no progress.
    fn stall(&self) -> Option<u64>;

    /// Cuts off the client.
    fn cut(&self);
}

impl<R: Reply> Watchable for Link<R> {
    fn stall(&self) -> Option<u64> {
        Link::stall(self)
    }

    fn cut(&self) {
        Link::cut(self);
    }
}
