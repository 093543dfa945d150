//! Outcome of a run, on any backend.

use std::collections::BTreeMap;

use bimetal_policy::scheduler::DirectionCounters;
use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::settings::Settings;
use crate::workload::Measured;

/// Counters of a queue for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direction {
    /// Bios received (*enqueued*).
    pub bios: u64,
    /// Bios merged at the back of a request.
    pub back_merges: u64,
    /// Bios merged at the front of a request.
    pub front_merges: u64,
    /// Requests merged into another request.
    pub request_merges: u64,
    /// Remainders of bios that were split.
    pub splits: u64,
    /// Requests issued to the device (*dequeued*).
    pub issued: u64,
    /// Requests completed by the device.
    pub completed: u64,
    /// Bytes requested.
    pub bytes: u64,
}

impl Direction {
    /// Converts the counters of a queue, after a check that they are consistent.
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
        // These equations hold in every run; otherwise none of its counters can be trusted.
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
    /// Version of this format.
    pub schema: u32,
    /// Choices of the cell of the run.
    pub choice: BTreeMap<String, String>,
    /// Everything that the run depends on, except its seed.
    pub settings: Settings,
    /// Seed of the run.
    pub seed: u64,
    /// Measurements of the load.
    pub measured: Measured,
    /// Reads at the device.
    pub reads: Direction,
    /// Writes at the device.
    pub writes: Direction,
    /// Flushes at the device.
    pub flushes: u64,
    /// Number of seeks of a disk.
    pub seeks: u64,
    /// Sum of the distances of all seeks, in bytes of address.
    pub seek_distance_bytes: u64,
    /// Time from the start to the end of the run, in ns.
    pub elapsed_ns: u64,
    /// Latencies of bios, if known. Bios of the kernel are only counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latencies>,
    /// Machine on which the run was made, if it was not in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// Further properties of a machine on which a run depends, and the settings just before the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The release of the kernel.
    pub kernel: String,
    /// Description of the device.
    pub device: String,
    /// Settings as they were read back, by their paths.
    pub settings: BTreeMap<String, String>,
    /// The command that made the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// Mount options that the kernel reports for the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    /// Source of the counters of requests.
    pub counted_by: String,
    /// CPU time of this program during the run, in ns.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Delays of emulated devices behind their models, if the run has emulated devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

/// Delay of an emulated device behind its model: the time that the emulation adds to the modelled
/// latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of events of the model, such as the end of a request.
    pub events: u64,
    /// Mean delay of an event in ns.
    pub mean_ns: u64,
    /// Maximum delay of an event in ns.
    pub max_ns: u64,
}
