//! Another server's export as a medium: an NBD client that survives a broken connection.
//!
//! Requests are pipelined over one or several connections; one send carries all waiting requests,
//! and one receive accepts every reply that has arrived. When a connection breaks, the requests in
//! flight are sent again over the next connection. Repeating them is harmless, because no
//! overlapping change is in flight at the same time (the atomic unit and the mirror ensure that).
//!
//! This medium must account for the effect of a broken connection on durability. The server can
//! have restarted and lost its cache. So if a connection breaks while completed changes are not
//! covered by a flush, the next flush fails, once, with [`IoError::Transport`]. That flush must
//! never succeed, because the layer above would then consider lost changes durable.

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

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::extents::ExtentList;
use crate::geometry::{Geometry, TRANSFER_BYTES_MAX};
use crate::media::tls::TlsConfig;
use crate::request::{BLOCK_BYTES, Extent, IoResult, Op, Reply, Request};
use crate::units::Time;
use channel::Channel;
use establish::establish;

/// Number of bytes of zeroes in one write, used if the server does not support write-zeroes.
const ZERO_WRITE_BYTES: u64 = 1 << 20;
/// Longest range of one request without payload: a whole number of blocks, well below the limit of
/// a 32-bit length.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of connections that a configuration can request.
pub const CONNECTIONS_MAX: u32 = 16;

/// The configuration of `type = "remote"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Address of the server: `unix:PATH` or `tcp:ADDRESS:PORT`.
    #[serde(deserialize_with = "read_address")]
    pub address: Address,
    /// Name of the export; empty for the server's default.
    #[serde(default)]
    pub export: String,
    /// Number of connections. More than one connection is used only if the server declares that a
    /// flush covers all connections.
    #[serde(default = "one_connection")]
    pub connections: u32,
    /// Maximum time that requests wait for a broken connection to be restored.
    #[serde(default = "reconnect_default")]
    pub reconnect: Time,
    /// TLS settings; if present, the client requests TLS from the server with `STARTTLS`.
    pub tls: Option<TlsConfig>,
    /// Permits an export whose size is not a multiple of 4 KiB. The bytes after its last whole
    /// block are then not accessible.
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
    /// Creates a configuration for the default export of a server, over one connection.
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

    /// Checks the values against their limits; an error says which value is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.export.len() > 4096 || self.export.contains('\0') {
            return Err("`export` is longer than 4096 bytes or contains NUL".to_owned());
        }
        if matches!(self.address, Address::Rdma(_)) {
            return Err("NBD is not possible over RDMA; use BRP (`type = \"brp\"`)".to_owned());
        }
        if self.tls.is_some() && !matches!(self.address, Address::Tcp(_)) {
            return Err("`tls` is possible over TCP only, not over a UNIX socket".to_owned());
        }
        if self.connections == 0 || self.connections > CONNECTIONS_MAX {
            return Err(format!("`connections` must be 1 to {CONNECTIONS_MAX}"));
        }
        Ok(())
    }
}

/// A function that connects to the server; called whenever a connection is needed.
pub type Connector = Rc<dyn Fn() -> LocalFuture<'static, io::Result<Stream>>>;

/// A function that wraps a connection in TLS.
type Secure = Rc<dyn Fn(Stream) -> LocalFuture<'static, io::Result<Stream>>>;

/// Returns a function that wraps connections in TLS, if the configuration requests TLS.
fn secure(rt: &Rt, config: &RemoteConfig) -> Option<Secure> {
    let options = config.tls.as_ref()?.options();
    let (rt, address) = (rt.clone(), config.address.clone());
    Some(Rc::new(move |below| {
        let (rt, tls) = (rt.clone(), options.load(&address));
        Box::pin(async move { tls.map_err(io::Error::other)?.connect(&rt, below).await })
    }))
}

/// State shared by the channels.
struct Shared {
    rt: Rt,
    connector: Connector,
    secure: Option<Secure>,
    export: String,
    reconnect: Duration,
    /// Subject of notices to the operator: the address and the export.
    subject: String,
    /// Geometry reported to the layers above.
    geometry: Geometry,
    /// Session negotiated by the newest handshake.
    session: RefCell<ClientSession>,
    channels: Vec<Rc<Channel>>,
    /// Number of completed changes that needed a flush to become durable; `durable` is this number
    /// at the start of the last successful flush.
    completed: Cell<u64>,
    durable: Cell<u64>,
    /// True if completed changes might be lost and no flush has reported the loss yet.
    lost: Cell<bool>,
    breaks: Cell<u64>,
    closing: Cell<bool>,
}

impl Shared {
    fn offers(&self, flag: u16) -> bool {
        self.session.borrow().info.offers(flag)
    }

    /// Returns the channels in use: only the first channel if a flush does not cover all
    /// connections.
    fn channels_used(&self) -> &[Rc<Channel>] {
        let several = self.offers(offer::CAN_MULTI_CONN);
        &self.channels[..if several { self.channels.len() } else { 1 }]
    }

    /// Returns true if the channel must not have a connection, because only the first channel is
    /// used.
    fn is_spare(&self, channel: &Channel) -> bool {
        channel.index >= self.channels_used().len()
    }

    /// Adopts the session that a new handshake has negotiated, and describes how it differs from
    /// the previous session.
    ///
    /// # Errors
    /// A message that says why the server cannot be used.
    fn agree(&self, session: &ClientSession) -> Result<Vec<String>, String> {
        let changes = agreement::changes(&self.geometry, &self.session.borrow(), session)?;
        self.session.replace(session.clone());
        self.channels.iter().for_each(|channel| channel.wake());
        Ok(changes)
    }

    /// Posts a notice to the operator about the connection.
    fn tell(&self, kind: &'static str, message: impl std::fmt::Display) {
        self.rt.notices().post(&self.subject, kind, message);
    }

    /// Records that a change has completed; `durable` is true if the change is already durable.
    /// This runs when the reply arrives, not when the waiting future is polled. So if the
    /// connection breaks right after the reply, the change is recorded as possibly lost.
    fn note_change(&self, durable: bool) {
        if !durable && self.offers(offer::SEND_FLUSH) {
            self.completed.set(self.completed.get() + 1);
        }
    }

    /// Records that a connection broke. Completed changes that no flush has covered might be lost.
    fn note_break(&self) {
        self.breaks.set(self.breaks.get() + 1);
        if self.completed.get() > self.durable.get() {
            self.lost.set(true);
            self.durable.set(self.completed.get());
        }
    }
}

/// An NBD export as a device; see the module.
pub struct RemoteDevice {
    shared: Rc<Shared>,
    tasks: RefCell<Vec<Task<()>>>,
    next: Cell<usize>,
}

impl RemoteDevice {
    /// Connects to the server of a configuration.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses the connection, or when its export is not
    /// usable as a medium.
    pub async fn open(rt: &Rt, config: &RemoteConfig) -> Result<RemoteDevice, OpenError> {
        let (rt2, address) = (rt.clone(), config.address.clone());
        let connector: Connector = Rc::new(move || {
            let (rt, address) = (rt2.clone(), address.clone());
            Box::pin(async move { Stream::connect(&rt, &address).await })
        });
        RemoteDevice::over(rt, connector, config).await
    }

    /// Connects to a server through `connector`. The address of the configuration is only used in
    /// messages.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
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
        // The first channel already has its connection; the other channels connect immediately.
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

    /// Returns the channel with the fewest requests. Channels that are not offline are preferred,
    /// and equal channels are chosen round robin.
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

    /// Executes a change: sends its range in pieces that the server accepts, and then flushes if
    /// the change has to be durable but the server does not support FUA.
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
            // A discard is only advice, and this medium does not promise how a discarded range
            // reads.
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

    /// Makes completed changes durable. A server that offers no flush declares that no flush is
    /// needed (NBD, section "Transmission flags").
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

    /// Executes a flush request of the layer above. If completed changes might be lost, the flush
    /// fails. This failure tells the layer above about the loss.
    async fn flush_and_tell(&self) -> IoResult {
        if self.shared.lost.take() {
            return Err(IoError::Transport);
        }
        let result = self.flush().await;
        // A connection broke during the flush, so completed changes might be lost. The flush fails,
        // to report the loss.
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
        // The server is allowed to describe only a part of the range, but never an empty part.
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

/// Converts an extent of `base:allocation`: an extent that reads as zeroes becomes a hole.
fn from_wire(extent: &nbd::Extent) -> Extent {
    Extent {
        len: u64::from(extent.length_bytes),
        data: extent.status & state::ZERO == 0,
    }
}

/// Computes the geometry from the server's description of the export.
fn geometry(session: &ClientSession) -> Result<Geometry, String> {
    let info = &session.info;
    if u64::from(info.min_block_bytes) > BLOCK_BYTES {
        let min = info.min_block_bytes;
        return Err(format!(
            "the export's smallest block is {min} bytes, more than 4096"
        ));
    }
    // Bytes after the last whole block could not be written atomically, so the device ends before
    // them.
    let whole = Geometry::of_whole_blocks(info.size_bytes);
    let longest_bytes = info.max_payload_bytes.min(TRANSFER_BYTES_MAX);
    let transfer_bytes_max = longest_bytes - longest_bytes % BLOCK_BYTES as u32;
    if whole.size_bytes == 0 || u64::from(transfer_bytes_max) < BLOCK_BYTES {
        return Err(
            "the export is smaller than a block of 4096 bytes, or accepts no requests of that size"
                .to_owned(),
        );
    }
    Ok(Geometry {
        block_bytes: info.min_block_bytes,
        preferred_bytes: info.preferred_block_bytes,
        transfer_bytes_max,
        writable: !info.offers(offer::READ_ONLY),
        discard_zeroes: false,
        wants_discards: info.offers(offer::SEND_TRIM),
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

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let used = self.shared.channels_used().iter();
        let health = if used.clone().all(|channel| channel.is_online()) {
            "healthy"
        } else if used.clone().any(|channel| channel.is_offline()) {
            "offline"
        } else {
            "connecting"
        };
        out.statistic("", "health", Statistic::State(health.to_owned()));
        let channels = &self.shared.channels;
        let online = channels.iter().filter(|channel| channel.is_online());
        out.statistic("", "connections", Statistic::Gauge(online.count() as f64));
        let requests: usize = channels.iter().map(|channel| channel.requests()).sum();
        out.statistic("", "requests_in_flight", Statistic::Gauge(requests as f64));
        out.statistic(
            "",
            "connections_broken",
            Statistic::Counter(self.shared.breaks.get()),
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
        // The last 512 bytes are not a whole block, and no layer accepts more than 32 MiB in one
        // request.
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
        // Layers request whole blocks, so the limit is rounded down.
        assert_eq!(
            described(1 << 20, 1, 13_000).unwrap().transfer_bytes_max,
            12_288
        );
    }
}
