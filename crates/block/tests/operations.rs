//! Operations on a volume in use, on sides in memory: scrub, rebuild, and adding and removing
//! sides.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{Powered, Stall, Stalling, blank, blank_of, rebuilding};
use crate::common::volume::Volume;
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Force, OnDegraded, OpenOptions, RebuildConfig};
use bimetal_block::units::{Rate, Size};
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, Op, Request, Statistic};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A device with one bad block, which cannot be read until it has been written again.
struct BadBlock {
    below: Rc<dyn Device>,
    bad: Cell<Option<u64>>,
}

impl Device for BadBlock {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let range = request.offset..request.offset + request.len;
        let hit = self.bad.get().is_some_and(|bad| range.contains(&bad));
        match request.op {
            Op::Read if hit => return IoFuture::ready(Err(IoError::Medium)),
            Op::Write if hit => self.bad.set(None),
            _ => {}
        }
        self.below.submit(request)
    }
}

#[test]
fn a_scrub_finds_what_nobody_reads_and_repairs_it() {
    Volume::test(1, 2, async |volume| {
        volume.fill(8).await;
        let mirror = volume.open().await;
        let clean = mirror.scrub().await;
        assert_eq!((clean.state, clean.found), ("done", 0), "{clean:?}");
        // On each side the scrub reads eight blocks, two pages of checksums (a page covers 1008
        // blocks of 4 KiB), and both copies of one page of the bits that record the written pages.
        // The dirty-region bitmap was never written.
        assert_eq!(clean.read_bytes, 2 * (8 + 2 + 2) * BLOCK);
        assert_eq!(clean.position_bytes, mirror.geometry().size_bytes);

        for (side, at) in [(0, 3 * MIB), (1, 5 * MIB)] {
            volume.spoil_home(side, at).await;
        }
        let found = mirror.scrub().await;
        assert_eq!((found.found, found.repaired), (2, 2), "{found:?}");
        assert_eq!(found.unrepairable, 0);
        let clean = mirror.scrub().await;
        assert_eq!(clean.found, 0, "{clean:?}");
        mirror.close().await;
        for (side, at, byte) in [(0, 3 * MIB, 4), (1, 5 * MIB, 6)] {
            assert_eq!(volume.byte_at_home(side, at).await, byte);
        }
    });
}

#[test]
fn a_scrub_finds_what_is_wrong_in_a_log() {
    Volume::test(2, 2, async |volume| {
        let mirror = volume.open().await;
        mirror.put(7 * MIB, 9).await;
        mirror.flush().await;
        volume.rt.sleep(Duration::from_millis(100)).await;
        let place = mirror.place_on(1, 7 * MIB).expect("it has a place");
        assert_ne!(place, volume.home(1, 7 * MIB).await, "it is in the log");
        volume.spoil(1, place).await;
        let found = mirror.scrub().await;
        assert_eq!((found.found, found.repaired), (1, 1), "{found:?}");
        mirror.close().await;
        assert_eq!(volume.byte_at_home(1, 7 * MIB).await, 9);
    });
}

/// Headers of log entries are read only when a volume opens. A scrub must find a corrupt header
/// while the other side still has the content. After the repair the side can be started alone.
#[test]
fn a_scrub_finds_what_is_wrong_in_a_header_of_the_log() {
    Volume::test_both(22, 2, async |volume| {
        let mirror = volume.open().await;
        for at in [7, 9, 11] {
            mirror.put(at * MIB, at as u8).await;
            mirror.flush().await;
        }
        // Each of these writes has a log entry of its own. The header of the entry is in the block
        // directly before the data.
        for at in [7, 9] {
            let place = mirror.place_on(1, at * MIB).expect("it has a place");
            assert_ne!(place, volume.home(1, at * MIB).await, "it is in the log");
            volume.spoil(1, place - BLOCK).await;
        }
        let found = mirror.scrub().await;
        assert_eq!((found.found, found.repaired), (2, 2), "{found:?}");
        assert_eq!(found.unrepairable, 0);
        let clean = mirror.scrub().await;
        assert_eq!(clean.found, 0, "{clean:?}");
        mirror.flush().await;
        // The power is cut, and then the first side is missing.
        drop(mirror);
        let options = OpenOptions {
            force: Some(Force::ReadOnly),
            ..OpenOptions::default()
        };
        let alone = volume.open_without(&[0], &options).await;
        for at in [7, 9, 11] {
            assert_eq!(alone.byte_at(at * MIB).await, Ok(at as u8));
        }
        alone.close().await;
    });
}

#[test]
fn what_is_wrong_on_all_sides_is_said_to_be_lost_and_costs_nothing_else() {
    Volume::test(3, 2, async |volume| {
        volume.fill(4).await;
        let mirror = volume.open().await;
        for side in 0..2 {
            volume.spoil_home(side, 2 * MIB).await;
        }
        let found = mirror.scrub().await;
        let counts = (found.found, found.repaired, found.unrepairable);
        assert_eq!(counts, (2, 0, 2), "{found:?}");
        let status = mirror.status();
        assert!(!status.degraded, "{status:?}");
        assert!(status.sides.iter().all(|side| side.out_of_sync_bytes == 0));
        assert_eq!(mirror.byte_at(2 * MIB).await, Err(IoError::Corrupt));
        assert_eq!(mirror.byte_at(MIB).await, Ok(2));
        // A write of the lost block makes it readable again.
        mirror.put(2 * MIB, 0x77).await;
        assert_eq!(mirror.byte_at(2 * MIB).await, Ok(0x77));
        mirror.close().await;
    });
}

#[test]
fn a_block_that_a_side_cannot_read_is_written_anew() {
    Volume::test(4, 2, async |mut volume| {
        volume.fill(3).await;
        let block = volume.put_over(0, |below| BadBlock {
            below,
            bad: Cell::default(),
        });
        let mirror = volume.open().await;
        block.bad.set(Some(volume.home(0, 0).await));
        let scrub = mirror.scrub().await;
        assert_eq!((scrub.found, scrub.repaired), (1, 1), "{scrub:?}");
        assert_eq!(mirror.byte_at(0).await, Ok(1));
        mirror.close().await;
        assert_eq!(block.bad.get(), None, "it was written");
    });
}

#[test]
fn what_lies_beside_the_data_is_scrubbed_too() {
    Volume::test(5, 2, async |volume| {
        volume.fill(6).await;
        let mirror = volume.open().await;
        mirror.put(0, 0x11).await;
        let superblock = volume.superblock(0).await;
        let size_bytes = volume.sides[0].device.geometry().size_bytes;
        let layout = superblock.layout;
        // Corrupt a page of checksums, a page of the bits that record which pages of checksums were
        // written, and the first copy of the superblock.
        let bits = layout.written.expect("a new side has bits").0;
        for offset in [layout.checksums.0, bits, 0] {
            volume.spoil(0, offset).await;
        }
        volume.spoil(1, size_bytes - BLOCK).await;
        let found = mirror.scrub().await;
        assert_eq!((found.found, found.repaired), (4, 4), "{found:?}");
        volume.rt.sleep(Duration::from_secs(10)).await;
        let again = mirror.scrub().await;
        assert_eq!(again.found, 0, "{again:?}");
        for at in 1..6 {
            assert_eq!(mirror.byte_at(at * MIB).await, Ok(at as u8 + 1));
        }
        mirror.close().await;
        // One copy of the superblock suffices, whichever copy it is.
        volume.spoil(0, size_bytes - BLOCK).await;
        volume.spoil(1, 0).await;
        let mirror = volume.open().await;
        assert!(!mirror.status().degraded);
        assert_eq!(mirror.byte_at(5 * MIB).await, Ok(6));
        mirror.close().await;
    });
}

#[test]
fn both_checkpoints_may_rot_one_after_the_other() {
    Volume::test_both(6, 2, async |volume| {
        volume.fill(2).await;
        let mirror = volume.open().await;
        for slot in [BLOCK, 2 * BLOCK, BLOCK] {
            volume.spoil(0, slot).await;
            let status = mirror.scrub().await;
            assert_eq!(status.found, status.repaired, "{status:?}");
        }
        // The volume is not closed, as if the program had been killed. The remaining checkpoint
        // suffices to open the volume.
        drop(mirror);
        let mirror = volume.open().await;
        assert_eq!(mirror.byte_at(MIB).await, Ok(2));
        mirror.close().await;
    });
}

#[test]
fn a_scrub_keeps_to_its_rate_and_can_be_cancelled() {
    Volume::test(7, 2, async |mut volume| {
        volume.config.scrub_rate = Some(Size(4 * MIB));
        // Write all of the volume, because a scrub skips regions that were never written.
        volume.fill(58).await;
        let mirror = volume.open().await;
        let before = volume.rt.now();
        let done = mirror.scrub().await;
        // For each MiB of the volume, the scrub reads 1 MiB of each of the two sides. At 4 MiB/s
        // these 2 MiB take half a second.
        let mib = mirror.geometry().size_bytes / MIB;
        let seconds = volume.rt.now().since(before).as_secs_f64();
        assert!(seconds >= mib as f64 / 2.0 - 1.0, "{seconds} s, {done:?}");
        mirror.start_scrub().expect("again");
        assert!(mirror.start_scrub().is_err(), "one at a time");
        volume.rt.sleep(Duration::from_secs(3)).await;
        assert!(mirror.cancel_scrub());
        volume.rt.sleep(Duration::from_secs(3)).await;
        let cancelled = mirror.status().scrub.expect("the last one");
        assert_eq!(cancelled.state, "cancelled");
        assert!(cancelled.position_bytes < mirror.geometry().size_bytes);
        assert!(!mirror.cancel_scrub(), "none runs");
        mirror.close().await;
    });
}

/// A side that is rebuilt from scratch must get every block that was ever written, and no other
/// blocks.
#[test]
fn a_rebuild_copies_what_was_written_and_says_how_far_it_is() {
    Volume::test(8, 2, async |mut volume| {
        volume.config.rebuild = RebuildConfig {
            floor: Rate(0),
            ceiling: Some(Rate(MIB)),
        };
        volume.fill(6).await;
        // Old content that the side still holds at other blocks must not become visible again.
        let mirror = volume.open().await;
        mirror.put(20 * MIB, 3).await;
        let zeroes = Request::without_data(Op::WriteZeroes, 20 * MIB, BLOCK, Flags::NONE);
        mirror.close().await;
        assert_eq!(volume.byte_at_home(1, 20 * MIB).await, 3);
        let mirror = volume.open_alone(0).await;
        mirror.submit(zeroes).await.expect("the other one takes it");
        mirror.close().await;

        let mirror = volume.open_as(&rebuilding("side1")).await;
        volume.rt.sleep(Duration::from_secs(5)).await;
        let status = mirror.status();
        assert_eq!(status.sides[1].health, "resyncing");
        let left = status.sides[1].resync_seconds_left.expect("it copies");
        let mib_left = status.sides[1].out_of_sync_bytes as f64 / MIB as f64;
        assert!(
            (left - mib_left).abs() < 0.25 * mib_left,
            "{left} s, {mib_left} MiB"
        );
        volume.rt.sleep(Duration::from_secs(90)).await;
        let status = mirror.status();
        assert!(!status.degraded, "{status:?}");
        assert_eq!(status.sides[1].resynced_bytes, 6 * BLOCK);
        assert_eq!(status.sides[1].resync_seconds_left, None);
        assert_eq!(mirror.byte_at(20 * MIB).await, Ok(0));
        mirror.close().await;
        let mirror = volume.open_alone(1).await;
        assert_eq!(mirror.byte_at(20 * MIB).await, Ok(0));
        assert_eq!(mirror.byte_at(5 * MIB).await, Ok(6));
        mirror.close().await;
    });
}

/// If a block is corrupt on the only side that has it, the rebuilt side still becomes in sync. That
/// block stays unreadable, also after a restart, and all other blocks can be read.
#[test]
fn a_block_that_nobody_has_does_not_keep_a_side_from_being_whole() {
    Volume::test(9, 2, async |volume| {
        volume.fill(6).await;
        volume.spoil_home(0, 2 * MIB).await;
        let mirror = volume.open_as(&rebuilding("side1")).await;
        mirror.until_complete(2).await;
        let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
        mirror.statistics(&mut statistics);
        let lost = (
            "side1".to_owned(),
            "lost_blocks".to_owned(),
            Statistic::Counter(1),
        );
        assert!(statistics.contains(&lost), "{statistics:?}");
        assert_eq!(mirror.byte_at(2 * MIB).await, Err(IoError::Corrupt));
        mirror.close().await;
        for side in [1, 0] {
            let mirror = volume.open_alone(side).await;
            assert_eq!(mirror.byte_at(2 * MIB).await, Err(IoError::Corrupt));
            assert_eq!(mirror.byte_at(3 * MIB).await, Ok(4));
            mirror.close().await;
        }
    });
}

/// A write to a lost block must be stored on both sides.
#[test]
fn a_write_makes_a_lost_block_good() {
    Volume::test(19, 2, async |volume| {
        volume.fill(6).await;
        volume.spoil_home(0, 2 * MIB).await;
        let mirror = volume.open_as(&rebuilding("side1")).await;
        mirror.until_complete(2).await;
        mirror.put(2 * MIB, 5).await;
        mirror.close().await;
        for side in [0, 1] {
            assert_eq!(volume.byte_at_home(side, 2 * MIB).await, 5);
        }
    });
}

/// A block must not be considered lost while an absent side might have it.
#[test]
fn a_block_that_an_absent_side_may_have_is_not_lost() {
    Volume::test(20, 3, async |volume| {
        volume.fill(6).await;
        volume.spoil_home(0, 2 * MIB).await;
        let mirror = volume.open_without(&[2], &rebuilding("side1")).await;
        volume.rt.sleep(Duration::from_secs(120)).await;
        let status = mirror.status();
        assert_eq!(status.sides[1].health, "resyncing", "{status:?}");
        assert_eq!(status.sides[1].out_of_sync_bytes, BLOCK, "{status:?}");
        mirror.close().await;
        let mirror = volume.open().await;
        mirror.until_complete(3).await;
        assert_eq!(mirror.byte_at(2 * MIB).await, Ok(3));
        mirror.close().await;
    });
}

#[test]
fn a_side_is_added_and_another_one_removed() {
    Volume::test_both(10, 2, async |volume| {
        volume.fill(6).await;
        let mirror = volume.open().await;
        let third = blank(&volume.rt, "third");
        let added = mirror.add_side(third.clone(), None, false).await;
        added.expect("it is blank and large enough");
        assert_eq!(mirror.status().sides[2].health, "resyncing");
        mirror.put(30 * MIB, 0x30).await;
        mirror.until_complete(3).await;
        // Repeating the command that added a side succeeds; adding one of the original sides is an
        // error.
        let again = mirror.add_side(third.clone(), None, false).await;
        again.expect("it has been added");
        let old = volume.sides[0].clone();
        let again = mirror.add_side(old, None, false).await;
        assert!(again.unwrap_err().contains("already"));
        assert_eq!(mirror.status().sides.len(), 3);
        mirror.remove_side("side0").await.expect("removed");
        mirror.until_complete(2).await;
        mirror.put(31 * MIB, 0x31).await;
        mirror.remove_side("side1").await.expect("removed");
        let last = mirror.remove_side("third").await.unwrap_err();
        assert!(last.contains("last"), "{last}");
        let unknown = mirror.remove_side("side1").await.unwrap_err();
        assert!(unknown.contains("there are: third"), "{unknown}");
        mirror.put(32 * MIB, 0x32).await;
        mirror.close().await;
        let alone = volume.on(&[&third]).open().await;
        assert!(!alone.status().degraded);
        for at in 0..6 {
            assert_eq!(alone.byte_at(at * MIB).await, Ok(at as u8 + 1));
        }
        for at in 0x30..0x33 {
            let offset = (u64::from(at) - 0x12) * MIB;
            assert_eq!(alone.byte_at(offset).await, Ok(at), "at {offset}");
        }
        alone.close().await;
        // A removed side is not accepted as a side, and does not prevent the volume from starting
        // without it.
        let with_old = volume.on(&[&third, &volume.sides[0]]).open().await;
        assert_eq!(with_old.status().sides[1].health, "absent");
        assert_eq!(with_old.byte_at(30 * MIB).await, Ok(0x30));
        with_old.close().await;
    });
}

/// The only member of the epoch hangs while its superblock is written to record that another side
/// has joined. If this member were started alone, it would not know of the other side. So no flush
/// is allowed to complete without this member, however long it hangs.
#[test]
fn a_side_that_takes_itself_for_the_only_one_is_not_given_up() {
    Volume::test_both(29, 2, async |mut volume| {
        volume.fill(2).await;
        let alone = volume.open_alone(0).await;
        alone.put(0, 7).await;
        alone.close().await;
        let hanging = volume.put_over(0, |below| Stalling::over(below, Stall::Before));
        let mirror = volume.open().await;
        hanging.arm();
        volume.rt.sleep(Duration::from_secs(1)).await;
        assert!(hanging.is_stalled(), "the other side has joined");
        mirror.put(0, 8).await;
        let flush = || mirror.submit(Request::flush());
        let flushed = volume.rt.timeout(Duration::from_secs(300), flush()).await;
        assert!(
            flushed.is_err(),
            "the first side does not know of the other"
        );
        hanging.free();
        flush().await.expect("both sides have it");
        mirror.until_complete(2).await;
        mirror.close().await;
    });
}

#[test]
fn what_is_no_side_or_too_small_is_not_added() {
    Volume::test_both(11, 2, async |volume| {
        let other = Volume::format(&volume.rt, 2).await;
        let mirror = volume.open().await;
        let taken = Candidate {
            name: "taken".to_owned(),
            device: Rc::clone(&other.sides[0].device),
        };
        let refused = mirror.add_side(taken, None, false).await.unwrap_err();
        assert!(refused.contains("already holds a side"), "{refused}");
        let small = blank_of(&volume.rt, "small", 32 * MIB);
        let refused = mirror.add_side(small, None, false).await.unwrap_err();
        assert!(refused.contains("has room for"), "{refused}");
        let new = blank(&volume.rt, "new");
        let refused = mirror.add_side(new, Some("none"), false).await;
        assert!(refused.unwrap_err().contains("no side none"));
        assert_eq!(mirror.status().sides.len(), 2);
        mirror.close().await;
    });
}

/// Cuts the power at every change that the replacement of a side makes. After each cut the volume
/// opens with the old or with the new side, and has its full content.
#[test]
fn a_replacement_may_be_cut_short_anywhere() {
    for changes in 0..2000 {
        let finished = Volume::test(12 + changes, 2, async |volume| {
            volume.fill(3).await;
            let power = Rc::new(Cell::new(u64::MAX));
            let new = blank(&volume.rt, "new");
            let powered = |side: &Candidate| Powered::side(side, &power);
            let sides = [powered(&volume.sides[0]), powered(&volume.sides[1])];
            let mirror = volume.on(&[&sides[0], &sides[1]]).open().await;
            mirror.put(0, 0x77).await;
            mirror.flush().await;
            power.set(changes);
            let replaced = mirror.add_side(powered(&new), Some("side1"), false).await;
            let names = || {
                let status = mirror.status();
                status.sides.into_iter().map(|s| s.name).collect::<Vec<_>>()
            };
            for _ in 0..600 {
                if power.get() == 0 || names() == ["side0", "new"] {
                    break;
                }
                volume.rt.sleep(Duration::from_millis(50)).await;
            }
            let finished = power.get() > 0 && replaced.is_ok();
            power.set(0);
            let [first, second] = [&volume.sides[0], &volume.sides[1]];
            let (mut opened, mut refused) = (None, Vec::new());
            let options = OpenOptions::default();
            // While three sides are members, the volume opens only if the configuration names all
            // three.
            for sides in [
                vec![first, second],
                vec![first, &new],
                vec![first, second, &new],
            ] {
                match volume.on(&sides).try_open(&[], &options).await {
                    Ok(mirror) => opened = opened.or(Some(mirror)),
                    Err(error) => refused.push(error),
                }
                if opened.is_some() {
                    break;
                }
            }
            let opened = opened.unwrap_or_else(|| panic!("after {changes} changes: {refused:?}"));
            for (at, byte) in [(0, 0x77), (2 * MIB, 3)] {
                let found = opened.byte_at(at).await;
                assert_eq!(found, Ok(byte), "at {at} after {changes} changes");
            }
            finished
        });
        if finished {
            assert!(changes > 10, "it was cut {changes} times");
            return;
        }
    }
    panic!("it never came to its end");
}

#[test]
fn a_new_disk_in_the_place_of_a_dead_one_is_made_a_side() {
    Volume::test_both(13, 2, async |volume| {
        volume.fill(4).await;
        let new = blank(&volume.rt, "side1");
        let renewed = volume.on(&[&volume.sides[0], &new]);
        // An opening leaves the new disk unchanged, because no command has made it a side.
        let without = renewed.open().await;
        assert_eq!(without.status().sides[1].health, "absent");
        without.close().await;
        assert!(new.superblock().await.expect("readable").is_none());
        let mirror = renewed.open_as(&rebuilding("side1")).await;
        assert_eq!(mirror.status().sides[1].health, "resyncing");
        mirror.until_complete(2).await;
        mirror.close().await;
        let mirror = volume.on(&[&new, &volume.sides[0]]).open().await;
        assert!(!mirror.status().degraded);
        assert_eq!(mirror.byte_at(3 * MIB).await, Ok(4));
        mirror.close().await;
        // The replaced disk works again, but is no longer a member of the volume.
        let opened = volume.open().await;
        assert_eq!(opened.status().sides[1].health, "absent");
        opened.close().await;
    });
}

/// The configured reaction to a lost side must not apply to a side that is removed by command.
#[test]
fn a_side_that_is_removed_by_command_stops_nothing() {
    for on_degraded in [OnDegraded::Continue, OnDegraded::ReadOnly, OnDegraded::Stop] {
        Volume::test_both(21, 2, async |mut volume| {
            volume.config.on_degraded = on_degraded;
            let mirror = volume.open().await;
            mirror.put(MIB, 1).await;
            let removed = mirror.remove_side(&volume.sides[0].name).await;
            removed.expect("the other one has everything");
            mirror.put(2 * MIB, 2).await;
            assert_eq!(mirror.byte_at(MIB).await, Ok(1), "{on_degraded:?}");
            assert_eq!(mirror.byte_at(2 * MIB).await, Ok(2), "{on_degraded:?}");
            mirror.close().await;
        });
    }
}
