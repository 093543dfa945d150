//! The configuration of `type = "mirror"`.

use std::collections::BTreeMap;
use std::time::Duration;

use bimetal_policy::hetero::{AckRule, DrainOrder, HeteroRules, WaitLimit};
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

use super::share::RebuildRates;
use super::superblock::{Asked, Reserve, SideKind};
use crate::BLOCK_BYTES;
use crate::units::{Rate, Size, Time};

/// Default of `exposure.silence` on a volume whose sides are all logged.
const SILENCE_LOGGED: Duration = Duration::from_secs(1);

/// How the sides of a mirror store the blocks of the volume, where a side is made: all in one way,
/// or each in its own. How a side that exists stores them, its superblock says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(
    untagged,
    expecting = "`layout` must be \"log\" or \"home\", or one of them for each side, as in \
                 { fast = \"log\" }"
)]
pub enum Layouts {
    /// The configuration says nothing. The sides of a new volume are logged, except adopted disks;
    /// a side that an existing volume gets is like the sides that the volume has.
    #[default]
    #[serde(skip)]
    Unsaid,
    /// All sides store blocks in this way.
    All(SideKind),
    /// Each side that is named stores blocks in its own way. The blocks of the others have a home.
    Each(BTreeMap<String, SideKind>),
}

impl Layouts {
    /// Returns how a side is to store the blocks of the volume, by the name of the side; `None` if
    /// the configuration says nothing.
    pub fn of(&self, side: &str) -> Option<SideKind> {
        match self {
            Layouts::Unsaid => None,
            Layouts::All(kind) => Some(*kind),
            Layouts::Each(kinds) => Some(kinds.get(side).copied().unwrap_or(SideKind::Home)),
        }
    }

    /// Returns the layouts of sides with these names.
    pub(super) fn naming(kinds: Vec<(String, SideKind)>) -> Layouts {
        match kinds.first() {
            None => Layouts::Unsaid,
            Some((_, first)) if kinds.iter().all(|(_, kind)| kind == first) => Layouts::All(*first),
            Some(_) => Layouts::Each(kinds.into_iter().collect()),
        }
    }

    /// Returns the configuration line that has this value, such as `layout = "log"`; no line if
    /// the configuration is to say nothing.
    pub fn line(&self) -> String {
        match self {
            Layouts::Unsaid => String::new(),
            Layouts::All(kind) => format!("layout = \"{}\"", kind.name()),
            Layouts::Each(kinds) => {
                let each = |(side, kind): (&String, &SideKind)| {
                    format!("\"{side}\" = \"{}\"", kind.name())
                };
                let each: Vec<String> = kinds.iter().map(each).collect();
                format!("layout = {{ {} }}", each.join(", "))
            }
        }
    }

    /// Returns the names of the sides that are named.
    fn names(&self) -> impl Iterator<Item = &String> {
        match self {
            Layouts::Unsaid | Layouts::All(_) => None,
            Layouts::Each(kinds) => Some(kinds.keys()),
        }
        .into_iter()
        .flatten()
    }
}

/// Keys of a `[device.NAME]` section with `type = "mirror"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// Names of the sides, at least two. Reads prefer the first side until measurements decide
    /// otherwise.
    pub sides: Vec<String>,
    /// Bounds on the acknowledged bytes that not all healthy sides hold.
    #[serde(default)]
    pub exposure: ExposureConfig,
    /// Set of rules for writes and acknowledgements.
    #[serde(default)]
    pub policy: PolicyName,
    /// The lateness factor of the hetero-mirroring paper: after the first completion of a write,
    /// each other side gets this multiple of the first side's time before it is late. Without the
    /// factor, each side's limit is computed from the quantiles of its own write times.
    pub wait_limit: Option<f64>,
    /// Quantile, from 0 to 1, of a side's own write times. The latency limit of the side is
    /// computed from the write time at this quantile.
    pub limit_quantile: Option<f64>,
    /// Factor by which the quantile of `limit_quantile` is multiplied. A side is late when a write
    /// takes longer than the product.
    pub limit_multiple: Option<f64>,
    /// Order in which a delayed side catches up: `sorted` or `fifo`.
    pub drain: Option<DrainName>,
    /// True to serve one write at a time. The paper that the policy implements can be read as
    /// requiring this.
    #[serde(default)]
    pub serial: bool,
    /// Timeout: a side with outstanding requests that completes none for this long is considered
    /// absent. Default 30 s.
    pub absent_after: Option<Time>,
    /// Behaviour of the volume while a side is absent.
    #[serde(default)]
    pub on_degraded: OnDegraded,
    /// Maximum number of writes in flight to a side that is not delayed. Default 64.
    pub depth: Option<usize>,
    /// Condition under which a change or a flush is acknowledged.
    #[serde(default)]
    pub acknowledge: Acknowledge,
    /// Sides whose content is lost together with the machine, such as the local disks of a cloud
    /// machine. A flush never relies on these sides.
    #[serde(default)]
    pub ephemeral: Vec<String>,
    /// Length of the log on each side; fixed when the sides are formatted.
    pub log: Option<Size>,
    /// How the sides that are made store the blocks of the volume; fixed when the sides are
    /// formatted.
    #[serde(default)]
    pub layout: Layouts,
    /// Size of the volume; fixed when the sides are formatted. Without it, the volume has the size
    /// for which all sides have room.
    pub size: Option<Size>,
    /// Share of logged sides that stays free for cleaning; fixed when the sides are formatted.
    #[serde(default)]
    pub reserve: Reserve,
    /// Whether logged sides clean segments whenever one of them has a dead block, instead of when
    /// space is short. For tests, which would otherwise have to fill the sides.
    #[serde(skip)]
    pub cleans_always: bool,
    /// Whether logged sides fill the segment first that became free last, so that a segment that
    /// must not be free yet is filled at once. For tests only.
    #[serde(skip)]
    pub fills_newest_first: bool,
    /// Size up to which the devices of the sides can grow later; fixed when the sides are
    /// formatted.
    pub grow_to: Option<Size>,
    /// Whether to keep a checksum of every block; fixed when the sides are formatted.
    #[serde(default = "default_checksums")]
    pub checksums: bool,
    /// Size of the memory cache for the checksums of each side with a home. Default 16 MiB.
    #[serde(default = "default_checksum_cache")]
    pub checksum_cache: Size,
    /// Memory for the map and the checksums of each logged side. Default 128 MiB.
    #[serde(default = "default_map_memory")]
    pub map_memory: Size,
    /// Idle time after which a logged disk is put in the order of the volume.
    #[serde(default)]
    pub order_after: OrderAfter,
    /// Whether tests ask for the places of blocks on logged sides at any time.
    #[serde(skip)]
    pub watches_map: bool,
    /// Whether a late read is also sent to a second side (hedged), for at most 5 % of the reads.
    #[serde(default = "default_hedge_reads")]
    pub hedge_reads: bool,
    /// Minimum and maximum rate of rebuilds.
    #[serde(default)]
    pub rebuild: RebuildConfig,
    /// Former name of `rebuild.ceiling`; a configuration with this key is refused.
    resync_rate: Option<IgnoredAny>,
    /// Maximum number of bytes a second that a scrub reads from all sides together.
    pub scrub_rate: Option<Size>,
}

/// The bounds of the exposure.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ExposureConfig {
    /// Bound on the number of exposed bytes. Default 64 MiB.
    #[serde(default = "default_bytes")]
    pub bytes: Size,
    /// Bound on the age of the oldest exposed write. Default 5 s.
    #[serde(default = "default_age")]
    pub age: Time,
    /// What happens to a silent side for which writes wait.
    #[serde(default)]
    pub silence: Silence,
}

/// What happens to a side that completes nothing while writes wait because of it, since the
/// exposure has no room for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// The side is ejected after this time. Each ejection doubles the time, and each hour without
    /// one halves it.
    For(Time),
    /// The writes wait until the side answers or is absent.
    Wait,
    /// [`For`](Silence::For) one second while all sides are logged, since their return keeps no
    /// writes waiting; else [`Wait`](Silence::Wait). This goes by what the superblocks say, not by
    /// the key `layout`.
    #[default]
    BySides,
}

/// Reads a time; `None` if the text is `word` instead.
fn time_or<'de, D: Deserializer<'de>>(
    word: &str,
    deserializer: D,
) -> Result<Option<Time>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == word {
        return Ok(None);
    }
    let time = crate::units::parse_time(&text);
    let time = time.map_err(|why| D::Error::custom(format!("{why}, or \"{word}\"")))?;
    Ok(Some(time))
}

impl<'de> Deserialize<'de> for Silence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Silence, D::Error> {
        let time = time_or("wait", deserializer)?;
        Ok(time.map_or(Silence::Wait, Silence::For))
    }
}

/// When the idle time of a logged disk is used to put it in the order of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderAfter {
    /// After this time without a request of a client. With 0, which only tests can ask for, beside
    /// requests of clients and other work, too.
    Idle(Time),
    /// Never.
    Never,
}

impl Default for OrderAfter {
    fn default() -> Self {
        // Longer than the sides need to become idle, and shorter than the pauses between two
        // commits of a file system.
        OrderAfter::Idle(Time(Duration::from_secs(3)))
    }
}

impl OrderAfter {
    /// Returns the time without a request of a client; `None` for never.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            OrderAfter::Idle(time) => Some(time.0),
            OrderAfter::Never => None,
        }
    }
}

impl<'de> Deserialize<'de> for OrderAfter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderAfter, D::Error> {
        let time = time_or("never", deserializer)?;
        Ok(time.map_or(OrderAfter::Never, OrderAfter::Idle))
    }
}

/// Minimum and maximum rate of a rebuild, in bytes a second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RebuildConfig {
    /// Rate that a rebuild keeps under any load, if the devices are fast enough. Default 20 MiB/s.
    #[serde(default = "default_floor")]
    pub floor: Rate,
    /// Rate that a rebuild never exceeds; `None` for no limit.
    pub ceiling: Option<Rate>,
}

impl RebuildConfig {
    /// Returns the rates in bytes a second.
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

fn default_map_memory() -> Size {
    Size(128 << 20)
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
            silence: Silence::default(),
        }
    }
}

/// Named set of rules for writes and acknowledgements.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// This project's rules: bounded exposure, latency limits from each side's own quantiles,
    /// sorted drain.
    #[default]
    Bounded,
    /// The rules of the paper without changes; a write is acknowledged at its first completion. The
    /// exposure has no bound, so this policy is for experiments only.
    Paper,
    /// The rules of the paper without changes; a write is acknowledged when all sides have
    /// completed it or the wait limit has passed.
    PaperWaitLimit,
}

/// Condition under which a change or a flush is acknowledged.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledge {
    /// The first side has completed the change or the flush. A change must also be within the
    /// bounds of the exposure, unless all sides have completed it.
    #[default]
    First,
    /// All sides have completed it.
    All,
}

/// Order in which a delayed side writes the changes of its queue.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DrainName {
    /// In elevator order (by position), with waiting writes merged.
    Sorted,
    /// One by one in the order of arrival.
    Fifo,
}

/// Behaviour of the volume while a side is absent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnDegraded {
    /// Continues with the other sides.
    #[default]
    Continue,
    /// Refuses changes until the side is healthy again.
    ReadOnly,
    /// Refuses all requests.
    Stop,
}

impl MirrorConfig {
    /// Returns the default configuration for the given sides.
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
            layout: Layouts::default(),
            size: None,
            reserve: Reserve::default(),
            cleans_always: false,
            fills_newest_first: false,
            grow_to: None,
            checksums: default_checksums(),
            checksum_cache: default_checksum_cache(),
            map_memory: default_map_memory(),
            order_after: OrderAfter::default(),
            watches_map: false,
            hedge_reads: default_hedge_reads(),
            rebuild: RebuildConfig::default(),
            resync_rate: None,
            scrub_rate: None,
        }
    }

    /// Checks the configured values.
    ///
    /// # Errors
    /// One line that names the key with the invalid value.
    pub fn check(&self) -> Result<(), String> {
        if self.sides.len() < 2 {
            return Err(format!(
                "`sides` names {} device, but a mirror needs at least two",
                self.sides.len()
            ));
        }
        if self.exposure.bytes.0 > 1 << 40 {
            return Err("`exposure.bytes` is more than 1 TiB; it is held in memory".to_owned());
        }
        if self.exposure.silence == Silence::For(Time(std::time::Duration::ZERO)) {
            return Err("`exposure.silence` must be more than 0".to_owned());
        }
        if self.order_after.time() == Some(Duration::ZERO) {
            return Err("`order_after` must be more than 0".to_owned());
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
        if let Some(unknown) = self.layout.names().find(|name| !self.sides.contains(name)) {
            return Err(format!(
                "`layout` names {unknown}, which is not among `sides`"
            ));
        }
        if self.sides.iter().all(|side| self.ephemeral.contains(side)) {
            return Err(
                "`ephemeral` names all sides, so no data would survive a restart of the machine"
                    .to_owned(),
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
        if let Some(Size(bytes)) = self.size
            && (bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES))
        {
            return Err("`size` must be a multiple of 4 KiB above 0".to_owned());
        }
        if self.scrub_rate == Some(Size(0)) {
            return Err("`scrub_rate` must be more than 0".to_owned());
        }
        if self.depth == Some(0) {
            return Err("`depth` must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Returns the layout of a side that an existing volume gets, by the name of the side.
    /// `otherwise` is how the side stores blocks if the configuration says nothing.
    pub(super) fn asked(&self, side: &str, otherwise: SideKind) -> Asked {
        Asked {
            kind: self.layout.of(side).unwrap_or(otherwise),
            log_bytes: self.log.map(|size| size.0),
            grow_to_bytes: self.grow_to.map(|size| size.0),
            volume_bytes: None,
            reserve: self.reserve,
        }
    }

    /// Returns the rules that the configuration selects.
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
        rules.silence_ns_max = self.silence_ns_max(&rules);
        rules.depth_max = self.depth.unwrap_or(rules.depth_max);
        rules
    }

    /// Returns the silence after which a side for which writes wait is ejected; `u64::MAX` if the
    /// writes wait until the side is absent. They do so, too, if the volume would refuse them
    /// without the side, or if every write waits for all sides because nothing may be exposed. With
    /// [`Silence::BySides`], it is the silence for which all sides must be logged.
    fn silence_ns_max(&self, rules: &HeteroRules) -> u64 {
        let goes_on = self.on_degraded == OnDegraded::Continue;
        let exposes = rules.exposure_bytes_max > 0 && !rules.is_paper();
        let time = match self.exposure.silence {
            Silence::For(time) => Some(time),
            Silence::BySides => Some(Time(SILENCE_LOGGED)),
            Silence::Wait => None,
        };
        let ejects = time.filter(|_| goes_on && exposes);
        ejects.map_or(u64::MAX, nanoseconds)
    }
}

fn nanoseconds(time: Time) -> u64 {
    u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX)
}
