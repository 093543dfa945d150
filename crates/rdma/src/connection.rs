//! An RDMA connection, presented as a stream of bytes. It combines the credit flow control with the
//! queues of a device.
//!
//! An idle connection is not polled: one task waits for the notifications of the completion queue,
//! and another for the events of RDMA CM, both on the runtime's ring. Normally only receives are
//! notified, so that completed sends cost no wake-up. All completions are notified only while a
//! task waits for the completion of a send.
//!
//! This module must never end a connection before the sent data has arrived at the other end;
//! otherwise the last answers, or the message that closes the session, would be lost. It must never
//! wait longer than [`GRACE`] for that arrival.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::net::{Layer, Peer, RecvFuture, SendFuture, Stream, WorkCounters};
use bimetal_rt::real_time::Watch;
use bimetal_rt::sync::{Event, TaskGroup};
use bimetal_rt::{BufMut, Payload, Rt, Task};

use crate::flow::{Flow, RESERVE, receives};
use crate::terms::Terms;
use crate::verbs::{CmChannel, CmEvent, CmId, Depths, Done, Happened, Queues, Work};

/// Size of a buffer in bytes, in whole pages. A buffer holds a whole jumbo command of BRP (64
/// requests of 4 KiB, merged into one command, with their entries and the head) or a whole merged
/// response. Each of these is therefore one work request and one completion.
pub(crate) const BUFFER_BYTES: u32 = 264 << 10;
/// Number of messages with data that this end permits the other end to send before this end returns
/// credits (permissions to send).
const CREDITS: u16 = 8;
/// Number of send buffers.
const SENDS: u16 = 4;
/// Before an end closes the connection, it waits until the data that it has sent has arrived at the
/// other end, but no longer than this time.
const GRACE: Duration = Duration::from_secs(5);

/// Terms that this end offers.
pub(crate) const OWN: Terms = Terms {
    credits: CREDITS,
    buffer_bytes: BUFFER_BYTES,
};

fn depths() -> Depths {
    Depths {
        receives: receives(OWN),
        sends: SENDS,
        idle_sends: RESERVE,
        buffer_bytes: BUFFER_BYTES as usize,
    }
}

/// Creates the queues of an identifier whose device is known, and posts every receive.
///
/// # Errors
/// The errors of the kernel.
pub(crate) fn queues(id: CmId) -> io::Result<Queues> {
    let queues = Queues::new(id, depths())?;
    for slot in 0..receives(OWN) {
        queues.post_receive(slot)?;
    }
    Ok(queues)
}

/// Connects to a listening end.
///
/// # Errors
/// The reason why the other end cannot be reached, as text.
pub(crate) async fn connect(rt: &Rt, address: SocketAddr) -> io::Result<Stream> {
    let channel = CmChannel::new()?;
    let watch = Watch::new(rt, channel.fd())?;
    let id = CmId::new(&channel)?;
    id.resolve_address(address)?;
    expect(&channel, &watch, Happened::AddressResolved).await?;
    id.resolve_route()?;
    expect(&channel, &watch, Happened::RouteResolved).await?;
    let queues = queues(id)?;
    queues.id().connect(&OWN.encode())?;
    let established = expect(&channel, &watch, Happened::Established).await?;
    let peer = Terms::decode(&established.private).map_err(invalid)?;
    Ok(Stream::layered(start(
        rt,
        queues,
        peer,
        &TaskGroup::new(rt),
    )?))
}

/// Waits for the event `wanted`, and returns it. Events without a meaning for a connection attempt
/// are skipped; every other event is an error.
async fn expect(channel: &Rc<CmChannel>, watch: &Watch, wanted: Happened) -> io::Result<CmEvent> {
    loop {
        let Some(event) = channel.next()? else {
            watch.readable().await?;
            continue;
        };
        let kind = match event.happened {
            happened if happened == wanted => return Ok(event),
            Happened::Other => continue,
            Happened::Rejected => io::ErrorKind::ConnectionRefused,
            _ => io::ErrorKind::NotConnected,
        };
        return Err(io::Error::new(kind, format!("rdma: {}", event.words)));
    }
}

/// Converts an invalid message of the other end to an I/O error.
pub(crate) fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// State of a connection.
#[derive(Clone, Debug)]
enum ConnectionState {
    Open,
    /// This end has ended the connection.
    Shut,
    /// The other end has ended the connection.
    Left,
    /// The connection has failed.
    Broken(io::ErrorKind, String),
}

/// An RDMA connection: its queues, flow control and state.
struct Connection {
    rt: Rt,
    queues: Queues,
    flow: RefCell<Flow>,
    state: RefCell<ConnectionState>,
    /// Signals a change of the flow control or of the state.
    changed: Event,
    /// True while a task waits for a completed send.
    wants_sent: Cell<bool>,
    closing: Cell<bool>,
    counters: RefCell<Rc<WorkCounters>>,
    /// Group of the tasks that end connections.
    closings: TaskGroup,
    /// Tasks that wait for notifications and events.
    tasks: RefCell<Vec<Task<()>>>,
}

/// The handle of a connection; dropping it closes the connection.
pub(crate) struct Handle(Rc<Connection>);

/// Starts a connection whose receives are posted. When the connection is shut down, the task that
/// ends it is added to `closings`.
///
/// # Errors
/// The errors of the runtime.
pub(crate) fn start(
    rt: &Rt,
    queues: Queues,
    peer: Terms,
    closings: &TaskGroup,
) -> io::Result<Handle> {
    let notices = Watch::new(rt, queues.fd())?;
    let events = Watch::new(rt, queues.id().channel().fd())?;
    let connection = Rc::new(Connection {
        rt: rt.clone(),
        queues,
        flow: RefCell::new(Flow::new(OWN, peer, SENDS)),
        state: RefCell::new(ConnectionState::Open),
        changed: Event::new(),
        wants_sent: Cell::new(false),
        closing: Cell::new(false),
        counters: RefCell::default(),
        closings: closings.clone(),
        tasks: RefCell::default(),
    });
    let noticing = rt.spawn(mind_notices(Rc::clone(&connection), notices));
    let hearing = rt.spawn(mind_events(Rc::clone(&connection), events));
    *connection.tasks.borrow_mut() = vec![noticing, hearing];
    Ok(Handle(connection))
}

/// Waits for notifications of new completions, and processes the completions after each
/// notification.
async fn mind_notices(connection: Rc<Connection>, watch: Watch) {
    loop {
        connection.probe();
        if let Err(error) = watch.readable().await {
            return connection.break_off(error.kind(), error.to_string());
        }
        loop {
            match connection.queues.take_notice() {
                Ok(true) => connection.count(|counters| &counters.notices),
                Ok(false) => break,
                Err(error) => return connection.break_off(error.kind(), error.to_string()),
            }
        }
    }
}

/// Waits for the events of RDMA CM that report that the other end has disconnected or that the
/// connection has failed.
async fn mind_events(connection: Rc<Connection>, watch: Watch) {
    loop {
        let event = match connection.queues.id().channel().next() {
            Ok(event) => event,
            Err(error) => return connection.break_off(error.kind(), error.to_string()),
        };
        match event.map(|event| (event.happened, event.words)) {
            None => {
                if let Err(error) = watch.readable().await {
                    return connection.break_off(error.kind(), error.to_string());
                }
            }
            Some((Happened::Disconnected, _)) => {
                // Data that the other end sent before disconnecting has already arrived, so process
                // it first.
                connection.probe();
                connection.end(ConnectionState::Left);
            }
            Some((Happened::Failed | Happened::Rejected, words)) => {
                connection.break_off(io::ErrorKind::ConnectionReset, format!("rdma: {words}"));
            }
            Some(_) => {}
        }
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), ConnectionState::Open)
    }

    /// Ends the connection, if it has not ended yet. All posted work requests are flushed.
    fn end(&self, how: ConnectionState) {
        let before = self.state.borrow().clone();
        if matches!(before, ConnectionState::Open | ConnectionState::Shut) {
            *self.state.borrow_mut() = how;
            self.queues.id().disconnect();
            self.changed.notify();
        }
    }

    fn break_off(&self, kind: io::ErrorKind, why: String) {
        self.end(ConnectionState::Broken(kind, why));
    }

    fn count(&self, which: impl Fn(&WorkCounters) -> &Cell<u64>) {
        let counters = self.counters.borrow();
        let counter = which(&counters);
        counter.set(counter.get() + 1);
    }

    /// Requests the next notification of completions, and processes all completions that exist.
    fn probe(&self) {
        let wants_all = || self.wants_sent.get() || self.flow.borrow().waits_for_sent(false);
        loop {
            let all = wants_all();
            if let Err(error) = self.probe_once(all) {
                self.break_off(error.kind(), error.to_string());
            }
            self.send_idle();
            // The loop ends if this pass requested a notification of sends (`all`), or if no
            // notification of sends is needed. Otherwise, the completions just processed have made
            // a notification of sends necessary, and the next pass requests it.
            if all || !wants_all() {
                break;
            }
        }
        self.changed.notify();
    }

    fn probe_once(&self, all: bool) -> io::Result<()> {
        self.queues.arm(!all)?;
        // Completions from before the queue was armed cause no notification, so poll for them after
        // arming the queue.
        while self.queues.poll(|done| self.completed(done))? {}
        Ok(())
    }

    fn completed(&self, done: Done) {
        self.count(|counters| &counters.completions);
        match done {
            Ok(Work::Sent(slot)) => self.flow.borrow_mut().sent(slot),
            Ok(Work::IdleSent) => self.flow.borrow_mut().idle_message_sent(),
            Ok(Work::Received { slot, bytes, word }) => {
                self.count(|counters| &counters.receives);
                let arrived = self.flow.borrow_mut().arrive(slot, bytes, word);
                match arrived {
                    Ok(again) => self.post_again(again),
                    Err(breach) => {
                        self.break_off(io::ErrorKind::InvalidData, breach.to_string());
                    }
                }
            }
            // Failed work requests include those that are flushed because the connection has
            // already ended for another reason. In this case `end` keeps the earlier reason.
            Err(words) => self.break_off(io::ErrorKind::ConnectionReset, format!("rdma: {words}")),
        }
    }

    fn post_again(&self, slot: Option<u16>) {
        let Some(slot) = slot.filter(|_| self.is_open()) else {
            return;
        };
        if let Err(error) = self.queues.post_receive(slot) {
            self.break_off(error.kind(), error.to_string());
        }
    }

    /// Sends a message without data if one is due.
    fn send_idle(&self) {
        while self.is_open() {
            let Some(word) = self.flow.borrow_mut().next_idle_message() else {
                break;
            };
            self.count(|counters| &counters.sends);
            if let Err(error) = self.queues.send_idle(word) {
                self.break_off(error.kind(), error.to_string());
            }
        }
    }

    /// Returns the result that a receive reports once the connection has ended; `None` while the
    /// connection is open.
    fn ended(&self) -> Option<io::Result<usize>> {
        match &*self.state.borrow() {
            ConnectionState::Open => None,
            ConnectionState::Shut | ConnectionState::Left => Some(Ok(0)),
            ConnectionState::Broken(kind, why) => Some(Err(io::Error::new(*kind, why.clone()))),
        }
    }

    /// Copies as much arrived data as fits into `out`, and returns the number of bytes. Returns
    /// `None` while no data has arrived and the connection continues.
    fn receive_now(&self, out: &mut [u8]) -> Option<io::Result<usize>> {
        if matches!(*self.state.borrow(), ConnectionState::Shut) {
            return Some(Ok(0));
        }
        let mut filled = 0;
        while filled < out.len() {
            let Some(first) = self.flow.borrow().first() else {
                break;
            };
            let taken = (first.end - first.start).min(out.len() - filled);
            let into = &mut out[filled..filled + taken];
            self.queues.copy_received(first.slot, first.start, into);
            filled += taken;
            let again = self.flow.borrow_mut().take(taken);
            self.post_again(again);
        }
        if filled > 0 {
            self.send_idle();
            if self.flow.borrow().waits_for_sent(false) {
                self.probe();
            }
            return Some(Ok(filled));
        }
        self.ended()
    }

    /// Sends one message that carries as much of `payload` as fits, from offset `at` on. Returns
    /// the number of data bytes in the message, or `None` while there is no credit or no send
    /// buffer.
    fn send_now(&self, payload: &Payload, at: usize) -> Option<io::Result<usize>> {
        if !self.is_open() {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let message = self.flow.borrow_mut().next_message(payload.len() - at)?;
        self.count(|counters| &counters.sends);
        let (slot, bytes) = (message.slot, message.bytes);
        let sent = self.queues.send(slot, bytes, message.word, |buffer| {
            if bytes == payload.len() {
                payload.copy_to(buffer);
            } else {
                payload.slice(at..at + bytes).copy_to(buffer);
            }
        });
        if let Err(error) = &sent {
            self.break_off(error.kind(), error.to_string());
        }
        Some(sent.map(|()| bytes))
    }

    async fn send_all(&self, payload: &Payload) -> io::Result<()> {
        let mut at = 0;
        while at < payload.len() {
            let sent = match self.send_now(payload, at) {
                Some(sent) => sent,
                None => {
                    if self.flow.borrow().waits_for_sent(true) {
                        self.wants_sent.set(true);
                        self.probe();
                    }
                    let sent = self.changed.until_some(|| self.send_now(payload, at)).await;
                    self.wants_sent.set(false);
                    sent
                }
            };
            at += sent?;
        }
        Ok(())
    }
}

/// Waits until all sent data has arrived, at most for the grace period. Then ends the connection
/// and releases it.
async fn close(connection: Rc<Connection>) {
    connection.wants_sent.set(true);
    connection.probe();
    let is_over = || {
        let is_gone = matches!(
            *connection.state.borrow(),
            ConnectionState::Broken(..) | ConnectionState::Left
        );
        is_gone || connection.flow.borrow().is_settled()
    };
    // If the other end does not receive the data within the grace period, the data is lost.
    let settled = connection.changed.until(is_over);
    let _ = connection.rt.timeout(GRACE, settled).await;
    connection.queues.id().disconnect();
    let tasks = connection.tasks.take();
    for task in tasks {
        task.cancel().await;
    }
}

impl Handle {
    /// Starts the end of the connection.
    fn finish(&self) {
        if self.0.closing.replace(true) {
            return;
        }
        if self.0.is_open() {
            *self.0.state.borrow_mut() = ConnectionState::Shut;
        }
        self.0.changed.notify();
        self.0.closings.spawn(close(Rc::clone(&self.0)));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Layer for Handle {
    fn recv(&self, mut buf: BufMut, from: usize) -> RecvFuture<'_> {
        assert!(from < buf.len(), "there is room to receive into");
        Box::pin(async move {
            let connection = &self.0;
            let received = connection
                .changed
                .until_some(|| connection.receive_now(&mut buf[from..]))
                .await;
            (received, buf)
        })
    }

    fn send(&self, payload: Payload) -> SendFuture<'_> {
        Box::pin(async move { self.0.send_all(&payload).await })
    }

    fn peer(&self) -> io::Result<Option<Peer>> {
        Ok(None)
    }

    fn shutdown(&self) {
        self.finish();
    }

    fn count_in(&self, counters: &Rc<WorkCounters>) {
        let before = self.0.counters.replace(Rc::clone(counters));
        before.move_to(counters);
    }
}
