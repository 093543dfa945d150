//! Everything that a run depends on, and what identifies it.

use std::collections::BTreeMap;

use bimetal_block::layers::queue::{PlugConfig, QueueConfig};
use bimetal_block::units::{Size, Time};
use serde::{Deserialize, Serialize};

use crate::device::{Backend, DeviceSettings};
use crate::workload::Resolved;

/// The version of what is written of a run. Runs of other versions are made again.
pub const SCHEMA: u32 = 1;

/// A scheduler, with the parameters that are not at their defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub parameters: BTreeMap<String, toml::Value>,
}

impl SchedulerSettings {
    /// Refuses what does not exist.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        queue_config(self, 1).check()
    }

    /// Refuses what can be no name of the kernel's: names become paths in sysfs.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check_words(&self) -> Result<(), String> {
        for name in std::iter::once(&self.name).chain(self.parameters.keys()) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(format!(
                    "`{name}` is no name of a scheduler or of a parameter"
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

/// Everything that a run depends on, but for its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Where the run happens.
    #[serde(default, skip_serializing_if = "Backend::is_virtual")]
    pub backend: Backend,
    /// The device.
    pub device: DeviceSettings,
    /// The scheduler in front of it.
    pub scheduler: SchedulerSettings,
    /// The longest window of read-ahead, in pages of 4 KiB.
    pub read_ahead_pages: u64,
    /// `back` or `through`.
    pub write_mode: String,
    /// The layout.
    pub file_system: String,
    /// The load.
    pub workload: Resolved,
    /// Pages of memory; 0 for all of the machine's.
    pub memory_pages: u32,
    /// Whether commits and syncs flush the device's cache.
    pub barriers: bool,
}

/// The identity of a run: the same settings, seed and version give the same outcome.
pub fn run_id(settings: &Settings, seed: u64) -> String {
    content_hash(&(SCHEMA, settings, seed))
}

/// What identifies a value that is written as JSON: FNV-1a of 128 bits, in hexadecimal digits.
pub fn content_hash(value: &impl Serialize) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    let text = serde_json::to_vec(value).expect("settings are plain data");
    let offset = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let hash = text.iter().fold(offset, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    });
    format!("{hash:032x}")
}

/// The queue as a cell has it: of 2.6.26, with a plug, and room for the bios of a flusher.
pub(crate) fn queue_config(scheduler: &SchedulerSettings, depth: u32) -> QueueConfig {
    QueueConfig {
        below: String::new(),
        scheduler: scheduler.name.clone(),
        parameters: scheduler.parameters.clone(),
        depth,
        places: 8192,
        request_max: Size(512 << 10),
        plug: Some(PlugConfig {
            requests: 4,
            delay: Time(std::time::Duration::from_millis(3)),
        }),
    }
}
