//! Helpers that tests and examples share: loads, and analytic models as independent oracles.
//!
//! The helpers do not use the internals of the crate. The models solve their equations numerically,
//! and the loads come from a separate random number generator.

#![allow(dead_code, reason = "every test and example uses another part of this")]

use bimetal_flash::{
    Capacity, Cleaning, Counters, Drive, DriveConfig, FtlConfig, Geometry, PageConfig, Streams,
};

/// Random number generator for loads (SplitMix64).
pub struct Load(pub u64);

impl Load {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniformly distributed number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u32
    }

    /// Returns a uniformly distributed number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the x in (low, high) at which `f` changes its sign, found by bisection.
fn root(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    let rising = f(high) > f(low);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if (f(middle) > 0.0) == rising {
            high = middle;
        } else {
            low = middle;
        }
    }
    (low + high) / 2.0
}

/// Returns the harmonic number of a real x >= 0, which is digamma(x + 1) + Euler's constant. The
/// recurrence is applied up to an argument for which the asymptotic series is exact to 1e-12.
pub fn harmonic(x: f64) -> f64 {
    let mut sum = 0.0;
    let mut y = x + 1.0;
    while y < 20.0 {
        sum -= 1.0 / y;
        y += 1.0;
    }
    let (i, i2) = (1.0 / y, 1.0 / (y * y));
    let series = y.ln() - i / 2.0 - i2 / 12.0 + i2 * i2 / 120.0 - i2 * i2 * i2 / 252.0;
    sum + series + 0.577_215_664_901_532_9
}

/// Returns the write amplification of greedy cleaning under uniform random writes, for alpha =
/// physical / logical pages and b pages per block. With v valid pages in a cleaned block and the
/// harmonic numbers H: (b - v) / (H(b) - H(v)) = b / alpha, WA = b / (b - v). This is a mean-field
/// result (Bux and Iliadis 2010, Desnoyers 2012).
pub fn greedy_wa(alpha: f64, pages_per_block: u32) -> f64 {
    let b = f64::from(pages_per_block);
    let v = root(0.0, b - 1e-9, |v| {
        (b - v) / (harmonic(b) - harmonic(v)) - b / alpha
    });
    b / (b - v)
}

/// Returns the write amplification of FIFO cleaning under uniform random writes, for alpha =
/// physical / logical pages. With the x that solves -ln x / (1 - x) = alpha, it is 1 / (1 - x).
pub fn fifo_wa(alpha: f64) -> f64 {
    let x = root(1e-12, 1.0 - 1e-12, |x| -x.ln() / (1.0 - x) - alpha);
    1.0 / (1.0 - x)
}

/// Returns the write amplification of FIFO cleaning under skewed writes, when hot and cold pages
/// share blocks, for alpha = physical / logical pages. The hot pages are the fraction `pages` of
/// all pages and get the fraction `writes` of all writes. The result is WA = sum(n l / (1 - e^(-l
/// t))) over the two groups, for the t with t x WA = alpha. For each group, n is its fraction of
/// the pages and l is its relative write rate.
pub fn fifo_mixed_wa(alpha: f64, pages: f64, writes: f64) -> f64 {
    let groups = [
        (pages, writes / pages),
        (1.0 - pages, (1.0 - writes) / (1.0 - pages)),
    ];
    let wa = |t: f64| -> f64 {
        let term = |(n, l): &(f64, f64)| n * l / (1.0 - (-l * t).exp());
        groups.iter().map(term).sum()
    };
    wa(root(1e-9, 1e4, |t| t * wa(t) - alpha))
}

/// Returns the write amplification of greedy cleaning under skewed writes, when hot and cold pages
/// are in separate blocks and the spare flash is divided optimally between the two groups.
pub fn separated_wa(alpha: f64, pages: f64, writes: f64, pages_per_block: u32) -> f64 {
    let spare = alpha - 1.0;
    let total = |hot: f64| {
        writes * greedy_wa(1.0 + spare * hot / pages, pages_per_block)
            + (1.0 - writes) * greedy_wa(1.0 + spare * (1.0 - hot) / (1.0 - pages), pages_per_block)
    };
    (2..99)
        .map(|percent| total(f64::from(percent) / 100.0))
        .fold(f64::INFINITY, f64::min)
}

/// Returns the configuration of a page-mapped layer that matches the assumptions of the models.
pub fn page_mapped(cleaning: Cleaning, streams: Streams) -> FtlConfig {
    FtlConfig::Page(PageConfig {
        cleaning,
        streams,
        ..PageConfig::default()
    })
}

/// Creates a drive of one die.
pub fn drive(blocks: u32, pages_per_block: u32, spare: f64, ftl: FtlConfig) -> Drive {
    let geometry = Geometry::one_die(blocks, pages_per_block, 4096);
    let config = DriveConfig::new(geometry, Capacity::OverProvisioning(spare), ftl);
    Drive::new(&config).expect("a valid drive")
}

/// Returns alpha, the ratio of physical to logical pages. The blocks that are always free, one for
/// each write stream, are not included in the physical pages.
pub fn alpha(drive: &Drive, blocks: u32, pages_per_block: u32, classes: u32) -> f64 {
    f64::from((blocks - classes) * pages_per_block) / f64::from(drive.logical_pages())
}

/// Writes every page of the drive once, in order.
pub fn fill(drive: &mut Drive) {
    for lpn in 0..drive.logical_pages() {
        drive.write(&[lpn]).expect("within the drive");
    }
}

/// Skewed writes. The share `writes` of all writes goes to the hot pages. The hot pages are the
/// first pages of the drive, and are the share `pages` of all pages.
#[derive(Clone, Copy)]
pub struct Skew {
    pub pages: f64,
    pub writes: f64,
}

impl Skew {
    /// Returns a randomly drawn page below `pages`, and whether the page is hot.
    pub fn draw(&self, load: &mut Load, pages: u32) -> (u32, bool) {
        let hot_pages = (f64::from(pages) * self.pages) as u32;
        if load.unit() < self.writes {
            (load.below(hot_pages), true)
        } else {
            (hot_pages + load.below(pages - hot_pages), false)
        }
    }

    /// Writes one randomly drawn page. If `given` is true, the write names the page's class (its
    /// write stream).
    pub fn write(&self, drive: &mut Drive, load: &mut Load, given: bool) {
        let (lpn, hot) = self.draw(load, drive.logical_pages());
        let class = u8::from(given && !hot);
        drive.write_class(&[lpn], class).expect("within the drive");
    }
}

/// Writes `writes` pages, uniformly at random, and returns the counters of these writes.
pub fn uniform(drive: &mut Drive, load: &mut Load, writes: u64) -> Counters {
    let before = drive.counters();
    let pages = drive.logical_pages();
    for _ in 0..writes {
        drive.write(&[load.below(pages)]).expect("within the drive");
    }
    drive.counters() - before
}

/// Returns the steady-state write amplification under uniform random writes. The drive is filled,
/// warmed up with `warm` times its capacity, and measured over `measured` times its capacity.
pub fn steady_wa(drive: &mut Drive, warm: u64, measured: u64) -> f64 {
    let pages = u64::from(drive.logical_pages());
    let mut load = Load(11);
    fill(drive);
    uniform(drive, &mut load, warm * pages);
    uniform(drive, &mut load, measured * pages).write_amplification()
}

/// Returns the steady-state write amplification under skewed writes. If `given` is true, each write
/// names the class of its pages, hot or cold, and each class is filled in its own write stream.
pub fn steady_skewed_wa(
    drive: &mut Drive,
    skew: Skew,
    given: bool,
    warm: u64,
    measured: u64,
) -> f64 {
    let pages = drive.logical_pages();
    let hot_pages = (f64::from(pages) * skew.pages) as u32;
    for lpn in 0..pages {
        let class = u8::from(given && lpn >= hot_pages);
        drive.write_class(&[lpn], class).expect("within the drive");
    }
    let mut load = Load(23);
    for _ in 0..warm * u64::from(pages) {
        skew.write(drive, &mut load, given);
    }
    let before = drive.counters();
    for _ in 0..measured * u64::from(pages) {
        skew.write(drive, &mut load, given);
    }
    (drive.counters() - before).write_amplification()
}

/// Creates an aged block-mapped drive, in which every page of `data_blocks` blocks has been
/// written.
pub fn aged(data_blocks: u32, spare_blocks: u32, ftl: FtlConfig) -> Drive {
    let config = DriveConfig::holding(data_blocks * 64, spare_blocks, 64, 4096, ftl);
    let mut drive = Drive::new(&config.expect("valid")).expect("a valid drive");
    fill(&mut drive);
    drive
}

/// Writes random single pages. The first page of a block is never written, because it would open a
/// sequential log block. The first `warm` writes are a warm-up; the counters of the following
/// `measured` writes are returned.
pub fn random_pages(drive: &mut Drive, data_blocks: u32, warm: u64, measured: u64) -> Counters {
    let mut load = Load(5);
    let mut before = drive.counters();
    for n in 0..warm + measured {
        if n == warm {
            before = drive.counters();
        }
        let lpn = load.below(data_blocks) * 64 + 1 + load.below(63);
        drive.write(&[lpn]).expect("within the drive");
    }
    drive.counters() - before
}
