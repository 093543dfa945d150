//! A formatted volume on sides in memory: stopped, killed, and opened again with all or some of its
//! sides, also with sides that are missing, diverged or corrupt.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{Stall, Stalling, blank, rebuilding};
use crate::common::volume::Volume;
use crate::common::{byte_of, virtual_rt, write};
use bimetal_block::layers::mirror::superblock::SideState;
use bimetal_block::layers::mirror::{Force, OpenOptions, OpeningProgress, OpeningStep};
use bimetal_block::{Device, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::Rt;

const MIB: u64 = 1 << 20;

#[test]
fn a_volume_survives_a_clean_stop_whatever_the_order_of_its_sides() {
    Volume::test_both(6, 3, async |mut volume| {
        let mirror = volume.open().await;
        mirror.fill(0..8192, 0x55).await;
        mirror.close().await;
        // The sides are known by their UUID, not by their place in the configuration.
        volume.sides.reverse();
        let again = volume.open().await;
        assert_eq!(again.byte_at(4096).await, Ok(0x55));
        again.close().await;
    });
}

/// A device that fails writes with `NoSpace` while `is_full` is set.
struct Fillable {
    below: Rc<dyn Device>,
    is_full: Cell<bool>,
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

/// A volume with full sides must not open, and the error must advise to free space. It must not
/// advise a forced opening, which would lose data of a side. Once there is free space, the volume
/// opens with all sides.
#[test]
fn full_sides_are_told_to_be_full_and_nothing_is_forced() {
    Volume::test_both(6, 2, async |mut volume| {
        let crashed = volume.open().await;
        crashed.fill(0..8192, 0x55).await;
        crashed.flush().await;
        // The volume is not closed, as if the server had been killed.
        let devices = [0, 1].map(|side| {
            volume.put_over(side, |below| Fillable {
                below,
                is_full: Cell::new(false),
            })
        });
        let set_full = |full: [bool; 2]| {
            let devices = devices.iter().zip(full);
            devices.for_each(|(device, full)| device.is_full.set(full));
        };
        for full in [[true, true], [true, false]] {
            set_full(full);
            let refused = volume.refusal().await;
            assert!(
                refused.contains("ENOSPC") && refused.contains("free space"),
                "{refused}"
            );
            assert!(!refused.contains("--force-open"), "{refused}");
        }
        set_full([false, false]);
        let again = volume.open().await;
        assert_eq!(again.byte_at(4096).await, Ok(0x55));
        assert!(!again.status().degraded);
    });
}

/// A blank disk in the place of a side is treated as a missing side. After a clean stop the volume
/// is served without that side, and reports how to make the disk a side. The disk is not written to
/// unless the operator requests it.
#[test]
fn a_blank_device_in_the_place_of_a_side_is_served_without_and_named() {
    Volume::test_both(6, 2, async |mut volume| {
        let mirror = volume.open().await;
        mirror.fill(0..8192, 0x55).await;
        mirror.close().await;
        let blank = blank(&volume.rt, "side1");
        volume.sides[1] = blank.clone();
        let alone = volume.open().await;
        assert_eq!(alone.status().sides[1].health, "absent");
        let told = volume.rt.notices().take(volume.rt.now());
        let told = told.iter().find(|notice| notice.kind == "side-blank");
        let told = told.expect("it is said").to_string();
        assert!(told.contains("--rebuild side1"), "{told}");
        assert_eq!(alone.byte_at(4096).await, Ok(0x55));
        volume.rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(alone.status().sides[1].health, "absent");
        alone.close().await;
        for offset in [0, 4096, 63 << 20] {
            assert_eq!(byte_of(&blank.device, offset).await, 0);
        }
        let rebuilt = volume.open_as(&rebuilding("side1")).await;
        rebuilt.until_complete(2).await;
        rebuilt.close().await;
    });
}

#[test]
fn unfit_foreign_and_doubled_sides_are_refused_and_nothing_is_written() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let (ours, others) = (Volume::unformatted(&rt, 2), Volume::unformatted(&rt, 2));
        let blank = ours.refusal().await;
        assert!(blank.contains("bimetal format"), "{blank}");
        ours.try_format("ours").await.expect("fit");
        others.try_format("others").await.expect("fit");
        let taken = ours.try_format("again").await.expect_err("in use");
        assert!(taken.contains("--force"), "{taken}");
        let mixed = ours.on(&[&ours.sides[0], &others.sides[1]]);
        let foreign = mixed.refusal().await;
        assert!(
            foreign.contains("foreign") && foreign.contains("\"others\""),
            "{foreign}"
        );
        let doubled = ours.on(&[&ours.sides[0], &ours.sides[0]]);
        let twice = doubled.refusal().await;
        assert!(twice.contains("same side"), "{twice}");
        // The refusals have changed nothing.
        ours.open().await.close().await;
    });
}

#[test]
fn a_volume_that_was_not_closed_opens_again_with_all_that_was_written() {
    Volume::test_both(6, 2, async |volume| {
        let crashed = volume.open().await;
        crashed.put(0, 0x66).await;
        crashed.flush().await;
        // The process was killed and closed no side, so each side is marked as in use.
        let mirror = volume.open().await;
        assert_eq!(mirror.byte_at(0).await, Ok(0x66), "what was flushed");
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        mirror.close().await;
        volume.open().await.close().await;
    });
}

#[test]
fn a_side_alone_is_refused_while_the_other_may_be_ahead_and_opens_once_nobody_is() {
    Volume::test_both(7, 2, async |volume| {
        let crashed = volume.open().await;
        crashed.put(0, 1).await;
        crashed.flush().await;
        for alone in 0..2 {
            let refused = volume.refusal_alone(alone).await;
            let other = format!("side{}", 1 - alone);
            let says = refused.contains(&other) && refused.contains("the last known change is");
            assert!(says && refused.contains("  0+"), "{refused}");
        }
        // After some idle time every side of an open volume records durably that no other side is
        // ahead of it.
        let mirror = volume.open().await;
        volume.rt.sleep(Duration::from_secs(20)).await;
        drop(mirror);
        let alone = volume.open_alone(1).await;
        assert!(alone.status().degraded);
        assert_eq!(alone.byte_at(0).await, Ok(1));
        alone.close().await;
    });
}

/// While the superblock of a side is being written with the state clean-idle (no other side is
/// ahead of this side), a client writes again. Until this side is durably marked dirty again, an
/// opening could start it alone, without the new write. So a flush must wait for all sides.
#[test]
fn a_flush_waits_for_a_side_that_may_say_that_nobody_is_ahead() {
    Volume::test_both(8, 2, async |mut volume| {
        let plain = volume.sides[1].clone();
        let freezing = volume.put_over(1, |below| Stalling::over(below, Stall::After));
        let mirror = volume.open().await;
        mirror.put(0, 1).await;
        mirror.flush().await;
        volume.rt.sleep(Duration::from_secs(1)).await;
        freezing.arm();
        volume.rt.sleep(Duration::from_secs(4)).await;
        let found = plain.superblock().await.expect("readable");
        assert_eq!(found.map(|found| found.state), Some(SideState::CleanIdle));
        mirror.put(0, 2).await;
        let mut flush = mirror.submit(Request::flush());
        let soon = volume.rt.timeout(Duration::from_secs(10), &mut flush).await;
        assert!(soon.is_err(), "side1 alone would not have it: {soon:?}");
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        freezing.free();
        flush.await.expect("flushed");
        mirror.close().await;
    });
}

/// When a missing side returns, exactly the changes that were made without it are copied to it.
#[test]
fn a_side_that_was_missing_gets_what_it_lacks() {
    Volume::test(8, 2, async |volume| {
        let mirror = volume.open().await;
        for block in 0..=40 {
            mirror.put(block * MIB, 7).await;
        }
        mirror.close().await;
        let alone = volume.open_alone(0).await;
        alone.fill(5 * MIB..5 * MIB + 8192, 9).await;
        alone.close().await;
        let both = volume.open().await;
        let lacks = &both.status().sides[1];
        assert_eq!(
            (lacks.health, lacks.out_of_sync_bytes),
            ("resyncing", 1 << 20)
        );
        volume.rt.sleep(Duration::from_secs(10)).await;
        let status = both.status();
        assert!(!status.degraded, "{status:?}");
        assert_eq!(
            status.sides[1].resynced_bytes, 8192,
            "one region, without its holes"
        );
        both.close().await;
        for side in 0..2 {
            let byte = volume.byte_at_home(side, 5 * MIB + 4096).await;
            assert_eq!(byte, 9, "side{side}");
        }
    });
}

#[test]
fn sides_that_each_ran_alone_are_split_until_one_is_given_up() {
    Volume::test_both(9, 2, async |volume| {
        for alone in 0..2 {
            let mirror = volume.open_alone(alone).await;
            mirror.put((1 + alone as u64) * MIB, 1 + alone as u8).await;
            mirror.close().await;
        }
        let split = volume.refusal().await;
        assert!(split.contains("split: side0 and side1"), "{split}");
        assert!(split.contains("  1048576+2097152"), "both regions: {split}");
        let mirror = volume.open_as(&rebuilding("side1")).await;
        assert_eq!(mirror.byte_at(MIB).await, Ok(1));
        let byte = mirror.byte_at(2 * MIB).await;
        assert_eq!(byte, Ok(0), "what side1 did alone is gone");
        mirror.until_complete(2).await;
        mirror.close().await;
        // The sides agree.
        volume.open().await.close().await;
    });
}

#[test]
fn a_forced_opening_shows_the_last_moment_that_is_known_or_goes_on_from_it() {
    Volume::test_both(10, 2, async |volume| {
        let crashed = volume.open().await;
        crashed.put(0, 1).await;
        crashed.flush().await;
        let forced = |force| OpenOptions {
            force: Some(force),
            ..OpenOptions::default()
        };
        let look = volume.open_without(&[0], &forced(Force::ReadOnly)).await;
        let refused = look.submit(write(&volume.rt, 0, 4096, 2)).await;
        assert_eq!(refused.err(), Some(IoError::ReadOnly));
        look.close().await;
        let fork = volume.open_without(&[0], &forced(Force::Fork)).await;
        fork.put(8192, 3).await;
        fork.close().await;
        // The side that was missing at the fork returns, and is resynchronized with the content of
        // the fork.
        let both = volume.open().await;
        both.until_complete(2).await;
        assert_eq!(both.byte_at(8192).await, Ok(3));
        both.close().await;
    });
}

/// A read must detect a block that is corrupt on one side, and the block must be repaired from the
/// other side.
#[test]
fn a_corrupt_block_is_found_and_repaired() {
    Volume::test(11, 2, async |volume| {
        let mirror = volume.open().await;
        mirror.fill(0..8192, 5).await;
        mirror.close().await;
        volume.spoil_home(0, 4096).await;
        let mirror = volume.open().await;
        assert_eq!(mirror.byte_at(4096).await, Ok(5));
        volume.rt.sleep(Duration::from_secs(5)).await;
        mirror.close().await;
        let byte = volume.byte_at_home(0, 4096).await;
        assert_eq!(byte, 5, "it was repaired");
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
    Volume::test_both(11, 2, async |mut volume| {
        let log_bytes = volume.superblock(1).await.layout.log.1;
        let mirror = volume.open().await;
        for block in 0..512 {
            mirror.put(block * 4096, 1).await;
        }
        mirror.flush().await;
        drop(mirror);
        let rt = volume.rt.clone();
        volume.put_over(1, |below| Slow { rt, below });
        let options = OpenOptions {
            progress: Some(|progress| TOLD.with_borrow_mut(|told| told.push(progress.clone()))),
            ..OpenOptions::default()
        };
        volume.open_as(&options).await;
        let told = TOLD.take();
        let reading: Vec<&OpeningProgress> = told
            .iter()
            .filter(|told| told.step == OpeningStep::ReadingLog)
            .collect();
        assert!(!reading.is_empty(), "{told:?}");
        for progress in reading {
            assert_eq!(progress.side, volume.sides[1].name);
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
        Volume::test_both(12, 2, async |volume| {
            let layout = volume.superblock(0).await.layout;
            assert!(layout.log.1 <= 4 * MIB, "the log is short");
            let mirror = volume.open().await;
            for byte in [1, 2] {
                let large = mirror.fill(0..len, byte);
                let small = async {
                    for block in 0..64 {
                        mirror.put(len + block * 4096, byte).await;
                    }
                };
                let both = futures_util::future::join(large, small);
                let stored = volume.rt.timeout(Duration::from_secs(60), both).await;
                stored.expect("they are stored in time");
            }
            mirror.flush().await;
            // The volume is not closed, as at a power cut.
            drop(mirror);
            let mirror = volume.open().await;
            for (offset, len) in [(0, len), (len, 64 * 4096)] {
                let read = mirror.submit(Request::read(offset, len)).await;
                let bytes = read.expect("readable").into_data().to_vec();
                assert!(bytes.iter().all(|byte| *byte == 2), "the newest content");
            }
            mirror.close().await;
        });
    }
}
