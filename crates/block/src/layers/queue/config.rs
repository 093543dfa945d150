//! The configuration of `type = "queue"`.

use std::collections::BTreeMap;

use bimetal_policy::scheduler::{
    Parameter, Plugging, QueueParameters, RequestQueue as Policy, SchedulerChoice,
};
use serde::Deserialize;

use super::SECTOR_BYTES;
use crate::request::BLOCK_BYTES;
use crate::units::{Size, Time, parse_size, parse_time};

/// The configuration of `type = "queue"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Name of the scheduler.
    #[serde(default = "default_scheduler")]
    pub scheduler: String,
    /// Parameters of the scheduler that differ from their defaults.
    #[serde(default)]
    pub parameters: BTreeMap<String, toml::Value>,
    /// Queue depth: maximum number of requests in flight on the device.
    #[serde(default = "default_depth")]
    pub depth: u32,
    /// Number of tags, which is the maximum number of reads and writes that are in this layer at a
    /// time, whether merged or not. Further reads and writes wait for a tag.
    #[serde(default = "default_tags")]
    pub tags: u32,
    /// Maximum length of a request. Requests are not merged beyond this length, and longer requests
    /// are split.
    #[serde(default = "default_request_max")]
    pub request_max: Size,
    /// Plugging: holds requests back for a short time while the device is idle, so that they can
    /// merge. Off by default.
    pub plug: Option<PlugConfig>,
}

/// Parameters of plugging.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlugConfig {
    /// Number of waiting requests at which plugging ends, even before `delay` has passed.
    #[serde(default = "default_plug_requests")]
    pub requests: u32,
    /// Maximum time for which plugging holds the first waiting request.
    #[serde(default = "default_plug_delay")]
    pub delay: Time,
}

fn default_scheduler() -> String {
    "mq-deadline".to_owned()
}

fn default_depth() -> u32 {
    32
}

fn default_tags() -> u32 {
    256
}

fn default_request_max() -> Size {
    Size(512 << 10)
}

fn default_plug_requests() -> u32 {
    4
}

fn default_plug_delay() -> Time {
    Time(std::time::Duration::from_millis(3))
}

/// Upper limit of `tags`, because each tag uses a fixed amount of memory.
const TAGS_MAX: u32 = 65_536;

impl QueueConfig {
    /// Checks that a queue can work with this configuration.
    ///
    /// # Errors
    /// A message that names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        self.choice()?;
        let Size(longest) = self.request_max;
        let longest_allowed = u64::from(crate::geometry::TRANSFER_BYTES_MAX);
        if longest == 0 || longest % BLOCK_BYTES != 0 || longest > longest_allowed {
            return Err("`request_max` must be a multiple of 4 KiB, of 32 MiB at most".to_owned());
        }
        if self.depth == 0 {
            return Err("`depth` must be at least 1".to_owned());
        }
        if !(1..=TAGS_MAX).contains(&self.tags) {
            return Err(format!("`tags` must be 1 to {TAGS_MAX}"));
        }
        if self.plug.is_some_and(|plug| plug.requests == 0) {
            return Err("`plug.requests` must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Returns the scheduler with its parameters.
    ///
    /// # Errors
    /// A message that names the unknown scheduler or the wrong parameter.
    pub fn choice(&self) -> Result<SchedulerChoice, String> {
        let mut choice = SchedulerChoice::named(&self.scheduler).ok_or_else(|| {
            let names = SchedulerChoice::NAMES.join(", ");
            format!("no scheduler `{}`, expected one of {names}", self.scheduler)
        })?;
        let mut tags = choice.parameters();
        for (name, value) in &self.parameters {
            let Some((_, place)) = tags.iter_mut().find(|(known, _)| known == name) else {
                return Err(self.unknown(name, &tags));
            };
            set(place, value).map_err(|why| format!("parameter `{name}`: {why}"))?;
        }
        Ok(choice)
    }

    fn unknown(&self, name: &str, known: &[(&str, Parameter<'_>)]) -> String {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        let has = match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        format!(
            "`{}` has no parameter `{name}`; it has {has}",
            self.scheduler
        )
    }

    /// Creates the policy: the request queue with its scheduler.
    ///
    /// # Errors
    /// A message that describes the mistake in the scheduler's configuration.
    pub(super) fn policy(&self) -> Result<Policy, String> {
        let tags = self.tags as usize;
        let scheduler = self.choice()?.build(tags);
        Ok(Policy::new(scheduler, tags, self.queue_parameters()))
    }

    /// Returns the parameters of the policy's request layer.
    fn queue_parameters(&self) -> QueueParameters {
        let plugging = self.plug.map_or(Plugging::Off, |plug| Plugging::Device {
            requests: plug.requests as usize,
            delay_ns: u64::try_from(plug.delay.0.as_nanos()).unwrap_or(u64::MAX),
        });
        let sectors = self.request_max.0 / SECTOR_BYTES;
        QueueParameters {
            request_sectors_max: u32::try_from(sectors).expect("checked to be 32 MiB at most"),
            plugging,
        }
    }
}

/// Sets the value of a parameter.
fn set(place: &mut Parameter<'_>, value: &toml::Value) -> Result<(), String> {
    use toml::Value::{Boolean, Integer, String};
    match (place, value) {
        (Parameter::TimeNs(place), String(text)) => {
            let Time(time) = parse_time(text)?;
            **place = u64::try_from(time.as_nanos()).map_err(|_| "it is too long".to_owned())?;
        }
        (Parameter::Sectors(place), String(text)) => {
            let Size(bytes) = parse_size(text)?;
            **place = bytes / SECTOR_BYTES;
        }
        (Parameter::Count(place), Integer(number)) => {
            **place = u64::try_from(*number).map_err(|_| "it must not be negative".to_owned())?;
        }
        (Parameter::Flag(place), Boolean(flag)) => **place = *flag,
        (Parameter::TimeNs(_), _) => return Err("a time is expected, as in \"10ms\"".to_owned()),
        (Parameter::Sectors(_), _) => return Err("a size is expected, as in \"16MiB\"".to_owned()),
        (Parameter::Count(_), _) => return Err("a whole number is expected".to_owned()),
        (Parameter::Flag(_), _) => return Err("true or false is expected".to_owned()),
    }
    Ok(())
}
