//! Far ends of carried connections, on the carrier's thread. For each connection, one task executes
//! the ordered receives and another task the ordered sends. The thread must report the result of
//! every send, of every raise (putting a layer on the stream), and of every receive up to the end
//! of the stream. It reports nothing about connections that have been dropped.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use super::{Number, Order, Raising, Report, Told};
use crate::buf::{BufMut, DetachedBuf};
use crate::executor::{Rt, Task};
use crate::mailbox::{Messages, Receiver, SendBatch, Sender};
use crate::net::{Kind, Stream};
use crate::real_time::Socket;
use crate::sync::Event;

/// Runs the carrier's thread.
pub(super) fn run(rt: io::Result<Rt>, orders: Receiver<(Number, Order)>, told: Sender<Told>) {
    // Dropping `told` tells the other thread that this thread has ended. `told` must therefore be
    // dropped after the runtime.
    let told = Arc::new(told);
    let began = rt.and_then(|rt| Ok((orders.listen(&rt)?, rt)));
    let (orders, rt) = match began {
        Ok(began) => began,
        Err(error) => {
            // If the receiver has been dropped meanwhile, the error is not needed.
            let _ = told.send(Told::Began(Err(error)));
            return;
        }
    };
    let serving = || rt.block_on(serve(&rt, orders, &told));
    // After a panic the state might be inconsistent, so it is only dropped, and never used again.
    if catch_unwind(AssertUnwindSafe(serving)).is_err() {
        // Close `told` first: before the runtime ends, the other thread must learn that no more
        // reports will come.
        told.close();
        rt.end();
    }
}

async fn serve(rt: &Rt, mut orders: Messages<(Number, Order)>, told: &Arc<Sender<Told>>) {
    let send_batch = Rc::new(SendBatch::new(Arc::clone(told)));
    send_batch.put(Told::Began(Ok(())));
    let sending = Rc::clone(&send_batch);
    let sends = rt.spawn(async move { sending.carry().await });
    let mut ends: BTreeMap<Number, Rc<End>> = BTreeMap::new();
    while let Some(messages) = orders.next().await {
        for (number, order) in messages {
            match order {
                Order::Carry(fd) => {
                    let end = End::new(rt, number, fd, &send_batch);
                    ends.insert(number, end);
                }
                Order::Release => {
                    if let Some(end) = ends.remove(&number) {
                        end.release();
                    }
                }
                // The connection is in the table: the near end sends these orders for a connection
                // only after its `Carry` and before its `Release`.
                order => ends[&number].take(order),
            }
        }
    }
    ends.values().for_each(|end| end.release());
    sends.cancel().await;
    send_batch.send();
}

/// The far end of a connection.
struct End {
    rt: Rt,
    number: Number,
    send_batch: Rc<SendBatch<Told>>,
    /// The stream. `None` while a layer such as TLS is being put on it, and permanently if that
    /// fails.
    stream: RefCell<Option<Rc<Stream>>>,
    receives: RefCell<VecDeque<usize>>,
    sends: RefCell<VecDeque<DetachedBuf>>,
    told: Event,
    tasks: RefCell<Vec<Task<()>>>,
}

impl End {
    fn new(rt: &Rt, number: Number, fd: OwnedFd, send_batch: &Rc<SendBatch<Told>>) -> Rc<End> {
        let socket = Socket::attach(rt, fd).expect("the runtime of a thread has a ring");
        let end = Rc::new(End {
            rt: rt.clone(),
            number,
            send_batch: Rc::clone(send_batch),
            stream: RefCell::new(Some(Rc::new(Stream(Kind::Socket(socket))))),
            receives: RefCell::default(),
            sends: RefCell::default(),
            told: Event::new(),
            tasks: RefCell::default(),
        });
        let (receiving, sending) = (Rc::clone(&end), Rc::clone(&end));
        end.tasks.borrow_mut().extend([
            rt.spawn(async move { receiving.receive_all().await }),
            rt.spawn(async move { sending.send_all().await }),
        ]);
        end
    }

    fn take(self: &Rc<End>, order: Order) {
        match order {
            Order::Receive(bytes) => self.receives.borrow_mut().push_back(bytes),
            Order::Send(data) => self.sends.borrow_mut().push_back(data),
            Order::Raise(raising) => return self.raise(raising),
            Order::Shutdown => return self.shutdown(),
            Order::Carry(_) | Order::Release => unreachable!("these are not for the connection"),
        }
        self.told.notify();
    }

    fn report(&self, report: Report) {
        self.send_batch.put(Told::Of(self.number, report));
    }

    /// Returns the stream. Returns an error while a layer (such as TLS) is being put on the stream,
    /// or if the layer could not be put on it.
    fn stream(&self) -> io::Result<Rc<Stream>> {
        let stream = self.stream.borrow().clone();
        stream.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Executes the receives that the near end has ordered, until the stream ends or fails.
    async fn receive_all(&self) {
        let mut kept = None;
        loop {
            let next = || self.receives.borrow_mut().pop_front();
            let bytes = self.told.until_some(next).await;
            let received = self.receive(bytes, &mut kept).await;
            let goes_on = received.as_ref().is_ok_and(|data| !data.is_empty());
            self.report(Report::Received(received));
            if !goes_on {
                return;
            }
        }
    }

    /// Receives at most `bytes` bytes with one call. `kept` is the buffer of the previous receive,
    /// which is used again if its size is `bytes`.
    async fn receive(&self, bytes: usize, kept: &mut Option<BufMut>) -> io::Result<DetachedBuf> {
        let stream = self.stream()?;
        let fits = kept.take().filter(|buf| buf.len() == bytes);
        let buf = fits.unwrap_or_else(|| self.rt.pool().alloc_now(bytes));
        let (result, buf) = stream.recv(buf, 0).await;
        let count = result?;
        let copy = DetachedBuf::copy_of(&buf[..count]).ok_or(io::ErrorKind::OutOfMemory)?;
        *kept = Some(buf);
        Ok(copy)
    }

    async fn send_all(&self) {
        loop {
            let next = || self.sends.borrow_mut().pop_front();
            let data = self.told.until_some(next).await;
            let sent = self.send(data).await;
            self.report(Report::Sent(sent));
        }
    }

    async fn send(&self, data: DetachedBuf) -> io::Result<()> {
        let stream = self.stream()?;
        stream
            .send(self.rt.pool().attach(data).freeze().into())
            .await
    }

    /// Puts a layer on the stream and reports the result. If a receive or a send is in progress on
    /// the stream, this fails, and the connection has no stream from then on.
    fn raise(self: &Rc<End>, raising: Raising) {
        let stream = self.stream.take();
        let stream = stream.and_then(Rc::into_inner);
        let Some(stream) = stream else {
            return self.report(Report::Raised(Err(io::ErrorKind::NotConnected.into())));
        };
        let end = Rc::clone(self);
        let task = self.rt.spawn(async move {
            let raised = raising(end.rt.clone(), stream).await;
            let raised = raised.map(|stream| {
                *end.stream.borrow_mut() = Some(Rc::new(stream));
            });
            end.report(Report::Raised(raised));
        });
        self.tasks.borrow_mut().push(task);
    }

    fn shutdown(&self) {
        if let Some(stream) = self.stream.borrow().as_ref() {
            stream.shutdown();
        }
    }

    /// Releases the connection, even if a receive or a send is in progress on it. Bytes that the
    /// socket has accepted before still arrive at the peer.
    fn release(&self) {
        self.shutdown();
        // Dropping the tasks abandons the receive and the send in progress, and also the setup of a
        // layer (such as TLS) on the stream.
        self.tasks.take();
    }
}
