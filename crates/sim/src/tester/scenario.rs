//! What a seed draws: the stack, the devices, the load and the faults of a run.
//!
//! Options are drawn as a swarm: each kind of operation, fault and setting is in some runs and not
//! in others, because a run that does everything at once reaches fewer states.

use bimetal_block::layers::mirror::{
    Acknowledge, ExposureConfig, MirrorConfig, OnDegraded, PolicyName,
};
use bimetal_block::units::{Size, Time};
use bimetal_rt::Rng;
use serde::Serialize;
use std::time::Duration;

use super::ambush::Ambush;
use super::changing::ChangeOfSides;
use super::classes::Classes;
use super::disk::Latency;
use super::extras;
use super::switch::Astray;

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
pub(super) const S: u64 = 1_000_000_000;

/// What lies under one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideScenario {
    /// How long its disks take.
    pub latency: Latency,
    /// A timing profile over the disk, as type and name.
    pub profile: Option<(String, String)>,
    /// Disks under a stripe with this unit; one disk without.
    pub stripe: Option<(usize, u64)>,
}

/// A fault of a side during one life of the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// Which side.
    pub side: usize,
    /// When it starts, from the start of the life.
    pub at_ns: u64,
    /// How long it lasts; `None` to the end of the life.
    pub for_ns: Option<u64>,
    /// What it is.
    pub kind: FaultKind,
}

/// Classes of faults; see the fault model in [`disk`](super::disk).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum FaultKind {
    /// Takes and answers nothing.
    Frozen,
    /// Takes so many times as long.
    Slow(u64),
    /// Operations of a class (0 reads, 1 writes, 2 flushes) fail with this chance.
    Errors {
        /// The class.
        class: usize,
        /// The chance.
        chance: f64,
    },
    /// The next so many operations of a class fail.
    FailNext {
        /// The class.
        class: usize,
        /// How many.
        count: u32,
    },
    /// Everything fails with `Offline`.
    Offline,
    /// `Offline` and back, so many times.
    Flapping {
        /// How many times.
        times: u32,
    },
    /// So many blocks change at rest.
    Rot {
        /// How many.
        blocks: u32,
    },
    /// All copies of so many blocks change at rest.
    RotOfAllCopies {
        /// How many.
        blocks: u32,
    },
    /// The next so many operations that may go astray do.
    Astray {
        /// How.
        how: Astray,
        /// How many.
        count: u32,
    },
}

/// What happens to a side between two lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AtRest {
    /// Copies of its superblock are zeroes or garbage.
    SuperblockLost {
        /// Which side.
        side: usize,
        /// The first copy.
        first: bool,
        /// The second.
        second: bool,
        /// Garbage instead of zeroes.
        garbage: bool,
    },
    /// It is as it was at the end of life [`Scenario::snapshot_after`].
    Older {
        /// Which side.
        side: usize,
    },
    /// Blocks change.
    Rot {
        /// Which side.
        side: usize,
        /// How many.
        blocks: u32,
    },
}

/// How a life of the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// The load ends, the lag drains, the volume is closed.
    Clean,
    /// The load ends and the volume is closed at once.
    CleanAtOnce,
    /// Power is cut in the middle of the load, so long after the start.
    Crash {
        /// Nanoseconds from the start of the life.
        at_ns: u64,
    },
    /// The program is killed in the middle of the load, and the disks are not.
    Kill {
        /// Nanoseconds from the start of the life.
        at_ns: u64,
    },
}

/// One life of the program: from opening the volume to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Life {
    /// What happened to the sides before it.
    pub at_rest: Vec<AtRest>,
    /// The openings that come before the one that counts: power is cut this long after the start of
    /// each, in nanoseconds.
    pub cut_openings_ns: Vec<u64>,
    /// Everything is read once before the load.
    pub reads_all: bool,
    /// There is no load.
    pub quiet: bool,
    /// A scrub begins so long after the start.
    pub scrub_ns: Option<u64>,
    /// What waits for a moment to end it.
    pub ambushes: Vec<Ambush>,
    /// How it ends.
    pub end: End,
    /// The faults.
    pub faults: Vec<Fault>,
}

impl Life {
    /// A life with a load, without faults, that ends well.
    pub fn calm() -> Life {
        Life {
            at_rest: Vec::new(),
            cut_openings_ns: Vec::new(),
            reads_all: true,
            quiet: false,
            scrub_ns: None,
            ambushes: Vec::new(),
            end: End::Clean,
            faults: Vec::new(),
        }
    }
}

/// The load of the clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Clients at once.
    pub clients: usize,
    /// Operations of each client in a life.
    pub operations: u64,
    /// Chances in turn: read, write, write with FUA, flush, discard, write-zeroes, extents.
    pub weights: [u32; 7],
    /// Units of an operation, at most.
    pub units_max: usize,
    /// Chance that an operation goes to the first few units.
    pub hot: f64,
    /// Mean pause between two operations of a client.
    pub pause_ns: u64,
    /// Chance that a client leaves in the middle of an operation.
    pub leave: f64,
}

/// Everything a seed draws.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// How much it does.
    pub extent: Extent,
    /// Tasks run in a random order.
    pub shuffle: bool,
    /// Sides on formatted devices, so that the volume can be opened again.
    pub superblocks: bool,
    /// The sides.
    pub sides: Vec<SideScenario>,
    /// A side without faults, for whose sake the volume must answer.
    pub steadfast: Option<usize>,
    /// The part of the volume under load, in bytes.
    pub span_bytes: u64,
    /// Bytes of a unit of the load: 4 KiB, or 512 through the atomic unit.
    pub unit_bytes: u64,
    /// The configuration of the mirror.
    pub mirror: MirrorSettings,
    /// The load.
    pub load: Load,
    /// The lives of the program. After a last one that did not end well comes a calm one.
    pub lives: Vec<Life>,
    /// The classes that are switched on.
    pub classes: Classes,
    /// Blocks become corrupt.
    pub corrupts: bool,
    /// Power cuts tear blocks.
    pub torn: bool,
    /// What a disk was given may land after its program was killed.
    pub lands_late: bool,
    /// Disks answer a program only when the requests of the last one have ended.
    pub fenced: bool,
    /// After each life but the last each side is booted alone, on a copy.
    pub boots_alone: bool,
    /// What each side holds alone is looked at before and after every opening, on copies.
    pub watches_openings: bool,
    /// After each life but the last, on a copy, a foreign side stands in the place of this one.
    pub foreign: Option<usize>,
    /// After each life but the last, on a copy, the set of sides is changed.
    pub changes_sides: Option<ChangeOfSides>,
    /// The end of this life is what a side comes back as.
    pub snapshot_after: Option<usize>,
}

impl Extent {
    /// All of them.
    pub const ALL: [Extent; 3] = [Extent::Usual, Extent::HeavyTailed, Extent::Small];

    /// The name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Extent::Usual => "usual",
            Extent::HeavyTailed => "heavy-tailed",
            Extent::Small => "small",
        }
    }
}

/// How much a seed does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Extent {
    /// 60 to 500 operations of clients in a life.
    #[default]
    Usual,
    /// Up to a hundred times as many, and as many more faults: half of the seeds at most ten times.
    HeavyTailed,
    /// Few operations and at most two lives, for runs that are repeated at every boundary.
    Small,
}

/// The configuration of the mirror, as it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorSettings {
    /// Bound on bytes.
    pub exposure_bytes: u64,
    /// Bound on age.
    pub exposure_age_ns: u64,
    /// `bounded`, `paper` or `paper-wait-limit`.
    pub policy: &'static str,
    /// The paper's factor.
    pub wait_limit: Option<f64>,
    /// A side's own multiple.
    pub limit_multiple: Option<f64>,
    /// Sorted drain; `None` is the default of the policy.
    pub sorted: Option<bool>,
    /// One write at a time.
    pub serial: bool,
    /// Silence after which a side is absent.
    pub absent_after_ns: u64,
    /// `continue`, `read-only` or `stop`.
    pub on_degraded: &'static str,
    /// Writes given to a side at once.
    pub depth: Option<usize>,
    /// Acknowledge when every side has a change.
    pub acknowledge_all: bool,
}

impl MirrorSettings {
    /// As the mirror takes it.
    pub fn config(&self, sides: usize) -> MirrorConfig {
        use bimetal_block::layers::mirror::DrainName;
        let names = (0..sides).map(|side| format!("side-{side}")).collect();
        let mut config = MirrorConfig::of(names);
        let time = |ns| Time(Duration::from_nanos(ns));
        config.exposure = ExposureConfig {
            bytes: Size(self.exposure_bytes),
            age: time(self.exposure_age_ns),
        };
        config.policy = match self.policy {
            "bounded" => PolicyName::Bounded,
            "paper" => PolicyName::Paper,
            _ => PolicyName::PaperWaitLimit,
        };
        config.wait_limit = self.wait_limit;
        config.limit_multiple = self.limit_multiple;
        config.drain = self.sorted.map(|sorted| match sorted {
            true => DrainName::Sorted,
            false => DrainName::Fifo,
        });
        config.serial = self.serial;
        config.absent_after = Some(time(self.absent_after_ns));
        config.on_degraded = match self.on_degraded {
            "continue" => OnDegraded::Continue,
            "read-only" => OnDegraded::ReadOnly,
            _ => OnDegraded::Stop,
        };
        config.depth = self.depth;
        if self.acknowledge_all {
            config.acknowledge = Acknowledge::All;
        }
        config
    }

    /// True when the default rules decide when a side changes its mode.
    pub fn dwells(&self) -> bool {
        self.policy == "bounded"
    }
}

pub(super) fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

/// A number between two others, even over its orders of magnitude.
pub(super) fn spread(rng: &mut Rng, low: u64, high: u64) -> u64 {
    let (a, b) = ((low as f64).ln(), (high as f64).ln());
    (a + rng.unit_f64() * (b - a)).exp() as u64
}

const PROFILES: [(&str, &str); 7] = [
    ("ssd", "sata-2009"),
    ("ssd", "nvme-tlc"),
    ("ssd", "qlc-sata"),
    ("hdd", "hdd-7200"),
    ("hdd", "hdd-5400"),
    ("hdd", "hdd-smr"),
    ("network", "network-disk"),
];

impl Scenario {
    /// What the seed draws.
    pub fn draw(seed: u64, classes: Classes, extent: Extent) -> Scenario {
        let mut scenario = Scenario::draw_base(seed, extent);
        extras::add_faults(&mut scenario, extent, factor_of(seed, extent));
        extras::add(&mut scenario, classes);
        scenario
    }

    fn draw_base(seed: u64, extent: Extent) -> Scenario {
        let factor = factor_of(seed, extent);
        let rng = &mut Rng::labelled(seed, "scenario");
        let superblocks = rng.chance(0.55) || extent == Extent::Small;
        let count = pick(rng, &[2, 2, 2, 2, 3, 3, 4]);
        let profiles = rng.chance(0.2);
        let sides: Vec<_> = (0..count).map(|_| draw_side(rng, profiles)).collect();
        let steadfast = rng.chance(0.75).then(|| rng.below(count as u64) as usize);
        let unit_bytes = if rng.chance(0.3) { 512 } else { 4096 };
        let units = spread(rng, 32, 1024);
        let span_bytes = (units * unit_bytes).next_multiple_of(16 << 10);
        let mirror = draw_settings(rng, profiles);
        let mut load = draw_load(rng, unit_bytes);
        // Without flushes nothing would ever be certain, and the model would remember every write.
        load.weights[3] += u32::from(extent == Extent::HeavyTailed);
        load.operations = (load.operations as f64 * factor).ceil() as u64;
        let lives = match superblocks {
            true if extent == Extent::Small => 1 + rng.below(2),
            true => 1 + rng.below(3),
            false => 1,
        };
        let typical_ns = load.operations * (load.pause_ns + 5 * MS);
        let lives = (0..lives)
            .map(|_| draw_life(rng, &sides, steadfast, superblocks, typical_ns))
            .collect();
        Scenario {
            seed,
            extent,
            shuffle: rng.chance(0.5),
            superblocks,
            sides,
            steadfast,
            span_bytes,
            unit_bytes,
            mirror,
            load,
            lives,
            classes: Classes::NONE,
            corrupts: false,
            torn: false,
            lands_late: false,
            fenced: true,
            boots_alone: false,
            watches_openings: false,
            foreign: None,
            changes_sides: None,
            snapshot_after: None,
        }
    }

    /// Units under load.
    pub fn units(&self) -> usize {
        (self.span_bytes / self.unit_bytes) as usize
    }
}

/// How many times the usual number of operations a seed does.
fn factor_of(seed: u64, extent: Extent) -> f64 {
    match extent {
        Extent::Usual => 1.0,
        Extent::HeavyTailed => {
            spread(&mut Rng::labelled(seed, "extent"), 100, 10_000) as f64 / 100.0
        }
        Extent::Small => 0.2,
    }
}

fn draw_side(rng: &mut Rng, profiles: bool) -> SideScenario {
    let (type_name, profile) = pick(rng, &PROFILES);
    let profile = (profiles && rng.chance(0.7)).then(|| (type_name.to_owned(), profile.to_owned()));
    let latency = if profile.is_some() {
        Latency {
            ns_min: 0,
            ns_max: 0,
        }
    } else {
        let ns_min = spread(rng, 10 * US, 3 * MS);
        let ns_max = ns_min * pick(rng, &[1, 2, 10]);
        Latency {
            ns_min,
            ns_max: ns_max.min(20 * MS),
        }
    };
    let stripe = (rng.chance(0.2)).then(|| (2 + rng.below(2) as usize, 16 << 10));
    SideScenario {
        latency,
        profile,
        stripe,
    }
}

fn draw_settings(rng: &mut Rng, profiles: bool) -> MirrorSettings {
    let policy = pick(
        rng,
        &["bounded", "bounded", "bounded", "paper", "paper-wait-limit"],
    );
    // A side without faults must never be silent for so long: the frozen SSD of 2009 is silent for
    // four seconds, and a full shingled disk cleans for longer.
    let absent_after_ns = if profiles {
        spread(rng, 10 * S, 30 * S)
    } else {
        spread(rng, 50 * MS, 2 * S)
    };
    MirrorSettings {
        exposure_bytes: pick(rng, &[0, 4 << 10, 64 << 10, 512 << 10, 64 << 20]),
        exposure_age_ns: pick(rng, &[MS, 20 * MS, 500 * MS, 5 * S]),
        policy,
        wait_limit: rng.chance(0.2).then(|| pick(rng, &[0.1, 1.3, 5.0])),
        limit_multiple: rng.chance(0.3).then(|| pick(rng, &[1.0, 2.0, 10.0])),
        sorted: pick(rng, &[None, None, Some(true), Some(false)]),
        serial: rng.chance(0.05),
        absent_after_ns,
        on_degraded: pick(
            rng,
            &[
                "continue",
                "continue",
                "continue",
                "continue",
                "continue",
                "continue",
                "read-only",
                "stop",
            ],
        ),
        depth: rng.chance(0.3).then(|| pick(rng, &[1, 2, 8])),
        acknowledge_all: false,
    }
}

fn draw_load(rng: &mut Rng, unit_bytes: u64) -> Load {
    let mut weights = [30, 40, 5, 3, 4, 4, 3];
    for weight in &mut weights {
        *weight = match rng.below(5) {
            0 => 0,
            1 => *weight * 4,
            _ => *weight,
        };
    }
    // Nothing is found without writes, and little without reads.
    weights[1] += 5;
    weights[0] += 5;
    let clients = spread(rng, 1, 17) as usize;
    let total = spread(rng, 60, 500);
    let bytes_max = pick(rng, &[4 << 10, 16 << 10, 64 << 10, 256 << 10]);
    Load {
        clients,
        operations: total / clients as u64 + 1,
        weights,
        units_max: (bytes_max / unit_bytes) as usize,
        hot: pick(rng, &[0.0, 0.3, 0.9]),
        pause_ns: pick(rng, &[0, 0, 500 * US, 5 * MS, 50 * MS]),
        leave: pick(rng, &[0.0, 0.0, 0.0, 0.02]),
    }
}

fn draw_life(
    rng: &mut Rng,
    sides: &[SideScenario],
    steadfast: Option<usize>,
    superblocks: bool,
    typical_ns: u64,
) -> Life {
    let end = if superblocks && rng.chance(0.5) {
        let at_ns = rng.between(0, typical_ns.max(10 * MS));
        End::Crash { at_ns }
    } else if rng.chance(0.3) {
        End::CleanAtOnce
    } else {
        End::Clean
    };
    let count = rng.below(7);
    let mut faults = Vec::new();
    for _ in 0..count {
        let side = rng.below(sides.len() as u64) as usize;
        let fault = draw_fault(rng, side, typical_ns);
        if Some(side) != steadfast {
            faults.push(fault);
        }
    }
    faults.sort_by_key(|fault| fault.at_ns);
    Life {
        reads_all: false,
        end,
        faults,
        ..Life::calm()
    }
}

pub(super) fn draw_fault(rng: &mut Rng, side: usize, typical_ns: u64) -> Fault {
    let class = rng.below(3) as usize;
    let chance = pick(rng, &[0.05, 0.5, 1.0]);
    let count = pick(rng, &[1, 1, 3, 10]);
    let kind = match rng.below(8) {
        0..=2 => FaultKind::Frozen,
        3 => FaultKind::Slow(pick(rng, &[10, 100])),
        4 => FaultKind::Errors { class, chance },
        5 | 6 => FaultKind::FailNext { class, count },
        _ => FaultKind::Offline,
    };
    let for_ns = rng.chance(0.85).then(|| spread(rng, MS, 5 * S));
    Fault {
        side,
        at_ns: rng.between(0, typical_ns),
        for_ns,
        kind,
    }
}
