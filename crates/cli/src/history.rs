//! The last hour of the volumes of a server, for the page that people open in a browser: a sample
//! every ten seconds of the health, the exposure, and the rates and latencies of each volume and of
//! each of its sides.
//!
//! The memory is bounded, whatever the configuration: [`KEPT`] samples of at most [`DEVICES_MAX`]
//! devices. Of further devices nothing is kept.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use bimetal_block::Statistic;
use bimetal_block::latency::{OpLatency, Window};
use bimetal_block::layers::shard::Seen;
use serde_json::{Map, Value, json};

use crate::health::State;

/// Time between two samples, in seconds.
pub(crate) const EVERY_S: u64 = 10;
/// Number of samples that are kept: an hour.
pub(crate) const KEPT: usize = 360;
/// Maximum number of devices of which samples are kept.
pub(crate) const DEVICES_MAX: usize = 256;

/// The requests of a device in the ten seconds before a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Requests {
    writes_per_s: f32,
    reads_per_s: f32,
    written_bytes_per_s: f32,
    read_bytes_per_s: f32,
    /// 99th percentile of the latency of writes; 0 without any.
    write_p99_us: u32,
    read_p99_us: u32,
    /// Longest latency of any request that clients wait for.
    longest_us: u32,
}

/// What a volume is at the moment of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OfVolume {
    pub(crate) state: State,
    pub(crate) exposed_bytes: f64,
}

/// The samples of one volume, oldest first. All of them have the same times.
struct Past {
    of_volume: VecDeque<(u64, OfVolume)>,
    /// `None` for a time at which the device was not there.
    devices: BTreeMap<String, VecDeque<Option<Requests>>>,
    /// Number of the newest sample, from 1.
    number: u64,
}

/// The last hour of the volumes of a server; see the module.
#[derive(Default)]
pub(crate) struct History(RefCell<BTreeMap<String, Past>>);

impl Requests {
    /// Returns the requests of a device in the last ten seconds.
    pub(crate) fn of(seen: &Seen) -> Requests {
        let mut requests = Requests::default();
        for (_, op, statistic) in &seen.statistics {
            let Statistic::Latency(latency) = statistic else {
                continue;
            };
            requests.add(op, latency);
        }
        requests
    }

    fn add(&mut self, op: &str, latency: &OpLatency) {
        let lately = &latency.windows[Window::TenSeconds as usize];
        let us = |ns: u64| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        let (per_s, bytes) = (lately.requests_per_s(), lately.bytes_per_s());
        match op {
            "write" => {
                (self.writes_per_s, self.written_bytes_per_s) = (per_s as f32, bytes as f32);
                self.write_p99_us = us(lately.p99_ns);
            }
            "read" => {
                (self.reads_per_s, self.read_bytes_per_s) = (per_s as f32, bytes as f32);
                self.read_p99_us = us(lately.p99_ns);
            }
            "flush" => {}
            _ => return,
        }
        // A request without an answer is as slow as it is old.
        let longest_ns = lately.max_ns.max(latency.waiting_ns);
        self.longest_us = self.longest_us.max(us(longest_ns));
    }
}

impl History {
    /// Adds a sample of a volume and of its devices.
    pub(crate) fn add(
        &self,
        unix_s: u64,
        volume: &str,
        of_volume: OfVolume,
        devices: &[(&str, Requests)],
    ) {
        let mut all = self.0.borrow_mut();
        let mut room = DEVICES_MAX;
        for (name, past) in all.iter() {
            room -= if name == volume {
                0
            } else {
                past.devices.len()
            };
        }
        if room == 0 {
            return;
        }
        let past = all.entry(volume.to_owned()).or_insert_with(|| Past {
            of_volume: VecDeque::with_capacity(KEPT),
            devices: BTreeMap::new(),
            number: 0,
        });
        past.number += 1;
        let before = past.of_volume.len();
        if before == KEPT {
            past.of_volume.pop_front();
        }
        past.of_volume.push_back((unix_s, of_volume));
        let present = &devices[..devices.len().min(room)];
        let of = |name: &str| present.iter().find(|(present, _)| *present == name);
        // A device that is not there any more is kept while anything is known of its past.
        let forgotten = usize::from(before == KEPT);
        past.devices.retain(|name, samples| {
            of(name).is_some() || samples.iter().skip(forgotten).any(Option::is_some)
        });
        for (name, _) in present {
            if past.devices.len() < room && !past.devices.contains_key(*name) {
                let mut samples = VecDeque::with_capacity(KEPT);
                samples.resize(before, None);
                past.devices.insert((*name).to_owned(), samples);
            }
        }
        for (name, samples) in &mut past.devices {
            if samples.len() == KEPT {
                samples.pop_front();
            }
            samples.push_back(of(name).map(|(_, requests)| *requests));
        }
    }

    /// Repeats the newest sample of a volume with another time, without requests: nothing has
    /// happened to it.
    pub(crate) fn add_idle(&self, unix_s: u64, volume: &str) {
        let newest = self.0.borrow().get(volume).and_then(|past| {
            let names: Vec<String> = past.devices.keys().cloned().collect();
            let (_, of_volume) = past.of_volume.back()?;
            Some((*of_volume, names))
        });
        if let Some((of_volume, names)) = newest {
            let idle = names.iter().map(|name| (&**name, Requests::default()));
            let devices: Vec<(&str, Requests)> = idle.collect();
            self.add(unix_s, volume, of_volume, &devices);
        }
    }

    /// Returns the samples of a volume with a number above `after`, as the page gets them.
    pub(crate) fn to_json(&self, volume: &str, after: u64) -> Value {
        let all = self.0.borrow();
        let Some(past) = all.get(volume) else {
            return json!({ "volume": volume, "every_s": EVERY_S, "number": 0, "unix_s": [],
                "words": [], "exposed_bytes": [], "devices": {} });
        };
        let newer = past.number.saturating_sub(after);
        let kept = past.of_volume.len();
        let skip = kept - usize::try_from(newer).unwrap_or(kept).min(kept);
        let samples = || past.of_volume.iter().skip(skip);
        let devices = past.devices.iter().map(|(name, of_device)| {
            let column = |value: fn(&Requests) -> f64| -> Vec<Value> {
                let samples = of_device.iter().skip(skip);
                samples
                    .map(|sample| sample.as_ref().map_or(Value::Null, |at| json!(value(at))))
                    .collect()
            };
            let columns = json!({
                "writes_per_s": column(|at| rounded(at.writes_per_s)),
                "reads_per_s": column(|at| rounded(at.reads_per_s)),
                "written_bytes_per_s": column(|at| f64::from(at.written_bytes_per_s).round()),
                "read_bytes_per_s": column(|at| f64::from(at.read_bytes_per_s).round()),
                "write_p99_us": column(|at| f64::from(at.write_p99_us)),
                "read_p99_us": column(|at| f64::from(at.read_p99_us)),
                "longest_us": column(|at| f64::from(at.longest_us)),
            });
            (name.clone(), columns)
        });
        json!({
            "volume": volume,
            "every_s": EVERY_S,
            "number": past.number,
            "unix_s": samples().map(|(unix_s, _)| *unix_s).collect::<Vec<_>>(),
            "words": samples().map(|(_, at)| at.state.word()).collect::<Vec<_>>(),
            "exposed_bytes": samples().map(|(_, at)| at.exposed_bytes).collect::<Vec<_>>(),
            "devices": devices.collect::<Map<_, _>>(),
        })
    }
}

/// Rounds a rate to a tenth.
fn rounded(per_s: f32) -> f64 {
    (f64::from(per_s) * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: OfVolume = OfVolume {
        state: State::Healthy,
        exposed_bytes: 0.0,
    };

    fn requests(writes_per_s: f32) -> Requests {
        Requests {
            writes_per_s,
            ..Requests::default()
        }
    }

    fn column<'j>(json: &'j Value, device: &str) -> &'j Vec<Value> {
        let column = &json["devices"][device]["writes_per_s"];
        column
            .as_array()
            .unwrap_or_else(|| panic!("{device}: {json}"))
    }

    #[test]
    fn an_hour_is_kept_and_a_reader_gets_each_sample_once() {
        let history = History::default();
        for at in 0..500_u64 {
            history.add(10 * at, "vol", HEALTHY, &[("vol", requests(at as f32))]);
        }
        let all = history.to_json("vol", 0);
        let times = all["unix_s"].as_array().expect("a list");
        assert_eq!((times.len(), &times[0]), (KEPT, &json!(1400)));
        assert_eq!(times[KEPT - 1], 4990);
        assert_eq!(column(&all, "vol")[0], 140.0);
        assert_eq!(all["number"], 500);
        let newer = history.to_json("vol", 498);
        assert_eq!(newer["unix_s"], json!([4980, 4990]));
        assert_eq!(column(&newer, "vol"), &[json!(498.0), json!(499.0)]);
        assert_eq!(history.to_json("vol", 500)["unix_s"], json!([]));
        // A reader of an earlier server.
        assert_eq!(history.to_json("vol", u64::MAX)["unix_s"], json!([]));
        assert_eq!(history.to_json("other", 0)["number"], 0);
    }

    #[test]
    fn a_device_has_no_samples_before_it_came_and_after_it_left() {
        let history = History::default();
        let (a, b) = (("a", requests(1.0)), ("b", requests(2.0)));
        history.add(0, "vol", HEALTHY, &[a]);
        history.add(10, "vol", HEALTHY, &[a, b]);
        history.add(20, "vol", HEALTHY, &[b]);
        let json = history.to_json("vol", 0);
        assert_eq!(column(&json, "a"), &[json!(1.0), json!(1.0), Value::Null]);
        assert_eq!(column(&json, "b"), &[Value::Null, json!(2.0), json!(2.0)]);
        for at in 3..=(KEPT as u64 + 2) {
            history.add(10 * at, "vol", HEALTHY, &[b]);
        }
        let json = history.to_json("vol", 0);
        assert_eq!(json["devices"].as_object().map(Map::len), Some(1));
        assert_eq!(column(&json, "b").len(), KEPT);
    }

    #[test]
    fn a_volume_to_which_nothing_happens_has_samples_without_requests() {
        let history = History::default();
        history.add_idle(0, "vol");
        assert_eq!(history.to_json("vol", 0)["number"], 0);
        let exposed = OfVolume {
            exposed_bytes: 4096.0,
            ..HEALTHY
        };
        history.add(10, "vol", exposed, &[("a", requests(5.0))]);
        history.add_idle(20, "vol");
        let json = history.to_json("vol", 0);
        assert_eq!(json["exposed_bytes"], json!([4096.0, 4096.0]));
        assert_eq!(column(&json, "a"), &[json!(5.0), json!(0.0)]);
    }

    /// docs/browser.md states 12 KiB for each device, and 256 devices.
    #[test]
    fn the_memory_is_bounded() {
        assert!(KEPT * size_of::<Option<Requests>>() <= 12 << 10);
        let history = History::default();
        for volume in 0..300 {
            let names: Vec<String> = (0..3).map(|side| format!("{volume}.{side}")).collect();
            let devices: Vec<_> = names.iter().map(|name| (&**name, requests(1.0))).collect();
            history.add(0, &format!("vol{volume}"), HEALTHY, &devices);
        }
        let all = history.0.borrow();
        let devices: usize = all.values().map(|past| past.devices.len()).sum();
        assert_eq!((devices, all.len()), (DEVICES_MAX, 86));
    }
}
