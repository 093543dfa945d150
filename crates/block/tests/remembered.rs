//! Interrupted operations, on sides in memory. The volume must record an operation and resume it at
//! the next opening, with the configuration from before the operation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{Powered, blank, byte_at, put};
use crate::common::virtual_rt;
use bimetal_block::graph::OpenError;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{
    Mirror, MirrorConfig, MirrorStatus, OpenOptions, SideToOpen, holds_side, sides_elsewhere,
};
use bimetal_block::units::Size;
use bimetal_block::{Device, Request};
use bimetal_rt::Rt;

const MIB: u64 = 1 << 20;
/// Content of the volume: the byte at the start of each of its first MiB.
const CONTENT: [u8; 6] = [1, 2, 3, 4, 5, 6];

/// The devices that a configuration describes. The mirror's list `sides` names some of them.
struct Devices {
    rt: Rt,
    all: Vec<Candidate>,
    /// Number of changes, to all devices together, after which the power is cut.
    power: Rc<Cell<u64>>,
    scrub_rate: Option<Size>,
}

impl Devices {
    /// Creates two sides of a volume with content (`a` and `b`) and a blank device (`c`).
    async fn made(rt: &Rt) -> Devices {
        let all = ["a", "b", "c"].map(|name| blank(rt, name)).to_vec();
        let made = formatting::format(rt, "vol", &all[..2], &Formatting::with_homes()).await;
        made.expect("the sides are fit");
        let devices = Devices {
            rt: rt.clone(),
            all,
            power: Rc::new(Cell::new(u64::MAX)),
            scrub_rate: None,
        };
        let mirror = devices.open(&["a", "b"]).await;
        for (at, byte) in CONTENT.into_iter().enumerate() {
            put(rt, &mirror, at as u64 * MIB, byte).await;
        }
        mirror.close().await.expect("closed");
        devices
    }

    fn device(&self, name: &str) -> Candidate {
        let device = self.all.iter().find(|device| device.name == name);
        Powered::side(device.expect("it is described"), &self.power)
    }

    /// Opens the volume with a configuration that describes all devices and names `sides` as the
    /// sides.
    async fn open(&self, sides: &[&str]) -> Mirror {
        self.open_beside(sides, &["a", "b", "c"]).await
    }

    /// Opens the volume as a server does, with a configuration that names `sides` as the sides and
    /// describes the devices `known`.
    async fn open_beside(&self, sides: &[&str], known: &[&str]) -> Mirror {
        let named = |name: &&str| SideToOpen {
            name: (*name).to_owned(),
            device: Ok(self.device(name).device),
        };
        let mut config = MirrorConfig::of(sides.iter().map(|name| (*name).to_owned()).collect());
        config.scrub_rate = self.scrub_rate;
        let mut to_open: Vec<SideToOpen> = sides.iter().map(named).collect();
        for (number, side) in sides_elsewhere(&self.rt, &to_open).await.iter().enumerate() {
            let mut found = SideToOpen {
                name: format!("unfound{number}"),
                device: Err(OpenError::new("not described")),
            };
            for name in known.iter().filter(|name| !sides.contains(*name)) {
                if holds_side(&self.rt, &self.device(name).device, side).await {
                    found = named(name);
                }
            }
            to_open.push(found);
        }
        let opened = Mirror::open(&self.rt, &config, to_open, &OpenOptions::default()).await;
        opened.unwrap_or_else(|error| panic!("it opens: {error}"))
    }

    /// Cuts the power of the open devices. The next opening has power again.
    fn cut_power(&mut self) {
        self.power.set(0);
        self.power = Rc::new(Cell::new(u64::MAX));
    }

    /// Waits until the power is cut or the status satisfies `done`; returns false if neither
    /// happens within two minutes.
    async fn until(&self, mirror: &Mirror, done: impl Fn(&MirrorStatus) -> bool) -> bool {
        for _ in 0..2400 {
            if self.power.get() == 0 || done(&mirror.status()) {
                return true;
            }
            self.rt.sleep(Duration::from_millis(50)).await;
        }
        false
    }
}

fn names(status: &MirrorStatus) -> Vec<String> {
    status.sides.iter().map(|side| side.name.clone()).collect()
}

/// Returns true if the volume has exactly the sides `sides`, all of them in sync, and no pending
/// operation.
fn is_settled(status: &MirrorStatus, sides: &[&str]) -> bool {
    names(status) == sides && !status.degraded && status.operations.is_empty()
}

fn words(status: &MirrorStatus) -> Vec<String> {
    status.operations.iter().map(|o| o.words()).collect()
}

async fn assert_content(mirror: &Mirror, when: &str) {
    for (at, byte) in CONTENT.into_iter().enumerate() {
        assert_eq!(byte_at(mirror, at as u64 * MIB).await, Ok(byte), "{when}");
    }
}

/// An operation that a test requests and interrupts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Add,
    Replace,
    Remove,
}

impl Asked {
    async fn of(self, mirror: &Mirror, devices: &Devices) -> Result<(), String> {
        match self {
            Asked::Add => mirror.add_side(devices.device("c"), None, false).await,
            Asked::Replace => mirror.add_side(devices.device("c"), Some("b"), false).await,
            Asked::Remove => mirror.remove_side("b").await,
        }
    }

    fn ends_with(self) -> &'static [&'static str] {
        match self {
            Asked::Add => &["a", "b", "c"],
            Asked::Replace => &["a", "c"],
            Asked::Remove => &["a"],
        }
    }

    /// Requests the operation and cuts the power after `changes` changes. Then opens the volume
    /// with the original configuration, requests the operation again, and cuts the power a second
    /// time. Then opens the volume once more, and waits until the operation is complete. Returns
    /// true if the operation had completed before the first power cut.
    async fn cut_after(self, rt: &Rt, changes: u64) -> bool {
        let when = format!("{self:?} cut after {changes} changes");
        let mut devices = Devices::made(rt).await;
        let mirror = devices.open(&["a", "b"]).await;
        devices.power.set(changes);
        let answer = self.of(&mirror, &devices).await;
        let done = |status: &MirrorStatus| is_settled(status, self.ends_with());
        assert!(
            answer.is_err() || devices.until(&mirror, done).await,
            "{when}"
        );
        let lasted = answer.is_ok() && devices.power.get() > 0;
        devices.cut_power();

        let mirror = devices.open(&["a", "b"]).await;
        let status = mirror.status();
        let has_begun = !status.operations.is_empty() || done(&status);
        assert!(
            has_begun || answer.is_err(),
            "{when}: forgotten: {status:?}"
        );
        assert_content(&mirror, &when).await;
        devices.power.set(changes % 61);
        // The same operation may be requested again at any time.
        let again = self.of(&mirror, &devices).await;
        let is_gone = |why: &String| self == Asked::Remove && why.contains("no side b");
        let fine = again.as_ref().err().is_none_or(is_gone);
        assert!(fine || devices.power.get() == 0, "{when}: {again:?}");
        devices.until(&mirror, done).await;
        devices.cut_power();

        let mirror = devices.open(&["a", "b"]).await;
        let status = mirror.status();
        if status.operations.is_empty() && !done(&status) {
            assert!(answer.is_err() && again.is_err(), "{when}: {status:?}");
            self.of(&mirror, &devices)
                .await
                .expect("it is done at last");
        }
        let ends = devices.until(&mirror, done).await;
        assert!(ends, "{when}: it does not end: {:?}", mirror.status());
        assert_content(&mirror, &when).await;
        mirror.close().await.expect("closed");

        // The operation is complete. The volume must open with the configuration from before the
        // operation.
        let mirror = devices.open(&["a", "b"]).await;
        let status = mirror.status();
        assert!(done(&status), "{when}: {status:?}");
        let expected: Vec<String> = self.ends_with().iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(status.sides_to_name, Some(expected.clone()), "{when}");
        mirror.close().await.expect("closed");
        let edited: Vec<&str> = expected.iter().map(String::as_str).collect();
        let mirror = devices.open(&edited).await;
        let status = mirror.status();
        assert!(done(&status), "{when}: {status:?}");
        assert_eq!(status.sides_to_name, None, "{when}");
        assert_content(&mirror, &when).await;
        mirror.close().await.expect("closed");
        lasted
    }

    fn may_be_cut_anywhere(self) {
        for changes in 0..2000 {
            let rt = virtual_rt(100 + changes);
            if rt.block_on(self.cut_after(&rt, changes)) {
                assert!(changes > 4, "it was cut {changes} times");
                return;
            }
        }
        panic!("it never came to its end");
    }
}

#[test]
fn a_side_that_is_added_goes_on_coming_wherever_it_is_cut_short() {
    Asked::Add.may_be_cut_anywhere();
}

#[test]
fn a_replacement_goes_on_by_itself_wherever_it_is_cut_short() {
    Asked::Replace.may_be_cut_anywhere();
}

#[test]
fn a_removal_goes_on_by_itself_wherever_it_is_cut_short() {
    Asked::Remove.may_be_cut_anywhere();
}

/// Begins to replace b by c, cuts the power before c is in sync, and returns the devices.
async fn interrupted(rt: &Rt) -> Devices {
    let mut devices = Devices::made(rt).await;
    let mirror = devices.open(&["a", "b"]).await;
    Asked::Replace.of(&mirror, &devices).await.expect("begun");
    let status = mirror.status();
    assert_eq!(words(&status), ["replace b by c"]);
    let operations: Vec<_> = status.sides.iter().map(|side| side.operation).collect();
    assert_eq!(operations, [None, Some("leaving"), Some("joining")]);
    assert_eq!(status.sides_to_name, Some(vec!["a".into(), "c".into()]));
    devices.cut_power();
    devices
}

/// The operator has edited the configuration before the end of the replacement: it no longer names
/// the side that is being removed. That side must still be a member, and must be used until the new
/// side is in sync.
#[test]
fn a_configuration_may_name_the_sides_of_afterwards_before_the_end() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let devices = interrupted(&rt).await;
        let mirror = devices.open(&["a", "c"]).await;
        let status = mirror.status();
        assert_eq!(names(&status), ["a", "c", "b"]);
        assert_eq!(words(&status), ["replace b by c"]);
        assert_eq!(status.sides_to_name, None);
        let done = |status: &MirrorStatus| is_settled(status, &["a", "c"]);
        assert!(devices.until(&mirror, done).await, "{:?}", mirror.status());
        assert_content(&mirror, "afterwards").await;
        mirror.close().await.expect("closed");
    });
}

/// The configuration names the old side, the new side and the side that stays, as after a partial
/// edit. The replacement must still complete.
#[test]
fn a_configuration_that_names_all_sides_goes_on_as_well() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let devices = interrupted(&rt).await;
        let mirror = devices.open(&["a", "b", "c"]).await;
        let status = mirror.status();
        assert_eq!(words(&status), ["replace b by c"]);
        assert_eq!(status.sides_to_name, Some(vec!["a".into(), "c".into()]));
        let done = |status: &MirrorStatus| is_settled(status, &["a", "c"]);
        assert!(devices.until(&mirror, done).await, "{:?}", mirror.status());
        mirror.close().await.expect("closed");
    });
}

/// The configuration does not describe the device of the new side. The side must be reported as
/// absent under a substitute name, by which it can be removed, and it must be used again if its
/// device is found later.
#[test]
fn a_side_whose_device_is_not_described_is_missing_and_not_forgotten() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let devices = interrupted(&rt).await;
        let mirror = devices.open_beside(&["a", "b"], &["a", "b"]).await;
        let status = mirror.status();
        assert_eq!(names(&status), ["a", "b", "unfound0"]);
        assert_eq!(status.sides[2].health, "absent");
        assert_eq!(words(&status), ["replace b by unfound0"]);
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(
            names(&mirror.status()).len(),
            3,
            "b stays without the other one"
        );
        mirror.close().await.expect("closed");

        let mirror = devices.open(&["a", "b"]).await;
        assert_eq!(words(&mirror.status()), ["replace b by c"]);
        mirror.close().await.expect("closed");

        let mirror = devices.open_beside(&["a", "b"], &["a", "b"]).await;
        mirror.remove_side("unfound0").await.expect("given up");
        assert!(
            is_settled(&mirror.status(), &["a", "b"]),
            "{:?}",
            mirror.status()
        );
        mirror.close().await.expect("closed");
        let mirror = devices.open(&["a", "b"]).await;
        assert!(
            is_settled(&mirror.status(), &["a", "b"]),
            "{:?}",
            mirror.status()
        );
        assert_content(&mirror, "without it").await;
        mirror.close().await.expect("closed");
    });
}

/// A replacement by the device `c` was interrupted, and the next opening cannot find device `c`.
/// Then the operator requests the replacement by device `c` again. The device already holds the new
/// side of the interrupted replacement. The request must succeed, and the new side is rebuilt from
/// scratch.
#[test]
fn the_command_is_taken_again_with_the_side_that_it_has_left_behind() {
    let rt = virtual_rt(4);
    rt.block_on(async {
        let devices = interrupted(&rt).await;
        let mirror = devices.open_beside(&["a", "b"], &["a", "b"]).await;
        Asked::Replace
            .of(&mirror, &devices)
            .await
            .expect("taken again");
        let done = |status: &MirrorStatus| is_settled(status, &["a", "c"]);
        assert!(devices.until(&mirror, done).await, "{:?}", mirror.status());
        mirror.close().await.expect("closed");
        let mirror = devices.open(&["a", "b"]).await;
        assert!(done(&mirror.status()), "{:?}", mirror.status());
        assert_content(&mirror, "afterwards").await;
        mirror.close().await.expect("closed");
    });
}

/// A dead side is replaced while the configuration still names it. Afterwards the dead side must
/// not be reported as missing.
#[test]
fn a_dead_side_that_was_replaced_is_not_missed() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let mut devices = Devices::made(&rt).await;
        let dead = MirrorConfig::of(vec!["a".into(), "b".into()]);
        let without_b = |devices: &Devices| {
            vec![
                SideToOpen {
                    name: "a".into(),
                    device: Ok(devices.device("a").device),
                },
                SideToOpen {
                    name: "b".into(),
                    device: Err(OpenError::new("unplugged")),
                },
            ]
        };
        let options = OpenOptions::default();
        let mirror = Mirror::open(&rt, &dead, without_b(&devices), &options).await;
        let mirror = mirror.expect("a was closed cleanly");
        Asked::Replace.of(&mirror, &devices).await.expect("begun");
        devices.cut_power();
        for life in 0..3 {
            let mut sides = without_b(&devices);
            for side in sides_elsewhere(&rt, &sides).await {
                // `sides_elsewhere` also returns the dead side until its removal is complete. Only
                // the side that device `c` holds can be opened.
                let c = devices.device("c");
                if holds_side(&rt, &c.device, &side).await {
                    sides.push(SideToOpen {
                        name: "c".into(),
                        device: Ok(c.device),
                    });
                }
            }
            let mirror = Mirror::open(&rt, &dead, sides, &options).await;
            let mirror = mirror.unwrap_or_else(|error| panic!("life {life}: {error}"));
            let done = |status: &MirrorStatus| is_settled(status, &["a", "c"]);
            assert!(devices.until(&mirror, done).await, "{:?}", mirror.status());
            assert_content(&mirror, "afterwards").await;
            mirror.close().await.expect("closed");
        }
    });
}

/// A scrub must resume near its last position after a power cut and after a clean stop. A completed
/// or cancelled scrub must not resume.
#[test]
fn a_scrub_goes_on_after_any_stop() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let mut devices = Devices::made(&rt).await;
        // At this rate the scrub takes four seconds for each MiB of the volume, because it reads
        // that MiB from both sides.
        devices.scrub_rate = Some(Size(MIB / 2));
        let mirror = devices.open(&["a", "b"]).await;
        mirror.start_scrub().expect("it can be scrubbed");
        let position = |status: &MirrorStatus| {
            let scrub = status.scrub.clone().expect("it has begun");
            scrub.position_bytes
        };
        let at = |mib: u64| move |status: &MirrorStatus| position(status) >= mib * MIB;
        assert!(devices.until(&mirror, at(2)).await);
        assert!(mirror.status().scrub.expect("it runs").remembered);
        assert_eq!(words(&mirror.status()), ["scrub"]);
        devices.cut_power();

        // If the operator starts a scrub now, the interrupted scrub continues.
        let mirror = devices.open(&["a", "b"]).await;
        let status = mirror.status();
        assert!(position(&status) >= 2 * MIB, "{status:?}");
        let read_before = status.scrub.expect("it goes on").read_bytes;
        assert!(read_before > 0);
        mirror.start_scrub().expect("it runs already");
        assert!(devices.until(&mirror, at(4)).await);
        mirror.close().await.expect("closed");

        let mirror = devices.open(&["a", "b"]).await;
        let status = mirror.status();
        assert!(position(&status) >= 4 * MIB, "{status:?}");
        let over = |status: &MirrorStatus| {
            let scrub = status.scrub.as_ref().expect("it goes on");
            scrub.state != "running" && scrub.remembered
        };
        assert!(devices.until(&mirror, over).await);
        let scrub = mirror.status().scrub.expect("it has ended");
        assert_eq!((scrub.state, scrub.found), ("done", 0), "{scrub:?}");
        assert!(scrub.read_bytes > read_before);
        devices.cut_power();

        let mirror = devices.open(&["a", "b"]).await;
        assert_eq!(mirror.status().scrub, None, "it has ended");
        mirror.start_scrub().expect("another one");
        assert!(devices.until(&mirror, at(1)).await);
        assert!(mirror.cancel_scrub());
        assert!(devices.until(&mirror, over).await);
        assert_eq!(
            mirror.status().scrub.expect("it was begun").state,
            "cancelled"
        );
        devices.cut_power();
        let mirror = devices.open(&["a", "b"]).await;
        assert_eq!(mirror.status().scrub, None, "it was cancelled");
        mirror.close().await.expect("closed");
    });
}

/// Runs a scrub once for each number of changes from 0 to 59, and cuts the power after this number
/// of changes. When the volume is opened again, the scrub must complete.
#[test]
fn a_scrub_that_is_cut_short_anywhere_comes_to_its_end() {
    for changes in 0..60 {
        let rt = virtual_rt(1000 + changes);
        rt.block_on(async {
            let mut devices = Devices::made(&rt).await;
            devices.scrub_rate = Some(Size(MIB));
            let mirror = devices.open(&["a", "b"]).await;
            mirror.start_scrub().expect("it can be scrubbed");
            let begun = |status: &MirrorStatus| status.scrub.as_ref().is_some_and(|s| s.remembered);
            assert!(devices.until(&mirror, begun).await);
            devices.power.set(changes);
            let is_done = |status: &MirrorStatus| {
                status
                    .scrub
                    .as_ref()
                    .is_some_and(|scrub| scrub.state == "done")
            };
            assert!(devices.until(&mirror, is_done).await, "{changes} changes");
            // At this point the sides may or may not have recorded the end of the scrub.
            let was_done = is_done(&mirror.status());
            assert!(!was_done || changes > 4, "it writes how far it is");
            devices.cut_power();
            let mirror = devices.open(&["a", "b"]).await;
            let over =
                |status: &MirrorStatus| is_done(status) || status.scrub.is_none() && was_done;
            let ends = devices.until(&mirror, over).await;
            assert!(ends, "after {changes} changes: {:?}", mirror.status());
            mirror.submit(Request::flush()).await.expect("flushed");
            mirror.close().await.expect("closed");
        });
    }
}
