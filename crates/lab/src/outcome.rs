//! What comes of a run, wherever it happens.

use std::collections::BTreeMap;

use bimetal_policy::scheduler::DirectionCounts;
use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::settings::Settings;
use crate::workload::Measured;

/// One direction of what a queue has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direction {
    /// Bios that came (*enqueued*).
    pub bios: u64,
    /// Bios put behind a request.
    pub back_merges: u64,
    /// Bios put in front of a request.
    pub front_merges: u64,
    /// Requests absorbed by another.
    pub request_merges: u64,
    /// Rests of bios that were split.
    pub splits: u64,
    /// Requests given to the device (*dequeued*).
    pub issued: u64,
    /// Requests done by the device.
    pub completed: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

impl Direction {
    /// What was counted, held against itself.
    ///
    /// # Panics
    /// When the counts contradict each other.
    pub(crate) fn new(counts: &DirectionCounts, bytes: u64) -> Direction {
        let of = Direction {
            bios: counts.bios,
            back_merges: counts.back_merges,
            front_merges: counts.front_merges,
            request_merges: counts.request_merges,
            splits: counts.splits,
            issued: counts.issued,
            completed: counts.completed,
            bytes,
        };
        // What holds in every run, or none of its figures can be believed.
        let merges = of.back_merges + of.front_merges + of.request_merges;
        assert_eq!(
            of.issued + merges,
            of.bios + of.splits,
            "issued = bios - merges + splits: {of:?}"
        );
        assert_eq!(of.issued, of.completed, "nothing is left behind: {of:?}");
        of
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The version of this.
    pub schema: u32,
    /// The choices of its cell.
    pub choice: BTreeMap<String, String>,
    /// Everything it depends on.
    pub settings: Settings,
    /// Its seed.
    pub seed: u64,
    /// What was measured.
    pub measured: Measured,
    /// Reads at the device.
    pub reads: Direction,
    /// Writes at the device.
    pub writes: Direction,
    /// Flushes at the device.
    pub flushes: u64,
    /// Seeks of a disk, and the bytes of address that it moved over.
    pub seeks: u64,
    /// See `seeks`.
    pub seek_distance_bytes: u64,
    /// Time from start to end, in ns.
    pub elapsed_ns: u64,
    /// What bios took, where that is known: the kernel's are counted only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latencies>,
    /// The machine on which it was made, if it was not in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// What else a run on a machine depends on, and how its settings read just before the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The release of the kernel.
    pub kernel: String,
    /// The device, in words.
    pub device: String,
    /// Settings as they were read back, by their paths.
    pub settings: BTreeMap<String, String>,
    /// The command that made the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// The options with which the kernel has mounted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    /// What counted the requests.
    pub counted_by: String,
    /// Processor time of this program during the run, in ns.
    #[serde(default)]
    pub cpu_ns: u64,
    /// How far behind their models emulated devices were, where there are such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

/// How far behind the times of its model an emulated device was: what the emulation added to what
/// it emulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Events of the model, such as the end of a request.
    pub events: u64,
    /// How late they were in the mean, in ns.
    pub mean_ns: u64,
    /// The latest, in ns.
    pub max_ns: u64,
}
