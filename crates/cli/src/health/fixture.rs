//! A volume in virtual time, on an emulated SSD and an emulated disk that can be made to fail, with
//! its status as the control socket shows it. For tests of what the status says, and of how it is
//! shown.

#![expect(clippy::print_stdout, reason = "for a person who reads a failure")]

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{Layouts, Mirror, MirrorConfig, OpenOptions, SideToOpen};
use bimetal_block::layers::shard::Seen;
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_block::tap::Tap;
use bimetal_block::{BLOCK_BYTES, Device, Flags, IoError, Op, Request};
use bimetal_rt::{Rng, Rt, Task, VirtualOptions};

use serde_json::{Value, json};

use super::{Health, judge};
use crate::statistics;

pub(crate) const MIB: u64 = 1 << 20;
/// Size of a side.
const SIDE_BYTES: u64 = 256 * MIB;
/// Names of the sides: an SSD and a disk.
const SIDES: [&str; 2] = ["fast", "slow"];
/// Index of the disk.
pub(crate) const SLOW: usize = 1;

/// A volume of an SSD and a disk whose sides can be made to fail.
pub(crate) struct Volume {
    pub(crate) rt: Rt,
    mirror: Rc<Tap>,
    /// What shows the state of each side, with its name.
    taps: Vec<(&'static str, Rc<Tap>)>,
    pub(crate) faults: Vec<Rc<FaultControl>>,
}

/// What a client does in each second.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) flushes: u64,
}

/// A client that both sides can follow.
pub(crate) const MODERATE: Load = Load {
    writes: 40,
    write_bytes: 4 * BLOCK_BYTES,
    reads: 20,
    flushes: 1,
};
/// A client that no log is too short for, however late a side is.
pub(crate) const LIGHT: Load = Load {
    writes: 10,
    write_bytes: BLOCK_BYTES,
    reads: 5,
    flushes: 1,
};
/// A client that does not read.
pub(crate) const WRITES: Load = Load {
    reads: 0,
    ..MODERATE
};

/// Runs a test of a new volume.
pub(crate) fn test(config: impl FnOnce(&mut MirrorConfig), test: impl AsyncFnOnce(&Volume)) {
    let rt = Rt::virtual_time(VirtualOptions {
        seed: 1,
        shuffle: true,
    });
    rt.block_on(async {
        let mut mirror = MirrorConfig::of(SIDES.map(str::to_owned).to_vec());
        mirror.layout = Layouts::All(SideKind::Home);
        config(&mut mirror);
        test(&Volume::open(&rt, &mirror).await).await;
    });
    rt.end();
}

impl Volume {
    async fn open(rt: &Rt, config: &MirrorConfig) -> Volume {
        let (mut taps, mut faults, mut candidates) = (Vec::new(), Vec::new(), Vec::new());
        for (name, of, profile) in [
            (SIDES[0], ModelType::Ssd, "nvme-tlc"),
            (SIDES[1], ModelType::Hdd, "hdd-7200"),
        ] {
            let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, SIDE_BYTES));
            let changes = Default::default();
            let parameters = Parameters::from_profile(of, profile, changes).expect("it is known");
            let timing = Timing::new(rt, memory, &parameters, 1).expect("its values are in range");
            let fault = Fault::new(rt, Rc::new(timing), FaultPlan::default(), 1);
            faults.push(fault.control());
            let tap = Rc::new(Tap::new(rt, Rc::new(fault)));
            candidates.push(Candidate {
                name: name.to_owned(),
                device: Rc::clone(&tap) as Rc<dyn Device>,
            });
            taps.push((name, tap));
        }
        let options = Formatting {
            layouts: config.layout.clone(),
            volume_bytes: config.size.map(|size| size.0),
            ..Formatting::with_homes()
        };
        let made = formatting::format(rt, "vol", &candidates, &options).await;
        made.expect("the sides are fit");
        let sides = candidates.into_iter().map(|side| SideToOpen {
            name: side.name,
            device: Ok(side.device),
        });
        let opened = Mirror::open(rt, config, sides.collect(), &OpenOptions::default()).await;
        let mirror = opened.unwrap_or_else(|error| panic!("it does not open: {error}"));
        Volume {
            rt: rt.clone(),
            mirror: Rc::new(Tap::new(rt, Rc::new(mirror))),
            taps,
            faults,
        }
    }

    pub(crate) fn slow(&self) -> &FaultControl {
        &self.faults[SLOW]
    }

    /// Writes `len` bytes that differ from zeroes.
    pub(crate) async fn write_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let data = self.rt.pool().copy_of(&vec![1; len as usize]);
        let write = Request::write(offset, data, Flags::NONE);
        self.mirror.submit(write).await.map(drop)
    }

    /// Discards a range of the volume.
    pub(crate) async fn discard(&self, range: Range<u64>) {
        let len = range.end - range.start;
        let discard = Request::without_data(Op::Discard, range.start, len, Flags::NONE);
        self.mirror.submit(discard).await.expect("it needs no room");
    }

    /// Returns the devices with their statistics.
    pub(crate) fn devices(&self) -> Vec<Seen> {
        let seen = |name: &str, kind, children: &[&str], device: &dyn Device| {
            let mut statistics = Vec::new();
            device.statistics(&mut statistics);
            Seen {
                name: name.to_owned(),
                kind,
                children: children.iter().map(|&child| child.to_owned()).collect(),
                size_bytes: device.geometry().size_bytes,
                statistics,
            }
        };
        let sides = self.taps.iter();
        let sides = sides.map(|(name, tap)| seen(name, "file", &[], &**tap));
        let volume = seen("vol", "mirror", &SIDES, &*self.mirror);
        sides.chain([volume]).collect()
    }

    /// Returns the status as the control socket shows it.
    pub(crate) fn status(&self) -> Value {
        let seen = self.devices();
        let volumes = judge(&seen);
        let mut devices = statistics::of_devices(seen);
        for (name, health) in volumes {
            devices[&name]["health"] = health.to_json();
        }
        let export = json!({
            "device": "vol",
            "protocol": "nbd",
            "listen": "unix:vol.sock",
            "statistics": { "connections": 1.0 },
            "latency": devices["vol"]["latency"],
        });
        json!({ "uptime_s": 7_260.0, "exports": { "vol": export }, "devices": devices })
    }

    /// Returns the health of the volume.
    pub(crate) fn health(&self) -> Health {
        let mut volumes = judge(&self.devices());
        let (name, health) = volumes.pop().expect("a volume");
        assert_eq!((name.as_str(), volumes.len()), ("vol", 0));
        println!("{:?}", health.0);
        health
    }

    /// Returns what holds at the end of each of the next seconds.
    pub(crate) async fn seconds(&self, count: u64) -> Vec<Vec<&'static str>> {
        let mut seen = Vec::new();
        for _ in 0..count {
            self.rt.sleep(Duration::from_secs(1)).await;
            seen.push(words(&self.health()));
        }
        seen
    }

    /// Asserts that exactly these words hold in each of the next seconds.
    pub(crate) async fn stays(&self, words: &[&str], seconds: u64) {
        for seen in self.seconds(seconds).await {
            assert_eq!(seen, words);
        }
    }

    /// Waits until exactly these words hold, for at most `seconds`, and returns the health. Until
    /// then, only `before` may hold.
    pub(crate) async fn until(&self, words: &[&str], before: &[&str], seconds: u64) -> Health {
        for _ in 0..seconds {
            self.rt.sleep(Duration::from_secs(1)).await;
            let health = self.health();
            let seen = self::words(&health);
            if seen == words {
                return health;
            }
            let is_known = |word: &&'static str| before.contains(word);
            assert!(seen.iter().all(is_known), "{:?}", health.0);
        }
        panic!("{words:?} did not hold within {seconds} s");
    }

    /// Starts a client whose requests come at fixed times, and wait for nothing.
    pub(crate) fn start(&self, load: Load) -> Client {
        let is_over = Rc::new(Cell::new(false));
        let (rt, device) = (self.rt.clone(), Rc::clone(&self.mirror));
        let over = Rc::clone(&is_over);
        let task = self.rt.spawn(async move {
            let mut rng = Rng::new(7);
            let places = device.geometry().size_bytes / load.write_bytes;
            let content = rt.pool().zeroed(load.write_bytes as usize);
            let all = load.writes + load.reads + load.flushes;
            let mut requests = Vec::new();
            for at in (0..all).cycle() {
                if over.get() {
                    break;
                }
                let offset = rng.below(places) * load.write_bytes;
                let request = match at {
                    0 if load.flushes > 0 => Request::flush(),
                    at if at <= load.writes => Request::write(offset, content.clone(), Flags::NONE),
                    _ => Request::read(offset, load.write_bytes),
                };
                let device = Rc::clone(&device);
                requests.push(rt.spawn(async move { device.submit(request).await.map(drop) }));
                rt.sleep(Duration::from_secs(1) / all as u32).await;
            }
            requests
        });
        Client { is_over, task }
    }
}

/// A client; see [`Volume::start`].
pub(crate) struct Client {
    is_over: Rc<Cell<bool>>,
    task: Task<Vec<Task<Result<(), IoError>>>>,
}

impl Client {
    /// Ends the load, and waits for its requests. Returns the number of those that have failed.
    pub(crate) async fn stop(self) -> usize {
        self.is_over.set(true);
        let mut failed = 0;
        for request in self.task.await {
            failed += usize::from(request.await.is_err());
        }
        failed
    }
}

/// Returns the words that hold, the worst first.
pub(crate) fn words(health: &Health) -> Vec<&'static str> {
    let findings = health.0.iter();
    findings.map(|finding| finding.state.word()).collect()
}
