//! Named device profiles: every parameter of every shipped profile, and how a configuration
//! overrides the parameters.
//!
//! docs/models.md gives the source and the reasoning for each value. The values are frozen, because
//! the results in the documentation were obtained with them; a better fit gets a new profile name.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::draw::Lognormal;
use super::flash::{FlashCleaning, FlashLayer};
use super::limits::{ModelError, ModelType};
use super::{
    Flash, FlashParameters, Hdd, HddParameters, NetworkDisk, NetworkParameters, Ssd, SsdParameters,
    TimingModel,
};
use crate::units::{parse_size, parse_time};

const MB: u64 = 1_000_000;
const GB: u64 = 1_000 * MB;
const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;

/// All parameters of a model except its capacity and its seed.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameters {
    /// Parameters of an SSD.
    Ssd(SsdParameters),
    /// Parameters of a hard disk.
    Hdd(HddParameters),
    /// Parameters of a network disk.
    Network(NetworkParameters),
    /// Parameters of a flash drive.
    Flash(Box<FlashParameters>),
}

impl Parameters {
    /// Returns the parameters of the profile `name` with `overrides` applied. Tables in the profile
    /// and in the overrides are merged key by key. A time or size can be a number or a text with a
    /// unit.
    ///
    /// # Errors
    /// If the profile is unknown (the message lists the profiles of the type), if the profile is of
    /// another type, if an override does not name a parameter or has the wrong type, or if a value
    /// is out of range.
    pub fn from_profile(
        wanted: ModelType,
        name: &str,
        overrides: toml::Table,
    ) -> Result<Self, ModelError> {
        let Some(profile) = PROFILES.iter().find(|profile| profile.name == name) else {
            let known: Vec<&str> = PROFILES
                .iter()
                .filter(|p| p.of == wanted)
                .map(|p| p.name)
                .collect();
            let known = known.join(", ");
            return Err(ModelError::UnknownProfile {
                name: name.to_owned(),
                of: wanted,
                known,
            });
        };
        if profile.of != wanted {
            let name = name.to_owned();
            return Err(ModelError::WrongType {
                name,
                is: profile.of,
                wanted,
            });
        }
        let parameters = match (profile.parameters)() {
            Parameters::Ssd(base) => Parameters::Ssd(with_overrides(name, &base, overrides)?),
            Parameters::Hdd(base) => Parameters::Hdd(with_overrides(name, &base, overrides)?),
            Parameters::Network(base) => {
                Parameters::Network(with_overrides(name, &base, overrides)?)
            }
            Parameters::Flash(base) => {
                Parameters::Flash(Box::new(with_overrides(name, &*base, overrides)?))
            }
        };
        parameters.validate()?;
        Ok(parameters)
    }

    /// Checks that a device can have these values; an error names the field.
    pub fn validate(&self) -> Result<(), ModelError> {
        match self {
            Parameters::Ssd(parameters) => parameters.validate(),
            Parameters::Hdd(parameters) => parameters.validate(),
            Parameters::Network(parameters) => parameters.validate(),
            Parameters::Flash(parameters) => parameters.validate(),
        }
    }

    /// Creates a device of `capacity_bytes`, whose random durations are drawn from `seed`. Errors:
    /// a value out of range, or a capacity of 0.
    pub fn build(
        &self,
        capacity_bytes: u64,
        seed: u64,
    ) -> Result<Box<dyn TimingModel + Send>, ModelError> {
        Ok(match self.clone() {
            Parameters::Ssd(parameters) => Box::new(Ssd::new(parameters, capacity_bytes, seed)?),
            Parameters::Hdd(parameters) => Box::new(Hdd::new(parameters, capacity_bytes, seed)?),
            Parameters::Network(parameters) => Box::new(NetworkDisk::new(parameters, seed)?),
            Parameters::Flash(parameters) => {
                Box::new(Flash::new(*parameters, capacity_bytes, seed)?)
            }
        })
    }
}

/// A named set of parameters.
#[derive(Debug)]
pub struct Profile {
    /// Name in `profile = "..."` of a configuration.
    pub name: &'static str,
    /// Type of the described device.
    pub of: ModelType,
    /// Description of the device in one line.
    pub about: &'static str,
    /// Name of the profile for the other side of a mirror, if the two profiles were fitted as a
    /// pair.
    pub partner: Option<&'static str>,
    /// Function that returns the parameters.
    pub parameters: fn() -> Parameters,
}

/// Returns all profiles, in the order in which they are listed to the user.
pub fn profiles() -> &'static [Profile] {
    PROFILES
}

static PROFILES: &[Profile] = &[
    Profile {
        name: "sata-2009",
        of: ModelType::Ssd,
        about: "SATA SSD of 2009 that freezes; the same as sata-2009-b",
        partner: Some("hdd-7200"),
        parameters: sata_2009_b,
    },
    Profile {
        name: "sata-2009-a",
        of: ModelType::Ssd,
        about: "SATA SSD of 2009 that freezes, fitted beside a disk without command queueing",
        partner: Some("hdd-7200-qd1"),
        parameters: sata_2009_a,
    },
    Profile {
        name: "sata-2009-b",
        of: ModelType::Ssd,
        about: "SATA SSD of 2009 that freezes, fitted beside a disk with NCQ 8",
        partner: Some("hdd-7200"),
        parameters: sata_2009_b,
    },
    Profile {
        name: "qlc-sata",
        of: ModelType::Ssd,
        about: "SATA QLC SSD with an SLC cache that runs out",
        partner: None,
        parameters: qlc_sata,
    },
    Profile {
        name: "nvme-tlc",
        of: ModelType::Ssd,
        about: "NVMe TLC SSD with rare stalls",
        partner: None,
        parameters: nvme_tlc,
    },
    Profile {
        name: "hdd-7200",
        of: ModelType::Hdd,
        about: "7200 rpm disk, NCQ 8, write cache off",
        partner: Some("sata-2009-b"),
        parameters: || Parameters::Hdd(hdd_7200(8)),
    },
    Profile {
        name: "hdd-7200-qd1",
        of: ModelType::Hdd,
        about: "7200 rpm disk that serves one command at a time, write cache off",
        partner: Some("sata-2009-a"),
        parameters: || Parameters::Hdd(hdd_7200(1)),
    },
    Profile {
        name: "hdd-5400",
        of: ModelType::Hdd,
        about: "5400 rpm 2.5 inch disk, NCQ 32, write cache off",
        partner: None,
        parameters: hdd_5400,
    },
    Profile {
        name: "hdd-smr",
        of: ModelType::Hdd,
        about: "drive-managed shingled disk with a 20 GB media cache",
        partner: None,
        parameters: hdd_smr,
    },
    Profile {
        name: "network-disk",
        of: ModelType::Network,
        about: "network volume of 3,000 IOPS and 125 MB/s",
        partner: None,
        parameters: network_disk,
    },
    Profile {
        name: "flash-tlc",
        of: ModelType::Flash,
        about: "NVMe drive of TLC flash, page-mapped, by its own cleaning",
        partner: None,
        parameters: || Parameters::Flash(Box::new(flash_tlc())),
    },
    Profile {
        name: "flash-2009",
        of: ModelType::Flash,
        about: "SATA drive of the MLC flash of 2009, page-mapped, by its own cleaning",
        partner: None,
        parameters: || Parameters::Flash(Box::new(flash_2009())),
    },
];

fn sata_2009_a() -> Parameters {
    Parameters::Ssd(sata_2009(55 * MB, 400 * MS))
}

fn sata_2009_b() -> Parameters {
    Parameters::Ssd(sata_2009(68 * MB, 320 * MS))
}

fn sata_2009(write_rate_bytes_per_s: u64, freeze_median_ns: u64) -> SsdParameters {
    SsdParameters {
        channels_commands: 1,
        read_latency_ns: 150 * US,
        read_rate_bytes_per_s: 150 * MB,
        write_latency_ns: 300 * US,
        write_rate_bytes_per_s,
        flush_latency_ns: 300 * US,
        discard_latency_ns: 300 * US,
        zeroes_deallocate: false,
        pool_bytes: 64 * MB,
        pool_reclaim_bytes_per_s: 8 * MB,
        pool_reclaim_idle_ns: 20 * MS,
        sequential_pool_share: 0.5,
        freeze: Lognormal {
            median_ns: freeze_median_ns,
            sigma: 0.8,
            cap_ns: 4 * S,
        },
        freeze_frees_bytes: 24 * MB,
        freeze_holds_reads: false,
        ..never_stumbles()
    }
}

/// Returns the parameters of an SSD that never freezes or stalls and has no SLC cache.
fn never_stumbles() -> SsdParameters {
    let none = Lognormal {
        median_ns: 0,
        sigma: 0.0,
        cap_ns: 0,
    };
    SsdParameters {
        channels_commands: 1,
        read_latency_ns: 0,
        read_rate_bytes_per_s: GB,
        write_latency_ns: 0,
        write_rate_bytes_per_s: GB,
        flush_latency_ns: 0,
        discard_latency_ns: 0,
        zeroes_deallocate: false,
        pool_bytes: 0,
        pool_reclaim_bytes_per_s: 0,
        pool_reclaim_idle_ns: 0,
        sequential_pool_share: 1.0,
        freeze: none,
        freeze_frees_bytes: 0,
        freeze_holds_reads: false,
        slc_cache_bytes_per_tb: 0,
        slc_rate_bytes_per_s: GB,
        slc_fold_bytes_per_s: 0,
        slc_fold_idle_ns: 0,
        stall_probability: 0.0,
        stall_exhausted_probability: 0.0,
        stall: none,
    }
}

fn qlc_sata() -> Parameters {
    Parameters::Ssd(SsdParameters {
        channels_commands: 1,
        read_latency_ns: 100 * US,
        read_rate_bytes_per_s: 500 * MB,
        write_latency_ns: 50 * US,
        write_rate_bytes_per_s: 90 * MB,
        flush_latency_ns: MS,
        discard_latency_ns: 100 * US,
        slc_cache_bytes_per_tb: 42 * GB,
        slc_rate_bytes_per_s: 500 * MB,
        slc_fold_bytes_per_s: 60 * MB,
        slc_fold_idle_ns: 500 * MS,
        stall_probability: 2e-5,
        stall_exhausted_probability: 3e-3,
        stall: Lognormal {
            median_ns: 120 * MS,
            sigma: 1.1,
            cap_ns: 4 * S,
        },
        ..never_stumbles()
    })
}

fn nvme_tlc() -> Parameters {
    Parameters::Ssd(SsdParameters {
        channels_commands: 64,
        read_latency_ns: 70 * US,
        read_rate_bytes_per_s: 3 * GB,
        write_latency_ns: 20 * US,
        write_rate_bytes_per_s: 2 * GB,
        flush_latency_ns: 500 * US,
        discard_latency_ns: 20 * US,
        zeroes_deallocate: true,
        stall_probability: 1e-4,
        stall_exhausted_probability: 1e-4,
        stall: Lognormal {
            median_ns: 20 * MS,
            sigma: 1.2,
            cap_ns: 2 * S,
        },
        ..never_stumbles()
    })
}

fn hdd_7200(queue_commands: u32) -> HddParameters {
    HddParameters {
        disk_bytes: 0,
        seek_base_ns: 600 * US,
        seek_sqrt_ns: 15_400 * US,
        seek_linear_ns: 0,
        settle_ns: 400 * US,
        write_settle_ns: 0,
        revolution_ns: 8_333_333,
        zones: 16,
        outer_rate_bytes_per_s: 115 * MB,
        inner_rate_bytes_per_s: 60 * MB,
        queue_commands,
        misses_revolution: false,
        looks_ahead: true,
        continued_read_ns: 0,
        write_cache_bytes: 0,
        bus_rate_bytes_per_s: 150 * MB,
        command_ns: 100 * US,
        media_cache_bytes: 0,
        band_bytes: 30 * MB,
        band_clean_min_ns: 600 * MS,
        band_clean_max_ns: 1_600 * MS,
        band_clean_idle_ns: S,
    }
}

fn hdd_5400() -> Parameters {
    Parameters::Hdd(HddParameters {
        seek_base_ns: 1_500 * US,
        seek_sqrt_ns: 15_170 * US,
        seek_linear_ns: 3_330 * US,
        settle_ns: 0,
        write_settle_ns: MS,
        revolution_ns: 11_111_111,
        outer_rate_bytes_per_s: 52 * MB,
        inner_rate_bytes_per_s: 26 * MB,
        queue_commands: 32,
        misses_revolution: true,
        bus_rate_bytes_per_s: 100 * MB,
        command_ns: 200 * US,
        ..hdd_7200(32)
    })
}

fn hdd_smr() -> Parameters {
    Parameters::Hdd(HddParameters {
        outer_rate_bytes_per_s: 180 * MB,
        inner_rate_bytes_per_s: 90 * MB,
        media_cache_bytes: 20 * GB,
        ..hdd_7200(32)
    })
}

fn network_disk() -> Parameters {
    Parameters::Network(NetworkParameters {
        rate_commands_per_s: 3_000,
        burst_commands: 300,
        rate_bytes_per_s: 125 * MB,
        burst_bytes: 12_500_000,
        latency: Lognormal {
            median_ns: 800 * US,
            sigma: 0.35,
            cap_ns: 10 * S,
        },
        spike_probability: 2e-4,
        spike: Lognormal {
            median_ns: 50 * MS,
            sigma: 1.0,
            cap_ns: 10 * S,
        },
    })
}

fn flash_tlc() -> FlashParameters {
    FlashParameters {
        channels: 8,
        ways: 1,
        dies: 4,
        planes: 1,
        pages_per_block: 256,
        page_bytes: 4096,
        over_provisioning: 0.07,
        layer: FlashLayer::Page,
        cleaning: FlashCleaning::Greedy,
        cleaning_choices: 8,
        separates_hot: false,
        cached_map_entries: 0,
        log_share: 0.03,
        least_worn_first: true,
        wear_spread_erases: 0,
        background_free_blocks: 8,
        background_idle_ns: 10 * MS,
        write_cache_pages: 4096,
        slc_pages: 0,
        prefetch_pages: 0,
        read_ns: 60 * US,
        program_ns: 170 * US,
        erase_ns: 5 * MS,
        slc_read_ns: 30 * US,
        slc_program_ns: 60 * US,
        channel_rate_bytes_per_s: 800 * MB,
        copy_back: false,
        reads_first: true,
        command_ns: 10 * US,
        interface_rate_bytes_per_s: 3 * GB,
        flush_ns: 500 * US,
        zeroes_deallocate: true,
        filled_share: 0.0,
        overwritten_times: 0.0,
    }
}

fn flash_2009() -> FlashParameters {
    FlashParameters {
        channels: 4,
        ways: 2,
        dies: 2,
        pages_per_block: 128,
        over_provisioning: 0.28,
        read_ns: 50 * US,
        program_ns: 900 * US,
        erase_ns: 3 * MS,
        channel_rate_bytes_per_s: 40 * MB,
        command_ns: 100 * US,
        interface_rate_bytes_per_s: 150 * MB,
        flush_ns: 300 * US,
        zeroes_deallocate: false,
        ..flash_tlc()
    }
}

/// Returns `base` with `overrides` applied.
fn with_overrides<P: Serialize + DeserializeOwned>(
    name: &str,
    base: &P,
    overrides: toml::Table,
) -> Result<P, ModelError> {
    let refused = |reason: String| ModelError::Override {
        name: name.to_owned(),
        reason: reason.trim_end().to_owned(),
    };
    let mut table = toml::Table::try_from(base).map_err(|error| refused(error.to_string()))?;
    merge(&mut table, overrides).map_err(refused)?;
    table
        .try_into()
        .map_err(|error: toml::de::Error| refused(error.to_string()))
}

fn merge(base: &mut toml::Table, overrides: toml::Table) -> Result<(), String> {
    for (key, value) in overrides {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(over)) => merge(inner, over)?,
            (Some(toml::Value::Integer(number)), toml::Value::String(text)) => {
                *number = with_unit(&key, &text)?;
            }
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
    Ok(())
}

/// Parses a text with a unit. Returns the number in the unit at the end of `key`, the name of the
/// parameter. Examples are "400ms" for a time, "64MB" for a size, and "68MB" for a rate, without
/// "per second".
fn with_unit(key: &str, text: &str) -> Result<i64, String> {
    let number = if key.ends_with("_ns") {
        u64::try_from(parse_time(text)?.0.as_nanos()).ok()
    } else if key.contains("_bytes") {
        Some(parse_size(text)?.0)
    } else {
        return Err(format!("{key} is a number, not the text {text:?}"));
    };
    let number = number.and_then(|number| i64::try_from(number).ok());
    number.ok_or_else(|| format!("{key}: {text:?} is too large"))
}
