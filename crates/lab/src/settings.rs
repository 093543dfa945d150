//! The settings that a run of an experiment depends on, and the identity of the run, which is a
//! hash over the settings and the seed.

use std::collections::BTreeMap;

use bimetal_block::layers::queue::{PlugConfig, QueueConfig};
use bimetal_block::units::{Size, Time};
use serde::{Deserialize, Serialize};

use crate::device::{Backend, DeviceSettings};
use crate::workload::Resolved;

/// Version of the format in which the outcome of a run is stored. Runs stored in another version
/// are made again.
pub const SCHEMA: u32 = 1;

/// A scheduler, with the parameters that differ from their defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// Name of the scheduler.
    pub name: String,
    /// Values of parameters, by name.
    pub parameters: BTreeMap<String, toml::Value>,
}

impl SchedulerSettings {
    /// Checks that the scheduler and its parameters exist.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(crate) fn check(&self) -> Result<(), String> {
        queue_config(self, 1).check()
    }

    /// Checks that the names of the scheduler and its parameters consist of allowed characters,
    /// because these names become paths in sysfs.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(crate) fn check_words(&self) -> Result<(), String> {
        for name in std::iter::once(&self.name).chain(self.parameters.keys()) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(format!(
                    "`{name}` cannot be the name of a scheduler or of a parameter"
                ));
            }
        }
        for (name, value) in &self.parameters {
            if !value.is_integer() && !value.is_str() {
                return Err(format!(
                    "`{name}` must be a whole number or a text, as in queue/iosched"
                ));
            }
        }
        Ok(())
    }
}

/// All settings that affect a run, except its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Backend of the run.
    #[serde(default, skip_serializing_if = "Backend::is_virtual")]
    pub backend: Backend,
    /// The device.
    pub device: DeviceSettings,
    /// The scheduler above the device.
    pub scheduler: SchedulerSettings,
    /// Maximum read-ahead window in pages of 4 KiB.
    pub read_ahead_pages: u64,
    /// Write mode: `back` or `through`.
    pub write_mode: String,
    /// Name of the file system.
    pub file_system: String,
    /// The load.
    pub workload: Resolved,
    /// Memory in pages of 4 KiB; 0 means all memory of the machine.
    pub memory_pages: u32,
    /// Whether commits and syncs flush the cache of the device.
    pub barriers: bool,
}

/// Returns the identity of a run, which depends on its settings, its seed and [`SCHEMA`].
pub fn run_id(settings: &Settings, seed: u64) -> String {
    content_hash(&(SCHEMA, settings, seed))
}

/// Returns the identity of a value: a 128-bit FNV-1a hash of its JSON, in hexadecimal digits.
pub fn content_hash(value: &impl Serialize) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    let text = serde_json::to_vec(value).expect("settings are plain data");
    let offset = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let hash = text.iter().fold(offset, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    });
    format!("{hash:032x}")
}

/// Returns the queue configuration of a cell (one combination of the choices of a plan). It is the
/// configuration of Linux 2.6.26 with plugging, and has enough slots for the bios of a flusher.
pub(crate) fn queue_config(scheduler: &SchedulerSettings, depth: u32) -> QueueConfig {
    QueueConfig {
        below: String::new(),
        scheduler: scheduler.name.clone(),
        parameters: scheduler.parameters.clone(),
        depth,
        tags: 8192,
        request_max: Size(512 << 10),
        plug: Some(PlugConfig {
            requests: 4,
            delay: Time(std::time::Duration::from_millis(3)),
        }),
    }
}
