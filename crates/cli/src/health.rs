//! The health of a volume: a word, and the reason for it in a sentence. The exit status and the
//! first lines of `status`, its screen, the control socket and the metrics all take the health from
//! here, so that none of them says something else than the others.
//!
//! The health is judged from the figures of one moment. It must not change each second while
//! nothing changes, and a failure that is over must not count for ever. So figures that come and go
//! are looked at over the last ten seconds, by the devices themselves, and counters since the start
//! are not looked at at all.

mod devices;
#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

use bimetal_block::latency::Window;
use bimetal_block::layers::shard::Seen;
use bimetal_block::units::show_size;
use bimetal_console::latency::show_latency;
use serde_json::{Value, json};

use self::devices::{Device, Devices, Figures};
use crate::figures;
use crate::statistics;
use crate::terminal::Tone;

/// Silence of a device with requests in flight from which on it counts as frozen.
const SILENT_NS: u64 = 1_000_000_000;
/// Time for which a flush may take longer than other requests: a disk writes its cache.
const FLUSH_NS: u64 = 4_000_000_000;
/// Latency from which on a single request can make a device slow.
const LONG_NS: u64 = 1_000_000_000;
/// Factor by which a single request must exceed the usual latency of a device to make it slow.
const LONG_FACTOR: f64 = 20.0;
/// Median of the last ten seconds from which on a device can be slow.
const SLOW_NS: u64 = 100_000_000;
/// Factor by which that median must exceed the usual latency of a device to make it slow.
const SLOW_FACTOR: f64 = 10.0;
/// Number of requests in the last ten seconds, and since the start, from which their medians count.
const REQUESTS_MIN: (u64, u64) = (10, 100);
/// Time without a copied byte from which on a side is not being rebuilt.
const STALLED_S: f64 = 10.0;
/// Share of the room for content from which on a volume counts as full.
const FULL_SHARE: f64 = 0.99;
/// Time for which what has ended is still reported, in seconds.
const LATELY_S: f64 = 10.0;
/// Types of devices that reach their content over a network.
const REMOTE: [&str; 2] = ["brp", "remote"];

/// State of a volume, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// The volume accepts no requests.
    Stopped,
    /// The volume refuses writes.
    ReadOnly,
    /// A device has failed a flush, so what was written may not survive a power cut.
    FailingFlush,
    /// A side is absent.
    Gone,
    /// A server over the network does not answer.
    SilentNetwork,
    /// A device answers no request.
    Frozen,
    /// The volume is larger than what its sides have room for, and all of that is used.
    NoRoom,
    /// Changes wait for space in the log of a side.
    FullLog,
    /// A side lacks data, and nothing is copied to it.
    OutOfSync,
    /// A side lacks data, and it is copied.
    Rebuilding,
    /// A device reports trouble of another kind.
    Degraded,
    /// A device answers late, or makes clients wait.
    Slow,
    /// Nothing of this.
    Healthy,
}

impl State {
    /// All states, the worst first.
    pub(crate) const ALL: [State; 13] = [
        State::Stopped,
        State::ReadOnly,
        State::FailingFlush,
        State::Gone,
        State::SilentNetwork,
        State::Frozen,
        State::NoRoom,
        State::FullLog,
        State::OutOfSync,
        State::Rebuilding,
        State::Degraded,
        State::Slow,
        State::Healthy,
    ];

    /// Returns the word that people and programs see.
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Stopped => "stopped",
            State::ReadOnly => "read-only",
            State::FailingFlush => "failing flush",
            State::Gone => "gone",
            State::SilentNetwork => "silent network",
            State::Frozen => "frozen",
            State::NoRoom => "no room",
            State::FullLog => "full log",
            State::OutOfSync => "out of sync",
            State::Rebuilding => "rebuilding",
            State::Degraded => "degraded",
            State::Slow => "slow",
            State::Healthy => "healthy",
        }
    }
}

/// A state that holds, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    /// The device that the reason is about: a side, or the volume itself.
    pub(crate) of: String,
    /// One sentence, without a full stop.
    pub(crate) reason: String,
}

/// Health of a volume: what was found, the worst first. It is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health(Vec<Finding>);

impl Health {
    /// Returns the worst finding.
    pub(crate) fn worst(&self) -> &Finding {
        &self.0[0]
    }

    /// Returns the state of the worst finding.
    pub(crate) fn state(&self) -> State {
        self.worst().state
    }

    /// Returns the health as the control socket shows it.
    pub(crate) fn to_json(&self) -> Value {
        let shown = |finding: &Finding| {
            json!({
                "word": finding.state.word(),
                "of": finding.of,
                "reason": finding.reason,
            })
        };
        let mut health = shown(self.worst());
        health["also"] = self.0[1..].iter().map(shown).collect();
        health
    }
}

/// A finding as the control socket shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) word: &'a str,
    pub(crate) of: &'a str,
    pub(crate) reason: &'a str,
}

impl Shown<'_> {
    /// Returns the colour of the finding.
    pub(crate) fn tone(&self) -> Tone {
        tone_of(self.word)
    }
}

/// Returns the colour of a word.
pub(crate) fn tone_of(word: &str) -> Tone {
    match word {
        "healthy" => Tone::Good,
        "rebuilding" | "slow" => Tone::Warn,
        _ => Tone::Bad,
    }
}

/// Returns a finding as the control socket shows it.
pub(crate) fn shown_of(finding: &Finding) -> Shown<'_> {
    Shown {
        word: finding.state.word(),
        of: &finding.of,
        reason: &finding.reason,
    }
}

/// Returns what a status says about the health of a volume, the worst first.
pub(crate) fn shown<'a>(status: &'a Value, volume: &str) -> Vec<Shown<'a>> {
    let health = &status["devices"][volume]["health"];
    let also = health["also"].as_array().into_iter().flatten();
    let finding = |found: &'a Value| {
        Some(Shown {
            word: found["word"].as_str()?,
            of: found["of"].as_str().unwrap_or_default(),
            reason: found["reason"].as_str().unwrap_or_default(),
        })
    };
    std::iter::once(health)
        .chain(also)
        .filter_map(finding)
        .collect()
}

/// Returns the volumes of a status, the one with the worst health first.
pub(crate) fn worst_first(status: &Value) -> Vec<&str> {
    let devices = figures::entries(&status["devices"]);
    let judged = devices.filter(|(_, device)| device["health"].is_object());
    let mut volumes: Vec<&str> = judged.map(|(name, _)| name.as_str()).collect();
    volumes.sort_by_key(|volume| {
        let word = shown(status, volume).first().map_or("", |worst| worst.word);
        State::ALL.iter().position(|state| state.word() == word)
    });
    volumes
}

/// Judges the volumes among devices: every device that is below no other one. Returns the health of
/// each by its name.
pub(crate) fn judge(seen: &[Seen]) -> Vec<(String, Health)> {
    let devices = Devices::of(seen);
    let volumes = devices.volumes();
    volumes
        .map(|name| (name.to_owned(), judge_volume(&devices, name)))
        .collect()
}

/// Returns the health of all volumes together, as one word for monitoring: `stopped` if one of them
/// accepts no requests, `degraded` if one of them is not healthy, and `healthy` otherwise.
pub(crate) fn overall(volumes: &[(String, Health)]) -> &'static str {
    overall_of(volumes.iter().map(|(_, health)| health.state()))
}

/// Returns the health of all volumes together, of which the states are given; see [`overall`].
pub(crate) fn overall_of(states: impl Iterator<Item = State>) -> &'static str {
    match states.min() {
        Some(State::Stopped) => "stopped",
        Some(State::Healthy) | None => "healthy",
        Some(_) => "degraded",
    }
}

fn judge_volume(devices: &Devices, name: &str) -> Health {
    let mut judging = Judging {
        devices,
        found: Vec::new(),
    };
    judging.device(name, 0);
    let mut found = judging.found;
    found.sort_by_key(|finding| finding.state);
    if found.is_empty() {
        found.push(Finding {
            state: State::Healthy,
            of: name.to_owned(),
            reason: healthy(devices, name),
        });
    }
    Health(found)
}

/// Returns what is good about a healthy volume.
fn healthy(devices: &Devices, name: &str) -> String {
    let mirror = devices.get(name).filter(|device| device.kind == "mirror");
    let Some(mirror) = mirror else {
        return "its devices answer".to_owned();
    };
    let sides = mirror.parts().len();
    let all = if sides == 2 { "both" } else { "all" };
    let exposed_bytes = mirror.own.number("exposed_bytes") as u64;
    match (exposed_bytes, mirror.own.figure("exposed_bytes_max")) {
        (0, _) => format!("{all} sides have everything"),
        (_, Some(max)) => format!(
            "{all} sides take writes, and {} of at most {} are on one side only",
            show_size(exposed_bytes),
            show_size(max as u64)
        ),
        (_, None) => format!(
            "{all} sides take writes, and {} are on one side only",
            show_size(exposed_bytes)
        ),
    }
}

/// The findings about one volume.
struct Judging<'a> {
    devices: &'a Devices<'a>,
    found: Vec<Finding>,
}

/// Depth up to which a stack is judged.
const DEPTH_MAX: usize = 64;

impl<'a> Judging<'a> {
    fn note(&mut self, state: State, of: &str, reason: String) {
        self.found.push(Finding {
            state,
            of: of.to_owned(),
            reason,
        });
    }

    fn get(&self, name: &str) -> Option<&'a Device<'a>> {
        self.devices.get(name)
    }

    /// Judges a device and everything below it.
    fn device(&mut self, name: &str, depth: usize) {
        let Some(device) = self.get(name).filter(|_| depth < DEPTH_MAX) else {
            return;
        };
        if device.kind == "mirror" {
            self.mirror(name, device, depth);
            return;
        }
        self.own_trouble(name, device);
        let before = self.found.len();
        for child in device.children {
            self.device(child, depth + 1);
        }
        // What is wrong below explains the latencies of this device.
        if self.found.len() == before {
            self.answers("device", name, device);
        }
    }

    /// Notes the trouble that a device itself reports.
    fn own_trouble(&mut self, name: &str, device: &Device<'a>) {
        if device.own.word("state") == Some("stopped") {
            let reason = format!("device {name} accepts no requests");
            self.note(State::Stopped, name, reason);
        }
        match device.own.word("health") {
            None | Some("healthy") => {}
            Some("connecting") => {
                let reason = format!(
                    "device {name} has lost its connection, and connects again: check its server \
                    and the network path to it"
                );
                self.note(State::SilentNetwork, name, reason);
            }
            Some("offline") => {
                let reason = format!(
                    "device {name} has no connection: check its server and the network path to it"
                );
                self.note(State::SilentNetwork, name, reason);
            }
            Some(other) => self.note(State::Degraded, name, format!("device {name}: {other}")),
        }
    }

    /// Notes that a volume which is larger than what its sides have room for is full.
    fn room(&mut self, name: &str, volume: &Figures) {
        let Some(room_bytes) = volume.figure("room_bytes") else {
            return;
        };
        if volume.number("content_bytes") / room_bytes < FULL_SHARE {
            return;
        }
        let reason = format!(
            "{} of the {} for content are used, and writes beyond it fail (ENOSPC): delete files \
            and discard what they held (fstrim)",
            show_size(volume.number("content_bytes") as u64),
            show_size(room_bytes as u64)
        );
        self.note(State::NoRoom, name, reason);
    }

    fn mirror(&mut self, name: &str, device: &'a Device<'a>, depth: usize) {
        let (volume, sides) = (&device.own, device.parts());
        match volume.word("state") {
            Some("stopped") => {
                let reason = "it accepts no requests, because a side is absent and `on_degraded` \
                              is \"stop\""
                    .to_owned();
                self.note(State::Stopped, name, reason);
            }
            Some("read-only") => self.note(State::ReadOnly, name, read_only(volume)),
            _ => {}
        }
        self.room(name, volume);
        let is_forced = volume.word("read_only_because") == Some("forced");
        for (side, figures) in sides {
            match figures.word("health") {
                Some("absent") => self.absent(side, figures, sides),
                Some("resyncing") => {
                    self.resyncing(side, figures);
                    self.side(side, figures, false, depth);
                }
                _ => {
                    let lacks_bytes = figures.number("out_of_sync_bytes") as u64;
                    if lacks_bytes > 0 && !is_forced {
                        let reason = format!(
                            "side {side} has no correct copy of {}: scrub the volume",
                            show_size(lacks_bytes)
                        );
                        self.note(State::OutOfSync, side, reason);
                    }
                    self.side(side, figures, true, depth);
                }
            }
        }
        self.held_up(volume, sides);
    }

    fn absent(&mut self, side: &str, figures: &Figures, sides: &[(&str, Figures)]) {
        let since = show_seconds(figures.number("health_seconds"));
        let why = figures
            .word("absent_reason")
            .unwrap_or("its device was not found, or holds no side of the volume");
        let lacks = match figures.number("out_of_sync_bytes") as u64 {
            0 => String::new(),
            bytes => format!("; it lacks {}", show_size(bytes)),
        };
        let path = match self.is_remote(side, 0) {
            true => "; check its server and the network path to it",
            false => "",
        };
        let is_whole = |figures: &Figures| figures.word("health") == Some("healthy");
        let copies = sides
            .iter()
            .filter(|(_, figures)| is_whole(figures))
            .count();
        let left = match copies {
            0 => "no copy is complete".to_owned(),
            1 => "one copy is left".to_owned(),
            copies => format!("{copies} copies are left"),
        };
        let reason =
            format!("side {side} has been absent for {since}, and {left}: {why}{lacks}{path}");
        self.note(State::Gone, side, reason);
    }

    fn resyncing(&mut self, side: &str, figures: &Figures) {
        let lacks_bytes = figures.number("out_of_sync_bytes");
        let stalled_s = figures.number("resync_stalled_seconds");
        if stalled_s >= STALLED_S && lacks_bytes > 0.0 {
            let reason = format!(
                "side {side} lacks {}, and nothing has been copied to it for {}: no other side can \
                supply it, or the side does not take it",
                show_size(lacks_bytes as u64),
                show_seconds(stalled_s)
            );
            self.note(State::OutOfSync, side, reason);
            return;
        }
        if lacks_bytes == 0.0 {
            let reason = format!("side {side} is rebuilt, and is given the last writes");
            self.note(State::Rebuilding, side, reason);
            return;
        }
        let passed_bytes = figures.figure("resync_passed_bytes");
        let share = rebuilt_share(passed_bytes, lacks_bytes);
        let done = share.map_or_else(String::new, |share| {
            format!("{:.0} % done, ", (share * 100.0).floor())
        });
        let left = figures
            .figure("resync_left_seconds")
            .map_or_else(String::new, |seconds| {
                format!(", about {} left", show_seconds(seconds.max(1.0)))
            });
        let reason = format!(
            "side {side} is being rebuilt: {done}{} to copy{left}",
            show_size(lacks_bytes as u64)
        );
        self.note(State::Rebuilding, side, reason);
    }

    /// Judges a side that is given requests. The latencies of a side that is not whole are those of
    /// its rebuild, so only silence counts.
    fn side(&mut self, side: &str, figures: &Figures, is_whole: bool, depth: usize) {
        let Some(device) = self.get(side).filter(|_| depth < DEPTH_MAX) else {
            return;
        };
        if let Some(seconds) = figures.figure("flush_failing_seconds") {
            let kept = match figures.number("unflushed_bytes") as u64 {
                0 => String::new(),
                bytes => format!(
                    ": {} of writes are not durable on it, are kept in memory and written again",
                    show_size(bytes)
                ),
            };
            let reason = format!(
                "flushes of side {side} have failed for {}{kept}",
                show_seconds(seconds)
            );
            self.note(State::FailingFlush, side, reason);
        } else if is_whole
            && let Some(seconds) = figures.figure("since_failed_flush_seconds")
            && seconds < LATELY_S.min(figures.number("health_seconds"))
        {
            let reason = format!(
                "a flush of side {side} has failed within the last 10 s; what it may have lost was \
                written again"
            );
            self.note(State::FailingFlush, side, reason);
        }
        let held_up_s = figures.number("log_held_up_seconds");
        let is_silent = self.silent("side", side, device);
        if held_up_s > 0.0 && !is_silent {
            let reason = format!(
                "writes waited for space in the log of side {side} in {held_up_s:.0} of the last \
                10 s: they come faster than it can empty its log"
            );
            self.note(State::FullLog, side, reason);
        }
        // The last ten seconds of a side that was just rebuilt are those of the rebuild.
        let is_known = is_whole && figures.number("health_seconds") > LATELY_S + 1.0;
        if is_known && !is_silent {
            self.slow("side", side, device);
        }
        match device.kind {
            "mirror" => self.mirror(side, device, depth + 1),
            _ => self.below(side, device, depth + 1),
        }
    }

    /// Judges what is below a side: its latencies are those of the side, so only what the devices
    /// report of themselves counts.
    fn below(&mut self, name: &str, device: &Device<'a>, depth: usize) {
        self.own_trouble(name, device);
        for child in device.children {
            let Some(below) = self.get(child).filter(|_| depth < DEPTH_MAX) else {
                continue;
            };
            match below.kind {
                "mirror" => self.mirror(child, below, depth + 1),
                _ => self.below(child, below, depth + 1),
            }
        }
    }

    /// Judges a device without a mirror by its answers.
    fn answers(&mut self, what: &str, name: &str, device: &Device<'a>) {
        if device.window("flush", Window::TenSeconds).errors > 0 {
            let reason = format!(
                "a flush of {what} {name} has failed within the last 10 s: writes before it may be \
                lost"
            );
            self.note(State::FailingFlush, name, reason);
        }
        if !self.silent(what, name, device) {
            self.slow(what, name, device);
        }
    }

    /// Notes a device that has requests in flight and answers none; returns whether it does so.
    fn silent(&mut self, what: &str, name: &str, device: &Device<'a>) -> bool {
        let silent_ns = device.silent_ns(FLUSH_NS);
        if silent_ns < SILENT_NS {
            return false;
        }
        let (time, requests) = (show_seconds(silent_ns as f64 / 1e9), device.in_flight());
        let requests = match requests {
            1 => "a request".to_owned(),
            count => format!("{count} requests"),
        };
        if self.is_remote(name, 0) {
            let reason = format!(
                "{what} {name} has had no answer over the network for {time} to {requests}: check \
                its server and the network path to it"
            );
            self.note(State::SilentNetwork, name, reason);
        } else {
            let reason = format!("{what} {name} has not answered {requests} for {time}");
            self.note(State::Frozen, name, reason);
        }
        true
    }

    /// Returns true if a device reaches its content over a network.
    fn is_remote(&self, name: &str, depth: usize) -> bool {
        let Some(device) = self.get(name).filter(|_| depth < DEPTH_MAX) else {
            return false;
        };
        REMOTE.contains(&device.kind) || {
            device
                .children
                .iter()
                .any(|child| self.is_remote(child, depth + 1))
        }
    }

    /// Notes a device whose latencies are far beyond its own usual ones.
    fn slow(&mut self, what: &str, name: &str, device: &Device<'a>) {
        for op in ["write", "read"] {
            let lately = device.window(op, Window::TenSeconds);
            let always = device.window(op, Window::Start);
            let usual_ns = always.p50_ns.max(1);
            // Requests that wait for each other take longer, without the device being slow.
            let expected_ns = usual_ns as f64 * lately.queue.max(1.0);
            let is = |ns: u64, min_ns: u64, factor: f64| {
                ns >= min_ns && ns as f64 >= expected_ns * factor
            };
            let usually = show_latency(usual_ns);
            let (recent_min, all_min) = REQUESTS_MIN;
            let are_enough = lately.requests >= recent_min && always.requests >= all_min;
            if are_enough && is(lately.p50_ns, SLOW_NS, SLOW_FACTOR) {
                let now = show_latency(lately.p50_ns);
                let reason = format!("{what} {name} takes {now} for a {op}, and usually {usually}");
                self.note(State::Slow, name, reason);
                return;
            }
            if is(lately.max_ns, LONG_NS, LONG_FACTOR) {
                let longest = show_latency(lately.max_ns);
                let reason = format!(
                    "{what} {name} took {longest} for a {op} within the last 10 s, and usually \
                    {usually}"
                );
                self.note(State::Slow, name, reason);
                return;
            }
        }
    }

    /// Notes that clients wait because of the exposure, unless the cause is known already.
    fn held_up(&mut self, volume: &Figures, sides: &[(&str, Figures)]) {
        let held_up_s = volume.number("writes_held_up_seconds");
        if held_up_s == 0.0 {
            return;
        }
        let is_silent = |state: State| matches!(state, State::SilentNetwork | State::Frozen);
        let mut is_explained = false;
        for finding in &mut self.found {
            if is_silent(finding.state) {
                finding.reason.push_str("; writes wait for it");
            }
            is_explained |= is_silent(finding.state)
                || matches!(
                    finding.state,
                    State::FailingFlush | State::FullLog | State::Slow
                );
        }
        // The side for which writes have waited may be gone since.
        is_explained |= sides.iter().any(|(_, figures)| {
            figures.word("health") == Some("absent")
                && figures.number("health_seconds") <= LATELY_S + 1.0
        });
        if is_explained {
            return;
        }
        let is_active = |figures: &Figures| figures.word("health") != Some("absent");
        let active = sides.iter().filter(|(_, figures)| is_active(figures));
        let lags =
            |figures: &Figures| figures.number("waiting_bytes") + figures.number("in_flight_bytes");
        let last = active.max_by(|a, b| lags(&a.1).total_cmp(&lags(&b.1)));
        let Some((side, figures)) = last else { return };
        let stores = self.get(side).map_or_else(String::new, |device| {
            let bytes_per_s = device.window("write", Window::TenSeconds).bytes_per_s();
            show_size(bytes_per_s as u64)
        });
        let lacks = match lags(figures) as u64 {
            0 => String::new(),
            bytes => format!(", lacks {}", show_size(bytes)),
        };
        let reason = format!(
            "writes waited for side {side} in {held_up_s:.0} of the last 10 s: it stores \
            {stores}/s{lacks}"
        );
        self.note(State::Slow, side, reason);
    }
}

fn read_only(volume: &Figures) -> String {
    match volume.word("read_only_because") {
        Some("forced") => "it was opened with `--force-open read-only`, shows the last known \
                           state, and refuses writes"
            .to_owned(),
        _ => "it refuses writes until all sides are complete, because `on_degraded` is \
              \"read-only\""
            .to_owned(),
    }
}

/// Returns the share of a running rebuild that is done, from 0 to 1; `None` before any progress.
pub(crate) fn rebuilt_share(passed_bytes: Option<f64>, left_bytes: f64) -> Option<f64> {
    let passed_bytes = passed_bytes.filter(|bytes| *bytes > 0.0)?;
    Some(passed_bytes / (passed_bytes + left_bytes))
}

/// Formats a duration, with one unit below two minutes and two beyond.
pub(crate) fn show_seconds(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        _ => statistics::show_uptime(seconds),
    }
}
