//! A connection: the flow of credits on one side, queues of a device on the other, and a stream of
//! bytes for whoever holds it.
//!
//! Nothing is polled while nothing happens: one task waits for the notices of the completion queue,
//! another for the events of RDMA CM, both on the runtime's ring. A notice is asked for receives
//! alone, so that what was sent costs no wake-up; only when somebody has to wait for a buffer to
//! send from is one asked for everything.
//!
//! It must never end a connection before what was sent is at the other end, or a goodbye and the
//! last answers would be lost; and it must never wait for that longer than [`GRACE`].

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

/// Buffers hold a whole jumbo command or merged response of BRP, 64 requests of 4 KiB with their
/// entries and the head, in whole pages: so each is one work request and one completion.
pub(crate) const BUFFER_BYTES: u32 = 264 << 10;
/// Messages with data that the other end may send before it hears more.
const CREDITS: u16 = 8;
/// Buffers to send from.
const SENDS: u16 = 4;
/// How long an end waits for what it has sent before it ends the connection all the same.
const GRACE: Duration = Duration::from_secs(5);

/// What this end says of itself.
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

/// Makes the queues of an identifier whose device is known, with every receive posted.
///
/// # Errors
/// What the kernel refuses.
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
/// Why it cannot be reached, in words.
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

/// The next event, which is to be this one.
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

/// What the other end says makes no sense.
pub(crate) fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// How a connection stands.
#[derive(Clone, Debug)]
enum State {
    Open,
    /// This end has ended it.
    Shut,
    /// The other end has.
    Left,
    /// It has failed.
    Broken(io::ErrorKind, String),
}

/// See the module.
struct Connection {
    rt: Rt,
    queues: Queues,
    flow: RefCell<Flow>,
    state: RefCell<State>,
    /// Something of the above changed.
    changed: Event,
    /// Somebody waits until something has been sent.
    wants_sent: Cell<bool>,
    closing: Cell<bool>,
    counters: RefCell<Rc<WorkCounters>>,
    /// Where its end is waited for.
    closings: TaskGroup,
    /// Those that wait for notices and events.
    tasks: RefCell<Vec<Task<()>>>,
}

/// The handle of a connection.
pub(crate) struct Handle(Rc<Connection>);

/// Brings a connection to life, whose receives are posted. Its end becomes a task of `closings`.
///
/// # Errors
/// Those of the runtime.
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
        state: RefCell::new(State::Open),
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

/// Looks at completions whenever the device says that there are some.
async fn mind_notices(connection: Rc<Connection>, watch: Watch) {
    loop {
        connection.look();
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

/// Hears when the other end is gone.
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
                // What it sent before is here.
                connection.look();
                connection.end(State::Left);
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
        matches!(*self.state.borrow(), State::Open)
    }

    /// Ends it, if it has not ended yet: everything that is posted is flushed.
    fn end(&self, how: State) {
        let before = self.state.borrow().clone();
        if matches!(before, State::Open | State::Shut) {
            *self.state.borrow_mut() = how;
            self.queues.id().disconnect();
            self.changed.notify();
        }
    }

    fn break_off(&self, kind: io::ErrorKind, why: String) {
        self.end(State::Broken(kind, why));
    }

    fn count(&self, which: impl Fn(&WorkCounters) -> &Cell<u64>) {
        let counters = self.counters.borrow();
        let counter = which(&counters);
        counter.set(counter.get() + 1);
    }

    /// Asks for the next notice, and looks at everything that has completed.
    fn look(&self) {
        let wants_all = || self.wants_sent.get() || self.flow.borrow().waits_for_sent(false);
        loop {
            let all = wants_all();
            if let Err(error) = self.look_once(all) {
                self.break_off(error.kind(), error.to_string());
            }
            self.send_idle();
            // It may have turned out that less was asked for than is needed.
            if all || !wants_all() {
                break;
            }
        }
        self.changed.notify();
    }

    fn look_once(&self, all: bool) -> io::Result<()> {
        self.queues.arm(!all)?;
        // What came before the queue was armed makes no notice, so it is looked at behind that.
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
            // Also what is flushed when it has ended for another reason, which then is the one.
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

    /// Sends a message without data where one is due.
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

    /// What the stream is to be told when it has ended.
    fn ended(&self) -> Option<io::Result<usize>> {
        match &*self.state.borrow() {
            State::Open => None,
            State::Shut | State::Left => Some(Ok(0)),
            State::Broken(kind, why) => Some(Err(io::Error::new(*kind, why.clone()))),
        }
    }

    /// Takes what has arrived, as far as it fits; `None` as long as there is nothing.
    fn receive_now(&self, out: &mut [u8]) -> Option<io::Result<usize>> {
        if matches!(*self.state.borrow(), State::Shut) {
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
                self.look();
            }
            return Some(Ok(filled));
        }
        self.ended()
    }

    /// Sends as much of `payload` from the byte `at` on as one message takes; `None` as long as
    /// there is no credit or no buffer.
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
                        self.look();
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

/// Ends a connection when everything that was sent has arrived, or that takes too long, and lets go
/// of it.
async fn close(connection: Rc<Connection>) {
    connection.wants_sent.set(true);
    connection.look();
    let is_over = || {
        let is_gone = matches!(*connection.state.borrow(), State::Broken(..) | State::Left);
        is_gone || connection.flow.borrow().is_settled()
    };
    // Whoever does not take it in time goes without.
    let settled = connection.changed.until(is_over);
    let _ = connection.rt.timeout(GRACE, settled).await;
    connection.queues.id().disconnect();
    let tasks = connection.tasks.take();
    for task in tasks {
        task.cancel().await;
    }
}

impl Handle {
    /// Begins to end the connection.
    fn finish(&self) {
        if self.0.closing.replace(true) {
            return;
        }
        if self.0.is_open() {
            *self.0.state.borrow_mut() = State::Shut;
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
