//! Another server's export as a medium, over BRP. A BRP session survives broken connections; it
//! also survives the death of the server, as long as the changes to be repeated fit the configured
//! limit.
//!
//! The client crate transmits the requests; this medium only translates its answers for the stack.
//! It must never report a flush as successful if the session has not made the changes durable. It
//! counts a new instance of the server as an interruption, because the new instance can hold an
//! older copy of the same volume.

use std::time::Duration;

use bimetal_client::{
    Answer, Call, Connector, Error, Mode, Op as Command, Options, Session, Status, Welcome, right,
};
use bimetal_rt::Rt;
use bimetal_rt::net::Address;
use serde::{Deserialize, Deserializer, de};

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::extents::ExtentList;
use crate::geometry::{Geometry, TRANSFER_BYTES_MAX};
use crate::media::tls::TlsConfig;
use crate::request::{BLOCK_BYTES, IoResult, Op, Reply, Request};
use crate::units::{Size, Time};

/// The configuration of `type = "brp"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrpConfig {
    /// Addresses of the server, one or several, each of the form `unix:PATH`, `tcp:ADDRESS:PORT` or
    /// `rdma:ADDRESS:PORT`.
    #[serde(deserialize_with = "read_addresses")]
    pub address: Vec<Address>,
    /// The name of the export; empty for the server's default.
    #[serde(default)]
    pub export: String,
    /// Number of connections, which are assigned to the addresses round robin.
    #[serde(default = "one_connection")]
    pub connections: u32,
    /// Maximum time that requests wait for an unreachable server.
    #[serde(default = "reconnect_default")]
    pub reconnect: Time,
    /// How requests are merged into frames.
    #[serde(default)]
    pub mode: ModeName,
    /// Whether each request and its data are protected by a CRC from end to end.
    #[serde(default)]
    pub crc: bool,
    /// Maximum total size of the copies of changes that the client keeps. The client keeps a copy
    /// of each change that would be lost if the server died.
    #[serde(default = "keep_default")]
    pub keep: Size,
    /// TLS settings, if the server is contacted over TLS.
    pub tls: Option<TlsConfig>,
    /// Permits an export whose size is not a multiple of 4 KiB. The bytes after its last whole
    /// block are then not accessible.
    #[serde(default)]
    pub drop_tail: bool,
}

/// How requests are merged into frames; see `docs/brp.md`, section "Temporal merge".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeName {
    /// Merges requests once the queue is so deep that merging saves time.
    #[default]
    Adaptive,
    /// BRP-1: one request per frame, executed serially.
    Short,
    /// BRP-2: one request per frame, executed in parallel.
    Parallel,
    /// BRP-3T: several small requests per frame, executed in parallel.
    Merge,
    /// BRP-3T: several small requests per frame, executed one after another.
    MergeInTurn,
}

impl ModeName {
    fn mode(self) -> Mode {
        match self {
            ModeName::Adaptive => Mode::Adaptive,
            ModeName::Short => Mode::Short,
            ModeName::Parallel => Mode::Parallel,
            ModeName::Merge => Mode::Merge { in_turn: false },
            ModeName::MergeInTurn => Mode::Merge { in_turn: true },
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

fn read_addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Address>, D::Error> {
    let texts = match OneOrMore::deserialize(deserializer)? {
        OneOrMore::One(text) => vec![text],
        OneOrMore::More(texts) => texts,
    };
    let addresses = texts.iter().map(|text| text.parse());
    addresses
        .collect::<Result<_, String>>()
        .map_err(de::Error::custom)
}

fn one_connection() -> u32 {
    1
}

fn reconnect_default() -> Time {
    Time(Duration::from_secs(30))
}

fn keep_default() -> Size {
    Size(64 << 20)
}

impl BrpConfig {
    /// Creates a configuration for the default export of a server, over one connection.
    pub fn new(address: Address) -> BrpConfig {
        BrpConfig {
            address: vec![address],
            export: String::new(),
            connections: one_connection(),
            reconnect: reconnect_default(),
            mode: ModeName::default(),
            crc: false,
            keep: keep_default(),
            tls: None,
            drop_tail: false,
        }
    }

    /// Checks the values against their limits.
    ///
    /// # Errors
    /// A message that names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        self.options().check().map_err(|error| error.to_string())
    }

    fn options(&self) -> Options {
        Options {
            addresses: self.address.clone(),
            export: self.export.clone(),
            paths: self.connections,
            mode: self.mode.mode(),
            crc: self.crc,
            patience: self.reconnect.0,
            keep_bytes: self.keep.0,
            tls: self.tls.as_ref().map(TlsConfig::options),
        }
    }
}

/// A BRP export as a device; see the module.
pub struct BrpDevice {
    session: Session,
    geometry: Geometry,
    range_bytes_max: u64,
}

impl BrpDevice {
    /// Connects to the server of a configuration.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses the connection, or when its export is not
    /// usable as a medium.
    pub async fn open(rt: &Rt, config: &BrpConfig) -> Result<BrpDevice, OpenError> {
        BrpDevice::of(Session::connect(rt, config.options()).await, config)
    }

    /// Connects to a server through `connectors`. The addresses of the configuration are only used
    /// in messages.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn over(
        rt: &Rt,
        connectors: Vec<Connector>,
        config: &BrpConfig,
    ) -> Result<BrpDevice, OpenError> {
        let session = Session::over(rt, connectors, config.options()).await;
        BrpDevice::of(session, config)
    }

    fn of(
        session: Result<Session, bimetal_client::ConnectError>,
        config: &BrpConfig,
    ) -> Result<BrpDevice, OpenError> {
        let addresses: Vec<String> = config.address.iter().map(Address::to_string).collect();
        let error = |why: String| OpenError::new(format!("{}: {why}", addresses.join(", ")));
        let session = session.map_err(|why| error(why.to_string()))?;
        let export = session.export();
        let mut geometry = geometry(&export).map_err(error)?;
        if config.drop_tail {
            geometry.tail_bytes = 0;
        }
        let range_bytes_max = u64::from(export.range_bytes_max);
        Ok(BrpDevice {
            session,
            geometry,
            range_bytes_max: range_bytes_max - range_bytes_max % BLOCK_BYTES,
        })
    }

    /// Executes a request in parts, because its range can be longer than the server accepts in one
    /// request.
    async fn in_parts(&self, request: Request) -> IoResult {
        let mut start = request.offset;
        loop {
            let end = request
                .end()
                .min(start.saturating_add(self.range_bytes_max));
            self.call(request.part(start, end, start)).await?;
            start = end;
            if start >= request.end() {
                return Ok(Reply::Done);
            }
        }
    }

    async fn whole(&self, request: Request) -> IoResult {
        Ok(match self.call(request).await? {
            Answer::Data(data) => Reply::Data(data),
            Answer::Done | Answer::Runs(_) => Reply::Done,
        })
    }

    async fn call(&self, request: Request) -> Result<Answer, IoError> {
        let length = u32::try_from(request.len).expect("a request is cut to what the target takes");
        let op = match request.op {
            Op::Read => Command::Read,
            Op::Write => Command::Write,
            Op::Flush => Command::Flush,
            Op::Discard => Command::Discard,
            Op::WriteZeroes => Command::WriteZeroes,
            Op::Extents => Command::Extents,
        };
        let call = Call {
            fua: request.flags.fua,
            keep_allocated: request.flags.keep_allocated,
            payload: request.payload,
            ..Call::new(op, request.offset, length)
        };
        self.session.call(call).await.map_err(|e| error_of(&e))
    }

    async fn extents(&self, request: Request) -> IoResult {
        let mut extents = ExtentList::new(request.extents_max);
        if request.len == 0 {
            return Ok(extents.into_reply());
        }
        // The server describes as much of the range as fits its reply, and at least a part of it.
        let (start, len) = (request.offset, request.len.min(self.range_bytes_max));
        let Answer::Runs(runs) = self.call(request.part(start, start + len, start)).await? else {
            return Err(IoError::Transport);
        };
        let mut end = 0;
        for run in runs {
            end += u64::from(run.length_bytes);
            extents.push_until(end, request.len, run.data);
        }
        Ok(extents.or_one_block(request.len).into_reply())
    }
}

/// Maps an error of the BRP client to an error for the layers above.
fn error_of(error: &Error) -> IoError {
    match error {
        Error::Target(status) => match status {
            Status::Ok | Status::Invalid => IoError::Misaligned,
            Status::Medium => IoError::Medium,
            Status::NoSpace => IoError::NoSpace,
            Status::OutOfRange => IoError::OutOfRange,
            Status::ReadOnly => IoError::ReadOnly,
            Status::Unsupported => IoError::Unsupported,
            Status::Resource => IoError::Resource,
            Status::Corrupt => IoError::Corrupt,
            Status::Offline | Status::Shutdown => IoError::Offline,
            Status::Timeout => IoError::Timeout,
        },
        Error::Lost | Error::Broken | Error::Unreachable(_) => IoError::Transport,
        Error::Unusable(_) => IoError::Offline,
        Error::TooLong => IoError::Resource,
        Error::Closed => IoError::Closed,
    }
}

/// Computes the geometry from the server's description of the export.
fn geometry(export: &Welcome) -> Result<Geometry, String> {
    // The bytes after the last whole block cannot be written atomically, so the size of the device
    // does not include them.
    let whole = Geometry::of_whole_blocks(export.size_bytes);
    if whole.size_bytes == 0 {
        return Err("the export is smaller than a block of 4096 bytes".to_owned());
    }
    let longest_bytes = export.transfer_bytes_max.min(TRANSFER_BYTES_MAX);
    // The layers above request whole blocks; the handshake has ensured that a transfer can hold at
    // least one.
    let transfer_bytes_max = longest_bytes - longest_bytes % BLOCK_BYTES as u32;
    Ok(Geometry {
        block_bytes: export.block_bytes,
        preferred_bytes: export.preferred_bytes,
        transfer_bytes_max,
        writable: !export.has(right::READ_ONLY),
        discard_zeroes: export.has(right::DISCARD_ZEROES),
        wants_discards: export.has(right::DISCARD_ZEROES),
        rotational: export.has(right::ROTATIONAL),
        ..whole
    })
}

impl Device for BrpDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(error) = self.geometry.check(&request) {
            return IoFuture::ready(Err(error));
        }
        match request.op {
            Op::Read | Op::Write | Op::Flush => IoFuture::new(self.whole(request)),
            Op::Discard | Op::WriteZeroes => IoFuture::new(self.in_parts(request)),
            Op::Extents => IoFuture::new(self.extents(request)),
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async move {
            let flushed = if self.geometry.writable {
                self.session.flush().await
            } else {
                Ok(())
            };
            self.session.close().await;
            match flushed {
                Err(Error::Closed) | Ok(()) => Ok(()),
                Err(error) => Err(error_of(&error)),
            }
        })
    }

    fn interruptions(&self) -> Option<u64> {
        Some(self.session.statistics().instances)
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let statistics = self.session.statistics();
        let health = match statistics.paths {
            _ if statistics.is_over => "offline",
            0 => "connecting",
            _ => "healthy",
        };
        out.statistic("", "health", Statistic::State(health.to_owned()));
        out.statistic("", "connections", Statistic::Gauge(statistics.paths as f64));
        let requests = statistics.requests as f64;
        out.statistic("", "requests_in_flight", Statistic::Gauge(requests));
        for (name, count) in [
            ("connections_broken", statistics.paths_broken),
            ("servers_restarted", statistics.instances),
            ("sends", statistics.sends),
        ] {
            out.statistic("", name, Statistic::Counter(count));
        }
    }
}
