//! One client's stream with the replies that wait to be sent and the account of what is in flight.
//!
//! Replies gather here while a send is under way, and the next send takes all of them. The account
//! bounds both directions: a request counts from its arrival until its reply has been sent, so a
//! client that does not read its replies is not read from either.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use bimetal_rt::net::Stream;
use bimetal_rt::{Payload, yield_now};

/// A send takes no further reply once it holds this much, so that a batch of large replies makes
/// visible progress.
const SEND_BYTES: usize = 4 << 20;

/// Replies that go out before further requests are started: the client works on them meanwhile, and
/// neither end waits for the other to be done with everything.
const REPLIES_TOGETHER: usize = 16;

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

/// A reply that is ready to be sent, as its protocol has it.
pub(crate) trait Reply {
    /// Requests that it settles: one, unless it answers none.
    fn requests(&self) -> u32 {
        1
    }

    /// What they counted for in the account.
    fn counted_bytes(&self) -> u64;

    /// Data that is sent with it.
    fn data_bytes(&self) -> usize;
}

/// What is in flight at most.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// See the module.
pub(crate) struct Link<R> {
    pub(crate) stream: Stream,
    bounds: Bounds,
    /// Requests whose reply has not been sent, and their data.
    requests: Cell<u32>,
    bytes: Cell<u64>,
    replies: RefCell<Vec<R>>,
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

impl<R: Reply> Link<R> {
    pub(crate) fn new(stream: Stream, bounds: Bounds) -> Rc<Link<R>> {
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

    /// Counts requests with `bytes` bytes of data in all, waiting until they fit the bounds.
    pub(crate) async fn admit(&self, requests: u32, bytes: u64) -> Admission<'_, R> {
        let (requests_max, bytes_max) = (self.bounds.requests, self.bounds.bytes);
        assert!(
            requests <= requests_max && bytes <= bytes_max,
            "valid requests fit the bounds"
        );
        let fits = || {
            let requests_fit = self.requests.get() + requests <= requests_max;
            requests_fit && self.bytes.get() + bytes <= bytes_max
        };
        self.account_changed.until(fits).await;
        self.requests.set(self.requests.get() + requests);
        self.bytes.set(self.bytes.get() + bytes);
        Admission {
            link: self,
            requests,
            bytes,
        }
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
    pub(crate) fn reply(&self, reply: R) {
        if self.dead.get() {
            return self.settle(reply.requests(), reply.counted_bytes());
        }
        self.replies.borrow_mut().push(reply);
        self.replies_changed.notify();
    }

    /// Lets replies go out between requests that are started one after another and answered at once.
    pub(crate) async fn let_go(&self) {
        if self.replies.borrow().len() >= REPLIES_TOGETHER {
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
        let mut batch = Vec::new();
        loop {
            self.replies_changed
                .until(|| !self.replies.borrow().is_empty() || self.finished.get())
                .await;
            self.take_batch(&mut batch, batch_max);
            if batch.is_empty() {
                return;
            }
            let (requests, bytes) = account(&batch);
            if !self.dead.get() {
                let payload = gather(&mut batch);
                self.set_sending(true);
                let result = self.stream.send(payload).await;
                self.set_sending(false);
                if result.is_err() {
                    self.cut();
                }
            }
            batch.clear();
            self.settle(requests, bytes);
        }
    }

    /// Takes the replies of the next send.
    fn take_batch(&self, batch: &mut Vec<R>, batch_max: usize) {
        let mut replies = self.replies.borrow_mut();
        let mut total_bytes = 0;
        let fits = |reply: &&R| {
            let fits = total_bytes < SEND_BYTES;
            total_bytes += reply.data_bytes();
            fits
        };
        let count = replies.iter().take(batch_max).take_while(fits).count();
        if count == replies.len() {
            std::mem::swap(&mut *replies, batch);
        } else {
            batch.extend(replies.drain(..count));
        }
    }
}

/// Requests that have been counted and not been started. Dropping it takes them out of the account.
#[must_use = "dropping an admission withdraws the requests"]
pub(crate) struct Admission<'l, R: Reply> {
    link: &'l Link<R>,
    requests: u32,
    bytes: u64,
}

impl<R: Reply> Admission<'_, R> {
    /// The requests start: from now on their replies settle the account.
    pub(crate) fn start(self) {
        std::mem::forget(self);
    }
}

impl<R: Reply> Drop for Admission<'_, R> {
    fn drop(&mut self) {
        self.link.settle(self.requests, self.bytes);
    }
}

/// Requests and bytes that a batch settles.
fn account<R: Reply>(batch: &[R]) -> (u32, u64) {
    let requests = batch.iter().map(Reply::requests).sum();
    let bytes = batch.iter().map(Reply::counted_bytes).sum();
    (requests, bytes)
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
