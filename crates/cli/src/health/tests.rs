//! The health of volumes in virtual time, whose devices fail in each of the ways for which there is
//! a word. What is judged is the status as the control socket shows it, once a second.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{
    Layouts, Mirror, MirrorConfig, OnDegraded, OpenOptions, RebuildConfig, SideToOpen,
};
use bimetal_block::layers::shard::Seen;
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_block::tap::Tap;
use bimetal_block::units::Rate;
use bimetal_block::{BLOCK_BYTES, Device, Flags, IoError, Op, Request};
use bimetal_rt::{Rng, Rt, Task, VirtualOptions};

use super::*;

const MIB: u64 = 1 << 20;
/// Size of a side.
const SIDE_BYTES: u64 = 256 * MIB;
/// Names of the sides: an SSD and a disk.
const SIDES: [&str; 2] = ["fast", "slow"];
/// Index of the disk.
const SLOW: usize = 1;

/// A volume of an SSD and a disk whose sides can be made to fail.
struct Volume {
    rt: Rt,
    mirror: Rc<Tap>,
    /// What shows the state of each side, with its name.
    taps: Vec<(&'static str, Rc<Tap>)>,
    faults: Vec<Rc<FaultControl>>,
}

/// What a client does in each second.
#[derive(Clone, Copy)]
struct Load {
    writes: u64,
    write_bytes: u64,
    reads: u64,
    flushes: u64,
}

/// A client that both sides can follow.
const MODERATE: Load = Load {
    writes: 40,
    write_bytes: 4 * BLOCK_BYTES,
    reads: 20,
    flushes: 1,
};
/// A client that no log is too short for, however late a side is.
const LIGHT: Load = Load {
    writes: 10,
    write_bytes: BLOCK_BYTES,
    reads: 5,
    flushes: 1,
};
/// A client that does not read.
const WRITES: Load = Load {
    reads: 0,
    ..MODERATE
};

/// Runs a test of a new volume.
fn test(config: impl FnOnce(&mut MirrorConfig), test: impl AsyncFnOnce(&Volume)) {
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

    fn slow(&self) -> &FaultControl {
        &self.faults[SLOW]
    }

    /// Returns the devices as the control socket shows them.
    fn devices(&self) -> Map<String, Value> {
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
        statistics::of_devices(sides.chain([volume]).collect())
    }

    fn health(&self) -> Health {
        let mut volumes = judge(&self.devices());
        let (name, health) = volumes.pop().expect("a volume");
        assert_eq!((name.as_str(), volumes.len()), ("vol", 0));
        println!("{:?}", health.0);
        health
    }

    /// Returns what holds at the end of each of the next seconds.
    async fn seconds(&self, count: u64) -> Vec<Vec<&'static str>> {
        let mut seen = Vec::new();
        for _ in 0..count {
            self.rt.sleep(Duration::from_secs(1)).await;
            seen.push(words(&self.health()));
        }
        seen
    }

    /// Asserts that exactly these words hold in each of the next seconds.
    async fn stays(&self, words: &[&str], seconds: u64) {
        for seen in self.seconds(seconds).await {
            assert_eq!(seen, words);
        }
    }

    /// Waits until exactly these words hold, for at most `seconds`, and returns the health. Until
    /// then, only `before` may hold.
    async fn until(&self, words: &[&str], before: &[&str], seconds: u64) -> Health {
        for _ in 0..seconds {
            self.rt.sleep(Duration::from_secs(1)).await;
            let health = self.health();
            let seen = super::tests::words(&health);
            if seen == words {
                return health;
            }
            let is_known = |word: &&str| before.contains(word);
            assert!(seen.iter().all(|word| is_known(word)), "{:?}", health.0);
        }
        panic!("{words:?} did not hold within {seconds} s");
    }

    /// Starts a client whose requests come at fixed times, and wait for nothing.
    fn start(&self, load: Load) -> Client {
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
struct Client {
    is_over: Rc<Cell<bool>>,
    task: Task<Vec<Task<Result<(), IoError>>>>,
}

impl Client {
    /// Ends the load, and waits for its requests. Returns the number of those that have failed.
    async fn stop(self) -> usize {
        self.is_over.set(true);
        let mut failed = 0;
        for request in self.task.await {
            failed += usize::from(request.await.is_err());
        }
        failed
    }
}

fn words(health: &Health) -> Vec<&'static str> {
    health
        .0
        .iter()
        .map(|finding| finding.state.word())
        .collect()
}

/// Asserts that the reason of the worst finding has these parts.
fn assert_reason(health: &Health, parts: &[&str]) {
    let reason = &health.worst().reason;
    let has_all = parts.iter().all(|part| reason.contains(part));
    assert!(has_all, "{reason:?} lacks one of {parts:?}");
}

#[test]
fn a_healthy_volume_is_healthy_in_every_second() {
    for kind in [SideKind::Home, SideKind::Log] {
        println!("{kind:?}");
        test(
            |config| config.layout = Layouts::All(kind),
            async |volume| {
                volume.stays(&["healthy"], 5).await;
                let client = volume.start(MODERATE);
                volume.stays(&["healthy"], 240).await;
                assert_eq!(client.stop().await, 0);
                volume.stays(&["healthy"], 60).await;
                assert_reason(&volume.health(), &["both sides have everything"]);
            },
        );
    }
}

#[test]
fn a_side_that_answers_nothing_is_frozen() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(LIGHT);
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_frozen(true);
            volume.until(&["frozen"], &["healthy"], 3).await;
            volume.stays(&["frozen"], 15).await;
            assert_reason(
                &volume.health(),
                &[
                    "side slow has not answered",
                    "requests for 1",
                    "writes wait for it",
                ],
            );
            volume.slow().set_frozen(false);
            // The request that took so long is named for ten seconds.
            let after = volume.until(&["slow"], &["frozen", "slow"], 3).await;
            assert_reason(&after, &["side slow took", "within the last 10 s"]);
            volume.until(&["healthy"], &["slow"], 15).await;
            volume.stays(&["healthy"], 30).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_side_that_answers_late_is_slow() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(LIGHT);
            volume.stays(&["healthy"], 20).await;
            volume
                .slow()
                .set_delay(Op::Write, Duration::from_millis(400));
            volume.until(&["slow"], &["healthy"], 15).await;
            volume.stays(&["slow"], 30).await;
            assert_reason(&volume.health(), &["side slow", "usually"]);
            volume.slow().set_delay(Op::Write, Duration::ZERO);
            volume.until(&["healthy"], &["slow"], 20).await;
            volume.stays(&["healthy"], 30).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_side_that_clients_wait_for_is_slow() {
    test(
        |config| config.layout = Layouts::All(SideKind::Log),
        async |volume| {
            let client = volume.start(Load {
                writes: 400,
                write_bytes: MIB,
                reads: 0,
                flushes: 0,
            });
            volume.until(&["slow"], &["healthy"], 15).await;
            volume.stays(&["slow"], 5).await;
            assert_reason(
                &volume.health(),
                &["writes waited for side slow", "of the last 10 s"],
            );
            assert_eq!(client.stop().await, 0);
            volume.until(&["healthy"], &["slow"], 20).await;
        },
    );
}

#[test]
fn a_side_that_is_absent_is_gone() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_error(Some(IoError::Offline));
            volume
                .until(&["gone"], &["healthy", "failing flush"], 4)
                .await;
            volume.stays(&["gone"], 60).await;
            let reason = [
                "side slow has been absent for ",
                "it lacks",
                "one copy is left",
            ];
            assert_reason(&volume.health(), &reason);
            volume.slow().set_error(None);
            volume
                .until(&["healthy"], &["gone", "rebuilding"], 30)
                .await;
            volume.stays(&["healthy"], 30).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_side_to_which_data_is_copied_is_rebuilding() {
    test(
        |config| {
            config.rebuild = RebuildConfig {
                floor: Rate(0),
                ceiling: Some(Rate(2 * MIB)),
            };
        },
        async |volume| {
            volume.slow().set_error(Some(IoError::Offline));
            let client = volume.start(WRITES);
            volume
                .until(&["gone"], &["healthy", "failing flush"], 5)
                .await;
            volume.stays(&["gone"], 120).await;
            assert_eq!(client.stop().await, 0);
            volume.slow().set_error(None);
            volume.until(&["rebuilding"], &["gone"], 5).await;
            volume.stays(&["rebuilding"], 12).await;
            let reason = [
                "side slow is being rebuilt",
                "% done",
                "MiB to copy",
                "left",
            ];
            assert_reason(&volume.health(), &reason);
            volume.until(&["healthy"], &["rebuilding"], 120).await;
            volume.stays(&["healthy"], 30).await;
        },
    );
}

/// The SSD fails every read, so nothing can be copied from it to the disk.
#[test]
fn a_side_that_lacks_data_which_is_not_copied_is_out_of_sync() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(Load { reads: 0, ..LIGHT });
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_error(Some(IoError::Offline));
            volume
                .until(&["gone"], &["healthy", "failing flush"], 5)
                .await;
            volume.stays(&["gone"], 30).await;
            for _ in 0..1_000_000 {
                volume.faults[0].fail_next(Op::Read, IoError::Medium);
            }
            volume.slow().set_error(None);
            volume
                .until(&["out of sync"], &["gone", "rebuilding"], 30)
                .await;
            volume.stays(&["out of sync"], 30).await;
            assert_reason(
                &volume.health(),
                &["side slow lacks", "nothing has been copied"],
            );
            drop(client);
        },
    );
}

#[test]
fn a_volume_that_refuses_writes_is_read_only() {
    test(
        |config| config.on_degraded = OnDegraded::ReadOnly,
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 10).await;
            volume.slow().set_error(Some(IoError::Offline));
            volume
                .until(&["read-only", "gone"], &["healthy", "failing flush"], 5)
                .await;
            volume.stays(&["read-only", "gone"], 30).await;
            assert_reason(
                &volume.health(),
                &["it refuses writes until", "`on_degraded`"],
            );
            volume.slow().set_error(None);
            let before = ["read-only", "gone", "rebuilding"];
            volume.until(&["healthy"], &before, 30).await;
            assert!(client.stop().await > 100, "writes were refused");
        },
    );
}

/// More small writes at random than a disk with homes can destage.
#[test]
fn a_log_for_whose_space_changes_wait_is_full() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(Load {
                writes: 2_000,
                write_bytes: BLOCK_BYTES,
                reads: 0,
                flushes: 0,
            });
            volume.until(&["full log"], &["healthy", "slow"], 60).await;
            volume.stays(&["full log"], 20).await;
            let reason = ["in the log of side slow", "of the last 10 s"];
            assert_reason(&volume.health(), &reason);
            assert_eq!(client.stop().await, 0);
            volume.until(&["healthy"], &["full log", "slow"], 60).await;
            volume.stays(&["healthy"], 30).await;
        },
    );
}

/// Each failed flush is mended at once, so that the side stays in use.
#[test]
fn a_side_whose_flush_has_failed_has_a_failing_flush() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 10).await;
            for _ in 0..5 {
                volume.slow().fail_next(Op::Flush, IoError::Medium);
                volume.until(&["failing flush"], &["healthy"], 4).await;
                volume.stays(&["failing flush"], 4).await;
            }
            let reason = ["a flush of side slow has failed", "was written again"];
            assert_reason(&volume.health(), &reason);
            volume.until(&["healthy"], &["failing flush"], 15).await;
            volume.stays(&["healthy"], 60).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

/// No side takes a flush any more. One of them is ejected, and the other stays, because it is the
/// last.
#[test]
fn the_last_side_can_have_a_failing_flush_for_long() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 10).await;
            for _ in 0..1_000 {
                for faults in &volume.faults {
                    faults.fail_next(Op::Flush, IoError::Medium);
                }
            }
            let both = ["failing flush", "gone"];
            volume.until(&both, &["healthy", "failing flush"], 5).await;
            volume.stays(&both, 30).await;
            assert_reason(
                &volume.health(),
                &["flushes of side", "have failed for", "kept"],
            );
            drop(client);
        },
    );
}
