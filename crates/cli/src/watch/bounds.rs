//! What bounds a volume, in words and as shares of the bounds: the exposure, the logs and the space
//! of the sides, and what a rebuild or a scrub has left to do. The screen and the page in the
//! browser show the same.

use bimetal_block::units::show_size;
use serde_json::Value;

use super::look::{self, Look};
use super::rows::{self, Order};
use crate::figures::Figures;
use crate::health::{rebuilt_share, show_seconds};

/// One of the bounds, or something that is left to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) name: String,
    /// What is used or done of it, from 0 to 1; `None` if it has no share.
    pub(crate) share: Option<f64>,
    pub(crate) text: String,
}

impl Bound {
    fn of(name: &str, share: Option<f64>, text: String) -> Bound {
        Bound {
            name: name.to_owned(),
            share,
            text,
        }
    }
}

/// Returns the bounds of a volume, and of the mirrors below it.
pub(crate) fn of_volume(status: &Value, volume: &str) -> Vec<Bound> {
    let device = Figures::of(&status["devices"][volume]);
    let mut bounds = Vec::new();
    if device.kind() == "mirror" {
        of_mirror(&mut bounds, &device);
    }
    // The mirror can be below a cache or another layer.
    let plain = Look {
        colour: false,
        unicode: false,
    };
    let rows = rows::rows(status, volume, Order::Configured, plain);
    let below = rows
        .iter()
        .filter(|row| row.kind == "device" && row.name != volume);
    for row in below {
        let device = Figures::of(&status["devices"][row.name]);
        if device.kind() == "mirror" {
            of_mirror(&mut bounds, &device);
        }
    }
    bounds
}

fn of_mirror(bounds: &mut Vec<Bound>, volume: &Figures) {
    bounds.push(exposure(volume));
    for (side, figures) in volume.parts() {
        bounds.extend(rebuild(side, &figures));
    }
    if volume.word("scrub") == Some("running") {
        bounds.push(scrub(volume));
    }
    for (side, figures) in volume.parts() {
        bounds.extend(space(side, &figures));
    }
    // A rebuild has its own line.
    let operations = volume.word("operations").unwrap_or_default().split(", ");
    let others = operations.filter(|words| !words.is_empty() && !words.starts_with("rebuild "));
    let operations: Vec<&str> = others.collect();
    if !operations.is_empty() {
        bounds.push(Bound::of("unfinished", None, operations.join(", ")));
    }
    if let Some(line) = volume.word("to_configure") {
        let text = format!("write into the configuration: {line}");
        bounds.push(Bound::of("configure", None, text));
    }
}

fn exposure(volume: &Figures) -> Bound {
    let bytes = volume.number("exposed_bytes");
    let age_s = volume.number("exposed_seconds");
    let bytes_max = volume.figure("exposed_bytes_max");
    let age_s_max = volume.figure("exposed_seconds_max");
    let of = |max: Option<String>| max.map_or_else(String::new, |max| format!(" of {max}"));
    let size = |bytes: f64| show_size(bytes as u64);
    let bound = |seconds: f64| format!("{seconds} s");
    let text = match bytes as u64 {
        0 => {
            let bounds = [bytes_max.map(size), age_s_max.map(bound)];
            let bounds: Vec<String> = bounds.into_iter().flatten().collect();
            match bounds.is_empty() {
                true => "nothing".to_owned(),
                false => format!("nothing (at most {})", bounds.join(", ")),
            }
        }
        bytes => format!(
            "{}{}, the oldest {}{}",
            show_size(bytes),
            of(bytes_max.map(size)),
            show_seconds(age_s),
            of(age_s_max.map(bound)),
        ),
    };
    // The bound that is nearer decides.
    let share =
        |value: f64, max: Option<f64>| max.filter(|max| *max > 0.0).map_or(0.0, |max| value / max);
    let share = share(bytes, bytes_max).max(share(age_s, age_s_max));
    Bound::of("on one side", (bytes > 0.0).then_some(share), text)
}

fn rebuild(side: &str, figures: &Figures) -> Option<Bound> {
    if figures.word("health") != Some("resyncing") {
        return None;
    }
    let left_bytes = figures.number("out_of_sync_bytes");
    let share = rebuilt_share(figures.figure("resync_passed_bytes"), left_bytes).unwrap_or(0.0);
    let left = look::size(left_bytes as u64);
    let mut text = format!("{:.0} %, {left} left", (share * 100.0).floor());
    if let Some(seconds) = figures
        .figure("resync_left_seconds")
        .filter(|seconds| *seconds > 0.0)
    {
        let bytes_per_s = look::size((left_bytes / seconds) as u64);
        let time = show_seconds(seconds.max(1.0));
        text += &format!(" at {bytes_per_s}/s, {time}");
    }
    Some(Bound::of(&format!("rebuild {side}"), Some(share), text))
}

fn scrub(volume: &Figures) -> Bound {
    let (done, all) = (
        volume.number("scrub_position_bytes"),
        volume.size_bytes() as f64,
    );
    let share = if all > 0.0 { done / all } else { 0.0 };
    let mut text = format!("{:.0} %", (share * 100.0).floor());
    let seconds = volume.number("scrub_seconds");
    if done > 0.0 && seconds > 0.0 {
        let left_s = (all - done).max(0.0) * seconds / done;
        let bytes_per_s = volume.number("scrub_read_bytes") / seconds;
        let time = show_seconds(left_s.max(1.0));
        text += &format!(
            ", reads {}/s, about {time} left",
            show_size(bytes_per_s as u64)
        );
    }
    let found = volume.number("scrub_found");
    if found > 0.0 {
        text += &format!(", {found:.0} corrupt blocks found");
    }
    Bound::of("scrub", Some(share), text)
}

/// Returns the use of the log of a side, and of its segments; `None` if nothing is known of them.
fn space(side: &str, figures: &Figures) -> Option<Bound> {
    if figures.word("health") == Some("absent") {
        return None;
    }
    let log_bytes = figures.figure("log_bytes").filter(|bytes| *bytes > 0.0)?;
    let used_bytes = figures.number("log_used_bytes");
    let size = |bytes: f64| show_size(bytes as u64);
    let mut text = format!("log {} of {}", size(used_bytes), size(log_bytes));
    if let Some(segments) = figures.figure("segments").filter(|count| *count > 0.0) {
        let free = figures.number("segments_free");
        text += &format!(", space {:.0} % free", (free / segments * 100.0).floor());
    }
    let share = used_bytes / log_bytes;
    Some(Bound::of(&format!("side {side}"), Some(share), text))
}
