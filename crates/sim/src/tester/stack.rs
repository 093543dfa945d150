//! The stack of a run: disks, the layers above the disks, the sides, and the wrappers of planted
//! bugs.

use std::cell::RefCell;
use std::rc::Rc;

use bimetal_block::device::LocalFuture;
use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::layers::mirror::superblock::{
    Asked, Candidate, SegmentLayout, SideKind, SideLayout,
};
use bimetal_block::layers::mirror::{Mirror, SideDevice};
use bimetal_block::layers::stripe::{Stripe, StripeLayout};
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_block::{BLOCK_BYTES, Device, Geometry, IoError};
use bimetal_rt::{Payload, Rt};

use super::corruption::SideMap;
use super::disk::{Around, Disk, DiskPosition};
use super::plant::{self, Plant};
use super::platter::Platter;
use super::scenario::{Scenario, SideScenario};

/// The platters of one side. They outlive the program that uses the side.
pub type Platters = Vec<Rc<RefCell<Platter>>>;

/// Offset in bytes of the data on a side without a superblock; any value but 0 is suitable.
const BARE_DATA_OFFSET: u64 = 64 << 10;
/// Size of a formatted side in bytes, slightly above the minimum.
const FORMATTED_BYTES: u64 = (16 << 20) + (256 << 10);
/// Size of the sides of a volume with a logged side, so that it has room for a span of
/// [`LOGGED_SPAN_BYTES`].
const LOGGED_BYTES: u64 = FORMATTED_BYTES + (5 << 18);
const LOGGED_SPAN_BYTES: u64 = 6 << 20;

/// One side, with access to the disks below the device that the mirror uses.
pub struct SideStack {
    /// Device that the mirror uses.
    pub device: Rc<dyn Device>,
    /// Disks of the side.
    pub disks: Vec<Rc<Disk>>,
    closers: Vec<Rc<dyn Device>>,
    map: SideMap,
}

/// Creates platters of zeroes for every side of a scenario.
pub fn platters_of(rt: &Rt, scenario: &Scenario) -> Vec<Platters> {
    let bytes = if scenario.has_logged_side() {
        // A fifth of a logged side stays free for cleaning, and its pages take space too.
        LOGGED_BYTES + scenario.span_bytes.saturating_sub(LOGGED_SPAN_BYTES) / 2 * 3
    } else if scenario.superblocks {
        FORMATTED_BYTES
    } else {
        BARE_DATA_OFFSET + scenario.span_bytes
    };
    let side = |side: &SideScenario| match side.stripe {
        Some((disks, unit_bytes)) => {
            let each = bytes.div_ceil(disks as u64).next_multiple_of(unit_bytes);
            (0..disks).map(|_| Platter::new(rt, each)).collect()
        }
        None => vec![Platter::new(rt, bytes)],
    };
    scenario.sides.iter().map(side).collect()
}

/// Returns the layout of a side on its disks.
pub fn map_of(scenario: &Scenario, index: usize, platters: &Platters) -> SideMap {
    let stripe = scenario.sides[index].stripe;
    let mut map = SideMap {
        platters: platters.clone(),
        stripe: stripe.map(|(disks, unit_bytes)| StripeLayout::new(disks, unit_bytes)),
        home: Some(BARE_DATA_OFFSET),
        kept: 0..0,
        records: None,
    };
    if scenario.superblocks {
        let asked = Asked {
            kind: match scenario.is_logged(index) {
                true => SideKind::Log,
                false => SideKind::Home,
            },
            ..Asked::default()
        };
        let layout = SideLayout::of(&Geometry::of_size(map.size_bytes()), asked);
        let layout = layout.expect("the side is large enough");
        map.home = layout.segments.is_none().then_some(layout.data.0);
        if let Some(SegmentLayout { record, .. }) = layout.segments {
            map.kept = record.0 + record.1 / 2..record.0 + record.1;
            let half = record.1 / 2 / BLOCK_BYTES * BLOCK_BYTES;
            map.records = Some([record.0, record.0 + half]);
        }
    }
    map
}

/// Returns the first and the last eight bytes of the unit of `len` bytes at offset `start` of a
/// block. If the block has no content, both are zero.
pub fn ends_of(block: Option<&Payload>, start: usize, len: usize) -> (u64, u64) {
    match block {
        None => (0, 0),
        Some(block) => (word_at(block, start), word_at(block, start + len - 8)),
    }
}

fn word_at(block: &Payload, at: usize) -> u64 {
    let mut skipped = 0;
    for slice in block.slices() {
        if at < skipped + slice.len() {
            let from = at - skipped;
            let word: [u8; 8] = slice[from..from + 8].try_into().expect("eight bytes");
            return u64::from_le_bytes(word);
        }
        skipped += slice.len();
    }
    unreachable!("a unit lies inside its block")
}

impl SideStack {
    /// Builds the layers of a side above its platters, with the planted bug if it affects the side.
    pub fn build(
        rt: &Rt,
        scenario: &Scenario,
        index: usize,
        map: SideMap,
        plant: Option<Plant>,
        around: &Rc<Around>,
    ) -> SideStack {
        let side = &scenario.sides[index];
        let disk = |(number, platter): (usize, &Rc<RefCell<Platter>>)| {
            let place = DiskPosition {
                side: index,
                disk: number,
            };
            let (platter, around) = (Rc::clone(platter), Rc::clone(around));
            let seed = scenario.seed;
            let kind = (side.latency, side.rotational);
            Rc::new(Disk::new(rt, place, platter, kind, seed, around))
        };
        let disks: Vec<Rc<Disk>> = map.platters.iter().enumerate().map(disk).collect();
        let mut closers: Vec<Rc<dyn Device>> = Vec::new();
        let mut tops: Vec<Rc<dyn Device>> = Vec::new();
        for (number, disk) in disks.iter().enumerate() {
            let mut top: Rc<dyn Device> = Rc::clone(disk) as Rc<dyn Device>;
            if let Some((of, profile)) = &side.profile {
                top = timing(rt, top, of, profile, scenario.seed ^ number as u64);
                closers.push(Rc::clone(&top));
            }
            tops.push(top);
        }
        let mut device = match side.stripe {
            Some((_, unit)) => Rc::new(Stripe::new(tops, unit).expect("the disks are equal")),
            None => tops.pop().expect("a side has a disk"),
        };
        if let Some(plant) = plant {
            device = plant::in_side(rt, plant, index, device);
        }
        assert_eq!(device.geometry().size_bytes, map.size_bytes());
        SideStack {
            device,
            disks,
            closers,
            map,
        }
    }

    /// Returns true if the side has this index.
    pub fn is(&self, index: usize) -> bool {
        self.disks[0].place().side == index
    }

    /// Returns the layout of the side on its disks.
    pub fn map(&self) -> &SideMap {
        &self.map
    }

    /// Returns the offset of the data on the side, for a planted bug that reads from the side and
    /// bypasses the mirror; `None` when the side is a log and nothing else.
    pub fn data_offset(&self) -> Option<u64> {
        self.map.home
    }

    /// Returns the side as an argument for a mirror without superblocks.
    ///
    /// # Panics
    /// When the side is a log and nothing else.
    pub fn bare(&self, name: String) -> SideDevice {
        SideDevice {
            name,
            device: Rc::clone(&self.device),
            data_offset: self.map.home.expect("a bare side has a home"),
            out_of_sync: false,
        }
    }

    /// Returns the side as a candidate for opening a formatted volume.
    pub fn candidate(&self, name: String) -> Candidate {
        Candidate {
            name,
            device: Rc::clone(&self.device),
        }
    }

    /// Closes the layers above the disks.
    pub fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async {
            for closer in &self.closers {
                closer.close().await?;
            }
            Ok(())
        })
    }
}

fn timing(rt: &Rt, below: Rc<dyn Device>, of: &str, profile: &str, seed: u64) -> Rc<dyn Device> {
    let of = match of {
        "ssd" => ModelType::Ssd,
        "hdd" => ModelType::Hdd,
        _ => ModelType::Network,
    };
    let parameters = Parameters::from_profile(of, profile, toml::Table::new());
    let parameters = parameters.expect("the tester draws profiles that exist");
    let timing = Timing::new(rt, below, &parameters, seed);
    Rc::new(timing.expect("every profile works on a small disk"))
}

/// Returns the device that the clients use: the mirror or, if units are smaller than a block, the
/// atomic unit (a layer that accepts such requests) above the mirror.
pub fn top_of(
    rt: &Rt,
    scenario: &Scenario,
    mirror: &Mirror,
    sides: &Rc<Vec<SideStack>>,
    plant: Option<Plant>,
) -> Rc<dyn Device> {
    let mut top: Rc<dyn Device> = Rc::new(mirror.clone());
    if let Some(plant) = plant {
        top = plant::over_mirror(rt, plant, mirror, sides, top);
    }
    if scenario.unit_bytes < BLOCK_BYTES {
        top = Rc::new(AtomicUnit::new(rt, top));
    }
    top
}
