//! Growing a volume in use. The sides are in memory.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{
    Powered, blank_of, byte_at, open_these, open_without, put, rebuilding, until_complete,
};
use crate::common::{virtual_rt, write};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::{Device, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::Rt;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A device that presents only the start of another device.
struct Start {
    below: Rc<dyn Device>,
    geometry: Geometry,
}

impl Device for Start {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        self.below.submit(request)
    }
}

/// Returns a side whose device has only the first `size_bytes`, as before the device was extended.
fn start_of(side: &Candidate, size_bytes: u64) -> Candidate {
    Candidate {
        name: side.name.clone(),
        device: Rc::new(Start {
            below: Rc::clone(&side.device),
            geometry: Geometry::of_size(size_bytes),
        }),
    }
}

/// Two sides that have room for a larger volume. The volume holds a nonzero block at the start of
/// each of its first four MiB, and in its last block.
struct Sides([Candidate; 2]);

/// Reason why the sides have room for a larger volume.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A smaller side was removed.
    SmallerLeft,
    /// The devices were extended.
    Extended,
    /// The devices were extended, and the volume has no checksums.
    ExtendedUnchecked,
}

impl Sides {
    async fn made(rt: &Rt, way: Way) -> Sides {
        let sides = ["one", "two"].map(|name| blank_of(rt, name, 48 * MIB));
        let formatting = Formatting {
            no_checksums: way == Way::ExtendedUnchecked,
            ..Formatting::with_homes()
        };
        let mut all: Vec<Candidate> = match way {
            Way::SmallerLeft => sides.to_vec(),
            Way::Extended | Way::ExtendedUnchecked => {
                sides.iter().map(|side| start_of(side, 32 * MIB)).collect()
            }
        };
        if way == Way::SmallerLeft {
            all.push(blank_of(rt, "small", 32 * MIB));
        }
        let made = formatting::format(rt, "vol", &all, &formatting).await;
        made.expect("the sides are fit");
        let mirror = open(rt, &all.iter().collect::<Vec<_>>()).await;
        for at in 0..4 {
            put(rt, &mirror, at * MIB, at as u8 + 1).await;
        }
        put(rt, &mirror, mirror.geometry().size_bytes - BLOCK, 0x55).await;
        if way == Way::SmallerLeft {
            mirror.remove_side("small").await.expect("removed");
        }
        mirror.close().await.expect("closed");
        Sides(sides)
    }

    fn powered(&self, power: &Rc<Cell<u64>>) -> [Candidate; 2] {
        [0, 1].map(|side| Powered::side(&self.0[side], power))
    }

    async fn open(&self, rt: &Rt) -> Mirror {
        open(rt, &[&self.0[0], &self.0[1]]).await
    }

    /// Opens the volume with only the side `side`, while the other side cannot be found.
    async fn open_alone(&self, rt: &Rt, side: usize) -> Mirror {
        let (both, options) = ([&self.0[0], &self.0[1]], OpenOptions::default());
        let opened = open_without(rt, &both, &[1 - side], &options).await;
        opened.unwrap_or_else(|error| panic!("it opens alone: {error}"))
    }

    /// Writes garbage to the devices after the end of the volume, into the area to which the volume
    /// will grow.
    async fn litter(&self, rt: &Rt) {
        for side in &self.0 {
            let superblock = side.superblock().await.expect("readable").expect("there");
            let end = superblock.layout.data.0 + superblock.volume_bytes;
            let litter = write(rt, end, (4 * MIB) as usize, 0xEE);
            side.device.submit(litter).await.expect("memory");
        }
    }
}

async fn open(rt: &Rt, sides: &[&Candidate]) -> Mirror {
    let opened = open_these(rt, sides, &OpenOptions::default()).await;
    opened.unwrap_or_else(|error| panic!("it opens: {error}"))
}

/// Asserts that the volume holds the old content, and zeroes from the old end to its present end.
async fn assert_content(mirror: &Mirror, old_bytes: u64, what: &str) {
    for at in 0..4 {
        assert_eq!(byte_at(mirror, at * MIB).await, Ok(at as u8 + 1), "{what}");
    }
    assert_eq!(byte_at(mirror, old_bytes - BLOCK).await, Ok(0x55), "{what}");
    let size_bytes = mirror.geometry().size_bytes;
    for start in (old_bytes..size_bytes).step_by(MIB as usize) {
        let len = MIB.min(size_bytes - start);
        let read = mirror.submit(Request::read(start, len)).await;
        let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
        let zero = read.into_data().to_vec().iter().all(|byte| *byte == 0);
        assert!(zero, "{what}: zeroes at {start}");
    }
}

async fn grows(rt: &Rt, way: Way) {
    let sides = Sides::made(rt, way).await;
    sides.litter(rt).await;
    let mirror = sides.open(rt).await;
    let old_bytes = mirror.geometry().size_bytes;
    let old = *mirror.geometry();
    assert_eq!(
        mirror.submit(Request::read(old_bytes, BLOCK)).await.err(),
        Some(IoError::OutOfRange)
    );
    let new_bytes = mirror.grow().await.expect("there is room");
    assert!(new_bytes >= old_bytes + 15 * MIB, "{old_bytes} {new_bytes}");
    assert_eq!(mirror.geometry().size_bytes, new_bytes);
    assert_eq!(old.size_bytes, old_bytes);
    assert_content(&mirror, old_bytes, "grown").await;
    let no_more = mirror.grow().await.unwrap_err();
    // The log of a side has a 16th of its device of 48 MiB, but at least 4 MiB.
    for words in [
        "has room for only",
        "on its device of 48 MiB, which also has its log of 4 MiB",
        "enlarge the device",
    ] {
        assert!(no_more.contains(words), "{words}: {no_more}");
    }
    put(rt, &mirror, new_bytes - BLOCK, 0x77).await;
    let zeroes = Request::without_data(
        Op::WriteZeroes,
        old_bytes,
        BLOCK,
        bimetal_block::Flags::NONE,
    );
    mirror.submit(zeroes).await.expect("written");
    mirror.submit(Request::flush()).await.expect("flushed");
    // Drop the volume without closing it, as a power cut would. Writes beyond the old end are still
    // in the logs.
    drop(mirror);
    let mirror = sides.open(rt).await;
    assert_eq!(byte_at(&mirror, new_bytes - BLOCK).await, Ok(0x77));
    mirror.close().await.expect("closed");
    // The second side alone receives a write beyond the old end. Then the first side returns and is
    // resynchronized.
    let alone = sides.open_alone(rt, 1).await;
    put(rt, &alone, new_bytes - 3 * MIB, 0x78).await;
    alone.close().await.expect("closed");
    let mirror = sides.open(rt).await;
    until_complete(rt, &mirror, 2).await;
    mirror.close().await.expect("closed");
    for side in &sides.0 {
        let superblock = side.superblock().await.expect("readable").expect("there");
        assert_eq!(superblock.volume_bytes, new_bytes);
        let layout = superblock.layout;
        assert!(layout.data.1 >= new_bytes);
        for (at, byte) in [(new_bytes - BLOCK, 0x77), (new_bytes - 3 * MIB, 0x78)] {
            let home = Request::read(layout.data.0 + at, BLOCK);
            let home = side.device.submit(home).await.expect("memory").into_data();
            assert_eq!(
                home.to_vec(),
                vec![byte; BLOCK as usize],
                "on {}",
                side.name
            );
        }
    }
}

#[test]
fn a_volume_grows_into_the_room_of_its_sides() {
    for (seed, way) in (1..).zip([Way::SmallerLeft, Way::Extended, Way::ExtendedUnchecked]) {
        let rt = virtual_rt(seed);
        rt.block_on(grows(&rt, way));
    }
}

/// Pages of checksums at the end of the volume become corrupt before the volume grows. Garbage
/// beyond the old end must then read as zeroes, although its checksums are lost.
#[test]
fn what_was_lost_beyond_the_end_reads_as_zeroes() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let sides = Sides::made(&rt, Way::SmallerLeft).await;
        sides.litter(&rt).await;
        let superblock = sides.0[0].superblock().await.expect("readable");
        let superblock = superblock.expect("there");
        // Corrupt the page of checksums that covers the last block of the volume, and the next page
        // after it.
        let page = superblock.volume_bytes / BLOCK / 1008 * BLOCK;
        for page in [page, page + BLOCK] {
            let corrupt = write(
                &rt,
                superblock.layout.checksums.0 + page,
                BLOCK as usize,
                0x11,
            );
            sides.0[0].device.submit(corrupt).await.expect("memory");
        }
        let mirror = sides.open(&rt).await;
        mirror.start_scrub().expect("it can be scrubbed");
        for _ in 0..10_000 {
            if mirror
                .status()
                .scrub
                .is_some_and(|scrub| scrub.state == "done")
            {
                break;
            }
            rt.sleep(Duration::from_millis(1)).await;
        }
        assert!(mirror.status().scrub.is_some_and(|scrub| scrub.found >= 1));
        until_complete(&rt, &mirror, 2).await;
        mirror.grow().await.expect("there is room");
        assert_content(&mirror, superblock.volume_bytes, "grown").await;
        mirror.close().await.expect("closed");
        let alone = sides.open_alone(&rt, 0).await;
        assert_content(&alone, superblock.volume_bytes, "alone").await;
        alone.close().await.expect("closed");
    });
}

#[test]
fn a_volume_grows_only_when_all_sides_are_whole_and_have_room() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let sides = Sides::made(&rt, Way::SmallerLeft).await;
        let alone = sides.open_alone(&rt, 0).await;
        let refused = alone.grow().await.unwrap_err();
        assert!(refused.contains("all sides must be healthy"), "{refused}");
        alone.close().await.expect("closed");
        let rebuild = rebuilding("two");
        let both = [&sides.0[0], &sides.0[1]];
        let mirror = open_these(&rt, &both, &rebuild).await.expect("it opens");
        let refused = mirror.grow().await.unwrap_err();
        assert!(refused.contains("side two is resyncing"), "{refused}");
        until_complete(&rt, &mirror, 2).await;
        mirror.close().await.expect("closed");
    });
}

/// Cuts the power at every change that growing makes. After each cut the volume has the old or the
/// new size, and certainly the new size if the growth was reported. It holds the old content,
/// followed by zeroes.
#[test]
fn growing_may_be_cut_short_anywhere() {
    for (way, most) in [(Way::SmallerLeft, 300), (Way::Extended, 300)] {
        let mut outcomes = [0, 0];
        for changes in 0..most {
            let rt = virtual_rt(1000 + changes);
            let (grown, reported) = rt.block_on(async {
                let sides = Sides::made(&rt, way).await;
                let power = Rc::new(Cell::new(u64::MAX));
                let [one, two] = sides.powered(&power);
                let mirror = open(&rt, &[&one, &two]).await;
                let old_bytes = mirror.geometry().size_bytes;
                // After an idle time all sides are clean-idle, so growing first has to record on
                // each side that another side may be ahead.
                rt.sleep(Duration::from_secs(10)).await;
                power.set(changes);
                let reported = mirror.grow().await;
                let written = match &reported {
                    Ok(new_bytes) => {
                        let last = write(&rt, new_bytes - BLOCK, BLOCK as usize, 0);
                        mirror.submit(last).await.is_ok()
                    }
                    Err(_) => false,
                };
                let finished = written && power.get() > 0;
                power.set(0);
                drop(mirror);
                let mirror = sides.open(&rt).await;
                let size_bytes = mirror.geometry().size_bytes;
                assert_content(&mirror, old_bytes, &format!("{way:?}, {changes} changes")).await;
                if let Ok(new_bytes) = reported {
                    assert_eq!(size_bytes, new_bytes, "{way:?}, after {changes} changes");
                }
                let grown = size_bytes > old_bytes;
                // A second request to grow must succeed if the first growth was not completed, and
                // must fail if it was completed.
                let again = mirror.grow().await;
                assert_eq!(
                    again.is_ok(),
                    !grown,
                    "{way:?}, {changes} changes: {again:?}"
                );
                put(&rt, &mirror, mirror.geometry().size_bytes - BLOCK, 9).await;
                mirror.close().await.expect("closed");
                (grown, finished)
            });
            outcomes[usize::from(grown)] += 1;
            if reported {
                assert!(
                    outcomes[0] >= 2 && outcomes[1] >= 2,
                    "{way:?}: {outcomes:?}"
                );
                break;
            }
            assert!(changes + 1 < most, "{way:?}: it never came to its end");
        }
    }
}

/// A logged side that caps the size is named with its device and its log, and with the remedy.
#[test]
fn a_logged_side_says_what_caps_it() {
    let rt = virtual_rt(0);
    rt.block_on(async {
        let sides = [("large", 256), ("small", 64)];
        let sides = sides.map(|(name, mib)| blank_of(&rt, name, mib * MIB));
        let made = formatting::format(&rt, "vol", &sides, &Formatting::default()).await;
        made.expect("the sides are fit");
        let mirror = open(&rt, &[&sides[0], &sides[1]]).await;
        let why = mirror.grow().await.unwrap_err();
        for words in [
            "side small",
            "on its device of 64 MiB, which also has its log of 4 MiB",
            "does not grow with its device",
        ] {
            assert!(why.contains(words), "{words}: {why}");
        }
        let cap = mirror.what_caps_the_size().expect("it has sides");
        assert!(cap.starts_with("side small has room for"), "{cap}");
        mirror.close().await.expect("closed");
    });
}
