//! The kinds of devices that a configuration can name. A new layer or medium needs one variant here
//! and one arm in each function; the compiler reports every missing arm.

use std::path::PathBuf;
use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::net::Address;

use super::OpenOptions;
use crate::device::Device;
use crate::document::{ConfigError, Section};
use crate::error::OpenError;
use crate::layers::adopted::{Adopted, AdoptedConfig};
use crate::layers::cache::{Cache, CacheConfig};
use crate::layers::fault::{DelayConfig, ErrorConfig, Fault};
use crate::layers::log::{Log, LogConfig};
use crate::layers::mirror::superblock::Candidate;
use crate::layers::mirror::{Mirror, MirrorConfig, SideToOpen};
use crate::layers::passthrough::{Passthrough, PassthroughConfig};
use crate::layers::queue::{QueueConfig, QueueLayer};
use crate::layers::rate::{Rate, RateConfig};
use crate::layers::shard::{Shard, ShardConfig};
use crate::layers::stats::{Stats, StatsConfig};
use crate::layers::stripe::{Stripe, StripeConfig};
use crate::layers::timing::{Timing, TimingConfig};
use crate::media::brp::{BrpConfig, BrpDevice};
use crate::media::file::{FileConfig, FileDevice};
use crate::media::memory::{MemoryConfig, MemoryDevice};
use crate::media::model::ModelType;
use crate::media::null::{NullConfig, NullDevice};
use crate::media::remote::{RemoteConfig, RemoteDevice};
use crate::request::BLOCK_BYTES;
use crate::units::Size;

/// The configuration of one device.
#[derive(Clone, Debug)]
pub enum Node {
    /// A file or block device.
    File(FileConfig),
    /// A device in memory.
    Memory(MemoryConfig),
    /// A device that stores no data.
    Null(NullConfig),
    /// An export of another server.
    Remote(RemoteConfig),
    /// An export of another server, over BRP.
    Brp(BrpConfig),
    /// The hetero-mirror.
    Mirror(MirrorConfig),
    /// A buffer cache: pages in memory.
    Cache(CacheConfig),
    /// A layer that forwards every request unchanged. It is the example to start from when a new
    /// layer is written.
    Passthrough(PassthroughConfig),
    /// RAID-0.
    Stripe(StripeConfig),
    /// A disk with existing content, and a separate metadata device.
    Adopted(AdoptedConfig),
    /// A timing model of an SSD, a disk, a network volume or a flash drive.
    Timing(TimingConfig),
    /// A fixed delay added to each operation.
    Delay(DelayConfig),
    /// Fault injection: requests that fail or hang.
    Error(ErrorConfig),
    /// A scheduler in front of a device.
    Queue(QueueConfig),
    /// A limit on bytes and requests per second.
    Rate(RateConfig),
    /// A separate thread for the devices below.
    Shard(ShardConfig),
    /// A log with one line for each request.
    Log(LogConfig),
    /// Counts and latencies of requests.
    Stats(StatsConfig),
}

/// The names of all types, for error messages.
const TYPES: &str = "file, memory, null, remote, brp, cache, mirror, passthrough, stripe, adopted, ssd, hdd, \
                     network, flash, queue, delay, error, rate, shard, log, stats";

impl Node {
    /// Reads a `[device.NAME]` section.
    pub(super) fn read(name: &str, mut section: Section<'_>) -> Result<Node, ConfigError> {
        let place = section.clone();
        let kind = section.take_text("type")?;
        let mut node = match kind.as_str() {
            "file" => Node::File(section.read()?),
            "memory" => Node::Memory(section.read()?),
            "null" => Node::Null(section.read()?),
            "remote" | "nbd" => Node::Remote(section.read()?),
            "brp" => Node::Brp(section.read()?),
            "cache" => Node::Cache(section.read()?),
            "mirror" => Node::Mirror(section.read()?),
            "passthrough" => Node::Passthrough(section.read()?),
            "stripe" => Node::Stripe(section.read()?),
            "adopted" => Node::Adopted(section.read()?),
            "ssd" => Node::Timing(TimingConfig::read(ModelType::Ssd, section)?),
            "hdd" => Node::Timing(TimingConfig::read(ModelType::Hdd, section)?),
            "network" => Node::Timing(TimingConfig::read(ModelType::Network, section)?),
            "flash" => Node::Timing(TimingConfig::read(ModelType::Flash, section)?),
            "delay" => Node::Delay(section.read()?),
            "error" => Node::Error(section.read()?),
            "queue" => Node::Queue(section.read()?),
            "rate" => Node::Rate(section.read()?),
            "shard" => Node::Shard(section.read()?),
            "log" => Node::Log(section.read()?),
            "stats" => Node::Stats(section.read()?),
            other => {
                let message = format!("unknown device type `{other}`, expected one of {TYPES}");
                return Err(place.error(message));
            }
        };
        node.check()
            .map_err(|why| place.error(format!("device `{name}`: {why}")))?;
        for path in node.paths_mut() {
            *path = place.resolve(path);
        }
        Ok(node)
    }

    /// Returns the devices directly below this one, in order.
    pub fn children(&self) -> Vec<&str> {
        match self {
            Node::File(_) | Node::Memory(_) | Node::Null(_) | Node::Remote(_) | Node::Brp(_) => {
                Vec::new()
            }
            Node::Mirror(config) => config.sides.iter().map(String::as_str).collect(),
            Node::Cache(config) => vec![&config.below],
            Node::Passthrough(config) => vec![&config.below],
            Node::Stripe(config) => config.devices.iter().map(String::as_str).collect(),
            Node::Adopted(config) => vec![&config.data, &config.metadata],
            Node::Timing(config) => vec![&config.below],
            Node::Delay(config) => vec![&config.below],
            Node::Error(config) => vec![&config.below],
            Node::Queue(config) => vec![&config.below],
            Node::Rate(config) => vec![&config.below],
            Node::Shard(config) => vec![&config.below],
            Node::Log(config) => vec![&config.below],
            Node::Stats(config) => vec![&config.below],
        }
    }

    /// Returns the name of the device type.
    pub fn kind(&self) -> &'static str {
        match self {
            Node::File(_) => "file",
            Node::Memory(_) => "memory",
            Node::Null(_) => "null",
            Node::Remote(_) => "remote",
            Node::Brp(_) => "brp",
            Node::Cache(_) => "cache",
            Node::Mirror(_) => "mirror",
            Node::Passthrough(_) => "passthrough",
            Node::Stripe(_) => "stripe",
            Node::Adopted(_) => "adopted",
            Node::Timing(config) => config.of.name(),
            Node::Delay(_) => "delay",
            Node::Error(_) => "error",
            Node::Queue(_) => "queue",
            Node::Rate(_) => "rate",
            Node::Shard(_) => "shard",
            Node::Log(_) => "log",
            Node::Stats(_) => "stats",
        }
    }

    /// Opens the device over its open children.
    pub(super) async fn open(
        &self,
        rt: &Rt,
        name: &str,
        children: Vec<Result<Rc<dyn Device>, OpenError>>,
        options: &OpenOptions,
    ) -> Result<Rc<dyn Device>, OpenError> {
        if let Node::Mirror(config) = self {
            let sides = sides_to_open(config, children);
            let mirror = Mirror::open(rt, config, sides, &options.mirror).await;
            return Ok(Rc::new(mirror?));
        }
        let children: Vec<Rc<dyn Device>> = children.into_iter().collect::<Result<_, _>>()?;
        let below = || Rc::clone(&children[0]);
        // If the configuration gives no seed, the seed is derived from the runtime's seed and the
        // device's name, so that two devices of one kind do not stall at the same times.
        let seed_of = |seed: Option<u64>| {
            seed.unwrap_or_else(|| rt.rng(&format!("device {name}")).next_u64())
        };
        Ok(match self {
            Node::File(config) => Rc::new(FileDevice::open_when_free(rt, config).await?),
            Node::Memory(config) => Rc::new(MemoryDevice::new(rt, config.size.0)),
            Node::Null(config) => Rc::new(NullDevice::new(rt, config.size.0)),
            Node::Mirror(_) => unreachable!("mirrors are opened above"),
            Node::Remote(config) => Rc::new(RemoteDevice::open(rt, config).await?),
            Node::Brp(config) => Rc::new(BrpDevice::open(rt, config).await?),
            Node::Cache(config) => Rc::new(Cache::new(rt, below(), config)?),
            Node::Passthrough(_) => Rc::new(Passthrough::new(below())),
            Node::Stripe(config) => Rc::new(Stripe::new(children, config.unit.0)?),
            Node::Adopted(_) => {
                let (data, metadata) = (Rc::clone(&children[0]), Rc::clone(&children[1]));
                Rc::new(Adopted::new(data, metadata)?)
            }
            Node::Timing(config) => {
                let timing = Timing::new(rt, below(), &config.parameters, seed_of(config.seed));
                Rc::new(timing.map_err(|e| OpenError::new(e.to_string()))?)
            }
            Node::Delay(c) => Rc::new(Fault::new(rt, below(), c.plan(), seed_of(c.seed))),
            Node::Error(c) => Rc::new(Fault::new(rt, below(), c.plan(), seed_of(c.seed))),
            Node::Queue(config) => Rc::new(QueueLayer::new(rt, below(), config)?),
            Node::Rate(config) => Rc::new(Rate::new(rt, below(), config)),
            // This opens the shard on the current thread, for a runtime without threads. On a
            // runtime with threads, the module `shards` opens each shard on its own thread instead.
            Node::Shard(_) => Rc::new(Shard::here(below())),
            Node::Log(config) => Rc::new(Log::open(rt, below(), &config.path)?),
            Node::Stats(_) => Rc::new(Stats::new(rt, below())),
        })
    }

    /// Pairs the open children with their names, as the candidates for sides of a mirror.
    pub(super) fn candidates(&self, children: Vec<Rc<dyn Device>>) -> Vec<Candidate> {
        let named = self.children().into_iter().zip(children);
        named
            .map(|(name, device)| Candidate {
                name: name.to_owned(),
                device,
            })
            .collect()
    }

    /// Checks constraints that the types of the keys cannot express.
    fn check(&self) -> Result<(), String> {
        match self {
            Node::Memory(config) => whole_blocks(config.size),
            Node::Null(config) => whole_blocks(config.size),
            Node::Remote(config) => config.check(),
            Node::Brp(config) => config.check(),
            Node::File(config) => config.check(),
            Node::Cache(config) => config.check(),
            Node::Mirror(config) => config.check(),
            Node::Stripe(config) => config.check(),
            Node::Error(config) => config.check(),
            Node::Queue(config) => config.check(),
            Node::Rate(config) => config.check(),
            Node::Passthrough(_)
            | Node::Adopted(_)
            | Node::Timing(_)
            | Node::Delay(_)
            | Node::Shard(_)
            | Node::Log(_)
            | Node::Stats(_) => Ok(()),
        }
    }

    /// Returns the paths that the configuration gives, so that the caller can resolve them relative
    /// to the configuration file.
    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Node::File(config) => vec![&mut config.path],
            Node::Log(config) => vec![&mut config.path],
            Node::Remote(config) => socket_path(&mut config.address).into_iter().collect(),
            Node::Brp(config) => {
                let sockets = config.address.iter_mut().filter_map(socket_path);
                let tls = config.tls.iter_mut();
                sockets
                    .chain(tls.flat_map(|tls| [&mut tls.ca, &mut tls.cert, &mut tls.key]))
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

fn socket_path(address: &mut Address) -> Option<&mut PathBuf> {
    match address {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) | Address::Rdma(_) => None,
    }
}

/// Returns the sides that a configuration names, each with its device or with the error because of
/// which the device could not be opened.
pub(super) fn sides_to_open(
    config: &MirrorConfig,
    children: Vec<Result<Rc<dyn Device>, OpenError>>,
) -> Vec<SideToOpen> {
    let named = config.sides.iter().cloned().zip(children);
    named
        .map(|(name, device)| SideToOpen { name, device })
        .collect()
}

/// Opens a buffer cache over its device. If that device could not be opened, returns its error.
pub(super) fn open_cache(
    rt: &Rt,
    config: &CacheConfig,
    children: Vec<Result<Rc<dyn Device>, OpenError>>,
) -> Result<Cache, OpenError> {
    let children: Vec<Rc<dyn Device>> = children.into_iter().collect::<Result<_, _>>()?;
    Cache::new(rt, Rc::clone(&children[0]), config)
}

fn whole_blocks(size: Size) -> Result<(), String> {
    if size.0 > 0 && size.0.is_multiple_of(BLOCK_BYTES) {
        Ok(())
    } else {
        Err(format!(
            "size {} bytes is not a multiple of 4 KiB above 0",
            size.0
        ))
    }
}
