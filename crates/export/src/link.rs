//! One client's stream with the replies that wait to be sent and the account of what is in flight.
//!
//! Replies gather here while a send is under way, and the next send takes all of them. The account
//! bounds both directions: a request counts from its arrival until its reply has been sent or
//! dropped, so a client that does not read its replies is not read from either.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::net::Stream;
use bimetal_rt::{Payload, yield_now};

use crate::account::{Account, Admission, Signal, Weight};

/// A send takes no further reply once it holds this much, so that a batch of large replies makes
/// visible progress.
const SEND_BYTES: usize = 4 << 20;

/// Replies that go out before further requests are started: the client works on them meanwhile, and
/// neither end waits for the other to be done with everything.
const REPLIES_TOGETHER: usize = 16;

/// A reply that is ready to be sent, as its protocol has it.
pub(crate) trait Reply {
    /// Data that is sent with it.
    fn data_bytes(&self) -> usize;
}

/// Replies in their order, each with what its request holds until the reply is sent.
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

    /// Drops the replies, and with them the data and the account of their requests.
    fn clear(&mut self) {
        self.replies.clear();
        self.admissions.clear();
    }
}

/// See the module.
pub(crate) struct Link<R> {
    pub(crate) stream: Stream,
    /// Requests whose reply has not been sent, and their data.
    account: Rc<Account>,
    replies: RefCell<Batch<R>>,
    /// No further reply comes: the sender ends when it has sent the last one.
    finished: Cell<bool>,
    /// The client is gone or was cut off: replies are dropped.
    dead: Cell<bool>,
    replies_changed: Signal,
    /// True while the client keeps the server waiting in the middle of a message to it or of one
    /// from it.
    sending: Cell<bool>,
    receiving: Cell<bool>,
    /// Messages and pieces of large ones that went through, for the watch over stalled clients.
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

    /// Counts requests, waiting until there is room for them ([`Account::admit`]).
    pub(crate) async fn admit(&self, weight: Weight) -> Admission {
        self.account.admit(weight).await
    }

    /// Waits until every request has been answered and every answer sent or dropped.
    pub(crate) async fn until_settled(&self) {
        self.account.until_settled().await;
    }

    /// Hands over the reply to an admitted request.
    pub(crate) fn reply(&self, reply: R, admission: Admission) {
        if self.dead.get() {
            return;
        }
        self.replies.borrow_mut().push(reply, admission);
        self.replies_changed.notify();
    }

    /// Lets replies go out between requests that are started one after another and answered at
    /// once.
    pub(crate) async fn let_go(&self) {
        if self.replies.borrow().replies.len() >= REPLIES_TOGETHER {
            yield_now().await;
        }
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

    /// Sends replies until [`finish`](Self::finish), all that are there at a time, at most
    /// `batch_max`. `gather` makes the bytes of a batch; it is called once for each send.
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

    /// Takes the replies of the next send.
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

/// What the server needs of any client's link to watch over it.
pub(crate) trait Watchable {
    /// While the client keeps the server waiting, a number that stays the same.
    fn stall(&self) -> Option<u64>;

    /// Cuts the client off.
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
