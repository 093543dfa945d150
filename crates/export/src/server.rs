//! The server: its listeners, its connections, and its orderly shutdown.

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

/// Interval at which the server checks whether stalled clients have made progress. A client is
/// stalled if the server waits for it in the middle of a message.
const WATCH_INTERVAL: Duration = Duration::from_secs(15);
/// Number of consecutive checks without progress after which a client is cut off. Four checks take
/// one minute.
const LOOKS_MAX: u32 = 4;
/// Time that a stopping server allows its requests and clients, after which the remaining clients
/// are cut off.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for example when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// While requests wait for memory, a client is cut off after this number of consecutive checks that
/// found no progress.
const LOOKS_MAX_WHEN_SHORT: u32 = 1;
/// Check interval that applies after two consecutive checks have found requests that wait for
/// memory. Each client that does not receive its data delays the waiting requests by at most two of
/// these intervals.
const WATCH_INTERVAL_WHEN_SHORT: Duration = Duration::from_secs(2);

/// Resource limits of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Number of threads that do the I/O of socket connections ([`Carrier`]). If it is 0, the
    /// server's own thread does this I/O.
    pub connection_threads: u32,
    /// Memory for the data of all clients' requests in flight, in bytes. `None` means the amount of
    /// memory that the pool has registered, or [`BYTES_IN_FLIGHT_MAX`] if the pool has registered
    /// none. A single request that needs more memory than this is not refused. It waits until no
    /// other request holds memory, except in the part that is reserved for small requests.
    pub data_bytes: Option<u64>,
    /// Memory in bytes for buffers that devices keep after their requests were answered. While the
    /// pool has less memory than it may get, this is taken from what is there before `data_bytes`.
    pub deferred_bytes: u64,
}

impl Limits {
    fn data_memory(&self, rt: &Rt) -> Rc<DataMemory> {
        let registered = match rt.pool().region_bytes() {
            0 => BYTES_IN_FLIGHT_MAX,
            bytes => bytes as u64,
        };
        let data_bytes = self.data_bytes.unwrap_or(registered);
        DataMemory::new(data_bytes, rt.pool(), self.deferred_bytes)
    }
}

/// A connection that is checked for progress.
struct Watched {
    link: Rc<dyn Watchable>,
    /// Result of [`Watchable::stall`] at the last check. `looks` is the number of consecutive
    /// checks that had this result.
    stall: Option<u64>,
    looks: u32,
}

/// Registration of a connection for the progress checks. Dropping the registration ends the checks
/// and cuts the connection off, because no task serves the connection any more.
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
    /// Signals the tasks that wait for a change of the server's state.
    changed: Rc<Event>,
    /// Addresses in use. Where port 0 was requested, they contain the assigned ports.
    bound: RefCell<Vec<Address>>,
    /// Connections that are still sending their last bytes.
    closings: RefCell<Vec<TaskGroup>>,
    watch: RefCell<Option<Task<()>>>,
    /// Threads that carry connections.
    carriers: RefCell<Vec<Carrier>>,
}

/// A running server. It runs until [`stop`](Server::stop) is called, even if every handle has been
/// dropped.
#[derive(Clone)]
pub struct Server(Rc<ServerState>);

impl Server {
    /// Creates a server that does not listen. Connections are passed to it with
    /// [`serve`](Self::serve).
    ///
    /// Each device is wrapped in one atomic unit (a layer that makes unaligned writes atomic).
    /// Every connection to the device shares this unit, including connections to other exports with
    /// the same device name. The shared unit makes `CAN_MULTI_CONN` true and unaligned writes safe.
    pub fn new(rt: &Rt, exports: Vec<(ExportConfig, Rc<dyn Device>)>) -> Server {
        Server::with_limits(rt, exports, Limits::default())
    }

    /// Creates a server as [`new`](Self::new) does, with the given `limits`. Connection threads are
    /// not started; only [`start_within`](Self::start_within) starts them.
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
                Served::new(rt, config, Rc::clone(unit))
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

    /// Starts a server that listens at the addresses of the exports. When this function returns,
    /// the server listens at every address.
    ///
    /// The file of a UNIX socket at which no server answers is removed first. Only the owner can
    /// connect to the new socket (mode 0600), unless the rules of an export admit other users (mode
    /// 0666).
    ///
    /// # Errors
    /// The error of the first address that cannot be used; the server then listens at no address.
    pub async fn start(
        rt: &Rt,
        exports: Vec<(ExportConfig, Rc<dyn Device>)>,
    ) -> Result<Server, StartError> {
        Server::start_within(rt, exports, Limits::default()).await
    }

    /// Starts a server as [`start`](Self::start) does, with the given `limits`.
    ///
    /// # Errors
    /// The errors of `start`, or the reason why a connection thread could not be started.
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

    /// Returns the addresses in use. Where port 0 was requested, they contain the assigned port.
    pub fn addresses(&self) -> Vec<Address> {
        self.0.bound.borrow().clone()
    }

    /// Serves a client on a stream that was connected outside of the server. The client is treated
    /// as an unidentified client that has connected to `address`.
    ///
    /// # Panics
    /// If no export is configured at `address`.
    pub fn serve(&self, address: &Address, stream: Stream) {
        self.serve_client(address, stream, &Client::Unknown);
    }

    /// Serves a client as [`serve`](Self::serve) does. The caller vouches for the identity
    /// `client`.
    ///
    /// # Panics
    /// If no export is configured at `address`.
    pub fn serve_client(&self, address: &Address, stream: Stream, client: &Client) {
        let mut portals = self.0.portals.iter();
        let portal = portals.find(|portal| portal.address == *address);
        let portal = portal.expect("an export is configured at the address");
        admit(&self.0, portal, stream, client);
    }

    /// Returns the number of open connections, including connections in their handshake.
    pub fn connections(&self) -> usize {
        self.0.connections.len()
    }

    /// Returns the number of bytes of memory that the data of requests in flight holds.
    pub fn data_bytes_held(&self) -> u64 {
        self.0.memory.held_bytes()
    }

    /// Reports the live counters of every export, with the name of the export as the part.
    pub fn statistics(&self, out: &mut dyn StatisticVisitor) {
        for export in &self.0.exports {
            export.statistics(out);
        }
    }

    /// Stops the server. The server accepts no more connections or requests, completes the requests
    /// in flight, sends their replies, and disconnects the clients. Returns when every task of the
    /// server has ended. Clients that are still connected after ten seconds, because they do not
    /// receive their replies, are cut off.
    pub async fn stop(&self) {
        let state = &self.0;
        state.stopping.set(true);
        state.changed.notify();
        state.accepting.cancel().await;
        for address in state.bound.take() {
            if let Address::Unix(path) = address {
                // If the file has already been removed, there is nothing to do.
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
                // A client whose process the kernel does not identify is refused.
                Err(error) => {
                    turn_away(
                        &portal,
                        &stream,
                        format_args!("its process cannot be identified: {error}"),
                    );
                }
            },
            // The client left before its connection was accepted, or descriptors have run out. The
            // next accept can succeed after a pause, during which the thread can do other work.
            Err(error) => {
                if ProcessLimit::behind(&error).is_some() {
                    portal.exports[0].refuse(limit_in_words(&error));
                }
                state.rt.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns the identity of the client at the other end of the stream.
fn who(stream: &Stream) -> io::Result<Client> {
    Ok(stream.peer()?.map_or(Client::Unknown, Client::Local))
}

fn turn_away(portal: &Portal, stream: &Stream, why: impl Display) {
    portal.exports[0].refuse(why);
    stream.shutdown();
}

/// Starts a session with a new client, or refuses the client. At an address without TLS, a client
/// without access to any export is refused before it can send anything. The mode of a socket file
/// can also keep users out, but this check does not depend on the mode.
fn admit(state: &Rc<ServerState>, portal: &Rc<Portal>, stream: Stream, client: &Client) {
    // If the address uses TLS, the TLS handshake will identify the client.
    let exports = (!portal.speaks_tls()).then(|| shown_to(client, &portal.exports));
    if state.stopping.get() {
        return turn_away(portal, &stream, "the server is stopping");
    }
    if exports.as_ref().is_some_and(Vec::is_empty) {
        let why = format_args!("`clients` gives {client} no access");
        return turn_away(portal, &stream, why);
    }
    let session = session(state, portal, Cut::new(stream), exports);
    state.connections.spawn(session);
}

/// Serves a client from its first byte to its end. The client gets its slot during this call,
/// before the returned future is polled. Dropping the future at any point releases all resources of
/// the client.
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
/// may see; `None` if they are known only after the TLS handshake.
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
/// may see; `None` if they are known only after the TLS handshake.
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

/// Runs the handshake with a client until the handshake deadline. Returns `None` if the handshake
/// did not succeed in time, or if the server stopped or needed the client's slot.
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
    add(&counters.connections_accepted, 1);
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

/// Serves requests until the client or the server ends the connection, and waits until all requests
/// in flight have been answered or dropped.
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
    // A client that breached the protocol or broke the connection gets no more replies. A client
    // that ended the connection in order still gets the outstanding replies.
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
    /// Moves a connection to the connection thread with the fewest connections. Returns the stream
    /// unchanged if there are no connection threads.
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

/// Cuts off clients for which the server waits in the middle of a message, so that such clients do
/// not hold the server's memory forever. Clients are cut off sooner while requests wait for memory.
/// Because one task checks all connections, the connections need no timers.
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
