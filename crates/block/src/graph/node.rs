//! The kinds of devices a configuration can name. A new layer or medium is one variant here and
//! one arm in each function; the compiler finds them.

use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::net::Address;

use super::document::{ConfigError, Section};
use super::{OpenError, OpenOptions};
use crate::device::Device;
use crate::layers::mirror::superblock::Candidate;
use crate::layers::mirror::{Mirror, MirrorConfig};
use crate::layers::passthrough::{Passthrough, PassthroughConfig};
use crate::layers::timing::{Timing, TimingConfig};
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
    /// Memory.
    Memory(MemoryConfig),
    /// Nothing.
    Null(NullConfig),
    /// An export of another server.
    Remote(RemoteConfig),
    /// The hetero-mirror.
    Mirror(MirrorConfig),
    /// The tutorial layer.
    Passthrough(PassthroughConfig),
    /// An SSD, a disk or a network volume by its timing.
    Timing(TimingConfig),
}

/// The names of all types, for error messages.
const TYPES: &str = "file, memory, null, remote, mirror, passthrough, ssd, hdd, network";

impl Node {
    /// Reads a `[device.NAME]` section.
    pub(super) fn read(name: &str, mut section: Section<'_>) -> Result<Node, ConfigError> {
        let place = section.clone();
        let kind = section.take_text("type")?;
        let node = match kind.as_str() {
            "file" => Node::File(section.read()?),
            "memory" => Node::Memory(section.read()?),
            "null" => Node::Null(section.read()?),
            "remote" | "nbd" => Node::Remote(section.read()?),
            "mirror" => Node::Mirror(section.read()?),
            "passthrough" => Node::Passthrough(section.read()?),
            "ssd" => Node::Timing(TimingConfig::read(ModelType::Ssd, section)?),
            "hdd" => Node::Timing(TimingConfig::read(ModelType::Hdd, section)?),
            "network" => Node::Timing(TimingConfig::read(ModelType::Network, section)?),
            other => {
                let message = format!("unknown device type `{other}`, expected one of {TYPES}");
                return Err(place.error(message));
            }
        };
        node.check_values()
            .map_err(|why| place.error(format!("device `{name}`: {why}")))?;
        Ok(node.with_paths(|path| place.resolve(path)))
    }

    /// The devices this one is made of, in order.
    pub fn children(&self) -> Vec<&str> {
        match self {
            Node::File(_) | Node::Memory(_) | Node::Null(_) | Node::Remote(_) => Vec::new(),
            Node::Mirror(config) => config.sides.iter().map(String::as_str).collect(),
            Node::Passthrough(config) => vec![&config.below],
            Node::Timing(config) => vec![&config.below],
        }
    }

    /// The name of the type.
    pub fn kind(&self) -> &'static str {
        match self {
            Node::File(_) => "file",
            Node::Memory(_) => "memory",
            Node::Null(_) => "null",
            Node::Remote(_) => "remote",
            Node::Mirror(_) => "mirror",
            Node::Passthrough(_) => "passthrough",
            Node::Timing(config) => config.of.name(),
        }
    }

    /// Opens the device over its open children.
    pub(super) async fn open(
        &self,
        rt: &Rt,
        name: &str,
        children: Vec<Rc<dyn Device>>,
        options: OpenOptions,
    ) -> Result<Rc<dyn Device>, OpenError> {
        if let Node::Mirror(config) = self {
            let sides = self.candidates(children);
            return Ok(Rc::new(
                Mirror::open(rt, config, sides, options.resync).await?,
            ));
        }
        let mut children = children.into_iter();
        let mut below = || children.next().expect("the graph passes every child");
        Ok(match self {
            Node::File(config) => Rc::new(FileDevice::open(rt, config)?),
            Node::Memory(config) => Rc::new(MemoryDevice::new(rt, config.size.0)),
            Node::Null(config) => Rc::new(NullDevice::new(rt, config.size.0)),
            Node::Remote(config) => Rc::new(RemoteDevice::open(rt, config).await?),
            Node::Mirror(_) => unreachable!("opened above"),
            Node::Passthrough(_) => Rc::new(Passthrough::new(below())),
            Node::Timing(config) => {
                let seed = config.seed.unwrap_or_else(|| seed_of(rt, name));
                let timing = Timing::new(rt, below(), &config.parameters, seed);
                Rc::new(timing.map_err(|e| OpenError::new(e.to_string()))?)
            }
        })
    }

    /// The open children with their names, as a mirror looks at its sides.
    pub(super) fn candidates(&self, children: Vec<Rc<dyn Device>>) -> Vec<Candidate> {
        let named = self.children().into_iter().zip(children);
        named
            .map(|(name, device)| Candidate {
                name: name.to_owned(),
                device,
            })
            .collect()
    }

    fn check_values(&self) -> Result<(), String> {
        let whole_blocks = |size: Size| {
            let whole = size.0 > 0 && size.0.is_multiple_of(BLOCK_BYTES);
            if whole {
                Ok(())
            } else {
                Err(format!("size {} is not a multiple of 4 KiB", size.0))
            }
        };
        match self {
            Node::Memory(config) => whole_blocks(config.size),
            Node::Null(config) => whole_blocks(config.size),
            Node::Remote(config) => config.check(),
            Node::File(config) => config.size.map_or(Ok(()), whole_blocks),
            Node::Mirror(config) => config.check(),
            Node::Passthrough(_) | Node::Timing(_) => Ok(()),
        }
    }

    /// Paths are relative to the configuration file.
    fn with_paths(mut self, resolve: impl Fn(&std::path::Path) -> std::path::PathBuf) -> Node {
        match &mut self {
            Node::File(config) => config.path = resolve(&config.path),
            Node::Remote(config) => {
                if let Address::Unix(path) = &mut config.address {
                    *path = resolve(path);
                }
            }
            _ => {}
        }
        self
    }
}

/// The seed of a device that was given none: fixed by the run's seed and the device's name, so that
/// two devices of one profile do not stumble in step.
fn seed_of(rt: &Rt, name: &str) -> u64 {
    rt.rng(&format!("device {name}")).next_u64()
}
