//! Types of modelled devices, and the limits on parameters that apply to every model and profile.

use serde::{Deserialize, Serialize};

use super::draw::Lognormal;

/// Upper limit of the times among the parameters: an hour. It applies to fixed times and to the
/// caps of random times.
const TIME_LIMIT_NS: u64 = 3_600_000_000_000;

/// Reason why a model cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No profile has this name.
    #[error("unknown profile {name:?}; known profiles of type {of}: {known}")]
    UnknownProfile {
        /// Requested profile name.
        name: String,
        /// Device type for which the profile was requested.
        of: ModelType,
        /// Existing profile names, separated by commas.
        known: String,
    },
    /// The profile describes a device of another type.
    #[error("profile {name:?} is of type {is}, not {wanted}")]
    WrongType {
        /// Name of the profile.
        name: String,
        /// Device type of the profile.
        is: ModelType,
        /// Requested device type.
        wanted: ModelType,
    },
    /// An override names a parameter that does not exist, or its value has the wrong type.
    #[error("override of profile {name:?}: {reason}")]
    Override {
        /// Name of the profile.
        name: String,
        /// Message of the TOML reader.
        reason: String,
    },
    /// A parameter has a value that no device can have.
    #[error("model parameter {field} must be {allowed}")]
    OutOfRange {
        /// Name of the parameter.
        field: &'static str,
        /// Allowed values.
        allowed: &'static str,
    },
    /// A flash drive with these parameters cannot be created.
    #[error("flash drive: {0}")]
    Flash(#[from] bimetal_flash::FlashError),
}

/// The types of modelled devices, named by `type = "..."` in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelType {
    /// A solid-state disk.
    Ssd,
    /// A hard disk.
    Hdd,
    /// A disk behind a network.
    Network,
    /// A flash drive with its translation layer.
    Flash,
}

impl ModelType {
    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            ModelType::Ssd => "ssd",
            ModelType::Hdd => "hdd",
            ModelType::Network => "network",
            ModelType::Flash => "flash",
        }
    }

    /// Returns the name of the profile used if the configuration names none.
    pub fn default_profile(self) -> &'static str {
        match self {
            ModelType::Ssd => "sata-2009",
            ModelType::Hdd => "hdd-7200",
            ModelType::Network => "network-disk",
            ModelType::Flash => "flash-tlc",
        }
    }
}

impl std::fmt::Display for ModelType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

pub(super) fn require(
    field: &'static str,
    holds: bool,
    allowed: &'static str,
) -> Result<(), ModelError> {
    if holds {
        Ok(())
    } else {
        Err(ModelError::OutOfRange { field, allowed })
    }
}

pub(super) fn require_probability(field: &'static str, value: f64) -> Result<(), ModelError> {
    require(field, (0.0..=1.0).contains(&value), "from 0 to 1")
}

/// Requires a rate of at least 1 kB/s, because with a lower rate the sum of queued transfer times
/// could overflow 64 bits.
pub(super) fn require_rate(field: &'static str, bytes_per_s: u64) -> Result<(), ModelError> {
    require(field, bytes_per_s >= 1_000, "at least 1000 bytes/s")
}

pub(super) fn require_time(field: &'static str, ns: u64) -> Result<(), ModelError> {
    require(field, ns <= TIME_LIMIT_NS, "at most an hour")
}

pub(super) fn require_lognormal(
    field: &'static str,
    distribution: &Lognormal,
) -> Result<(), ModelError> {
    require(
        field,
        (0.0..=10.0).contains(&distribution.sigma),
        "of a sigma from 0 to 10",
    )?;
    require_time(field, distribution.cap_ns.max(distribution.median_ns))
}
