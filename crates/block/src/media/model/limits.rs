//! What every model and every profile is held to: the types of device there are, and the values
//! that a parameter may have.

use serde::{Deserialize, Serialize};

use super::draw::Lognormal;

/// Longest fixed time and longest cap that a parameter may have: an hour.
const TIME_LIMIT_NS: u64 = 3_600_000_000_000;

/// Why a model cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No profile has this name.
    #[error("unknown profile {name:?}; known profiles of type {of}: {known}")]
    UnknownProfile {
        /// The name asked for.
        name: String,
        /// The type it was asked for.
        of: ModelType,
        /// The names there are, separated by commas.
        known: String,
    },
    /// The profile describes a device of another type.
    #[error("profile {name:?} is of type {is}, not {wanted}")]
    WrongType {
        /// The profile.
        name: String,
        /// Its type.
        is: ModelType,
        /// The type asked for.
        wanted: ModelType,
    },
    /// An override names no parameter, or its value has the wrong type.
    #[error("override of profile {name:?}: {reason}")]
    Override {
        /// The profile.
        name: String,
        /// What is wrong, as the TOML reader says it.
        reason: String,
    },
    /// A parameter that no device can have.
    #[error("model parameter {field} must be {allowed}")]
    OutOfRange {
        /// The parameter.
        field: &'static str,
        /// The values allowed.
        allowed: &'static str,
    },
    /// A flash drive that cannot be made.
    #[error("flash drive: {0}")]
    Flash(#[from] bimetal_flash::FlashError),
}

/// The kinds of device there are models for, as `type = "..."` in a configuration names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelType {
    /// A solid-state disk.
    Ssd,
    /// A hard disk.
    Hdd,
    /// A disk behind a network.
    Network,
    /// A drive of flash with its translation layer.
    Flash,
}

impl ModelType {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            ModelType::Ssd => "ssd",
            ModelType::Hdd => "hdd",
            ModelType::Network => "network",
            ModelType::Flash => "flash",
        }
    }

    /// The profile used where the configuration names none.
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

/// A lower rate than 1 kB/s would let the sum of queued transfer times leave 64 bits.
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
