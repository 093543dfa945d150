//! Another server's export as a medium: an NBD client that survives a broken connection.
//!
//! Requests are pipelined over one or several connections; everything that waits goes out in one
//! send, and one receive takes every reply that is there. When a connection breaks, what was in
//! flight is sent again over the next one: nobody has an overlapping change in flight at the same
//! time (the atomic unit and the mirror see to that), so doing it twice is doing it once.
//!
//! What a broken connection does to durability is this medium's to say. The server behind it may
//! have restarted and lost its cache, so if there were completed changes that no flush had covered,
//! the next flush fails, once, with [`IoError::Transport`]. It must never succeed: the layer above
//! would take for durable what is gone.

mod agreement;
mod channel;
mod establish;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bimetal_proto::nbd::wire::{command_flag, state, transmission_flag as offer};
use bimetal_proto::nbd::{self, ClientSession, Command};
use bimetal_rt::net::{Address, Stream};
use bimetal_rt::{Payload, Rt, Task};
use serde::{Deserialize, Deserializer, de};

use crate::device::{Device, Figure, FigureVisitor, IoFuture, LocalFuture};
use crate::error::{IoError, OpenError};
use crate::extents::ExtentList;
use crate::geometry::{Geometry, TRANSFER_BYTES_MAX};
use crate::media::tls::TlsConfig;
use crate::request::{BLOCK_BYTES, Extent, IoResult, Op, Reply, Request};
use crate::units::Time;
use channel::Channel;
use establish::establish;

/// Zeroes written at a time where the server cannot write zeroes by itself.
const ZERO_WRITE_BYTES: u64 = 1 << 20;
/// The longest range of one request without payload: the largest whole number of blocks that fits
/// the 32 bits of a length with room to spare.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// The most connections a configuration may ask for.
pub const CONNECTIONS_MAX: u32 = 16;

/// The configuration of `type = "remote"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Where the server listens: `unix:PATH` or `tcp:ADDRESS:PORT`.
    #[serde(deserialize_with = "read_address")]
    pub address: Address,
    /// The name of the export; empty for the server's default.
    #[serde(default)]
    pub export: String,
    /// Connections; more than one only where the server says that a flush covers all of them.
    #[serde(default = "one_connection")]
    pub connections: u32,
    /// How long requests wait for a broken connection to come back.
    #[serde(default = "reconnect_default")]
    pub reconnect: Time,
    /// TLS is spoken with the server, which it is asked for by `STARTTLS`.
    pub tls: Option<TlsConfig>,
    /// What is behind the last whole block of 4 KiB is not needed.
    #[serde(default)]
    pub drop_tail: bool,
}

fn read_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}

fn one_connection() -> u32 {
    1
}

fn reconnect_default() -> Time {
    Time(Duration::from_secs(30))
}

impl RemoteConfig {
    /// The default export of a server, over one connection.
    pub fn new(address: Address) -> RemoteConfig {
        RemoteConfig {
            address,
            export: String::new(),
            connections: one_connection(),
            reconnect: reconnect_default(),
            tls: None,
            drop_tail: false,
        }
    }

    /// What is wrong with the values, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.export.len() > 4096 || self.export.contains('\0') {
            return Err("`export` is longer than 4096 bytes or contains NUL".to_owned());
        }
        if matches!(self.address, Address::Rdma(_)) {
            return Err("NBD is not spoken over RDMA; BRP is (`type = \"brp\"`)".to_owned());
        }
        if self.tls.is_some() && !matches!(self.address, Address::Tcp(_)) {
            return Err("`tls` is for TCP, not for a UNIX socket".to_owned());
        }
        if self.connections == 0 || self.connections > CONNECTIONS_MAX {
            return Err(format!("`connections` must be 1 to {CONNECTIONS_MAX}"));
        }
        Ok(())
    }
}

/// Makes a connection to the server; called again whenever one is needed.
pub type Connector = Rc<dyn Fn() -> LocalFuture<'static, io::Result<Stream>>>;

/// Puts TLS over a connection.
type Secure = Rc<dyn Fn(Stream) -> LocalFuture<'static, io::Result<Stream>>>;

/// How TLS is put over the connections of a configuration, if it is.
fn secure(rt: &Rt, config: &RemoteConfig) -> Option<Secure> {
    let options = config.tls.as_ref()?.options();
    let (rt, address) = (rt.clone(), config.address.clone());
    Some(Rc::new(move |below| {
        let (rt, tls) = (rt.clone(), options.load(&address));
        Box::pin(async move { tls.map_err(io::Error::other)?.connect(&rt, below).await })
    }))
}

/// What the channels share.
struct Shared {
    rt: Rt,
    connector: Connector,
    secure: Option<Secure>,
    export: String,
    reconnect: Duration,
    /// Whom the operator is told about: the address and the export.
    subject: String,
    /// What the layers above were told.
    geometry: Geometry,
    /// What the newest handshake agreed on.
    session: RefCell<ClientSession>,
    channels: Vec<Rc<Channel>>,
    /// Changes that have completed, and how many of them the last flush covered.
    completed: Cell<u64>,
    durable: Cell<u64>,
    /// Changes that had completed may be gone, and no flush has said so yet.
    lost: Cell<bool>,
    breaks: Cell<u64>,
    closing: Cell<bool>,
}

impl Shared {
    fn offers(&self, flag: u16) -> bool {
        self.session.borrow().info.offers(flag)
    }

    /// The channels that are used: the first alone, where a flush does not cover all connections.
    fn channels_used(&self) -> &[Rc<Channel>] {
        let several = self.offers(offer::CAN_MULTI_CONN);
        &self.channels[..if several { self.channels.len() } else { 1 }]
    }

    /// True when a channel must do without a connection.
    fn is_spare(&self, channel: &Channel) -> bool {
        channel.index >= self.channels_used().len()
    }

    /// Takes what another handshake has agreed on, and says in words what is different.
    ///
    /// # Errors
    /// Why the server cannot be used.
    fn agree(&self, session: &ClientSession) -> Result<Vec<String>, String> {
        let changes = agreement::changes(&self.geometry, &self.session.borrow(), session)?;
        self.session.replace(session.clone());
        self.channels.iter().for_each(|channel| channel.wake());
        Ok(changes)
    }

    /// Tells the operator what has become of the connection.
    fn tell(&self, kind: &'static str, message: impl std::fmt::Display) {
        self.rt.notices().post(&self.subject, kind, message);
    }

    /// A change has completed, durable already or not. This is noted when the reply arrives and not
    /// when somebody looks at it, so that a break right behind it counts the change as lost.
    fn note_change(&self, durable: bool) {
        if !durable && self.offers(offer::SEND_FLUSH) {
            self.completed.set(self.completed.get() + 1);
        }
    }

    /// A connection broke: what no flush has covered is no longer certain.
    fn note_break(&self) {
        self.breaks.set(self.breaks.get() + 1);
        if self.completed.get() > self.durable.get() {
            self.lost.set(true);
            self.durable.set(self.completed.get());
        }
    }
}

/// See the module.
pub struct RemoteDevice {
    shared: Rc<Shared>,
    tasks: RefCell<Vec<Task<()>>>,
    next: Cell<usize>,
}

impl RemoteDevice {
    /// Connects to the server of a configuration.
    ///
    /// # Errors
    /// When the server cannot be reached, refuses, or offers what cannot be a medium.
    pub async fn open(rt: &Rt, config: &RemoteConfig) -> Result<RemoteDevice, OpenError> {
        let (rt2, address) = (rt.clone(), config.address.clone());
        let connector: Connector = Rc::new(move || {
            let (rt, address) = (rt2.clone(), address.clone());
            Box::pin(async move { Stream::connect(&rt, &address).await })
        });
        RemoteDevice::over(rt, connector, config).await
    }

    /// Connects to a server through `connector`; the configuration's address is only shown.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn over(
        rt: &Rt,
        connector: Connector,
        config: &RemoteConfig,
    ) -> Result<RemoteDevice, OpenError> {
        let error = |why: String| OpenError::new(format!("{}: {why}", config.address));
        let secure = secure(rt, config);
        let first = establish(
            rt,
            &connector,
            secure.as_ref(),
            &config.export,
            Duration::MAX,
        )
        .await
        .map_err(|why| error(why.to_string()))?;
        let session = first.session.clone();
        let mut geometry = geometry(&session).map_err(error)?;
        if config.drop_tail {
            geometry.tail_bytes = 0;
        }
        let several = session.info.offers(offer::CAN_MULTI_CONN);
        let connections = if several { config.connections } else { 1 };
        let channels = (0..connections).map(|index| Channel::new(index as usize));
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            subject: match config.export.as_str() {
                "" => config.address.to_string(),
                export => format!("{} export {export}", config.address),
            },
            geometry,
            channels: channels.collect(),
            connector,
            secure,
            export: config.export.clone(),
            reconnect: config.reconnect.0,
            session: RefCell::new(session),
            completed: Cell::new(0),
            durable: Cell::new(0),
            lost: Cell::new(false),
            breaks: Cell::new(0),
            closing: Cell::new(false),
        });
        // The first channel has its connection; the others make theirs at once.
        let mut first = Some(first);
        let tasks = shared
            .channels
            .iter()
            .map(|c| rt.spawn(channel::run(Rc::clone(&shared), Rc::clone(c), first.take())))
            .collect();
        Ok(RemoteDevice {
            tasks: RefCell::new(tasks),
            shared,
            next: Cell::new(0),
        })
    }

    /// The channel with the fewest requests, taking turns among equals.
    fn channel(&self) -> &Rc<Channel> {
        let start = self.next.get();
        self.next.set(start.wrapping_add(1));
        let channels = self.shared.channels_used();
        let count = channels.len();
        (0..count)
            .map(|step| &channels[start.wrapping_add(step) % count])
            .min_by_key(|channel| (channel.is_offline(), channel.requests()))
            .expect("there is a channel")
    }

    async fn call(
        &self,
        command: Command,
        flags: u16,
        (offset, len): (u64, u64),
        payload: Payload,
    ) -> IoResult {
        if self.shared.closing.get() {
            return Err(IoError::Closed);
        }
        let request = nbd::Request {
            flags,
            command_wire: command as u16,
            cookie: 0,
            offset_bytes: offset,
            length_bytes: u32::try_from(len).expect("a request is cut to the protocol's length"),
        };
        self.channel().call(&self.shared, request, payload).await
    }

    async fn read(&self, request: Request) -> IoResult {
        let range = (request.offset, request.len);
        self.call(Command::Read, 0, range, Payload::empty()).await
    }

    /// A change of content: the range in pieces as long as the server takes them, then a flush if
    /// the change has to be durable and the server cannot do that with the change.
    async fn change(&self, request: Request) -> IoResult {
        let fua_offered = self.shared.offers(offer::SEND_FUA);
        let durable_at_once = request.flags.fua && fua_offered;
        let mut flags = if durable_at_once {
            command_flag::FUA
        } else {
            0
        };
        let command = match request.op {
            Op::Write => Command::Write,
            Op::Discard if self.shared.offers(offer::SEND_TRIM) => Command::Trim,
            // A discard is advice, and this medium promises nothing about what it leaves.
            Op::Discard => return Ok(Reply::Done),
            _ if self.shared.offers(offer::SEND_WRITE_ZEROES) => {
                if request.flags.keep_allocated {
                    flags |= command_flag::NO_HOLE;
                }
                Command::WriteZeroes
            }
            _ => return self.write_zeroes_as_data(&request).await,
        };
        let step = if command == Command::Write {
            u64::MAX
        } else {
            RANGE_BYTES_MAX
        };
        let mut start = request.offset;
        while start < request.end() {
            let end = request.end().min(start.saturating_add(step));
            let part = request.part(start, end, start);
            self.call(command, flags, (start, end - start), part.payload)
                .await?;
            start = end;
        }
        if request.flags.fua && !durable_at_once {
            self.flush().await?;
        }
        Ok(Reply::Done)
    }

    async fn write_zeroes_as_data(&self, request: &Request) -> IoResult {
        let zeroes = self
            .shared
            .rt
            .pool()
            .zeroed(ZERO_WRITE_BYTES.min(request.len) as usize);
        let mut start = request.offset;
        while start < request.end() {
            let end = request.end().min(start + ZERO_WRITE_BYTES);
            let payload = Payload::from(zeroes.slice(0..(end - start) as usize));
            Box::pin(self.change(Request::write(start, payload, request.flags))).await?;
            start = end;
        }
        Ok(Reply::Done)
    }

    /// Makes completed changes durable. A server that offers no flush says that there is nothing
    /// to be flushed (NBD, section "Transmission flags").
    async fn flush(&self) -> IoResult {
        let covered = self.shared.completed.get();
        if self.shared.offers(offer::SEND_FLUSH) {
            self.call(Command::Flush, 0, (0, 0), Payload::empty())
                .await?;
        }
        if self.shared.lost.get() {
            return Err(IoError::Transport);
        }
        self.shared
            .durable
            .set(self.shared.durable.get().max(covered));
        Ok(Reply::Done)
    }

    /// A flush that somebody asked for, who so learns of lost changes.
    async fn flush_and_tell(&self) -> IoResult {
        if self.shared.lost.take() {
            return Err(IoError::Transport);
        }
        let result = self.flush().await;
        // The connection broke on the way: this flush is the one that tells.
        if self.shared.lost.take() {
            return Err(IoError::Transport);
        }
        result
    }

    async fn extents(&self, request: Request) -> IoResult {
        let mut extents = ExtentList::new(request.extents_max);
        let describes = |session: &ClientSession| session.negotiated.base_allocation_id.is_some();
        if !describes(&self.shared.session.borrow()) {
            let len = request.len;
            extents.push(Extent { len, data: true });
            return Ok(extents.into_reply());
        }
        if request.len == 0 {
            return Ok(extents.into_reply());
        }
        let flags = match request.extents_max {
            1 => command_flag::REQ_ONE,
            _ => 0,
        };
        // A server may describe less than it was asked about, but always something.
        let range = (request.offset, request.len.min(RANGE_BYTES_MAX));
        let reply = self
            .call(Command::BlockStatus, flags, range, Payload::empty())
            .await?;
        let mut end = 0;
        for run in reply.into_extents() {
            end += run.len;
            extents.push_until(end, request.len, run.data);
        }
        Ok(extents.or_one_block(request.len).into_reply())
    }
}

/// An extent of `base:allocation`: what reads as zeroes is a hole here.
fn from_wire(extent: &nbd::Extent) -> Extent {
    Extent {
        len: u64::from(extent.length_bytes),
        data: extent.status & state::ZERO == 0,
    }
}

/// What the server's description means for the layers above.
fn geometry(session: &ClientSession) -> Result<Geometry, String> {
    let info = &session.info;
    if u64::from(info.min_block_bytes) > BLOCK_BYTES {
        let min = info.min_block_bytes;
        return Err(format!(
            "the export's smallest block is {min} bytes, more than 4096"
        ));
    }
    // A tail that is no whole block could not be written whole or not at all.
    let whole = Geometry::of_whole_blocks(info.size_bytes);
    let longest_bytes = info.max_payload_bytes.min(TRANSFER_BYTES_MAX);
    let transfer_bytes_max = longest_bytes - longest_bytes % BLOCK_BYTES as u32;
    if whole.size_bytes == 0 || u64::from(transfer_bytes_max) < BLOCK_BYTES {
        return Err(
            "the export is smaller than a block of 4096 bytes, or takes no such".to_owned(),
        );
    }
    Ok(Geometry {
        block_bytes: info.min_block_bytes,
        preferred_bytes: info.preferred_block_bytes,
        transfer_bytes_max,
        writable: !info.offers(offer::READ_ONLY),
        discard_zeroes: false,
        rotational: info.offers(offer::ROTATIONAL),
        ..whole
    })
}

impl Device for RemoteDevice {
    fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(e) = self.shared.geometry.check(&request) {
            return IoFuture::ready(Err(e));
        }
        match request.op {
            Op::Read => IoFuture::new(self.read(request)),
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::new(self.change(request)),
            Op::Flush => IoFuture::new(self.flush_and_tell()),
            Op::Extents => IoFuture::new(self.extents(request)),
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async move {
            let flushed = if self.shared.geometry.writable && !self.shared.closing.get() {
                self.flush_and_tell().await
            } else {
                Ok(Reply::Done)
            };
            self.shared.closing.set(true);
            for channel in &self.shared.channels {
                channel.wake();
            }
            let tasks = self.tasks.take();
            for task in tasks {
                task.await;
            }
            flushed.map(|_| ())
        })
    }

    fn interruptions(&self) -> Option<u64> {
        Some(self.shared.breaks.get())
    }

    fn figures(&self, out: &mut dyn FigureVisitor) {
        let used = self.shared.channels_used().iter();
        let health = if used.clone().all(|channel| channel.is_online()) {
            "healthy"
        } else if used.clone().any(|channel| channel.is_offline()) {
            "offline"
        } else {
            "connecting"
        };
        out.figure("", "health", Figure::State(health.to_owned()));
        let channels = &self.shared.channels;
        let online = channels.iter().filter(|channel| channel.is_online());
        out.figure("", "connections", Figure::Gauge(online.count() as f64));
        let requests: usize = channels.iter().map(|channel| channel.requests()).sum();
        out.figure("", "requests_in_flight", Figure::Gauge(requests as f64));
        out.figure(
            "",
            "connections_broken",
            Figure::Counter(self.shared.breaks.get()),
        );
    }
}

#[cfg(test)]
mod tests {
    use bimetal_proto::nbd::{ExportInfo, Negotiated};

    use super::*;

    fn described(size_bytes: u64, min: u32, max: u32) -> Result<Geometry, String> {
        geometry(&ClientSession {
            info: ExportInfo {
                size_bytes,
                transmission_flags: offer::HAS_FLAGS | offer::READ_ONLY | offer::ROTATIONAL,
                min_block_bytes: min,
                preferred_block_bytes: 65_536,
                max_payload_bytes: max,
            },
            block_sizes_advertised: true,
            negotiated: Negotiated::default(),
        })
    }

    #[test]
    fn the_description_of_an_export_becomes_a_geometry() {
        let geometry = described((1 << 20) + 512, 512, 64 << 20).unwrap();
        // The tail of 512 bytes is no block, and no layer takes more than 32 MiB at a time.
        assert_eq!((geometry.size_bytes, geometry.tail_bytes), (1 << 20, 512));
        assert_eq!(geometry.transfer_bytes_max, 32 << 20);
        assert_eq!(
            (geometry.block_bytes, geometry.preferred_bytes),
            (512, 65_536)
        );
        assert!(!geometry.writable && geometry.rotational);
        assert!(
            described(1 << 20, 8192, 1 << 20)
                .unwrap_err()
                .contains("8192")
        );
        assert!(described(4095, 1, 1 << 20).is_err());
        // Layers ask for whole blocks.
        assert_eq!(
            described(1 << 20, 1, 13_000).unwrap().transfer_bytes_max,
            12_288
        );
    }
}
