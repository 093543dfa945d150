//! The configuration of `type = "mirror"`.

use bimetal_policy::hetero::{AckRule, DrainOrder, HeteroRules, WaitLimit};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::share::RebuildRates;
use super::superblock::Asked;
use crate::units::{Rate, Size, Time};

/// Keys of a `[device.NAME]` section with `type = "mirror"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// Names of the sides, at least two. The first side is preferred for reads until measurements
    /// decide otherwise.
    pub sides: Vec<String>,
    /// Bounds on the acknowledged bytes that not all healthy sides hold.
    #[serde(default)]
    pub exposure: ExposureConfig,
    /// Set of rules that governs writes and acknowledgements.
    #[serde(default)]
    pub policy: PolicyName,
    /// The paper's factor: a side is late when it exceeds this many times the first side's time,
    /// counted from the first completion. Without the factor, a side's own quantiles decide.
    pub wait_limit: Option<f64>,
    /// Quantile of a side's own write times from which its limit is computed, 0 to 1.
    pub limit_quantile: Option<f64>,
    /// Multiple of that quantile past which a side is late.
    pub limit_multiple: Option<f64>,
    /// Order in which a delayed side catches up: `sorted` or `fifo`.
    pub drain: Option<DrainName>,
    /// Whether to serve one write at a time, as one interpretation of the paper requires.
    #[serde(default)]
    pub serial: bool,
    /// Silence after which a side with work counts as absent. Default 30 s.
    pub absent_after: Option<Time>,
    /// Behaviour of the volume while a side is absent.
    #[serde(default)]
    pub on_degraded: OnDegraded,
    /// Maximum number of writes in flight to a side that is in time. Default 64.
    pub depth: Option<usize>,
    /// Condition for the acknowledgement of a change or a flush.
    #[serde(default)]
    pub acknowledge: Acknowledge,
    /// Sides whose content is lost with the machine, such as the local disks of a cloud machine.
    /// These sides never count for a flush.
    #[serde(default)]
    pub ephemeral: Vec<String>,
    /// Length of the log on each side; decided when the sides are formatted.
    pub log: Option<Size>,
    /// Size up to which the devices of sides may grow later; decided when the sides are formatted.
    pub grow_to: Option<Size>,
    /// Whether to keep a checksum of every block; decided when the sides are formatted.
    #[serde(default = "default_checksums")]
    pub checksums: bool,
    /// Memory for the checksums of each side. Default 16 MiB.
    #[serde(default = "default_checksum_cache")]
    pub checksum_cache: Size,
    /// Whether a late read is also sent to another side, for at most 5 % of the reads.
    #[serde(default = "default_hedge_reads")]
    pub hedge_reads: bool,
    /// Minimum and maximum rate of rebuilds.
    #[serde(default)]
    pub rebuild: RebuildConfig,
    /// Former name of `rebuild.ceiling`, which is refused.
    resync_rate: Option<IgnoredAny>,
    /// Maximum number of bytes a second that a scrub reads from all sides together.
    pub scrub_rate: Option<Size>,
}

/// The bounds of the exposure.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ExposureConfig {
    /// Bound in bytes. Default 64 MiB.
    #[serde(default = "default_bytes")]
    pub bytes: Size,
    /// Bound on the age of the oldest exposed write. Default 5 s.
    #[serde(default = "default_age")]
    pub age: Time,
}

/// Rate of a rebuild, in bytes a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RebuildConfig {
    /// Rate that is kept under any load, as far as the devices can. Default 20 MiB/s.
    #[serde(default = "default_floor")]
    pub floor: Rate,
    /// Rate that is never exceeded; no limit if absent.
    pub ceiling: Option<Rate>,
}

impl RebuildConfig {
    /// Returns the rates as numbers.
    pub fn rates(&self) -> RebuildRates {
        RebuildRates {
            floor_bytes_per_s: self.floor.0,
            ceiling_bytes_per_s: self.ceiling.map(|rate| rate.0),
        }
    }
}

impl Default for RebuildConfig {
    fn default() -> Self {
        RebuildConfig {
            floor: default_floor(),
            ceiling: None,
        }
    }
}

fn default_floor() -> Rate {
    Rate(20 << 20)
}

fn default_hedge_reads() -> bool {
    true
}

fn default_checksums() -> bool {
    true
}

fn default_checksum_cache() -> Size {
    Size(16 << 20)
}

fn default_bytes() -> Size {
    Size(64 << 20)
}

fn default_age() -> Time {
    Time(std::time::Duration::from_secs(5))
}

impl Default for ExposureConfig {
    fn default() -> Self {
        ExposureConfig {
            bytes: default_bytes(),
            age: default_age(),
        }
    }
}

/// Named set of rules.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// This project's rules: bounded exposure, a side's own quantiles, sorted drain.
    #[default]
    Bounded,
    /// The paper to the letter, acknowledged at the first completion. Its exposure has no bound, so
    /// this policy is for experiments only.
    Paper,
    /// The paper to the letter, acknowledged when all sides are done or the wait limit has passed.
    PaperWaitLimit,
}

/// Condition for the acknowledgement of a change or a flush.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledge {
    /// The first side has the change, within the bounds of the exposure.
    #[default]
    First,
    /// All sides have the change.
    All,
}

/// Order in which a delayed side drains its queue.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DrainName {
    /// Elevator order, with waiting writes merged.
    Sorted,
    /// One by one from the head of the queue.
    Fifo,
}

/// Behaviour of the volume while a side is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnDegraded {
    /// Continues with the other sides.
    #[default]
    Continue,
    /// Refuses changes until the side is whole again.
    ReadOnly,
    /// Refuses everything.
    Stop,
}

impl MirrorConfig {
    /// Returns the default configuration over the given sides.
    pub fn of(sides: Vec<String>) -> MirrorConfig {
        MirrorConfig {
            sides,
            exposure: ExposureConfig::default(),
            policy: PolicyName::Bounded,
            wait_limit: None,
            limit_quantile: None,
            limit_multiple: None,
            drain: None,
            serial: false,
            absent_after: None,
            on_degraded: OnDegraded::Continue,
            depth: None,
            acknowledge: Acknowledge::First,
            ephemeral: Vec::new(),
            log: None,
            grow_to: None,
            checksums: default_checksums(),
            checksum_cache: default_checksum_cache(),
            hedge_reads: default_hedge_reads(),
            rebuild: RebuildConfig::default(),
            resync_rate: None,
            scrub_rate: None,
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// One line that names the key with the invalid value.
    pub fn check(&self) -> Result<(), String> {
        if self.sides.len() < 2 {
            return Err(format!(
                "`sides` names {} device, a mirror has at least two",
                self.sides.len()
            ));
        }
        if self.exposure.bytes.0 > 1 << 40 {
            return Err("`exposure.bytes` is more than 1 TiB; it is held in memory".to_owned());
        }
        if self
            .wait_limit
            .is_some_and(|factor| !factor.is_finite() || factor <= 0.0)
        {
            return Err("`wait_limit` must be a factor above 0, such as 1.3".to_owned());
        }
        if self
            .limit_quantile
            .is_some_and(|q| !(0.0..=1.0).contains(&q))
        {
            return Err("`limit_quantile` must lie between 0 and 1".to_owned());
        }
        if self
            .limit_multiple
            .is_some_and(|m| !m.is_finite() || m < 1.0)
        {
            return Err("`limit_multiple` must be at least 1".to_owned());
        }
        if let Some(unknown) = self.ephemeral.iter().find(|e| !self.sides.contains(e)) {
            return Err(format!(
                "`ephemeral` names {unknown}, which is not among `sides`"
            ));
        }
        if self.sides.iter().all(|side| self.ephemeral.contains(side)) {
            return Err(
                "`ephemeral` names all sides: nothing would outlive the machine".to_owned(),
            );
        }
        if self.resync_rate.is_some() {
            return Err(
                "`resync_rate` is now `rebuild`, as in `rebuild = { floor = \"20MiB/s\", \
                        ceiling = \"100MiB/s\" }`"
                    .to_owned(),
            );
        }
        let rebuild = self.rebuild.rates().check();
        rebuild.map_err(|why| format!("`rebuild`: {why}"))?;
        if self.scrub_rate == Some(Size(0)) {
            return Err("`scrub_rate` must be more than 0".to_owned());
        }
        if self.depth == Some(0) {
            return Err("`depth` must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Returns the requested layout of a side that is to be formatted.
    pub fn asked(&self) -> Asked {
        Asked {
            log_bytes: self.log.map(|size| size.0),
            grow_to_bytes: self.grow_to.map(|size| size.0),
        }
    }

    /// Returns the rules that these keys request.
    pub fn rules(&self) -> HeteroRules {
        let mut rules = match self.policy {
            PolicyName::Bounded => HeteroRules {
                exposure_bytes_max: self.exposure.bytes.0,
                exposure_age_ns_max: nanoseconds(self.exposure.age),
                ..HeteroRules::default()
            },
            PolicyName::Paper => HeteroRules::paper(AckRule::First),
            PolicyName::PaperWaitLimit => HeteroRules::paper(AckRule::WaitLimit),
        };
        if self.acknowledge == Acknowledge::All {
            rules.exposure_bytes_max = 0;
        }
        if let Some(factor) = self.wait_limit {
            rules.wait_limit = WaitLimit::Factor(factor);
        } else if let WaitLimit::Own { quantile, multiple } = &mut rules.wait_limit {
            *quantile = self.limit_quantile.unwrap_or(*quantile);
            *multiple = self.limit_multiple.unwrap_or(*multiple);
        }
        if let Some(drain) = self.drain {
            rules.drain = match drain {
                DrainName::Sorted => DrainOrder::Sorted,
                DrainName::Fifo => DrainOrder::Fifo,
            };
        }
        if let Some(silence) = self.absent_after {
            rules.absent_after_ns = nanoseconds(silence);
        }
        rules.depth_max = self.depth.unwrap_or(rules.depth_max);
        rules
    }
}

fn nanoseconds(time: Time) -> u64 {
    u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX)
}
