//! What a device does on account of a request: the seam where flash translation layers are put in.
//!
//! A cost model only, without time of its own: it counts pages read and programmed and blocks erased,
//! its own copies included. It must never refuse a page below the size it was made for.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;

/// Work of the flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Work {
    /// Pages read, those for copying included.
    pub reads: u64,
    /// Pages programmed, copies included.
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

/// A device of pages.
pub trait Flash: Send {
    /// Reads page `lpn`.
    fn read(&mut self, lpn: u32) -> Work;

    /// Writes pages together, in ascending order.
    fn write(&mut self, lpns: &[u32]) -> Work;

    /// Page `lpn` has no content any more.
    fn trim(&mut self, lpn: u32) -> Work;
}

/// No translation layer: a page read is one read, a page written one program, nothing is erased.
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

/// The devices there are, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ftl {
    /// [`NoFtl`].
    None,
}

/// No device has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFtl(String);

impl fmt::Display for UnknownFtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no flash translation layer `{}`; there is none", self.0)
    }
}

impl std::error::Error for UnknownFtl {}

impl FromStr for Ftl {
    type Err = UnknownFtl;

    fn from_str(text: &str) -> Result<Ftl, UnknownFtl> {
        match text {
            "none" => Ok(Ftl::None),
            other => Err(UnknownFtl(other.to_owned())),
        }
    }
}

impl Ftl {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Ftl::None => "none",
        }
    }

    /// A device of `blocks` erase blocks of `pages_per_block` pages each.
    pub fn build(self, _blocks: u32, _pages_per_block: u32) -> Box<dyn Flash> {
        match self {
            Ftl::None => Box::new(NoFtl),
        }
    }
}

/// What the flash takes for its work, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Reading a page.
    pub read_us: f64,
    /// Programming a page.
    pub program_us: f64,
    /// Erasing a block.
    pub erase_us: f64,
}

impl Default for Costs {
    /// SLC flash of the time of the paper: 25, 200 and 1500 us.
    fn default() -> Costs {
        Costs {
            read_us: 25.0,
            program_us: 200.0,
            erase_us: 1500.0,
        }
    }
}

impl Costs {
    /// Microseconds that `work` takes, one operation after another.
    pub fn time_us(&self, work: Work) -> f64 {
        work.reads as f64 * self.read_us
            + work.programs as f64 * self.program_us
            + work.erases as f64 * self.erase_us
    }
}
