//! Outcome of a run on any backend.

use std::collections::BTreeMap;

use bimetal_policy::scheduler::DirectionCounters;
use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::settings::Settings;
use crate::workload::Measured;

/// Counters of a queue for reads or for writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direction {
    /// Bios that the queue received (*enqueued*).
    pub bios: u64,
    /// Bios merged at the back of a request.
    pub back_merges: u64,
    /// Bios merged at the front of a request.
    pub front_merges: u64,
    /// Requests merged into another request.
    pub request_merges: u64,
    /// Number of additional bios that arose when bios were split.
    pub splits: u64,
    /// Requests issued to the device (*dequeued*).
    pub issued: u64,
    /// Requests completed by the device.
    pub completed: u64,
    /// Bytes of all bios.
    pub bytes: u64,
}

impl Direction {
    /// Converts the counters of a queue, and checks that they are consistent.
    ///
    /// # Panics
    /// If the counters are inconsistent.
    pub(crate) fn new(counts: &DirectionCounters, bytes: u64) -> Direction {
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
        // These equations hold for every run. If they do not, no counter of the run can be trusted.
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

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Version of the format in which outcomes are stored.
    pub schema: u32,
    /// Choice on each axis for the cell of the run.
    pub choice: BTreeMap<String, String>,
    /// All settings that affect the run, except its seed.
    pub settings: Settings,
    /// Seed of the run.
    pub seed: u64,
    /// Metrics that the load measured.
    pub measured: Measured,
    /// Counters of reads at the queue of the device.
    pub reads: Direction,
    /// Counters of writes at the queue of the device.
    pub writes: Direction,
    /// Number of flushes at the device.
    pub flushes: u64,
    /// Number of seeks, if the device is a disk.
    pub seeks: u64,
    /// Sum of the distances of all seeks, in bytes of address.
    pub seek_distance_bytes: u64,
    /// Time from the start to the end of the run, in ns.
    pub elapsed_ns: u64,
    /// Latencies of bios; `None` for bios of the kernel, which are only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latencies>,
    /// Machine that executed the run; `None` in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// Properties of the machine that affect a run, and the settings of the machine just before the
/// load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The release of the kernel.
    pub kernel: String,
    /// Description of the device.
    pub device: String,
    /// Settings that were written, each with the path of its file and the value that was read back.
    pub settings: BTreeMap<String, String>,
    /// Command that created the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// Mount options that the kernel reports for the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    /// Description of the source of the request counters.
    pub counted_by: String,
    /// CPU time of this program during the run, in ns.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Delays of emulated devices relative to their models; `None` if the run has no emulated
    /// device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

/// Delay with which an emulated device completes the events of its model. The emulation adds this
/// delay to the modelled latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of events of the model, such as the end of a request.
    pub events: u64,
    /// Mean delay of an event in ns.
    pub mean_ns: u64,
    /// Maximum delay of an event in ns.
    pub max_ns: u64,
}
