//! The scenario that a seed draws: the stack, the devices, the load and the faults of a run.
//!
//! Options are drawn by swarm testing: each kind of operation, fault and setting occurs in some
//! runs and not in others, because a run with all kinds together reaches fewer states.

use bimetal_block::BLOCK_BYTES;
use bimetal_block::layers::mirror::formatting::Formatting;
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::layers::mirror::{
    Acknowledge, ExposureConfig, Layouts, MirrorConfig, OnDegraded, OrderAfter, PolicyName, Silence,
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

/// Devices under one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideScenario {
    /// Range of the durations of requests to the disks of the side.
    pub latency: Latency,
    /// Type and name of the device profile that adds realistic timing above the disk, if there is
    /// one.
    pub profile: Option<(String, String)>,
    /// Number of disks and stripe unit in bytes, for a side that is striped; `None` means a single
    /// disk.
    pub stripe: Option<(usize, u64)>,
    /// Whether the disks say that they are rotational. The mirror then saves seeks, for example by
    /// reading content from another side.
    pub rotational: bool,
}

/// A fault of a side during one life of the program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// Number of the side.
    pub side: usize,
    /// Start of the fault, in nanoseconds after the faults of the life are activated.
    pub at_ns: u64,
    /// Duration in nanoseconds; `None` means permanent.
    pub for_ns: Option<u64>,
    /// Kind of the fault.
    pub kind: FaultKind,
}

/// Kinds of faults; see the fault model in [`disk`](super::disk).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum FaultKind {
    /// The disk accepts and answers no requests.
    Frozen,
    /// Requests take this number of times their normal duration.
    Slow(u64),
    /// Operations of a class (0 reads, 1 writes, 2 flushes) fail with a given chance.
    Errors {
        /// The class of operations.
        class: usize,
        /// The chance, from 0 to 1.
        chance: f64,
    },
    /// The next operations of a class fail.
    FailNext {
        /// The class of operations: 0 reads, 1 writes, 2 flushes.
        class: usize,
        /// Number of operations that fail.
        count: u32,
    },
    /// Every request fails with `Offline`.
    Offline,
    /// The disk becomes absent and returns, several times.
    Flapping {
        /// Number of times that the disk becomes absent.
        times: u32,
    },
    /// Blocks change at rest.
    Rot {
        /// Number of blocks.
        blocks: u32,
    },
    /// All copies of blocks of the volume change at rest.
    RotOfAllCopies {
        /// Number of blocks.
        blocks: u32,
    },
    /// Operations are lost or misdirected: a write is lost, or a write or a read uses another
    /// offset. The fault hits the next operations for which the rule in
    /// [`corruption`](super::corruption) allows it.
    Astray {
        /// Kind of the fault: a lost write, a misdirected write, or a misdirected read.
        how: Astray,
        /// Number of operations that are lost or misdirected.
        count: u32,
    },
}

/// Event on a side between two lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AtRest {
    /// Copies of the superblock are overwritten with zeroes or garbage.
    SuperblockLost {
        /// Number of the side.
        side: usize,
        /// Whether the first copy is overwritten.
        first: bool,
        /// Whether the second copy is overwritten.
        second: bool,
        /// Whether the copies contain garbage rather than zeroes.
        garbage: bool,
    },
    /// The side returns with the content that it had at the end of life number
    /// [`Scenario::snapshot_after`].
    Older {
        /// Number of the side.
        side: usize,
    },
    /// Blocks of the side change at rest (bit rot).
    Rot {
        /// Number of the side.
        side: usize,
        /// Number of blocks.
        blocks: u32,
    },
}

/// End of a life of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum End {
    /// The load ends, all sides become in sync, and the volume is closed.
    Clean,
    /// The load ends, and the volume is closed immediately.
    CleanAtOnce,
    /// The power is cut during the load.
    Crash {
        /// Time of the power cut, in nanoseconds after the start of the load.
        at_ns: u64,
    },
    /// The program is killed during the load, while the disks keep their power.
    Kill {
        /// Time of the kill, in nanoseconds after the start of the load.
        at_ns: u64,
    },
}

/// One life of the program: from opening the volume to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Life {
    /// Events on the sides at rest before the life.
    pub at_rest: Vec<AtRest>,
    /// Openings that a power cut ends, before the opening that succeeds: for each opening, the time
    /// from its start to the power cut, in nanoseconds.
    pub cut_openings_ns: Vec<u64>,
    /// Whether the whole volume is read once before the load.
    pub reads_all: bool,
    /// Whether the life has no load.
    pub idle: bool,
    /// Start of a scrub, in nanoseconds after the start of the life; `None` means no scrub.
    pub scrub_ns: Option<u64>,
    /// Ambushes. The first ambush that happens ends the life.
    pub ambushes: Vec<Ambush>,
    /// End of the life.
    pub end: End,
    /// Faults during the life.
    pub faults: Vec<Fault>,
}

impl Life {
    /// Returns a life with a load, without faults, and with a clean end.
    pub fn calm() -> Life {
        Life {
            at_rest: Vec::new(),
            cut_openings_ns: Vec::new(),
            reads_all: true,
            idle: false,
            scrub_ns: None,
            ambushes: Vec::new(),
            end: End::Clean,
            faults: Vec::new(),
        }
    }
}

/// Load of the clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Number of concurrent clients.
    pub clients: usize,
    /// Number of operations of each client in a life.
    pub operations: u64,
    /// Weights of the kinds of operations: read, write, write with FUA, flush, discard,
    /// write-zeroes and extents.
    pub weights: [u32; 7],
    /// Maximum number of units of an operation.
    pub units_max: usize,
    /// Chance that an operation accesses the first few units.
    pub hot: f64,
    /// Mean pause between two operations of a client, in nanoseconds.
    pub pause_ns: u64,
    /// Chance that a client abandons an operation before its answer.
    pub leave: f64,
}

/// Scenario of a seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Amount of work.
    pub extent: Extent,
    /// Whether the executor runs ready tasks in a random order.
    pub shuffle: bool,
    /// Whether the sides are formatted, so that the volume can have more than one life.
    pub superblocks: bool,
    /// For each side, whether it is a log and nothing else. Sides beyond the end of the list, and
    /// all sides of a mirror without superblocks, have a home for each block.
    pub logged: Vec<bool>,
    /// Whether logged sides clean segments whenever one of them has a dead block.
    pub cleans_always: bool,
    /// Whether logged sides fill the segment first that became free last.
    pub fills_newest_first: bool,
    /// Idle time in nanoseconds after which logged disks are put in order; 0: all the time; `None`:
    /// never.
    pub order_after_ns: Option<u64>,
    /// Number of pages of the map, and as many of the checksums, that logged sides keep in memory;
    /// `None` for all.
    pub map_pages: Option<u64>,
    /// Number of blocks of the volume that may have content at a time; `None` for all.
    pub room_blocks: Option<u64>,
    /// The sides.
    pub sides: Vec<SideScenario>,
    /// Side without faults. If there is one, the volume must answer every request correctly.
    pub steadfast: Option<usize>,
    /// Size of the part of the volume under load, in bytes.
    pub span_bytes: u64,
    /// Size of a unit of the load in bytes: 4 KiB, or 512 bytes with the layer of the atomic unit
    /// on top of the mirror.
    pub unit_bytes: u64,
    /// Configuration of the mirror.
    pub mirror: MirrorSettings,
    /// The load.
    pub load: Load,
    /// Lives of the program. If the last life does not end cleanly, a life without faults follows.
    pub lives: Vec<Life>,
    /// Classes of faults and checks that are enabled.
    pub classes: Classes,
    /// Whether any fault of the scenario corrupts blocks.
    pub corrupts: bool,
    /// Whether power cuts tear blocks.
    pub torn: bool,
    /// Whether requests in flight can still be applied after their program was killed.
    pub arrives_late: bool,
    /// Whether disks answer a program only after the requests of the previous program have ended.
    pub fenced: bool,
    /// Whether, before each life but the first, the volume is opened from each side alone, on a
    /// copy.
    pub boots_alone: bool,
    /// Whether each opening is checked: the content of each side alone is read from copies before
    /// and after the opening, and the two readings are compared.
    pub watches_openings: bool,
    /// Side to replace by a side of another volume (a foreign side) in a probe. The probe opens a
    /// copy of the volume, before each life but the first. `None` means no probe.
    pub foreign: Option<usize>,
    /// Change to the set of sides. The tester makes this change on a copy of the disks, before each
    /// life except the first.
    pub changes_sides: Option<ChangeOfSides>,
    /// Number of the life after which the content of the sides is saved, for a side that later
    /// returns with this content ([`AtRest::Older`]).
    pub snapshot_after: Option<usize>,
}

impl Extent {
    /// All amounts of work.
    pub const ALL: [Extent; 3] = [Extent::Usual, Extent::HeavyTailed, Extent::Small];

    /// Returns the name of the amount of work on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Extent::Usual => "usual",
            Extent::HeavyTailed => "heavy-tailed",
            Extent::Small => "small",
        }
    }
}

/// Amount of work of a seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Extent {
    /// 60 to 500 operations of clients in a life.
    #[default]
    Usual,
    /// Up to a hundred times the usual number of operations, with more faults in proportion. In
    /// half of the seeds, the number of operations is at most ten times the usual number.
    HeavyTailed,
    /// A fifth of the usual operations and at most two lives, for runs that are repeated at every
    /// boundary.
    Small,
}

/// Configuration of the mirror that a seed has drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorSettings {
    /// Bound on the exposure, in bytes.
    pub exposure_bytes: u64,
    /// Bound on the age of the exposure, in nanoseconds.
    pub exposure_age_ns: u64,
    /// Name of the policy: `bounded`, `paper` or `paper-wait-limit`.
    pub policy: &'static str,
    /// Value of the key `wait_limit`: the factor in the rule of the hetero-mirroring paper. The
    /// time limit of the other sides starts when the first side completes a write. The limit is
    /// this factor times the time that the first side needed for the write.
    pub wait_limit: Option<f64>,
    /// Value of the key `limit_multiple`. A side is late if a write takes longer than this multiple
    /// of a quantile of the write times of this side.
    pub limit_multiple: Option<f64>,
    /// Whether a delayed side catches up in the order of offsets; `None` means the default of the
    /// policy.
    pub sorted: Option<bool>,
    /// Whether the mirror serves one write at a time.
    pub serial: bool,
    /// Timeout in nanoseconds: a side with outstanding requests that completes none for this long
    /// is considered absent.
    pub absent_after_ns: u64,
    /// Silence in nanoseconds after which a side is ejected if writes wait because of it; `None` if
    /// they wait.
    pub silence_ns: Option<u64>,
    /// Reaction to a missing side: `continue`, `read-only` or `stop`.
    pub on_degraded: &'static str,
    /// Maximum number of writes in flight to a side.
    pub depth: Option<usize>,
    /// Whether a change is acknowledged only when every member of the mirror has stored it.
    pub acknowledge_all: bool,
}

impl MirrorSettings {
    /// Returns the settings as the configuration of a mirror with this number of sides.
    pub fn config(&self, sides: usize) -> MirrorConfig {
        use bimetal_block::layers::mirror::DrainName;
        let names = (0..sides).map(|side| format!("side-{side}")).collect();
        let mut config = MirrorConfig::of(names);
        let time = |ns| Time(Duration::from_nanos(ns));
        config.exposure = ExposureConfig {
            bytes: Size(self.exposure_bytes),
            age: time(self.exposure_age_ns),
            silence: match self.silence_ns {
                Some(ns) => Silence::For(time(ns)),
                None => Silence::Wait,
            },
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

    /// Returns true if the policy limits how often a side switches its mode, as the default policy
    /// does.
    pub fn dwells(&self) -> bool {
        self.policy == "bounded"
    }
}

pub(super) fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize].clone()
}

/// Draws a number between `low` and `high`, with a log-uniform distribution.
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
    /// Returns the configuration of a mirror with this number of sides.
    pub fn config(&self, sides: usize) -> MirrorConfig {
        let mut config = self.mirror.config(sides);
        config.layout = self.layouts();
        config.cleans_always = self.cleans_always;
        config.fills_newest_first = self.fills_newest_first;
        if let Some(pages) = self.map_pages {
            config.map_memory = Size(2 * pages * BLOCK_BYTES);
        }
        config.watches_map = true;
        config.order_after = match self.order_after_ns {
            Some(ns) => OrderAfter::Idle(Time(Duration::from_nanos(ns))),
            None => OrderAfter::Never,
        };
        config
    }

    /// Returns the options with which the sides are formatted.
    pub fn formatting(&self) -> Formatting {
        Formatting {
            layouts: self.layouts(),
            room_bytes_max: self.room_blocks.map(|blocks| blocks * BLOCK_BYTES),
            ..Formatting::default()
        }
    }

    /// Returns true when a side is a log and nothing else.
    pub fn is_logged(&self, side: usize) -> bool {
        self.superblocks && self.logged.get(side).copied().unwrap_or(false)
    }

    /// Returns true when a side, or the side that is added, is a log and nothing else.
    pub fn has_logged_side(&self) -> bool {
        (0..self.logged.len()).any(|side| self.is_logged(side))
    }

    /// Returns the layouts of the sides, including a side that is added, for a configuration that
    /// names them `side-0`, `side-1` and so on.
    pub fn layouts(&self) -> Layouts {
        let logged = (0..self.logged.len()).filter(|side| self.is_logged(*side));
        Layouts::Each(
            logged
                .map(|side| (format!("side-{side}"), SideKind::Log))
                .collect(),
        )
    }

    /// Draws the scenario of a seed.
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
        let mut mirror = draw_settings(rng, profiles);
        // From a stream of its own, so that the other choices of a seed do not depend on it.
        mirror.silence_ns = draw_silence(&mut Rng::labelled(seed, "silence"), profiles);
        let mut load = draw_load(rng, unit_bytes);
        // A long load must have flushes. Without flushes, the model could not be certain of any
        // write that it is durable, and would have to keep every write.
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
            arrives_late: false,
            fenced: true,
            boots_alone: false,
            watches_openings: false,
            foreign: None,
            changes_sides: None,
            snapshot_after: None,
            logged: Vec::new(),
            cleans_always: false,
            fills_newest_first: false,
            order_after_ns: None,
            map_pages: None,
            room_blocks: None,
        }
    }

    /// Returns the number of units in the loaded part of the volume.
    pub fn units(&self) -> usize {
        (self.span_bytes / self.unit_bytes) as usize
    }
}

/// Returns the number of operations of a seed as a multiple of the usual number.
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
        rotational: false,
    }
}

fn draw_settings(rng: &mut Rng, profiles: bool) -> MirrorSettings {
    let policy = pick(
        rng,
        &["bounded", "bounded", "bounded", "paper", "paper-wait-limit"],
    );
    let absent_after_ns = draw_timeout(rng, profiles);
    MirrorSettings {
        exposure_bytes: pick(rng, &[0, 4 << 10, 64 << 10, 512 << 10, 64 << 20]),
        exposure_age_ns: pick(rng, &[MS, 20 * MS, 500 * MS, 5 * S]),
        policy,
        wait_limit: rng.chance(0.2).then(|| pick(rng, &[0.1, 1.3, 5.0])),
        limit_multiple: rng.chance(0.3).then(|| pick(rng, &[1.0, 2.0, 10.0])),
        sorted: pick(rng, &[None, None, Some(true), Some(false)]),
        serial: rng.chance(0.05),
        absent_after_ns,
        silence_ns: None,
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

/// Returns the silence after which a side for which writes wait is ejected. In half of the seeds it
/// is shorter than most timeouts, so that it has an effect.
fn draw_silence(rng: &mut Rng, profiles: bool) -> Option<u64> {
    if rng.chance(0.2) {
        return None;
    }
    let silence_ns = draw_timeout(rng, profiles);
    Some(match rng.chance(0.5) && !profiles {
        true => silence_ns.min(100 * MS),
        false => silence_ns,
    })
}

/// Returns a time in nanoseconds in which every side without faults completes a request.
fn draw_timeout(rng: &mut Rng, profiles: bool) -> u64 {
    // With a device profile, a side can complete no request for seconds although it has no fault:
    // the emulated SSD of 2009 freezes for four seconds, and a full shingled disk cleans for
    // longer. The timeout must exceed these pauses.
    match profiles {
        true => spread(rng, 10 * S, 30 * S),
        false => spread(rng, 50 * MS, 2 * S),
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
    // A load without writes reveals no bug, and a load without reads reveals few bugs. So reads and
    // writes always have a weight above zero.
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
