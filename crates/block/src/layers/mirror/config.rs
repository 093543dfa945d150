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
    /// The sides, at least two. The first is preferred for reads until measured otherwise.
    pub sides: Vec<String>,
    /// How much may be acknowledged that not all healthy sides hold.
    #[serde(default)]
    pub exposure: ExposureConfig,
    /// Which rules decide.
    #[serde(default)]
    pub policy: PolicyName,
    /// When a side counts as delayed: this many times the first side's time after its completion
    /// (the paper's factor). Without it, a side's own quantiles decide.
    pub wait_limit: Option<f64>,
    /// With a side's own quantiles: which one, 0 to 1.
    pub limit_quantile: Option<f64>,
    /// With a side's own quantiles: how many times it.
    pub limit_multiple: Option<f64>,
    /// In which order a delayed side catches up: `sorted` or `fifo`.
    pub drain: Option<DrainName>,
    /// Serve one write at a time, as one reading of the paper has it.
    #[serde(default)]
    pub serial: bool,
    /// Silence after which a side with work counts as absent. Default 30 s.
    pub absent_after: Option<Time>,
    /// What the volume does when a side is absent.
    #[serde(default)]
    pub on_degraded: OnDegraded,
    /// Writes that a side in time is given at once, at most. Default 64.
    pub depth: Option<usize>,
    /// When a change or a flush is acknowledged.
    #[serde(default)]
    pub acknowledge: Acknowledge,
    /// Sides whose content does not outlive the machine, such as the local disks of a cloud
    /// machine: they never count for a flush.
    #[serde(default)]
    pub ephemeral: Vec<String>,
    /// Length of the log on each side; decided when the sides are formatted.
    pub log: Option<Size>,
    /// Size up to which the devices of sides may become larger one day; decided when the sides are
    /// formatted.
    pub grow_to: Option<Size>,
    /// Keep a checksum of every block; decided when the sides are formatted.
    #[serde(default = "default_checksums")]
    pub checksums: bool,
    /// Memory for the checksums of each side. Default 16 MiB.
    #[serde(default = "default_checksum_cache")]
    pub checksum_cache: Size,
    /// Ask another side as well when a read is late, for at most 5 % of the reads.
    #[serde(default = "default_hedge_reads")]
    pub hedge_reads: bool,
    /// How fast rebuilds are.
    #[serde(default)]
    pub rebuild: RebuildConfig,
    /// The former name of `rebuild.ceiling`, which is refused.
    resync_rate: Option<IgnoredAny>,
    /// Bytes a second that a scrub reads, of all sides together, at most.
    pub scrub_rate: Option<Size>,
}

/// The bounds of the exposure.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ExposureConfig {
    /// In bytes. Default 64 MiB.
    #[serde(default = "default_bytes")]
    pub bytes: Size,
    /// In time. Default 5 s.
    #[serde(default = "default_age")]
    pub age: Time,
}

/// How fast a rebuild is, in bytes a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RebuildConfig {
    /// Kept under any load, as far as the devices can. Default 20 MiB/s.
    #[serde(default = "default_floor")]
    pub floor: Rate,
    /// Never exceeded; no limit if not given.
    pub ceiling: Option<Rate>,
}

impl RebuildConfig {
    /// The same as numbers.
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

/// Sets of rules.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// Ours: bounded exposure, a side's own quantiles, sorted drain.
    #[default]
    Bounded,
    /// The paper to the letter, acknowledged at the first completion. Its exposure has no bound:
    /// for experiments.
    Paper,
    /// The paper to the letter, acknowledged when all sides are done or the wait limit has passed.
    PaperWaitLimit,
}

/// When a change is acknowledged, and a flush.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledge {
    /// When the first side has it, within the bounds of the exposure.
    #[default]
    First,
    /// When all sides have it.
    All,
}

/// Orders of draining.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DrainName {
    /// Elevator order, merged.
    Sorted,
    /// From the head of the queue, one by one.
    Fifo,
}

/// What the volume does when a side is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnDegraded {
    /// Goes on with the other sides.
    #[default]
    Continue,
    /// Refuses changes until the side is whole again.
    ReadOnly,
    /// Refuses everything.
    Stop,
}

impl MirrorConfig {
    /// Our defaults over the given sides.
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

    /// What is wrong with the values, if anything.
    ///
    /// # Errors
    /// One line that names the key.
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

    /// What is asked of the layout of a side that is made.
    pub fn asked(&self) -> Asked {
        Asked {
            log_bytes: self.log.map(|size| size.0),
            grow_to_bytes: self.grow_to.map(|size| size.0),
        }
    }

    /// The rules these keys ask for.
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
