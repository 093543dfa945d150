//! The page for people in a browser, at `GET /` of the metrics listener, and what it asks for again
//! and again: `docs/browser.md`. The page shows what the server has judged and put into words, with
//! the same functions as the screen of `status --watch`; the script of the page only lays it out.
//!
//! It is read-only: no request changes anything. All that is sent is bounded: one volume at a time
//! with its devices, the last [`EVENTS_MAX`] events, and the bounded history.

mod commands;

use std::borrow::Cow;
use std::collections::BTreeSet;

use bimetal_block::Statistic;
use serde_json::{Value, json};

use self::commands::Subject;
use crate::figures::Window;
use crate::health::{self, State};
use crate::metrics::{Content, Query, Snapshot, Source};
use crate::shown::Shown;
use crate::statistics;
use crate::terminal::Tone;
use crate::watch::bounds::{self, Bound};
use crate::watch::look::{self, Look};
use crate::watch::rows::{self, Order, Row};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const ICON: &str = include_str!("icon.svg");
const JSON: &str = "application/json";

/// Paths at which there is something.
const PATHS: [&str; 7] = [
    "/",
    "/page.css",
    "/page.js",
    "/icon.svg",
    "/status.json",
    "/history.json",
    "/events.json",
];
/// Maximum number of events in an answer: the newest ones.
const EVENTS_MAX: usize = 200;
/// Maximum number of volumes in the list of an answer: the worst ones.
const VOLUMES_MAX: usize = 1000;

impl Source for Shown {
    fn snapshot(&self) -> Snapshot {
        Shown::snapshot(self)
    }

    fn has(&self, path: &str) -> bool {
        PATHS.contains(&path)
    }

    fn content(&self, path: &str, query: &Query) -> Content {
        let fixed = |format, text: &'static str| Content {
            format,
            body: Cow::Borrowed(text),
        };
        let json = |value: Value| Content {
            format: JSON,
            body: value.to_string().into(),
        };
        match path {
            "/" => fixed("text/html; charset=utf-8", PAGE),
            "/page.css" => fixed("text/css; charset=utf-8", STYLE),
            "/page.js" => fixed("text/javascript; charset=utf-8", SCRIPT),
            "/icon.svg" => fixed("image/svg+xml", ICON),
            "/history.json" => json(self.history_json(query)),
            "/events.json" => json(self.events_json(query)),
            _ => json(self.page_json(query.get("volume").as_deref())),
        }
    }
}

impl Shown {
    /// Returns the name of this run of the server, by which a reader sees that it was restarted.
    fn run(&self) -> String {
        format!("{}-{}", std::process::id(), self.started_unix_s)
    }

    fn history_json(&self, query: &Query) -> Value {
        let volume = query.get("volume").unwrap_or_default();
        let history = self.history.as_ref();
        let mut json = history.map_or(Value::Null, |history| {
            history.to_json(&volume, query.number("after"))
        });
        // The script knows the words, not what they mean.
        let words = json["words"].as_array().into_iter().flatten();
        let tones = words.map(|word| tone(health::tone_of(word.as_str().unwrap_or_default())));
        json["tones"] = tones.collect();
        json["run"] = json!(self.run());
        json
    }

    fn events_json(&self, query: &Query) -> Value {
        let mut json = self
            .events
            .answer(&json!({ "after": query.number("after") }));
        if let Some(events) = json["events"].as_array_mut() {
            let older = events.len().saturating_sub(EVENTS_MAX);
            events.drain(..older);
        }
        json["run"] = json!(self.run());
        json
    }

    /// Returns the state of the server, and of one of its volumes: of the worst one if none is
    /// named.
    fn page_json(&self, asked: Option<&str>) -> Value {
        let mut volumes: Vec<Value> = self.latest_healths();
        let worst = volumes.first().and_then(|worst| worst["name"].as_str());
        let name = asked.or(worst).unwrap_or_default().to_owned();
        let volume = self.volume_json(&name);
        // What is judged now is said, not what was judged up to a second ago.
        let now = volume["findings"].get(0).cloned();
        if let Some(now) = now
            && let Some(listed) = volumes.iter_mut().find(|listed| listed["name"] == *name)
        {
            *listed = statistics::with(json!({ "name": name }), now);
        }
        let words = volumes.iter().filter_map(|volume| volume["word"].as_str());
        let states = words.filter_map(|word| State::ALL.into_iter().find(|is| is.word() == word));
        let overall = health::overall_of(states);
        let uptime_s = self.rt.now().since(self.started).as_secs_f64();
        volumes.truncate(VOLUMES_MAX);
        json!({
            "run": self.run(),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "health": overall,
            "stopping": self.stopping.get(),
            "uptime": statistics::show_uptime(uptime_s),
            "unix_s": self.rt.unix_seconds(),
            "file": self.file().display().to_string(),
            "volumes": volumes,
            "volume": volume,
        })
    }

    /// Returns the health of each volume when it was last judged, the worst first.
    fn latest_healths(&self) -> Vec<Value> {
        let latest = self.latest.borrow();
        let mut volumes: Vec<_> = latest.iter().collect();
        volumes.sort_by_key(|(_, health)| health.state());
        let shown = volumes.into_iter().map(|(name, health)| {
            let worst = health::shown_of(health.worst());
            statistics::with(json!({ "name": name }), finding(&worst))
        });
        shown.collect()
    }

    /// Returns a volume with all that the page shows of it; null if there is no such volume.
    fn volume_json(&self, name: &str) -> Value {
        if !self.volumes().contains(&name) {
            return Value::Null;
        }
        let graph = &self.config.graph;
        let below: BTreeSet<&str> = graph.below(name).into_iter().collect();
        let mut seen = self.stack.seen(graph, |device| below.contains(device));
        let judged = health::judge(&seen);
        // Nobody reads the buckets here, and they are most of what there is.
        for (_, _, statistic) in seen.iter_mut().flat_map(|device| &mut device.statistics) {
            if let Statistic::Latency(latency) = statistic {
                latency.buckets.clear();
            }
        }
        let mut devices = statistics::of_devices(seen);
        for (volume, health) in &judged {
            devices[volume]["health"] = health.to_json();
        }
        let (exports, attached) = self.above(|device| below.contains(device));
        let status = json!({ "devices": devices, "exports": exports, "attached": attached });
        let file = self.file();
        let subject = Subject {
            file: &file,
            status: &status,
            volume: name,
            spare: self.spare(),
            pid: std::process::id(),
        };
        volume_of(name, &status, self.operation.show(), &subject)
    }

    /// Returns the path of the configuration, wherever the reader is.
    fn file(&self) -> Cow<'_, std::path::Path> {
        let path = &self.config.path;
        std::path::absolute(path).map_or(Cow::Borrowed(path), Cow::Owned)
    }

    /// Returns a device of the configuration that nothing uses, for a command that needs one.
    fn spare(&self) -> Option<&str> {
        let graph = &self.config.graph;
        let mut roots = graph.roots().into_iter();
        roots.find(|root| self.stack.get(root).is_none() && !self.is_open_later(root))
    }

    /// Returns true if a device was added to a volume after the start.
    fn is_open_later(&self, name: &str) -> bool {
        self.stack.tap(name).is_some()
    }
}

/// Returns what the page shows of a volume, from its status.
fn volume_of(name: &str, status: &Value, operation: Value, subject: &Subject) -> Value {
    let plain = Look {
        colour: false,
        unicode: false,
    };
    let rows = rows::rows(status, name, Order::Configured, plain);
    let findings = health::shown(status, name);
    let mirror = &status["devices"][name]["statistics"];
    json!({
        "name": name,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "bounds": bounds::of_volume(status, name).iter().map(bound).collect::<Vec<_>>(),
        "exposed_bytes_max": mirror["exposed_bytes_max"],
        "operation": operation["operation"],
        "commands": commands::groups(subject),
    })
}

fn finding(found: &health::Shown) -> Value {
    json!({
        "word": found.word,
        "tone": tone(found.tone()),
        "of": found.of,
        "reason": found.reason,
    })
}

fn bound(bound: &Bound) -> Value {
    json!({ "name": bound.name, "share": bound.share, "text": bound.text })
}

fn row(row: &Row) -> Value {
    let (writes, reads): (&Window, &Window) = (&row.writes, &row.reads);
    json!({
        "name": row.name,
        "kind": row.kind,
        "role": row.role,
        "depth": row.depth,
        "what": row.what,
        "state": row.state,
        "tone": tone(row.tone),
        "writes": look::rate(writes.requests_per_s()),
        "write_median": look::latency(writes.p50_ns),
        "write_p99": look::latency(writes.p99_ns),
        "write_max": look::latency(writes.max_ns),
        "reads": look::rate(reads.requests_per_s()),
        "read_p99": look::latency(reads.p99_ns),
        "lag": look::seconds(row.lag_s),
    })
}

/// Returns the name of a colour for the style sheet. The word beside it says the same.
fn tone(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Warn => "warn",
        Tone::Bad => "bad",
        Tone::Dim | Tone::Strong => "plain",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::health::fixture::{LIGHT, test};

    /// The screen and the page take the health from the same judge, so it is enough that the page
    /// has what the status has.
    #[test]
    fn a_frozen_side_is_on_the_page_with_its_reason() {
        test(
            |_| {},
            async |volume| {
                let client = volume.start(LIGHT);
                volume.stays(&["healthy"], 20).await;
                volume.slow().set_frozen(true);
                volume.until(&["frozen"], &["healthy"], 3).await;
                let status = volume.status();
                let subject = Subject {
                    file: Path::new("/vol.toml"),
                    status: &status,
                    volume: "vol",
                    spare: None,
                    pid: 1,
                };
                let page = volume_of("vol", &status, json!({ "operation": null }), &subject);
                let worst = &page["findings"][0];
                assert_eq!(
                    (&worst["word"], &worst["tone"]),
                    (&json!("frozen"), &json!("bad"))
                );
                assert_eq!(
                    worst["reason"],
                    status["devices"]["vol"]["health"]["reason"]
                );
                let rows = page["rows"].as_array().expect("rows");
                let names: Vec<_> = rows.iter().map(|row| row["name"].as_str()).collect();
                assert_eq!(names, ["vol", "vol", "fast", "slow"].map(Some));
                let roles: Vec<_> = rows.iter().map(|row| row["role"].as_str()).collect();
                let expected = ["export of vol", "volume", "side of vol", "side of vol"];
                assert_eq!(roles, expected.map(Some));
                let depths: Vec<_> = rows.iter().map(|row| row["depth"].as_u64()).collect();
                assert_eq!(depths, [0, 0, 1, 1].map(Some));
                assert_eq!(rows[3]["state"], "frozen");
                let exposure = &page["bounds"][0];
                assert_eq!(exposure["name"], "on one side");
                assert!(exposure["share"].as_f64() > Some(0.0), "{exposure}");
                volume.slow().set_frozen(false);
                client.stop().await;
            },
        );
    }

    /// A page that needed anything from elsewhere would not work where there is no network, and
    /// its policy forbids it. A style or a script within the page is forbidden too.
    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for (name, text) in [("page", PAGE), ("style", STYLE), ("script", SCRIPT)] {
            assert!(text.is_ascii(), "{name}");
            let without = text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "http:",
                "https:",
                "//cdn",
                "@import",
                "url(",
                "innerHTML",
                "eval(",
            ] {
                assert!(!without.contains(word), "{name} has {word}");
            }
        }
        for word in ["<style", " style=", " onclick=", "<script>"] {
            assert!(!PAGE.contains(word), "{word}");
        }
        let named = ["page.css", "page.js", "icon.svg"];
        assert!(named.iter().all(|name| PAGE.contains(name)));
        assert!(
            named
                .iter()
                .all(|name| PATHS.contains(&&*format!("/{name}")))
        );
    }
}
