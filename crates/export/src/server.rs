//! The server: listeners, the connections they bring, and their orderly end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::{Device, FigureVisitor};
use bimetal_rt::net::{Address, Listener, Stream};
use bimetal_rt::sync::{Event, TaskGroup};
use bimetal_rt::{Rt, Task};
use futures_util::future::{Either, select};

use crate::access::Client;
use crate::brp::{self, Target};
use crate::config::{ExportConfig, Protocol};
use crate::export::{Served, Shown, add, shown_to};
use crate::input::End;
use crate::link::Watchable;
use crate::nbd;
use crate::session::Conversation;

/// Connections of one address that are still in their handshake or about to be refused, on top of
/// those its exports allow.
const HANDSHAKES_MAX: u32 = 16;
/// The mode of a socket's file that rules open to other users: connecting takes the right to write.
const SHARED_MODE: u32 = 0o666;
/// The watch looks this often whether clients that keep the server waiting make progress.
const WATCH_INTERVAL: Duration = Duration::from_secs(15);
/// Looks in a row without progress after which a client is cut off: a minute.
const LOOKS_MAX: u32 = 4;
/// A stopping server waits this long for clients to take their last replies.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// The pause after a failed accept (no file descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a server could not start: one line for the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Somebody answers at the address.
    #[error("export {export}: {address} is in use by another server")]
    InUse {
        /// The first export that wants the address.
        export: String,
        /// The address.
        address: Address,
    },
    /// The path of a UNIX socket holds something else.
    #[error("export {export}: {} exists and is not a socket", path.display())]
    NotASocket {
        /// The first export that wants the path.
        export: String,
        /// The path.
        path: PathBuf,
    },
    /// Listening failed.
    #[error("export {export}: cannot listen on {address}: {error}")]
    Listen {
        /// The first export that wants the address.
        export: String,
        /// The address.
        address: Address,
        /// What the kernel said.
        error: io::Error,
    },
}

/// An address with its exports.
struct Portal {
    address: Address,
    protocol: Protocol,
    /// The default one first.
    exports: Vec<Rc<Served>>,
    connections: Cell<u32>,
    connections_max: u32,
}

/// A connection under the watch.
struct Watched {
    link: Rc<dyn Watchable>,
    /// What [`Watchable::stall`] said last, and how many times in a row.
    stall: Option<u64>,
    looks: u32,
}

struct State {
    rt: Rt,
    portals: Vec<Rc<Portal>>,
    exports: Vec<Rc<Served>>,
    connections: TaskGroup,
    accepting: TaskGroup,
    watched: RefCell<BTreeMap<u64, Watched>>,
    next_key: Cell<u64>,
    stopping: Cell<bool>,
    target: Rc<Target>,
    /// Something of the above changed that a task may wait for.
    changed: Rc<Event>,
    /// Addresses in use, with the ports that were chosen.
    bound: RefCell<Vec<Address>>,
    watch: RefCell<Option<Task<()>>>,
}

/// A running server. It runs until [`stop`](Server::stop), also when every handle is gone.
#[derive(Clone)]
pub struct Server(Rc<State>);

impl Server {
    /// A server that does not listen yet; it takes connections through [`serve`](Self::serve).
    ///
    /// Each device is put behind one atomic unit, which every connection to it shares, also those
    /// to other exports of the same device name: that makes `CAN_MULTI_CONN` true and unaligned
    /// writes safe.
    pub fn new(rt: &Rt, exports: Vec<(ExportConfig, Rc<dyn Device>)>) -> Server {
        let mut units: BTreeMap<String, Rc<dyn Device>> = BTreeMap::new();
        let served: Vec<Rc<Served>> = exports
            .into_iter()
            .map(|(config, device)| {
                let unit = units
                    .entry(config.device.clone())
                    .or_insert_with(|| Rc::new(AtomicUnit::new(rt, device)));
                Served::new(config, Rc::clone(unit))
            })
            .collect();
        let changed = Rc::new(Event::new());
        let state = Rc::new(State {
            rt: rt.clone(),
            portals: portals(&served),
            exports: served,
            connections: TaskGroup::new(rt),
            accepting: TaskGroup::new(rt),
            watched: RefCell::new(BTreeMap::new()),
            next_key: Cell::new(0),
            stopping: Cell::new(false),
            target: Target::new(rt, Rc::clone(&changed)),
            changed,
            bound: RefCell::new(Vec::new()),
            watch: RefCell::new(None),
        });
        let watch = rt.spawn(watch(Rc::clone(&state)));
        *state.watch.borrow_mut() = Some(watch);
        Server(state)
    }

    /// Serves the exports at their addresses; once this returns, every one of them listens.
    ///
    /// The file of a UNIX socket that nobody answers at is removed first; the new one is open to
    /// its owner alone (mode 0600), unless the rules of an export are about others (mode 0666).
    ///
    /// # Errors
    /// The first address that cannot be used; nothing listens then.
    pub async fn start(
        rt: &Rt,
        exports: Vec<(ExportConfig, Rc<dyn Device>)>,
    ) -> Result<Server, StartError> {
        let server = Server::new(rt, exports);
        match server.listen().await {
            Ok(()) => Ok(server),
            Err(error) => {
                server.stop().await;
                Err(error)
            }
        }
    }

    async fn listen(&self) -> Result<(), StartError> {
        for portal in &self.0.portals {
            let listener = bind(&self.0.rt, portal).await?;
            self.0.bound.borrow_mut().push(listener.address().clone());
            let accept = accept(Rc::clone(&self.0), Rc::clone(portal), listener);
            self.0.accepting.spawn(accept);
        }
        Ok(())
    }

    /// The addresses in use, with the ports that were chosen where port 0 was asked for.
    pub fn addresses(&self) -> Vec<Address> {
        self.0.bound.borrow().clone()
    }

    /// Serves a client of whom nothing is known on a stream that was connected by other means, as if it
    /// had come to `address`.
    ///
    /// # Panics
    /// When no export is configured at that address.
    pub fn serve(&self, address: &Address, stream: Stream) {
        self.serve_client(address, stream, &Client::Unknown);
    }

    /// As [`serve`](Self::serve), for a client somebody vouches for.
    ///
    /// # Panics
    /// As `serve`.
    pub fn serve_client(&self, address: &Address, stream: Stream, client: &Client) {
        let mut portals = self.0.portals.iter();
        let portal = portals.find(|portal| portal.address == *address);
        let portal = portal.expect("an export is configured at the address");
        admit(&self.0, portal, stream, client);
    }

    /// Connections that are open, in their handshake or after it.
    pub fn connections(&self) -> usize {
        self.0.connections.len()
    }

    /// Gives the live figures of every export; the part is the export's name.
    pub fn figures(&self, out: &mut dyn FigureVisitor) {
        for export in &self.0.exports {
            export.figures(out);
        }
    }

    /// Ends the server: takes no more connections or requests, lets requests in flight finish and
    /// sends their replies, disconnects the clients, and returns when every task of the server has
    /// ended. A client that does not take its replies is cut off after ten seconds.
    pub async fn stop(&self) {
        let state = &self.0;
        state.stopping.set(true);
        state.changed.notify();
        state.accepting.cancel().await;
        for address in state.bound.take() {
            if let Address::Unix(path) = address {
                // Whoever removed it before has done this work.
                let _ = std::fs::remove_file(path);
            }
        }
        let joined = state.rt.timeout(STOP_GRACE, state.connections.join()).await;
        if joined.is_err() {
            let watched = state.watched.borrow();
            watched.values().for_each(|watched| watched.link.cut());
        }
        state.connections.join().await;
        let watch = state.watch.borrow_mut().take();
        if let Some(watch) = watch {
            watch.cancel().await;
        }
    }
}

/// The exports by address, the default one of each address first.
fn portals(served: &[Rc<Served>]) -> Vec<Rc<Portal>> {
    let mut by_address: BTreeMap<String, Vec<Rc<Served>>> = BTreeMap::new();
    for export in served {
        let address = export.config.listen.to_string();
        by_address
            .entry(address)
            .or_default()
            .push(Rc::clone(export));
    }
    by_address
        .into_values()
        .map(|mut exports| {
            exports.sort_by(|a, b| {
                let key = |e: &Served| (!e.config.default, e.config.name.clone());
                key(a).cmp(&key(b))
            });
            let limits = exports.iter().map(|e| e.config.connections_max);
            let connections_max = limits.fold(HANDSHAKES_MAX, u32::saturating_add);
            Rc::new(Portal {
                address: exports[0].config.listen.clone(),
                protocol: exports[0].config.protocol,
                exports,
                connections: Cell::new(0),
                connections_max,
            })
        })
        .collect()
}

async fn bind(rt: &Rt, portal: &Portal) -> Result<Listener, StartError> {
    let (export, address) = (portal.exports[0].config.name.clone(), &portal.address);
    if let Address::Unix(path) = address {
        clear_path(rt, &export, address, path).await?;
    }
    let bound = Listener::bind(rt, address).and_then(|listener| {
        open_up(portal)?;
        Ok(listener)
    });
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::InUse {
            export,
            address: address.clone(),
        },
        _ => StartError::Listen {
            export,
            address: address.clone(),
            error,
        },
    })
}

/// Lets every user of the machine connect to a socket whose exports have rules for more than the owner;
/// what they may do there, the rules say.
fn open_up(portal: &Portal) -> io::Result<()> {
    let is_for_others = portal.exports.iter().any(|e| e.config.is_for_others());
    match &portal.address {
        Address::Unix(path) if is_for_others => {
            std::fs::set_permissions(path, Permissions::from_mode(SHARED_MODE))
        }
        _ => Ok(()),
    }
}

/// Removes the socket file of a server that is gone.
async fn clear_path(
    rt: &Rt,
    export: &str,
    address: &Address,
    path: &Path,
) -> Result<(), StartError> {
    match std::fs::symlink_metadata(path) {
        // What is wrong with the path, binding will say.
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(StartError::NotASocket {
                export: export.to_owned(),
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    let listen_error = |error| StartError::Listen {
        export: export.to_owned(),
        address: address.clone(),
        error,
    };
    match Stream::connect(rt, address).await {
        Ok(_) => Err(StartError::InUse {
            export: export.to_owned(),
            address: address.clone(),
        }),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(listen_error)
        }
        Err(error) => Err(listen_error(error)),
    }
}

async fn accept(state: Rc<State>, portal: Rc<Portal>, listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(stream) => match who(&stream) {
                Ok(client) => admit(&state, &portal, stream, &client),
                // Nobody vouches for a process that the kernel does not name.
                Err(_) => turn_away(&portal, &stream),
            },
            // The client left before it was accepted, or descriptors have run out: the next one
            // may do better, after a pause that keeps the shard free.
            Err(_) => state.rt.sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Who has connected.
fn who(stream: &Stream) -> io::Result<Client> {
    Ok(stream.peer()?.map_or(Client::Unknown, Client::Local))
}

fn turn_away(portal: &Portal, stream: &Stream) {
    add(&portal.exports[0].counters.connections_refused, 1);
    stream.shutdown();
}

/// Starts a session with a new client, or turns it away. One that may know of no export may not speak at
/// all: the mode of the socket's file keeps others out, and this holds where the file has another mode.
fn admit(state: &Rc<State>, portal: &Rc<Portal>, stream: Stream, client: &Client) {
    let no_room = state.stopping.get() || portal.connections.get() >= portal.connections_max;
    let exports = shown_to(client, &portal.exports);
    if no_room || exports.is_empty() {
        return turn_away(portal, &stream);
    }
    portal.connections.set(portal.connections.get() + 1);
    let (shared, portal) = (Rc::clone(state), Rc::clone(portal));
    state.connections.spawn(async move {
        session(&shared, &portal, exports, stream).await;
        portal.connections.set(portal.connections.get() - 1);
    });
}

/// One client from its handshake to its end.
async fn session(state: &Rc<State>, portal: &Portal, exports: Vec<Shown>, stream: Stream) {
    match portal.protocol {
        Protocol::Nbd => nbd_session(state, portal, &exports, stream).await,
        Protocol::Brp => brp_session(state, portal, &exports, stream).await,
    }
}

async fn nbd_session(state: &Rc<State>, portal: &Portal, exports: &[Shown], stream: Stream) {
    let directory = nbd::Directory(exports);
    let handshake = nbd::handshake(&state.rt, &stream, &directory);
    let Some((session, early)) = greet(state, portal, handshake).await else {
        return stream.shutdown();
    };
    let export = &exports[session.export_index].export;
    let counters = &export.counters;
    if counters.connections.get() >= export.config.connections_max {
        add(&counters.connections_refused, 1);
        return stream.shutdown();
    }
    let transmission = nbd::Transmission::new(&state.rt, stream, Rc::clone(export), session);
    converse(state, export, transmission, &early).await;
}

async fn brp_session(state: &Rc<State>, portal: &Portal, exports: &[Shown], stream: Stream) {
    let greeting = brp::greet(&state.rt, &stream, &state.target, exports);
    let Some(mut taken) = greet(state, portal, greeting).await else {
        return stream.shutdown();
    };
    let (export, early) = (Rc::clone(&taken.export), std::mem::take(&mut taken.early));
    let transmission = brp::Transmission::new(&state.rt, stream, &state.target, taken);
    converse(state, &export, transmission, &early).await;
}

/// Leads a client through its handshake; `None` when it does not stay.
async fn greet<T>(
    state: &Rc<State>,
    portal: &Portal,
    handshake: impl Future<Output = Result<Option<T>, End>>,
) -> Option<T> {
    let stopped = std::pin::pin!(state.changed.until(|| state.stopping.get()));
    let greeted = std::pin::pin!(handshake);
    match select(greeted, stopped).await {
        Either::Left((Ok(agreed), _)) => agreed,
        Either::Left((Err(End::Protocol), _)) => {
            add(&portal.exports[0].counters.protocol_errors, 1);
            None
        }
        Either::Left((Err(End::Client | End::Broken), _)) | Either::Right(_) => None,
    }
}

/// One client from the end of its handshake to its own.
async fn converse<C: Conversation<Reply: 'static> + 'static>(
    state: &Rc<State>,
    export: &Served,
    conversation: Rc<C>,
    early: &[u8],
) {
    let counters = &export.counters;
    counters.connections.set(counters.connections.get() + 1);
    add(&counters.connections_total, 1);
    let link: Rc<dyn Watchable> = Rc::clone(conversation.link()) as _;
    let key = state.watch_over(link);
    let end = transmit(state, &conversation, early).await;
    if let End::Protocol = end {
        add(&counters.protocol_errors, 1);
    }
    conversation.settled();
    state.watched.borrow_mut().remove(&key);
    counters.connections.set(counters.connections.get() - 1);
}

/// Serves requests until the client or the server ends it, and settles what is in flight.
async fn transmit<C: Conversation + 'static>(
    state: &Rc<State>,
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
    // A client that breached the protocol or broke off gets no more replies; one that ended in
    // order gets those that are due.
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

impl State {
    fn watch_over(&self, link: Rc<dyn Watchable>) -> u64 {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let watched = Watched {
            link,
            stall: None,
            looks: 0,
        };
        self.watched.borrow_mut().insert(key, watched);
        self.changed.notify();
        key
    }
}

/// Cuts off clients that keep the server waiting in the middle of a message, so that they do not
/// hold its memory for ever. One task for all costs the connections no timers.
async fn watch(state: Rc<State>) {
    loop {
        let somebody = || !state.watched.borrow().is_empty();
        state.changed.until(somebody).await;
        state.rt.sleep(WATCH_INTERVAL).await;
        for watched in state.watched.borrow_mut().values_mut() {
            let stall = watched.link.stall();
            let stalled = stall.is_some() && stall == watched.stall;
            watched.looks = if stalled { watched.looks + 1 } else { 0 };
            watched.stall = stall;
            if watched.looks >= LOOKS_MAX {
                watched.link.cut();
            }
        }
    }
}
