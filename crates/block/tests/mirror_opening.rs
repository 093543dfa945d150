//! A formatted volume on sides in memory: stopped, killed, and opened again with all or some of its
//! sides, also with sides that are missing, diverged or corrupt.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::{byte_of, virtual_rt, write};
use bimetal_block::graph::OpenError;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, SideState};
use bimetal_block::layers::mirror::{
    Force, Mirror, MirrorConfig, OpenOptions, OpeningProgress, OpeningStep, SideToOpen,
};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::Rt;
use bimetal_rt::sync::Event;

const MIB: u64 = 1 << 20;

/// Returns memory devices that are large enough to be formatted as sides.
fn candidates(rt: &Rt, count: usize) -> Vec<Candidate> {
    (0..count)
        .map(|index| Candidate {
            name: format!("side{index}"),
            device: Rc::new(MemoryDevice::new(rt, 64 << 20)),
        })
        .collect()
}

fn config_of(sides: &[Candidate]) -> MirrorConfig {
    MirrorConfig::of(sides.iter().map(|side| side.name.clone()).collect())
}

async fn open(rt: &Rt, sides: &[Candidate]) -> Result<Mirror, String> {
    open_as(rt, sides, &OpenOptions::default()).await
}

async fn open_as(rt: &Rt, sides: &[Candidate], options: &OpenOptions) -> Result<Mirror, String> {
    let there = sides.iter().map(|side| SideToOpen {
        name: side.name.clone(),
        device: Ok(Rc::clone(&side.device)),
    });
    let opened = Mirror::open(rt, &config_of(sides), there.collect(), options).await;
    opened.map_err(|error| error.to_string())
}

#[test]
fn a_volume_survives_a_clean_stop_whatever_the_order_of_its_sides() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let sides = candidates(&rt, 3);
        formatting::format(&rt, "vol", &sides, &Formatting::default())
            .await
            .expect("the sides are fit");
        let mirror = open(&rt, &sides).await.expect("a fresh volume opens");
        mirror
            .submit(write(&rt, 0, 8192, 0x55))
            .await
            .expect("written");
        mirror.close().await.expect("closed");
        let turned: Vec<Candidate> = sides.iter().rev().cloned().collect();
        let again = open(&rt, &turned).await.expect("sides are known by UUID");
        let device: Rc<dyn Device> = Rc::new(again.clone());
        assert_eq!(byte_of(&device, 4096).await, 0x55);
        again.close().await.expect("closed");
    });
}

/// A device that fails writes with `NoSpace` while `is_full` is set.
struct Fillable {
    below: Rc<dyn Device>,
    is_full: Rc<Cell<bool>>,
}

impl Device for Fillable {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if self.is_full.get() && request.op == Op::Write {
            return IoFuture::ready(Err(IoError::NoSpace));
        }
        self.below.submit(request)
    }
}

fn fillable(side: &Candidate) -> (Candidate, Rc<Cell<bool>>) {
    let is_full = Rc::new(Cell::new(false));
    let device: Rc<dyn Device> = Rc::new(Fillable {
        below: Rc::clone(&side.device),
        is_full: Rc::clone(&is_full),
    });
    let name = side.name.clone();
    (Candidate { name, device }, is_full)
}

/// When the storage behind a side is full (`ENOSPC`), the volume must not open, and the error must
/// advise to free space. It must not advise a forced opening, which would lose data of a side. Once
/// there is free space, the volume opens with all sides.
#[test]
fn full_sides_are_told_to_be_full_and_nothing_is_forced() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let memory = candidates(&rt, 2);
        formatting::format(&rt, "vol", &memory, &Formatting::default())
            .await
            .expect("fit");
        let mirror = open(&rt, &memory).await.expect("a fresh volume opens");
        let written = mirror.submit(write(&rt, 0, 8192, 0x55)).await;
        written.expect("written");
        mirror.submit(Request::flush()).await.expect("flushed");
        // The volume is not closed, as if the server had been killed.
        let (sides, switches): (Vec<_>, Vec<_>) = memory.iter().map(fillable).unzip();
        let set_full = |full: &[bool]| {
            let switches = switches.iter().zip(full);
            switches.for_each(|(switch, full)| switch.set(*full));
        };
        for full in [[true, true], [true, false]] {
            set_full(&full);
            let refused = open(&rt, &sides).await.err().expect("there is no space");
            assert!(
                refused.contains("ENOSPC") && refused.contains("make room"),
                "{refused}"
            );
            assert!(!refused.contains("--force-open"), "{refused}");
        }
        set_full(&[false, false]);
        let again = open(&rt, &sides).await.expect("there is space");
        let device: Rc<dyn Device> = Rc::new(again.clone());
        assert_eq!(byte_of(&device, 4096).await, 0x55);
        assert!(!again.status().degraded);
    });
}

/// A blank disk in the place of a side is treated as a missing side. After a clean stop the volume
/// is served without that side, and reports how to make the disk a side. The disk is not written to
/// unless the operator requests it.
#[test]
fn a_blank_device_in_the_place_of_a_side_is_served_without_and_named() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let mut sides = candidates(&rt, 2);
        formatting::format(&rt, "vol", &sides, &Formatting::default())
            .await
            .expect("fit");
        let mirror = open(&rt, &sides).await.expect("a fresh volume opens");
        let written = mirror.submit(write(&rt, 0, 8192, 0x55)).await;
        written.expect("written");
        mirror.close().await.expect("closed");
        let blank = candidates(&rt, 2).pop().expect("two");
        sides[1] = blank.clone();
        let alone = open(&rt, &sides).await.expect("the other has all");
        assert_eq!(alone.status().sides[1].health, "absent");
        let told = rt.notices().take(rt.now());
        let told = told.iter().find(|notice| notice.kind == "side-blank");
        let told = told.expect("it is said").to_string();
        assert!(told.contains("--rebuild side1"), "{told}");
        let device: Rc<dyn Device> = Rc::new(alone.clone());
        assert_eq!(byte_of(&device, 4096).await, 0x55);
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(alone.status().sides[1].health, "absent");
        alone.close().await.expect("closed");
        for offset in [0, 4096, 63 << 20] {
            assert_eq!(byte_of(&blank.device, offset).await, 0);
        }
        let options = OpenOptions {
            rebuild: vec!["side1".to_owned()],
            ..OpenOptions::default()
        };
        let rebuilt = open_as(&rt, &sides, &options).await.expect("it is a side");
        while rebuilt.status().degraded {
            rt.sleep(Duration::from_millis(100)).await;
        }
        rebuilt.close().await.expect("closed");
    });
}

#[test]
fn unfit_foreign_and_doubled_sides_are_refused_and_nothing_is_written() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let (ours, others) = (candidates(&rt, 2), candidates(&rt, 2));
        let blank = open(&rt, &ours).await.err().expect("not formatted");
        assert!(blank.contains("bimetal format"), "{blank}");
        formatting::format(&rt, "ours", &ours, &Formatting::default())
            .await
            .expect("fit");
        formatting::format(&rt, "others", &others, &Formatting::default())
            .await
            .expect("fit");
        let taken = formatting::format(&rt, "again", &ours, &Formatting::default())
            .await
            .expect_err("in use");
        assert!(taken.to_string().contains("--force"), "{taken}");
        let mixed = [ours[0].clone(), others[1].clone()];
        let foreign = open(&rt, &mixed).await.err().expect("foreign");
        assert!(
            foreign.contains("foreign") && foreign.contains("\"others\""),
            "{foreign}"
        );
        let doubled = [ours[0].clone(), ours[0].clone()];
        let twice = open(&rt, &doubled).await.err().expect("one side twice");
        assert!(twice.contains("same side"), "{twice}");
        let mirror = open(&rt, &ours).await.expect("refusals changed nothing");
        mirror.close().await.expect("closed");
    });
}

/// Opens a volume while only the sides with the indices `there` can be found.
async fn open_some(
    rt: &Rt,
    sides: &[Candidate],
    there: &[usize],
    options: &OpenOptions,
) -> Result<Mirror, String> {
    let side = |(index, side): (usize, &Candidate)| SideToOpen {
        name: side.name.clone(),
        device: match there.contains(&index) {
            true => Ok(Rc::clone(&side.device)),
            false => Err(OpenError::new("unplugged")),
        },
    };
    let all = sides.iter().enumerate().map(side).collect();
    let opened = Mirror::open(rt, &config_of(sides), all, options).await;
    opened.map_err(|error| error.to_string())
}

async fn formatted(rt: &Rt, count: usize) -> Vec<Candidate> {
    let sides = candidates(rt, count);
    let made = formatting::format(rt, "vol", &sides, &Formatting::default()).await;
    made.expect("the sides are fit");
    sides
}

#[test]
fn a_volume_that_was_not_closed_opens_again_with_all_that_was_written() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let crashed = open(&rt, &sides).await.expect("fresh");
        let stored = crashed.submit(write(&rt, 0, 4096, 0x66)).await;
        stored.expect("written");
        crashed.submit(Request::flush()).await.expect("flushed");
        // The process was killed and closed no side, so each side is marked as in use.
        let mirror = open(&rt, &sides).await.expect("it recovers");
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        assert_eq!(byte_of(&device, 0).await, 0x66, "what was flushed is there");
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        mirror.close().await.expect("closed");
        let clean = open(&rt, &sides).await.expect("cleanly stopped");
        clean.close().await.expect("closed");
    });
}

#[test]
fn a_side_alone_is_refused_while_the_other_may_be_ahead_and_opens_once_nobody_is() {
    let rt = virtual_rt(7);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let crashed = open(&rt, &sides).await.expect("fresh");
        crashed
            .submit(write(&rt, 0, 4096, 1))
            .await
            .expect("written");
        crashed.submit(Request::flush()).await.expect("flushed");
        for alone in 0..2 {
            let refused = open_some(&rt, &sides, &[alone], &OpenOptions::default()).await;
            let refused = refused.err().expect("its peer may be ahead");
            let other = format!("side{}", 1 - alone);
            let says = refused.contains(&other) && refused.contains("nothing is known after");
            assert!(says && refused.contains("  0+"), "{refused}");
        }
        // After some idle time every side of an open volume records durably that no other side is
        // ahead of it.
        let mirror = open(&rt, &sides).await.expect("both are there");
        rt.sleep(Duration::from_secs(20)).await;
        drop(mirror);
        let alone = open_some(&rt, &sides, &[1], &OpenOptions::default()).await;
        let alone = alone.expect("nobody is ahead");
        assert!(alone.status().degraded);
        let device: Rc<dyn Device> = Rc::new(alone.clone());
        assert_eq!(byte_of(&device, 0).await, 1);
        alone.close().await.expect("closed");
    });
}

/// A device that can freeze at the next write of a superblock: that write takes effect but is not
/// answered, and later requests wait.
struct Freezing {
    below: Rc<dyn Device>,
    freezes: Cell<bool>,
    is_frozen: Cell<bool>,
    thawed: Event,
}

impl Freezing {
    fn over(below: &Rc<dyn Device>) -> Rc<Freezing> {
        Rc::new(Freezing {
            below: Rc::clone(below),
            freezes: Cell::new(false),
            is_frozen: Cell::new(false),
            thawed: Event::new(),
        })
    }

    fn thaw(&self) {
        self.freezes.set(false);
        self.is_frozen.set(false);
        self.thawed.notify();
    }
}

impl Device for Freezing {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let copies = [0, self.geometry().size_bytes - 4096];
        let of_superblock = request.op == Op::Write && copies.contains(&request.offset);
        IoFuture::new(async move {
            self.thawed.until(|| !self.is_frozen.get()).await;
            let freezes = of_superblock && self.freezes.get();
            self.is_frozen.set(freezes);
            let answer = self.below.submit(request).await;
            self.thawed.until(|| !self.is_frozen.get()).await;
            answer
        })
    }
}

/// While the superblock of a side is being written with the state clean-idle (no other side is
/// ahead of this side), a client writes again. Until this side is durably marked dirty again, an
/// opening could start it alone, without the new write. So a flush must wait for all sides.
#[test]
fn a_flush_waits_for_a_side_that_may_say_that_nobody_is_ahead() {
    let rt = virtual_rt(8);
    rt.block_on(async {
        let mut sides = formatted(&rt, 2).await;
        let plain = sides.clone();
        let freezing = Freezing::over(&plain[1].device);
        sides[1].device = Rc::clone(&freezing) as Rc<dyn Device>;
        let mirror = open(&rt, &sides).await.expect("fresh");
        let put = |byte| mirror.submit(write(&rt, 0, 4096, byte));
        put(1).await.expect("written");
        mirror.submit(Request::flush()).await.expect("flushed");
        rt.sleep(Duration::from_secs(1)).await;
        freezing.freezes.set(true);
        rt.sleep(Duration::from_secs(4)).await;
        let found = plain[1].superblock().await.expect("readable");
        assert_eq!(found.map(|found| found.state), Some(SideState::CleanIdle));
        put(2).await.expect("the other side takes it");
        let mut flush = mirror.submit(Request::flush());
        let soon = rt.timeout(Duration::from_secs(10), &mut flush).await;
        assert!(soon.is_err(), "side1 alone would not have it: {soon:?}");
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        freezing.thaw();
        flush.await.expect("flushed");
        mirror.close().await.expect("closed");
    });
}

/// When a missing side returns, exactly the changes that were made without it are copied to it.
#[test]
fn a_side_that_was_missing_gets_what_it_lacks() {
    let rt = virtual_rt(8);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let mirror = open(&rt, &sides).await.expect("fresh");
        for block in 0..64 {
            let write = write(&rt, block << 20, 4096, 7);
            mirror.submit(write).await.expect("written");
            if block == 40 {
                break;
            }
        }
        mirror.close().await.expect("closed");
        let alone = open_some(&rt, &sides, &[0], &OpenOptions::default()).await;
        let alone = alone.expect("it was closed cleanly");
        alone
            .submit(write(&rt, 5 << 20, 8192, 9))
            .await
            .expect("written");
        alone.close().await.expect("closed");
        let both = open(&rt, &sides).await.expect("one is behind");
        let lacks = &both.status().sides[1];
        assert_eq!(
            (lacks.health, lacks.out_of_sync_bytes),
            ("resyncing", 1 << 20)
        );
        rt.sleep(Duration::from_secs(10)).await;
        let status = both.status();
        assert!(!status.degraded, "{status:?}");
        assert_eq!(
            status.sides[1].resynced_bytes, 8192,
            "one region, without its holes"
        );
        both.close().await.expect("closed");
        for side in &sides {
            let superblock = side.superblock().await.expect("readable").expect("there");
            let at = superblock.layout.data.0 + (5 << 20);
            assert_eq!(byte_of(&side.device, at + 4096).await, 9, "{}", side.name);
        }
    });
}

#[test]
fn sides_that_each_ran_alone_are_split_until_one_is_given_up() {
    let rt = virtual_rt(9);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        for alone in 0..2 {
            let mirror = open_some(&rt, &sides, &[alone], &OpenOptions::default()).await;
            let mirror = mirror.expect("it was closed cleanly");
            let at = (1 + alone as u64) << 20;
            mirror
                .submit(write(&rt, at, 4096, 1 + alone as u8))
                .await
                .expect("written");
            mirror.close().await.expect("closed");
        }
        let split = open(&rt, &sides).await.err().expect("they are split");
        assert!(split.contains("split: side0 and side1"), "{split}");
        assert!(split.contains("  1048576+2097152"), "both regions: {split}");
        let options = OpenOptions {
            rebuild: vec!["side1".to_owned()],
            ..OpenOptions::default()
        };
        let mirror = open_as(&rt, &sides, &options)
            .await
            .expect("one was given up");
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        assert_eq!(byte_of(&device, 1 << 20).await, 1);
        assert_eq!(
            byte_of(&device, 2 << 20).await,
            0,
            "what side1 did alone is gone"
        );
        rt.sleep(Duration::from_secs(60)).await;
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        mirror.close().await.expect("closed");
        open(&rt, &sides)
            .await
            .expect("they agree")
            .close()
            .await
            .expect("closed");
    });
}

#[test]
fn a_forced_opening_shows_the_last_moment_that_is_known_or_goes_on_from_it() {
    let rt = virtual_rt(10);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let crashed = open(&rt, &sides).await.expect("fresh");
        crashed
            .submit(write(&rt, 0, 4096, 1))
            .await
            .expect("written");
        crashed.submit(Request::flush()).await.expect("flushed");
        let forced = |force| OpenOptions {
            force: Some(force),
            ..OpenOptions::default()
        };
        let look = open_some(&rt, &sides, &[1], &forced(Force::ReadOnly)).await;
        let look = look.expect("forced");
        let refused = look.submit(write(&rt, 0, 4096, 2)).await;
        assert_eq!(refused.err(), Some(IoError::ReadOnly));
        look.close().await.expect("closed");
        let fork = open_some(&rt, &sides, &[1], &forced(Force::Fork))
            .await
            .expect("forced");
        fork.submit(write(&rt, 8192, 4096, 3))
            .await
            .expect("written");
        fork.close().await.expect("closed");
        // The side that was missing when the volume was forced open returns. It is resynchronized
        // with the content of the side that was opened.
        let both = open(&rt, &sides)
            .await
            .expect("one descends from the other");
        rt.sleep(Duration::from_secs(60)).await;
        assert!(!both.status().degraded, "{:?}", both.status());
        let device: Rc<dyn Device> = Rc::new(both.clone());
        assert_eq!(byte_of(&device, 8192).await, 3);
        both.close().await.expect("closed");
    });
}

/// A read must detect a block that is corrupt on one side, and the block must be repaired from the
/// other side.
#[test]
fn a_corrupt_block_is_found_and_repaired() {
    let rt = virtual_rt(11);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let mirror = open(&rt, &sides).await.expect("fresh");
        mirror
            .submit(write(&rt, 0, 8192, 5))
            .await
            .expect("written");
        mirror
            .close()
            .await
            .expect("closed, and everything is at home");
        let superblock = sides[0]
            .superblock()
            .await
            .expect("readable")
            .expect("there");
        let home = superblock.layout.data.0 + 4096;
        sides[0]
            .device
            .submit(write(&rt, home, 4096, 6))
            .await
            .expect("it rots");
        let mirror = open(&rt, &sides).await.expect("it was closed cleanly");
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        assert_eq!(byte_of(&device, 4096).await, 5);
        rt.sleep(Duration::from_secs(5)).await;
        mirror.close().await.expect("closed");
        assert_eq!(byte_of(&sides[0].device, home).await, 5, "it was repaired");
    });
}

/// A device that delays each read by three seconds.
struct Slow {
    rt: Rt,
    below: Rc<dyn Device>,
}

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(async move {
            if request.op == Op::Read {
                self.rt.sleep(Duration::from_secs(3)).await;
            }
            self.below.submit(request).await
        })
    }
}

thread_local! {
    static TOLD: RefCell<Vec<OpeningProgress>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn an_opening_that_reads_a_long_log_says_how_far_it_is() {
    let rt = virtual_rt(11);
    rt.block_on(async {
        let mut sides = formatted(&rt, 2).await;
        let log_bytes = sides[1]
            .superblock()
            .await
            .expect("readable")
            .expect("there");
        let log_bytes = log_bytes.layout.log.1;
        let mirror = open(&rt, &sides).await.expect("it opens");
        for block in 0..512 {
            let stored = mirror.submit(write(&rt, block * 4096, 4096, 1)).await;
            stored.expect("a side takes it");
        }
        mirror.submit(Request::flush()).await.expect("flushed");
        drop(mirror);
        sides[1].device = Rc::new(Slow {
            rt: rt.clone(),
            below: Rc::clone(&sides[1].device),
        });
        let options = OpenOptions {
            progress: Some(|progress| TOLD.with_borrow_mut(|told| told.push(progress.clone()))),
            ..OpenOptions::default()
        };
        open_as(&rt, &sides, &options).await.expect("it opens");
        let told = TOLD.take();
        let reading: Vec<&OpeningProgress> = told
            .iter()
            .filter(|told| told.step == OpeningStep::ReadingLog)
            .collect();
        assert!(!reading.is_empty(), "{told:?}");
        for progress in reading {
            assert_eq!(progress.side, sides[1].name);
            assert_eq!(progress.bytes_max, log_bytes);
            assert!(progress.done_bytes <= log_bytes, "{progress:?}");
        }
    });
}

/// A write can be longer than the logs of the sides. The test submits such a write alone, together
/// with small writes, and again before the first one is destaged.
#[test]
fn a_write_that_is_longer_than_the_log_is_stored() {
    for len in [4 * MIB, 8 * MIB, 32 * MIB] {
        let rt = virtual_rt(12);
        rt.block_on(async {
            let sides = formatted(&rt, 2).await;
            let superblock = sides[0]
                .superblock()
                .await
                .expect("readable")
                .expect("there");
            assert!(superblock.layout.log.1 <= 4 * MIB, "the log is short");
            let mirror = open(&rt, &sides).await.expect("it opens");
            for byte in [1, 2] {
                let large = mirror.submit(write(&rt, 0, len as usize, byte));
                let small = async {
                    for block in 0..64 {
                        let request = write(&rt, len + block * 4096, 4096, byte);
                        mirror.submit(request).await.expect("a side takes it");
                    }
                };
                let both = futures_util::future::join(large, small);
                let stored = rt.timeout(Duration::from_secs(60), both).await;
                let (large, ()) = stored.expect("they are stored in time");
                large.expect("a side takes it");
            }
            mirror.submit(Request::flush()).await.expect("flushed");
            // The volume is not closed, as at a power cut.
            drop(mirror);
            let mirror = open(&rt, &sides).await.expect("it opens");
            for (offset, len) in [(0, len), (len, 64 * 4096)] {
                let read = mirror.submit(Request::read(offset, len)).await;
                let bytes = read.expect("readable").into_data().to_vec();
                assert!(bytes.iter().all(|byte| *byte == 2), "the newest content");
            }
            mirror.close().await.expect("closed");
        });
    }
}
