//! Flash work that a request causes on a device, and the interface for flash translation layers.
//!
//! The model counts pages read, pages programmed and blocks erased, including the work of the
//! device's own copies. The model has no clock. A device must never refuse a page whose number is
//! below the number of pages for which the device was built.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

use bimetal_flash::{Counters, Drive, DriveConfig, FlashError, FtlConfig, PageConfig};
use bimetal_policy::replacement::Granularity;
use bimetal_rt::Rng;

/// Default spare flash of a page-mapped drive, in percent of the capacity that the host can use:
/// the typical value of a server drive.
const SPARE_PERCENT: u32 = 28;
/// Default number of log blocks of a hybrid-mapped drive, in percent of the data blocks.
const LOG_PERCENT: u32 = 3;
const LOG_BLOCKS_MIN: u32 = 4;
/// Maximum share of spare flash or log blocks, in percent.
const PERCENT_MAX: u32 = 1_000;
/// Number of blocks that a drive needs in addition to its spare and log blocks: the open block, and
/// reserves.
const RESERVE_BLOCKS: u32 = 4;
/// Seed of the random writes that age a drive.
const AGE_SEED: u64 = 7;

/// Number of flash operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Work {
    /// Pages read, including reads for copies.
    pub reads: u64,
    /// Pages programmed, including copies.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.reads += other.reads;
        self.programs += other.programs;
        self.erases += other.erases;
    }
}

/// A device that reads and writes numbered pages, and reports the flash operations of each request.
pub trait Flash: Send {
    /// Reads page number `lpn`.
    fn read(&mut self, lpn: u32) -> Work;

    /// Writes the pages as one request. The page numbers are in ascending order.
    fn write(&mut self, lpns: &[u32]) -> Work;

    /// Discards the content of page number `lpn`.
    fn trim(&mut self, lpn: u32) -> Work;
}

/// A device without a translation layer. Reading a page costs one read, writing a page costs one
/// program, and no block is erased.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFtl;

impl Flash for NoFtl {
    fn read(&mut self, _lpn: u32) -> Work {
        Work {
            reads: 1,
            ..Work::default()
        }
    }

    fn write(&mut self, lpns: &[u32]) -> Work {
        Work {
            programs: lpns.len() as u64,
            ..Work::default()
        }
    }

    fn trim(&mut self, _lpn: u32) -> Work {
        Work::default()
    }
}

/// A drive that is full and was in use before the trace starts.
struct Aged {
    drive: Drive,
    before: Counters,
}

impl Aged {
    /// Creates a drive and writes every page once in order. If the drive is page-mapped, this
    /// function then makes the same number of writes at random pages, so that the garbage
    /// collection of the drive reaches a steady state.
    fn new(config: &DriveConfig) -> Result<Aged, FlashError> {
        let mut drive = Drive::new(config)?;
        let pages = drive.logical_pages();
        for lpn in 0..pages {
            drive.write(&[lpn])?;
        }
        if matches!(config.ftl, FtlConfig::Page(_)) {
            let mut rng = Rng::new(AGE_SEED);
            for _ in 0..pages {
                drive.write(&[rng.below(u64::from(pages)) as u32])?;
            }
        }
        let before = drive.counters();
        Ok(Aged { drive, before })
    }

    /// Returns the flash operations since the last call.
    fn work(&mut self, asked: Result<(), FlashError>) -> Work {
        asked.expect("the device was made for every page of the trace");
        let now = self.drive.counters();
        let done = now - self.before;
        self.before = now;
        Work {
            reads: done.reads_host
                + done.reads_copy
                + done.reads_map
                + done.reads_prefetch
                + done.reads_buffer,
            programs: done.programs + done.programs_buffer,
            erases: done.erases + done.erases_buffer,
        }
    }
}

impl Flash for Aged {
    fn read(&mut self, lpn: u32) -> Work {
        let asked = self.drive.read(lpn);
        self.work(asked)
    }

    fn write(&mut self, lpns: &[u32]) -> Work {
        let asked = self.drive.write(lpns);
        self.work(asked)
    }

    fn trim(&mut self, lpn: u32) -> Work {
        let asked = self.drive.trim(lpn);
        self.work(asked)
    }
}

/// Flash translation layers that can be selected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ftl {
    /// No translation layer: [`NoFtl`].
    None,
    /// Page-mapped with greedy garbage collection: `page`, or `page:7` with 7 % of spare flash.
    Page {
        /// Spare flash in percent of the capacity that the host can use.
        spare_percent: u32,
    },
    /// Block-mapped: `block`.
    Block,
    /// BAST: `bast`, or `bast:5` with log blocks for 5 % of the data blocks.
    Bast {
        /// Number of log blocks in percent of the data blocks.
        log_percent: u32,
    },
    /// FAST: `fast`, or `fast:5` with log blocks for 5 % of the data blocks.
    Fast {
        /// Number of log blocks in percent of the data blocks.
        log_percent: u32,
    },
}

/// Error for a name that is not the name of a flash translation layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFtl(String);

impl fmt::Display for UnknownFtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown flash translation layer `{}`, expected none, page, block, bast or fast, or \
            one with a share in percent, such as page:7 (spare flash) or fast:5 (log blocks)",
            self.0
        )
    }
}

impl std::error::Error for UnknownFtl {}

impl FromStr for Ftl {
    type Err = UnknownFtl;

    fn from_str(text: &str) -> Result<Ftl, UnknownFtl> {
        let unknown = || UnknownFtl(text.to_owned());
        let (name, percent) = match text.split_once(':') {
            Some((name, share)) => {
                let share = share.parse().ok().filter(|share| *share <= PERCENT_MAX);
                (name, Some(share.ok_or_else(unknown)?))
            }
            None => (text, None),
        };
        let log_percent = percent.unwrap_or(LOG_PERCENT);
        match (name, percent) {
            ("none", None) => Ok(Ftl::None),
            ("block", None) => Ok(Ftl::Block),
            ("page", _) => Ok(Ftl::Page {
                spare_percent: percent.unwrap_or(SPARE_PERCENT),
            }),
            ("bast", _) => Ok(Ftl::Bast { log_percent }),
            ("fast", _) => Ok(Ftl::Fast { log_percent }),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Ftl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, percent, usual) = match *self {
            Ftl::None => return f.write_str("none"),
            Ftl::Block => return f.write_str("block"),
            Ftl::Page { spare_percent } => ("page", spare_percent, SPARE_PERCENT),
            Ftl::Bast { log_percent } => ("bast", log_percent, LOG_PERCENT),
            Ftl::Fast { log_percent } => ("fast", log_percent, LOG_PERCENT),
        };
        match percent == usual {
            true => f.write_str(name),
            false => write!(f, "{name}:{percent}"),
        }
    }
}

impl Ftl {
    /// Returns the unit in which the device is written most efficiently.
    pub fn granularity(self) -> Granularity {
        match self {
            Ftl::None => Granularity::Page,
            Ftl::Page { .. } => Granularity::Cluster,
            Ftl::Block | Ftl::Bast { .. } | Ftl::Fast { .. } => Granularity::Block,
        }
    }

    /// Builds a device of `blocks` erase blocks with `pages_per_block` pages each. The device is
    /// full and was in use before.
    ///
    /// # Errors
    /// If a drive of this size is not possible.
    pub fn build(self, blocks: u32, pages_per_block: u32) -> Result<Box<dyn Flash>, FlashError> {
        let share = |percent: u32, least: u32| {
            let share = u64::from(blocks) * u64::from(percent) / 100;
            u32::try_from(share).unwrap_or(u32::MAX).max(least)
        };
        let log_blocks = |percent| share(percent, LOG_BLOCKS_MIN);
        let (layer, spare_blocks) = match self {
            Ftl::None => return Ok(Box::new(NoFtl)),
            Ftl::Page { spare_percent } => (
                FtlConfig::Page(PageConfig::default()),
                share(spare_percent, 1).saturating_add(RESERVE_BLOCKS),
            ),
            Ftl::Block => (FtlConfig::Block, RESERVE_BLOCKS),
            Ftl::Bast { log_percent } => {
                let log_blocks = log_blocks(log_percent);
                let spare = log_blocks.saturating_add(RESERVE_BLOCKS);
                (FtlConfig::Bast { log_blocks }, spare)
            }
            Ftl::Fast { log_percent } => {
                let log_blocks = log_blocks(log_percent);
                let spare = log_blocks.saturating_add(RESERVE_BLOCKS);
                (FtlConfig::Fast { log_blocks }, spare)
            }
        };
        let pages = blocks.saturating_mul(pages_per_block);
        let config = DriveConfig::holding(pages, spare_blocks, pages_per_block, 4096, layer)?;
        Ok(Box::new(Aged::new(&config)?))
    }
}

/// Times of the flash operations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time to read a page.
    pub read_us: f64,
    /// Time to program a page.
    pub program_us: f64,
    /// Time to erase a block.
    pub erase_us: f64,
}

impl Default for Costs {
    /// Returns the times of SLC flash of 2008, which the papers assume: 25 us for a read, 200 us
    /// for a program and 1500 us for an erase.
    fn default() -> Costs {
        Costs {
            read_us: 25.0,
            program_us: 200.0,
            erase_us: 1500.0,
        }
    }
}

impl Costs {
    /// Returns the time of `work` in microseconds, if all its operations run sequentially.
    pub fn time_us(&self, work: Work) -> f64 {
        work.reads as f64 * self.read_us
            + work.programs as f64 * self.program_us
            + work.erases as f64 * self.erase_us
    }
}
