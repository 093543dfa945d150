//! The server: its listeners, their connections, and an orderly shutdown.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::{Device, StatisticVisitor};
use bimetal_rt::net::{Address, Carrier, Stream};
use bimetal_rt::real_time::{ProcessLimit, limit_in_words};
use bimetal_rt::sync::{Event, TaskGroup};
use bimetal_rt::{Rt, Task};
use futures_util::future::{Either, select};

use crate::access::Client;
use crate::account::DataMemory;
use crate::brp::{self, Target};
use crate::config::{ExportConfig, Protocol};
use crate::counters::add;
use crate::export::{Served, Shown, shown_to};
use crate::input::End;
use crate::link::Watchable;
use crate::listening::Listening;
use crate::nbd;
use crate::portal::{Cut, GuestSlot, Portal, StartError, portals};
use crate::session::{BYTES_IN_FLIGHT_MAX, Conversation, HANDSHAKE_DEADLINE};
use crate::tasks::TaskNumbers;

/// Interval at which the watch checks whether clients that keep the server waiting make progress.
const WATCH_INTERVAL: Duration = Duration::from_secs(15);
/// Number of consecutive checks without progress after which a client is cut off: one minute.
const LOOKS_MAX: u32 = 4;
/// Time for which a stopping server waits for clients to take their last replies.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Pause after a failed accept (for example when file descriptors have run out).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// As `LOOKS_MAX`, while requests wait for memory: the client is cut off after at least one
/// interval.
const LOOKS_MAX_WHEN_SHORT: u32 = 1;
/// Check interval after requests have waited for memory at two consecutive checks. Each client that
/// takes no data delays the waiting requests by at most two of these intervals.
const WATCH_INTERVAL_WHEN_SHORT: Duration = Duration::from_secs(2);

/// Resource limits of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Number of threads that carry the connections over sockets ([`Carrier`]). With 0, the
    /// server's thread carries them.
    pub connection_threads: u32,
    /// Memory for the data of all clients' requests in flight, in bytes. `None` means the memory
    /// that the pool has registered, or [`BYTES_IN_FLIGHT_MAX`] if it has registered none. A single
    /// request for more is admitted alone.
    pub data_bytes: Option<u64>,
}

impl Limits {
    fn data_memory(&self, rt: &Rt) -> Rc<DataMemory> {
        let registered = match rt.pool().region_bytes() {
            0 => BYTES_IN_FLIGHT_MAX,
            bytes => bytes as u64,
        };
        DataMemory::new(self.data_bytes.unwrap_or(registered))
    }
}

/// A connection that the watch checks.
struct Watched {
    link: Rc<dyn Watchable>,
    /// Last result of [`Watchable::stall`]; `looks` counts the consecutive checks that it has
    /// stayed the same.
    stall: Option<u64>,
    looks: u32,
}

/// Registration of a connection with the watch. Dropping this ends the watch and cuts the
/// connection off, because no task serves it any more.
struct Watching {
    state: Rc<ServerState>,
    key: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let watched = self.state.watched.borrow_mut().remove(&self.key);
        if let Some(watched) = watched {
            watched.link.cut();
        }
    }
}

struct ServerState {
    rt: Rt,
    portals: Vec<Rc<Portal>>,
    exports: Vec<Rc<Served>>,
    connections: TaskGroup,
    accepting: TaskGroup,
    watched: RefCell<BTreeMap<u64, Watched>>,
    next_key: Cell<u64>,
    stopping: Cell<bool>,
    target: Rc<Target>,
    tasks: Rc<TaskNumbers>,
    memory: Rc<DataMemory>,
    /// Signals a change of any of the above that a task may wait for.
    changed: Rc<Event>,
    /// Addresses in use, with the ports that were chosen.
    bound: RefCell<Vec<Address>>,
    /// Connections that are still sending their last bytes.
    closings: RefCell<Vec<TaskGroup>>,
    watch: RefCell<Option<Task<()>>>,
    /// Threads that carry connections.
    carriers: RefCell<Vec<Carrier>>,
}

/// A running server. It runs until [`stop`](Server::stop), even if every handle has been dropped.
#[derive(Clone)]
pub struct Server(Rc<ServerState>);

impl Server {
    /// Creates a server that does not listen yet. It takes connections through
    /// [`serve`](Self::serve).
    ///
    /// Each device is put behind one atomic unit. Every connection to the device shares this unit,
    /// including connections to other exports with the same device name. This makes
    /// `CAN_MULTI_CONN` true and unaligned writes safe.
    pub fn new(rt: &Rt, exports: Vec<(ExportConfig, Rc<dyn Device>)>) -> Server {
        Server::with_limits(rt, exports, Limits::default())
    }

    /// Creates a server as [`new`](Self::new) does, with the given `limits`. Connection threads are
    /// started only by [`start_within`](Self::start_within).
    pub fn with_limits(
        rt: &Rt,
        exports: Vec<(ExportConfig, Rc<dyn Device>)>,
        limits: Limits,
    ) -> Server {
        let mut units: BTreeMap<String, Rc<dyn Device>> = BTreeMap::new();
        let served: Vec<Rc<Served>> = exports
            .into_iter()
            .map(|(config, device)| {
                let unit = units
                    .entry(config.device.clone())
                    .or_insert_with(|| Rc::new(AtomicUnit::new(rt, device)));
                Served::new(config, Rc::clone(unit), rt.notices())
            })
            .collect();
        let changed = Rc::new(Event::new());
        let state = Rc::new(ServerState {
            rt: rt.clone(),
            portals: portals(&served),
            exports: served,
            connections: TaskGroup::new(rt),
            accepting: TaskGroup::new(rt),
            watched: RefCell::new(BTreeMap::new()),
            next_key: Cell::new(0),
            stopping: Cell::new(false),
            target: Target::new(rt, Rc::clone(&changed)),
            tasks: Rc::default(),
            memory: limits.data_memory(rt),
            changed,
            bound: RefCell::new(Vec::new()),
            closings: RefCell::default(),
            watch: RefCell::new(None),
            carriers: RefCell::default(),
        });
        let watch = rt.spawn(watch(Rc::clone(&state)));
        *state.watch.borrow_mut() = Some(watch);
        Server(state)
    }

    /// Serves the exports at their addresses. When this returns, the server listens at all of them.
    ///
    /// The file of a UNIX socket at which no server answers is removed first. The new socket is
    /// open to its owner alone (mode 0600), unless the rules of an export admit other users (mode
    /// 0666).
    ///
    /// # Errors
    /// The first address that cannot be used; the server then listens nowhere.
    pub async fn start(
        rt: &Rt,
        exports: Vec<(ExportConfig, Rc<dyn Device>)>,
    ) -> Result<Server, StartError> {
        Server::start_within(rt, exports, Limits::default()).await
    }

    /// Serves the exports as [`start`](Self::start) does, with the given `limits`.
    ///
    /// # Errors
    /// Those of `start`, or the reason why a connection thread could not be started.
    pub async fn start_within(
        rt: &Rt,
        exports: Vec<(ExportConfig, Rc<dyn Device>)>,
        limits: Limits,
    ) -> Result<Server, StartError> {
        let server = Server::with_limits(rt, exports, limits);
        match server.listen(limits.connection_threads).await {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop().await;
                Err(error)
            }
        }
    }

    async fn listen(&self, connection_threads: u32) -> Result<(), StartError> {
        let state = &self.0;
        let mut listening = Vec::new();
        for portal in &state.portals {
            let listener = portal.listen(&state.rt).await?;
            state.bound.borrow_mut().push(listener.address());
            state.closings.borrow_mut().extend(listener.closings());
            listening.push((portal, listener));
        }
        // Without listeners there are no connections.
        let threads = if listening.is_empty() {
            0
        } else {
            connection_threads
        };
        for number in 0..threads {
            let name = format!("connections {number}");
            let carrier = Carrier::start(&state.rt, &name).await?;
            state.carriers.borrow_mut().push(carrier);
        }
        for (portal, listener) in listening {
            let accept = accept(Rc::clone(state), Rc::clone(portal), listener);
            state.accepting.spawn(accept);
        }
        Ok(())
    }

    /// Returns the addresses in use, with the chosen port where port 0 was requested.
    pub fn addresses(&self) -> Vec<Address> {
        self.0.bound.borrow().clone()
    }

    /// Serves an unidentified client on a stream that was connected by other means, as if the
    /// client had connected to `address`.
    ///
    /// # Panics
    /// When no export is configured at that address.
    pub fn serve(&self, address: &Address, stream: Stream) {
        self.serve_client(address, stream, &Client::Unknown);
    }

    /// Serves a client as [`serve`](Self::serve) does, with an identity that the caller vouches
    /// for.
    ///
    /// # Panics
    /// As `serve`.
    pub fn serve_client(&self, address: &Address, stream: Stream, client: &Client) {
        let mut portals = self.0.portals.iter();
        let portal = portals.find(|portal| portal.address == *address);
        let portal = portal.expect("an export is configured at the address");
        admit(&self.0, portal, stream, client);
    }

    /// Returns the number of open connections, in their handshake or after it.
    pub fn connections(&self) -> usize {
        self.0.connections.len()
    }

    /// Returns the memory that the data of requests in flight holds, in bytes.
    pub fn data_bytes_held(&self) -> u64 {
        self.0.memory.held_bytes()
    }

    /// Reports the live counters of every export; the part is the export's name.
    pub fn statistics(&self, out: &mut dyn StatisticVisitor) {
        for export in &self.0.exports {
            export.statistics(out);
        }
    }

    /// Stops the server. It takes no more connections or requests, lets requests in flight finish,
    /// sends their replies, and disconnects the clients. Returns when every task of the server has
    /// ended. A client that does not take its replies is cut off after ten seconds.
    pub async fn stop(&self) {
        let state = &self.0;
        state.stopping.set(true);
        state.changed.notify();
        state.accepting.cancel().await;
        for address in state.bound.take() {
            if let Address::Unix(path) = address {
                // If the file has already been removed, nothing is left to do.
                let _ = std::fs::remove_file(path);
            }
        }
        let joined = state.rt.timeout(STOP_GRACE, state.connections.join()).await;
        if joined.is_err() {
            let watched = state.watched.borrow();
            watched.values().for_each(|watched| watched.link.cut());
        }
        state.connections.join().await;
        for closings in state.closings.take() {
            closings.join().await;
        }
        let watch = state.watch.borrow_mut().take();
        if let Some(watch) = watch {
            watch.cancel().await;
        }
        for carrier in state.carriers.take() {
            carrier.close().await;
        }
    }
}

async fn accept(state: Rc<ServerState>, portal: Rc<Portal>, listener: Listening) {
    loop {
        match listener.accept().await {
            Ok(stream) => match who(&stream) {
                Ok(client) => admit(&state, &portal, state.carried(stream), &client),
                // A process that the kernel does not identify cannot be vouched for.
                Err(error) => {
                    turn_away(
                        &portal,
                        &stream,
                        format_args!("nobody knows who it is: {error}"),
                    );
                }
            },
            // The client left before it was accepted, or descriptors have run out. The next accept
            // may succeed, after a pause that keeps the shard free.
            Err(error) => {
                if ProcessLimit::behind(&error).is_some() {
                    portal.exports[0].refuse(limit_in_words(&error));
                }
                state.rt.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns the identity of the client that has connected.
fn who(stream: &Stream) -> io::Result<Client> {
    Ok(stream.peer()?.map_or(Client::Unknown, Client::Local))
}

fn turn_away(portal: &Portal, stream: &Stream, why: impl Display) {
    portal.exports[0].refuse(why);
    stream.shutdown();
}

/// Starts a session with a new client, or turns it away. A client that may see no export is turned
/// away before it can send anything. The mode of the socket file keeps other users out, and this
/// check also holds when the file has another mode.
fn admit(state: &Rc<ServerState>, portal: &Rc<Portal>, stream: Stream, client: &Client) {
    // Where TLS is used, its handshake will identify the client.
    let exports = (!portal.speaks_tls()).then(|| shown_to(client, &portal.exports));
    if state.stopping.get() {
        return turn_away(portal, &stream, "the server is stopping");
    }
    if exports.as_ref().is_some_and(Vec::is_empty) {
        let why = format_args!("`clients` lets {client} see nothing");
        return turn_away(portal, &stream, why);
    }
    let session = session(state, portal, Cut::new(stream), exports);
    state.connections.spawn(session);
}

/// Serves a client from its first byte to its end. The client gets its slot by this call, before
/// the future is polled. Dropping the future at any point releases all that the client holds.
fn session(
    state: &Rc<ServerState>,
    portal: &Rc<Portal>,
    stream: Cut,
    exports: Option<Vec<Shown>>,
) -> impl Future<Output = ()> + 'static {
    let (state, portal) = (Rc::clone(state), Rc::clone(portal));
    let guest = (stream, portal.place());
    async move {
        match portal.protocol {
            Protocol::Nbd => nbd_session(&state, &portal, exports, guest).await,
            Protocol::Brp => brp_session(&state, &portal, exports, guest).await,
        }
    }
}

/// Serves one NBD client from its handshake to its end. `exports` are the exports that the client
/// may see, if they are known before TLS.
async fn nbd_session(
    state: &Rc<ServerState>,
    portal: &Portal,
    exports: Option<Vec<Shown>>,
    (stream, place): (Cut, GuestSlot),
) {
    let secure = async |stream| portal.secure(&state.rt, stream).await;
    let handshake = nbd::handshake(&state.rt, stream, exports, secure);
    let Some(entered) = greet(state, portal, place, handshake).await else {
        return;
    };
    let (export, early) = (Rc::clone(&entered.export), entered.early);
    let (stream, task) = (entered.stream.keep(), state.tasks.take());
    let (rt, memory) = (&state.rt, &state.memory);
    let transmission =
        nbd::Transmission::new(rt, stream, entered.export, entered.session, task, memory);
    converse(state, &export, transmission, &early).await;
}

/// Serves one BRP client from its greeting to its end. `exports` are the exports that the client
/// may see, if they are known before TLS.
async fn brp_session(
    state: &Rc<ServerState>,
    portal: &Portal,
    exports: Option<Vec<Shown>>,
    (stream, place): (Cut, GuestSlot),
) {
    let greeting = async {
        let (stream, exports) = match exports {
            Some(exports) => (stream, exports),
            None => portal.secure(&state.rt, stream).await?,
        };
        let taken = brp::greet(&state.rt, &stream, &state.target, &exports).await?;
        Ok(taken.map(|taken| (stream, taken)))
    };
    let Some((stream, mut taken)) = greet(state, portal, place, greeting).await else {
        return;
    };
    let (export, early) = (Rc::clone(&taken.export), std::mem::take(&mut taken.early));
    let (stream, task) = (stream.keep(), state.tasks.take());
    stream.count_in(&export.counters.work);
    let (rt, memory) = (&state.rt, &state.memory);
    let transmission = brp::Transmission::new(rt, stream, &state.target, taken, task, memory);
    converse(state, &export, transmission, &early).await;
}

/// Performs the handshake with a client within the handshake deadline. Returns `None` if the client
/// does not stay.
async fn greet<T>(
    state: &Rc<ServerState>,
    portal: &Portal,
    place: GuestSlot,
    handshake: impl Future<Output = Result<Option<T>, End>>,
) -> Option<T> {
    let stopped = std::pin::pin!(state.changed.until(|| state.stopping.get()));
    let crowded_out = std::pin::pin!(place.must_leave());
    let over = select(stopped, crowded_out);
    let greeted = std::pin::pin!(state.rt.timeout(HANDSHAKE_DEADLINE, handshake));
    match select(greeted, over).await {
        Either::Left((Ok(Ok(agreed)), _)) => agreed,
        Either::Left((Ok(Err(End::Protocol)), _)) => {
            add(&portal.exports[0].counters.protocol_errors, 1);
            None
        }
        Either::Left((Ok(Err(End::Client | End::Broken)) | Err(_), _)) | Either::Right(_) => None,
    }
}

/// Serves one client from the end of its handshake to the end of the connection.
async fn converse<C: Conversation<Reply: 'static> + 'static>(
    state: &Rc<ServerState>,
    export: &Served,
    conversation: Rc<C>,
    early: &[u8],
) {
    let counters = &export.counters;
    add(&counters.connections_total, 1);
    if let Some(carried) = conversation.link().stream.carried() {
        carried.read_ahead();
    }
    let link: Rc<dyn Watchable> = Rc::clone(conversation.link()) as _;
    let _watching = state.watch_over(link);
    let end = transmit(state, &conversation, early).await;
    if let End::Protocol = end {
        add(&counters.protocol_errors, 1);
    }
}

/// Serves requests until the client or the server ends the connection, and waits until the requests
/// in flight are settled.
async fn transmit<C: Conversation + 'static>(
    state: &Rc<ServerState>,
    conversation: &Rc<C>,
    early: &[u8],
) -> End {
    let link = conversation.link();
    let sender = {
        let conversation = Rc::clone(conversation);
        state.rt.spawn(async move { conversation.send().await })
    };
    let end = {
        let is_over = || state.stopping.get() || conversation.is_revoked();
        let stopped = std::pin::pin!(state.changed.until(is_over));
        let receive = std::pin::pin!(conversation.receive(early));
        match select(receive, stopped).await {
            Either::Left((end, _)) => end,
            Either::Right(_) if conversation.is_revoked() => End::Broken,
            Either::Right(_) => End::Client,
        }
    };
    // A client that breached the protocol or broke off gets no more replies. A client that ended
    // the connection in order gets the replies that are due.
    if !matches!(end, End::Client) {
        link.cut();
    }
    link.set_receiving(false);
    link.until_settled().await;
    link.finish();
    sender.await;
    link.cut();
    end
}

impl ServerState {
    /// Moves a connection to the thread that carries the fewest connections, if there are
    /// connection threads.
    fn carried(&self, stream: Stream) -> Stream {
        let carriers = self.carriers.borrow();
        let alive = carriers.iter().filter(|carrier| carrier.is_alive());
        match alive.min_by_key(|carrier| carrier.connections()) {
            Some(carrier) => carrier.carry(stream),
            None => stream,
        }
    }

    fn watch_over(self: &Rc<ServerState>, link: Rc<dyn Watchable>) -> Watching {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let watched = Watched {
            link,
            stall: None,
            looks: 0,
        };
        self.watched.borrow_mut().insert(key, watched);
        self.changed.notify();
        Watching {
            state: Rc::clone(self),
            key,
        }
    }
}

/// Cuts off clients that keep the server waiting in the middle of a message, so that they do not
/// hold its memory forever. It cuts them off sooner while requests wait for memory. Because one
/// task watches all connections, the connections need no timers.
async fn watch(state: Rc<ServerState>) {
    let (mut was_short, mut stays_short) = (false, false);
    loop {
        let another_client = || !state.watched.borrow().is_empty();
        state.changed.until(another_client).await;
        let interval = match stays_short {
            true => WATCH_INTERVAL_WHEN_SHORT,
            false => WATCH_INTERVAL,
        };
        state.rt.sleep(interval).await;
        let is_short = state.memory.is_short();
        stays_short = was_short && is_short;
        was_short = is_short;
        let looks_max = match is_short {
            true => LOOKS_MAX_WHEN_SHORT,
            false => LOOKS_MAX,
        };
        for watched in state.watched.borrow_mut().values_mut() {
            let stall = watched.link.stall();
            let stalled = stall.is_some() && stall == watched.stall;
            watched.looks = if stalled { watched.looks + 1 } else { 0 };
            watched.stall = stall;
            if watched.looks >= looks_max {
                watched.link.cut();
            }
        }
    }
}

#[cfg(test)]
mod tests;
