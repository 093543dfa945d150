//! The near end of each carried connection: the handle that a protocol uses on its own thread,
//! while the carrier's thread does the I/O of the connection.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::{AHEAD_MAX, Number, Order, PIECE_BYTES, Report, SEND_BYTES, SENDS_MAX, Told, far};
use crate::buf::{BufMut, BufPool, Payload};
use crate::executor::{Rt, Task};
use crate::mailbox::{Messages, SendBatch, mailbox};
use crate::net::{Kind, Peer, Stream};
use crate::real_time::UringOptions;
use crate::sync::Event;
use crate::thread;

/// Size of the buffer pool of the carrier's thread: enough for the pieces of some hundred
/// connections. When the pool is full, buffers are allocated on the heap.
const POOL_BYTES: usize = 16 << 20;

/// A thread that carries connections. If a `Carrier` is dropped without having been closed, the
/// thread ends by itself.
pub struct Carrier {
    shared: Rc<Shared>,
    tasks: RefCell<Vec<Task<()>>>,
    thread: RefCell<Option<JoinHandle<()>>>,
}

/// State shared by a carrier and its connections.
struct Shared {
    pool: BufPool,
    send_batch: SendBatch<(Number, Order)>,
    ends: RefCell<BTreeMap<Number, Rc<CarrierState>>>,
    next_number: Cell<Number>,
    /// True when the thread sends no more messages.
    is_over: Cell<bool>,
    changed: Event,
}

/// State of a connection. The tasks that use the connection wait for its changes.
#[derive(Default)]
struct CarrierState {
    /// Received pieces that have not been consumed completely, each with the number of its bytes
    /// that have been consumed.
    received: RefCell<VecDeque<(BufMut, usize)>>,
    /// Number of receives that were ordered from the carrier's thread and have not completed.
    ordered: Cell<usize>,
    reads_ahead: Cell<bool>,
    /// The end of the stream, or the error that broke it.
    ended: RefCell<Option<io::Result<()>>>,
    heard: Event,
    /// Number of payload pieces whose send was ordered from the carrier's thread and has not
    /// completed.
    sending: Cell<usize>,
    send_error: RefCell<Option<io::Error>>,
    raised: RefCell<Option<io::Result<()>>>,
    sent: Event,
}

/// The near end of a carried connection.
pub struct Carried {
    number: Number,
    peer: Option<Peer>,
    state: Rc<CarrierState>,
    shared: Rc<Shared>,
}

impl Carrier {
    /// Starts a carrier's thread, whose runtime has the same driver and the same busy-polling limit
    /// as `rt`. `name` is the thread's name in the kernel.
    ///
    /// # Errors
    /// If no thread, ring or socket can be created; `Unsupported` in virtual time.
    pub async fn start(rt: &Rt, name: &str) -> io::Result<Carrier> {
        let options = rt.uring_options().ok_or(io::ErrorKind::Unsupported)?;
        let options = UringOptions {
            pool_bytes: POOL_BYTES,
            ..options.clone()
        };
        let (to, orders) = mailbox()?;
        let (told, from) = mailbox()?;
        let mut from = from.listen(rt)?;
        let run = move |rt| far::run(rt, orders, told);
        let thread = thread::start(name, options, run)?;
        began(&mut from).await?;
        let shared = Rc::new(Shared {
            pool: rt.pool().clone(),
            send_batch: SendBatch::new(Arc::new(to)),
            ends: RefCell::default(),
            next_number: Cell::new(0),
            is_over: Cell::new(false),
            changed: Event::new(),
        });
        let (sends, takes) = (Rc::clone(&shared), Rc::clone(&shared));
        let tasks = vec![
            rt.spawn(async move { sends.send_batch.carry().await }),
            rt.spawn(async move { takes.take_all(from).await }),
        ];
        Ok(Carrier {
            shared,
            tasks: RefCell::new(tasks),
            thread: RefCell::new(Some(thread)),
        })
    }

    /// Returns the number of connections that the thread carries.
    pub fn connections(&self) -> usize {
        self.shared.ends.borrow().len()
    }

    /// Returns false when the thread has ended.
    pub fn is_alive(&self) -> bool {
        !self.shared.is_over.get()
    }

    /// Hands a connection, on which no receive or send is in progress, to the carrier's thread.
    /// Returns the stream unchanged if it is no socket, if its descriptor cannot be duplicated, or
    /// if the thread has ended.
    pub fn carry(&self, stream: Stream) -> Stream {
        let Kind::Socket(socket) = &stream.0 else {
            return stream;
        };
        let (Ok(peer), Ok(fd)) = (socket.peer(), socket.detached()) else {
            return stream;
        };
        if !self.is_alive() {
            return stream;
        }
        let shared = &self.shared;
        let number = shared.next_number.get();
        shared.next_number.set(number + 1);
        let state: Rc<CarrierState> = Rc::default();
        shared.ends.borrow_mut().insert(number, Rc::clone(&state));
        shared.send_batch.put((number, Order::Carry(fd)));
        Stream(Kind::Carried(Carried {
            number,
            peer,
            state,
            shared: Rc::clone(shared),
        }))
    }

    /// Waits until all connections have been dropped and the thread has ended. A second call does
    /// nothing.
    pub async fn close(&self) {
        let shared = &self.shared;
        let is_idle = || shared.ends.borrow().is_empty() || shared.is_over.get();
        shared.changed.until(is_idle).await;
        shared.send_batch.send();
        shared.send_batch.close();
        shared.changed.until(|| shared.is_over.get()).await;
        for task in self.tasks.take() {
            task.cancel().await;
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread needs no handling here: the panic message has been printed, and
            // the connections of the thread have failed.
            let _ = thread.join();
        }
    }
}

/// Waits for the first message of the carrier's thread. This message says whether the thread could
/// start; returns that result.
async fn began(from: &mut Messages<Told>) -> io::Result<()> {
    match from.next().await.and_then(|mut told| told.pop_front()) {
        Some(Told::Began(began)) => began,
        Some(Told::Of(..)) => unreachable!("nothing was ordered before"),
        None => Err(io::Error::other("the thread ended at its start")),
    }
}

impl Shared {
    /// Handles the messages of the carrier's thread until the thread has ended, and then fails the
    /// remaining connections.
    async fn take_all(&self, mut from: Messages<Told>) {
        while let Some(messages) = from.next().await {
            for told in messages {
                let Told::Of(number, report) = told else {
                    unreachable!("it begins once");
                };
                // A connection that has been dropped needs no report.
                let state = self.ends.borrow().get(&number).cloned();
                if let Some(state) = state {
                    state.take(report, &self.pool);
                }
            }
        }
        self.is_over.set(true);
        let left: Vec<Rc<CarrierState>> = self.ends.borrow().values().cloned().collect();
        left.iter().for_each(|state| state.break_off());
        self.changed.notify();
    }
}

impl CarrierState {
    fn take(&self, report: Report, pool: &BufPool) {
        match report {
            Report::Received(received) => {
                self.ordered.set(self.ordered.get() - 1);
                match received {
                    Ok(data) if data.is_empty() => *self.ended.borrow_mut() = Some(Ok(())),
                    Ok(data) => {
                        let piece = (pool.attach(data), 0);
                        self.received.borrow_mut().push_back(piece);
                    }
                    Err(error) => *self.ended.borrow_mut() = Some(Err(error)),
                }
                return self.heard.notify();
            }
            Report::Sent(sent) => {
                self.sending.set(self.sending.get() - 1);
                if let Err(error) = sent {
                    self.send_error.borrow_mut().get_or_insert(error);
                }
            }
            Report::Raised(raised) => *self.raised.borrow_mut() = Some(raised),
        }
        self.sent.notify();
    }

    /// Fails all calls that wait on this connection, since the carrier's thread has ended and sends
    /// no further reports.
    fn break_off(&self) {
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        self.ended.borrow_mut().get_or_insert_with(|| Err(gone()));
        self.send_error.borrow_mut().get_or_insert_with(gone);
        self.raised.borrow_mut().get_or_insert_with(|| Err(gone()));
        self.sending.set(0);
        self.heard.notify();
        self.sent.notify();
    }

    /// Moves received bytes to `out` until `out` is full or no received byte is left. Returns the
    /// number of moved bytes.
    fn move_to(&self, out: &mut [u8]) -> usize {
        let mut received = self.received.borrow_mut();
        let mut filled = 0;
        while let Some((piece, taken)) = received.front_mut() {
            let count = (piece.len() - *taken).min(out.len() - filled);
            out[filled..filled + count].copy_from_slice(&piece[*taken..*taken + count]);
            filled += count;
            *taken += count;
            if *taken < piece.len() {
                break;
            }
            received.pop_front();
        }
        filled
    }

    /// Returns `Some(Ok(()))` at the end of the stream, or the error that broke the stream; `None`
    /// while the stream continues. Call this only when all received bytes have been consumed. The
    /// error is returned once; later calls return a normal end of the stream.
    fn end(&self) -> Option<io::Result<()>> {
        let mut ended = self.ended.borrow_mut();
        let end = ended.as_mut()?;
        Some(std::mem::replace(end, Ok(())))
    }
}

impl Carried {
    fn order(&self, order: Order) {
        self.shared.send_batch.put((self.number, order));
    }

    /// Orders receives of at most `bytes` bytes each, until the number of receives in progress plus
    /// the number of received pieces that are not consumed is `count`. Orders no receive after the
    /// end of the stream.
    fn receive_ahead(&self, count: usize, bytes: usize) {
        let state = &self.state;
        let here = state.received.borrow().len() + state.ordered.get();
        if state.ended.borrow().is_none() {
            for _ in here..count {
                state.ordered.set(state.ordered.get() + 1);
                self.order(Order::Receive(bytes));
            }
        }
    }

    /// Allows the carrier's thread to receive data before the protocol requests it: up to
    /// [`AHEAD_MAX`] pieces of [`PIECE_BYTES`]. Call this after the last layer, such as TLS, was
    /// put on the connection.
    pub fn read_ahead(&self) {
        self.state.reads_ahead.set(true);
        self.receive_ahead(AHEAD_MAX, PIECE_BYTES);
    }

    /// Receives like [`Stream::recv`].
    pub(in crate::net) async fn recv(
        &self,
        mut buf: BufMut,
        from: usize,
    ) -> (io::Result<usize>, BufMut) {
        assert!(from < buf.len(), "there is room to receive into");
        let state = &self.state;
        let room_bytes = buf.len() - from;
        loop {
            let count = state.move_to(&mut buf[from..]);
            if state.reads_ahead.get() {
                self.receive_ahead(AHEAD_MAX, PIECE_BYTES);
            } else if count == 0 {
                self.receive_ahead(1, room_bytes.min(PIECE_BYTES));
            }
            if count > 0 {
                return (Ok(count), buf);
            }
            if let Some(end) = state.end() {
                return (end.map(|()| 0), buf);
            }
            let has_news = || !state.received.borrow().is_empty() || state.ended.borrow().is_some();
            state.heard.until(has_news).await;
        }
    }

    /// Sends like [`Stream::send`].
    pub(in crate::net) async fn send(&self, payload: Payload) -> io::Result<()> {
        let mut sent = 0;
        while sent < payload.len() {
            let end = payload.len().min(sent + SEND_BYTES);
            self.until_sending(SENDS_MAX - 1).await?;
            let piece = payload.slice(sent..end).detached();
            let piece = piece.ok_or(io::ErrorKind::OutOfMemory)?;
            self.state.sending.set(self.state.sending.get() + 1);
            self.order(Order::Send(piece));
            sent = end;
        }
        // The whole payload has been copied, so the sender's memory can be released.
        drop(payload);
        self.until_sending(0).await
    }

    /// Waits until at most `count` pieces are still being sent.
    async fn until_sending(&self, count: usize) -> io::Result<()> {
        let state = &self.state;
        state.sent.until(|| state.sending.get() <= count).await;
        match state.send_error.borrow().as_ref() {
            Some(error) => Err(error.kind().into()),
            None => Ok(()),
        }
    }

    /// Puts a layer on the connection. Runs `raise` on the carrier's thread; `raise` returns the
    /// stream with the new layer and a value, and this function returns the value.
    ///
    /// # Errors
    /// The errors of `raise`, which end the connection; `InvalidData` if received bytes have not
    /// been consumed or a receive is in progress.
    pub async fn raise<T: Send + 'static>(
        &self,
        raise: impl AsyncFnOnce(&Rt, Stream) -> io::Result<(Stream, T)> + Send + 'static,
    ) -> io::Result<T> {
        let state = &self.state;
        if !state.received.borrow().is_empty() || state.ordered.get() > 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let said: Arc<Mutex<Option<T>>> = Arc::default();
        let saying = Arc::clone(&said);
        self.order(Order::Raise(Box::new(move |rt, stream| {
            Box::pin(async move {
                let (stream, value) = raise(&rt, stream).await?;
                *saying.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
                Ok(stream)
            })
        })));
        let raised = || state.raised.borrow_mut().take();
        state.sent.until_some(raised).await?;
        let value = said.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(value.expect("it was said before the report"))
    }

    /// Returns the peer like [`Stream::peer`].
    pub(in crate::net) fn peer(&self) -> Option<Peer> {
        self.peer.clone()
    }

    /// Shuts the connection down like [`Stream::shutdown`].
    pub(in crate::net) fn shutdown(&self) {
        self.order(Order::Shutdown);
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.order(Order::Release);
        self.shared.ends.borrow_mut().remove(&self.number);
        self.shared.changed.notify();
    }
}
