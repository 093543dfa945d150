//! Operations on a volume in use, on sides in memory: scrub, rebuild, and adding and removing
//! sides.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{
    Powered, blank, byte_at, open_these, open_without, put, rebuilding, scrub, there,
    until_complete,
};
use crate::common::{virtual_rt, write};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{Candidate, Superblock};
use bimetal_block::layers::mirror::{
    Force, Mirror, MirrorConfig, OnDegraded, OpenOptions, RebuildConfig, SideToOpen,
};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::units::{Rate, Size};
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, Op, Request, Statistic};
use bimetal_rt::Rt;
use bimetal_rt::sync::Event;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A device with one bad block, which cannot be read until it has been written again.
struct BadBlock {
    below: Rc<dyn Device>,
    bad: Rc<Cell<Option<u64>>>,
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

/// A device that can hang. After the test has armed it, it hangs at the next write of its
/// superblock: it completes neither this write nor any later request until the test frees it.
struct Hanging {
    below: Rc<dyn Device>,
    armed: Cell<bool>,
    hangs: Cell<bool>,
    freed: Event,
}

impl Hanging {
    fn over(below: &Rc<dyn Device>) -> Rc<Hanging> {
        Rc::new(Hanging {
            below: Rc::clone(below),
            armed: Cell::new(false),
            hangs: Cell::new(false),
            freed: Event::new(),
        })
    }

    fn free(&self) {
        self.hangs.set(false);
        self.freed.notify();
    }
}

impl Device for Hanging {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let copies = [0, self.geometry().size_bytes - BLOCK];
        let marks = request.op == Op::Write && copies.contains(&request.offset);
        if marks && self.armed.replace(false) {
            self.hangs.set(true);
        }
        IoFuture::new(async move {
            self.freed.until(|| !self.hangs.get()).await;
            self.below.submit(request).await
        })
    }
}

/// A volume whose sides are in memory. On each side the test can make one block unreadable.
struct Volume {
    rt: Rt,
    sides: Vec<Candidate>,
    bad: Vec<Rc<Cell<Option<u64>>>>,
    config: MirrorConfig,
}

impl Volume {
    async fn format(rt: &Rt, count: usize) -> Volume {
        let (mut sides, mut bad) = (Vec::new(), Vec::new());
        for index in 0..count {
            let block = BadBlock {
                below: Rc::new(MemoryDevice::new(rt, 64 * MIB)),
                bad: Rc::default(),
            };
            bad.push(Rc::clone(&block.bad));
            sides.push(Candidate {
                name: format!("side{index}"),
                device: Rc::new(block),
            });
        }
        let made = formatting::format(rt, "vol", &sides, &Formatting::default()).await;
        made.expect("the sides are fit");
        let config = MirrorConfig::of(sides.iter().map(|side| side.name.clone()).collect());
        Volume {
            rt: rt.clone(),
            sides,
            bad,
            config,
        }
    }

    async fn open(&self) -> Mirror {
        self.open_as(&OpenOptions::default()).await
    }

    async fn open_as(&self, options: &OpenOptions) -> Mirror {
        self.open_without(&[], options).await
    }

    /// Opens the volume while the sides with the indices `missing` cannot be found.
    async fn open_without(&self, missing: &[usize], options: &OpenOptions) -> Mirror {
        let sides = self
            .sides
            .iter()
            .enumerate()
            .map(|(index, side)| SideToOpen {
                name: side.name.clone(),
                device: there(side, !missing.contains(&index)),
            });
        let opened = Mirror::open(&self.rt, &self.config, sides.collect(), options).await;
        opened.expect("it opens")
    }

    async fn superblock(&self, side: usize) -> Superblock {
        let found = self.sides[side].superblock().await;
        found.expect("it can be read").expect("it is there")
    }

    /// Returns the offset of the home location of a block of the volume on a side.
    async fn home(&self, side: usize, offset: u64) -> u64 {
        self.superblock(side).await.layout.data.0 + offset
    }

    /// Corrupts a block of a side: overwrites it without the mirror.
    async fn spoil(&self, side: usize, offset: u64) {
        let spoilt = write(&self.rt, offset, BLOCK as usize, 0xEE);
        let done = self.sides[side].device.submit(spoilt).await;
        done.expect("memory can be written");
    }

    async fn bytes(&self, side: usize, offset: u64) -> Vec<u8> {
        let read = Request::read(offset, BLOCK);
        let read = self.sides[side].device.submit(read).await;
        read.expect("memory can be read").into_data().to_vec()
    }

    /// Writes a block at the start of each of the first `mib` MiB, and closes the volume, which
    /// destages all of them.
    async fn fill(&self, mib: u64) {
        let mirror = self.open().await;
        for at in 0..mib {
            put(&self.rt, &mirror, at * MIB, at as u8 + 1).await;
        }
        mirror.close().await.expect("closed");
    }
}

#[test]
fn a_scrub_finds_what_nobody_reads_and_repairs_it() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(8).await;
        let mirror = volume.open().await;
        let clean = scrub(&rt, &mirror).await;
        assert_eq!((clean.state, clean.found), ("done", 0), "{clean:?}");
        // On each side the scrub reads eight blocks, two pages of checksums (a page covers 1008
        // blocks of 4 KiB), and both copies of one page of the bits that record the written pages.
        // The dirty-region bitmap was never written.
        assert_eq!(clean.read_bytes, 2 * (8 + 2 + 2) * BLOCK);
        assert_eq!(clean.position_bytes, mirror.geometry().size_bytes);

        for (side, at) in [(0, 3 * MIB), (1, 5 * MIB)] {
            volume.spoil(side, volume.home(side, at).await).await;
        }
        let found = scrub(&rt, &mirror).await;
        assert_eq!((found.found, found.repaired), (2, 2), "{found:?}");
        assert_eq!(found.unrepairable, 0);
        let clean = scrub(&rt, &mirror).await;
        assert_eq!(clean.found, 0, "{clean:?}");
        mirror.close().await.expect("closed");
        for (side, at, byte) in [(0, 3 * MIB, 4), (1, 5 * MIB, 6)] {
            let home = volume.home(side, at).await;
            assert_eq!(volume.bytes(side, home).await, vec![byte; BLOCK as usize]);
        }
    });
}

#[test]
fn a_scrub_finds_what_is_wrong_in_a_log() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        let mirror = volume.open().await;
        put(&rt, &mirror, 7 * MIB, 9).await;
        mirror.submit(Request::flush()).await.expect("flushed");
        rt.sleep(Duration::from_millis(100)).await;
        let place = mirror.place_on(1, 7 * MIB).expect("it has a place");
        assert_ne!(place, volume.home(1, 7 * MIB).await, "it is in the log");
        volume.spoil(1, place).await;
        let found = scrub(&rt, &mirror).await;
        assert_eq!((found.found, found.repaired), (1, 1), "{found:?}");
        mirror.close().await.expect("closed");
        let home = volume.home(1, 7 * MIB).await;
        assert_eq!(volume.bytes(1, home).await, vec![9; BLOCK as usize]);
    });
}

/// Headers of log entries are read only when a volume opens. A scrub must find a corrupt header
/// while the other side still has the content. After the repair the side can be started alone.
#[test]
fn a_scrub_finds_what_is_wrong_in_a_header_of_the_log() {
    let rt = virtual_rt(22);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        let mirror = volume.open().await;
        for at in [7, 9, 11] {
            put(&rt, &mirror, at * MIB, at as u8).await;
            mirror.submit(Request::flush()).await.expect("flushed");
        }
        // Each of these writes is a separate log entry, so the header of the entry is in the block
        // directly before the data.
        for at in [7, 9] {
            let place = mirror.place_on(1, at * MIB).expect("it has a place");
            assert_ne!(place, volume.home(1, at * MIB).await, "it is in the log");
            volume.spoil(1, place - BLOCK).await;
        }
        let found = scrub(&rt, &mirror).await;
        assert_eq!((found.found, found.repaired), (2, 2), "{found:?}");
        assert_eq!(found.unrepairable, 0);
        let clean = scrub(&rt, &mirror).await;
        assert_eq!(clean.found, 0, "{clean:?}");
        mirror.submit(Request::flush()).await.expect("flushed");
        // The power is cut, and then the first side is missing.
        drop(mirror);
        let sides = [&volume.sides[0], &volume.sides[1]];
        let options = OpenOptions {
            force: Some(Force::ReadOnly),
            ..OpenOptions::default()
        };
        let alone = open_without(&rt, &sides, &[0], &options).await;
        let alone = alone.unwrap_or_else(|error| panic!("it opens: {error}"));
        for at in [7, 9, 11] {
            assert_eq!(byte_at(&alone, at * MIB).await, Ok(at as u8));
        }
        alone.close().await.expect("closed");
    });
}

#[test]
fn what_is_wrong_on_all_sides_is_said_to_be_lost_and_costs_nothing_else() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(4).await;
        let mirror = volume.open().await;
        for side in 0..2 {
            volume.spoil(side, volume.home(side, 2 * MIB).await).await;
        }
        let found = scrub(&rt, &mirror).await;
        let counts = (found.found, found.repaired, found.unrepairable);
        assert_eq!(counts, (2, 0, 2), "{found:?}");
        let status = mirror.status();
        assert!(!status.degraded, "{status:?}");
        assert!(status.sides.iter().all(|side| side.out_of_sync_bytes == 0));
        assert_eq!(byte_at(&mirror, 2 * MIB).await, Err(IoError::Corrupt));
        assert_eq!(byte_at(&mirror, MIB).await, Ok(2));
        // A write of the lost block makes it readable again.
        put(&rt, &mirror, 2 * MIB, 0x77).await;
        assert_eq!(byte_at(&mirror, 2 * MIB).await, Ok(0x77));
        mirror.close().await.expect("closed");
    });
}

#[test]
fn a_block_that_a_side_cannot_read_is_written_anew() {
    let rt = virtual_rt(4);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(3).await;
        let mirror = volume.open().await;
        volume.bad[0].set(Some(volume.home(0, 0).await));
        let bad = scrub(&rt, &mirror).await;
        assert_eq!((bad.found, bad.repaired), (1, 1), "{bad:?}");
        assert_eq!(byte_at(&mirror, 0).await, Ok(1));
        mirror.close().await.expect("closed");
        assert_eq!(volume.bad[0].get(), None, "it was written");
    });
}

#[test]
fn what_lies_beside_the_data_is_scrubbed_too() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(6).await;
        let mirror = volume.open().await;
        put(&rt, &mirror, 0, 0x11).await;
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
        let found = scrub(&rt, &mirror).await;
        assert_eq!((found.found, found.repaired), (4, 4), "{found:?}");
        rt.sleep(Duration::from_secs(10)).await;
        let again = scrub(&rt, &mirror).await;
        assert_eq!(again.found, 0, "{again:?}");
        for at in 1..6 {
            assert_eq!(byte_at(&mirror, at * MIB).await, Ok(at as u8 + 1));
        }
        mirror.close().await.expect("closed");
        // One copy of the superblock suffices, whichever copy it is.
        volume.spoil(0, size_bytes - BLOCK).await;
        volume.spoil(1, 0).await;
        let mirror = volume.open().await;
        assert!(!mirror.status().degraded);
        assert_eq!(byte_at(&mirror, 5 * MIB).await, Ok(6));
        mirror.close().await.expect("closed");
    });
}

#[test]
fn both_checkpoints_may_rot_one_after_the_other() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(2).await;
        let mirror = volume.open().await;
        for slot in [BLOCK, 2 * BLOCK, BLOCK] {
            volume.spoil(0, slot).await;
            let status = scrub(&rt, &mirror).await;
            assert_eq!(status.found, status.repaired, "{status:?}");
        }
        // The volume is not closed, as if the program had been killed. The remaining checkpoint
        // suffices to open the volume.
        drop(mirror);
        let mirror = volume.open().await;
        assert_eq!(byte_at(&mirror, MIB).await, Ok(2));
        mirror.close().await.expect("closed");
    });
}

#[test]
fn a_scrub_keeps_to_its_rate_and_can_be_cancelled() {
    let rt = virtual_rt(7);
    rt.block_on(async {
        let mut volume = Volume::format(&rt, 2).await;
        volume.config.scrub_rate = Some(Size(4 * MIB));
        // Write all of the volume, because a scrub skips regions that were never written.
        volume.fill(58).await;
        let mirror = volume.open().await;
        let before = rt.now();
        let done = scrub(&rt, &mirror).await;
        // For each MiB of the volume, the scrub reads 1 MiB of each of the two sides. At 4 MiB/s
        // these 2 MiB take half a second.
        let mib = mirror.geometry().size_bytes / MIB;
        let seconds = rt.now().since(before).as_secs_f64();
        assert!(seconds >= mib as f64 / 2.0 - 1.0, "{seconds} s, {done:?}");
        mirror.start_scrub().expect("again");
        assert!(mirror.start_scrub().is_err(), "one at a time");
        rt.sleep(Duration::from_secs(3)).await;
        assert!(mirror.cancel_scrub());
        rt.sleep(Duration::from_secs(3)).await;
        let cancelled = mirror.status().scrub.expect("the last one");
        assert_eq!(cancelled.state, "cancelled");
        assert!(cancelled.position_bytes < mirror.geometry().size_bytes);
        assert!(!mirror.cancel_scrub(), "none runs");
        mirror.close().await.expect("closed");
    });
}

/// A side that is rebuilt from scratch must get every block that was ever written, and no other
/// blocks.
#[test]
fn a_rebuild_copies_what_was_written_and_says_how_far_it_is() {
    let rt = virtual_rt(8);
    rt.block_on(async {
        let mut volume = Volume::format(&rt, 2).await;
        volume.config.rebuild = RebuildConfig {
            floor: Rate(0),
            ceiling: Some(Rate(MIB)),
        };
        volume.fill(6).await;
        // Side 1 holds old content of a block that is then zeroed while the side is absent. The
        // rebuild must not make this old content visible again.
        let alone = volume.home(1, 20 * MIB).await;
        let mirror = volume.open().await;
        put(&rt, &mirror, 20 * MIB, 3).await;
        let zeroes = Request::without_data(Op::WriteZeroes, 20 * MIB, BLOCK, Flags::NONE);
        mirror.close().await.expect("closed");
        assert_eq!(volume.bytes(1, alone).await[0], 3);
        let mirror = volume.open_without(&[1], &OpenOptions::default()).await;
        mirror.submit(zeroes).await.expect("the other one takes it");
        mirror.close().await.expect("closed");

        let rebuild = rebuilding("side1");
        let mirror = volume.open_as(&rebuild).await;
        rt.sleep(Duration::from_secs(5)).await;
        let status = mirror.status();
        assert_eq!(status.sides[1].health, "resyncing");
        let left = status.sides[1].resync_seconds_left.expect("it copies");
        let mib_left = status.sides[1].out_of_sync_bytes as f64 / MIB as f64;
        assert!(
            (left - mib_left).abs() < 0.25 * mib_left,
            "{left} s, {mib_left} MiB"
        );
        rt.sleep(Duration::from_secs(90)).await;
        let status = mirror.status();
        assert!(!status.degraded, "{status:?}");
        assert_eq!(status.sides[1].resynced_bytes, 6 * BLOCK);
        assert_eq!(status.sides[1].resync_seconds_left, None);
        assert_eq!(byte_at(&mirror, 20 * MIB).await, Ok(0));
        mirror.close().await.expect("closed");
        let mirror = volume.open_without(&[0], &OpenOptions::default()).await;
        assert_eq!(byte_at(&mirror, 20 * MIB).await, Ok(0));
        assert_eq!(byte_at(&mirror, 5 * MIB).await, Ok(6));
        mirror.close().await.expect("closed");
    });
}

/// If a block is corrupt on the only side that has it, the rebuilt side still becomes in sync. That
/// block stays unreadable, also after a restart, and all other blocks can be read.
#[test]
fn a_block_that_nobody_has_does_not_keep_a_side_from_being_whole() {
    let rt = virtual_rt(9);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(6).await;
        volume.spoil(0, volume.home(0, 2 * MIB).await).await;
        let rebuild = rebuilding("side1");
        let mirror = volume.open_as(&rebuild).await;
        until_complete(&rt, &mirror, 2).await;
        let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
        mirror.statistics(&mut statistics);
        let lost = (
            "side1".to_owned(),
            "lost_blocks".to_owned(),
            Statistic::Counter(1),
        );
        assert!(statistics.contains(&lost), "{statistics:?}");
        assert_eq!(byte_at(&mirror, 2 * MIB).await, Err(IoError::Corrupt));
        mirror.close().await.expect("closed");
        for missing in [0, 1] {
            let mirror = volume
                .open_without(&[missing], &OpenOptions::default())
                .await;
            assert_eq!(byte_at(&mirror, 2 * MIB).await, Err(IoError::Corrupt));
            assert_eq!(byte_at(&mirror, 3 * MIB).await, Ok(4));
            mirror.close().await.expect("closed");
        }
    });
}

/// A write to a lost block must be stored on both sides.
#[test]
fn a_write_makes_a_lost_block_good() {
    let rt = virtual_rt(19);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(6).await;
        volume.spoil(0, volume.home(0, 2 * MIB).await).await;
        let rebuild = rebuilding("side1");
        let mirror = volume.open_as(&rebuild).await;
        until_complete(&rt, &mirror, 2).await;
        put(&rt, &mirror, 2 * MIB, 5).await;
        mirror.close().await.expect("closed");
        for side in [0, 1] {
            let home = volume.home(side, 2 * MIB).await;
            assert_eq!(volume.bytes(side, home).await, vec![5; BLOCK as usize]);
        }
    });
}

/// A block must not be considered lost while an absent side might have it.
#[test]
fn a_block_that_an_absent_side_may_have_is_not_lost() {
    let rt = virtual_rt(20);
    rt.block_on(async {
        let volume = Volume::format(&rt, 3).await;
        volume.fill(6).await;
        volume.spoil(0, volume.home(0, 2 * MIB).await).await;
        let rebuild = rebuilding("side1");
        let mirror = volume.open_without(&[2], &rebuild).await;
        rt.sleep(Duration::from_secs(120)).await;
        let status = mirror.status();
        assert_eq!(status.sides[1].health, "resyncing", "{status:?}");
        assert_eq!(status.sides[1].out_of_sync_bytes, BLOCK, "{status:?}");
        mirror.close().await.expect("closed");
        let mirror = volume.open().await;
        until_complete(&rt, &mirror, 3).await;
        assert_eq!(byte_at(&mirror, 2 * MIB).await, Ok(3));
        mirror.close().await.expect("closed");
    });
}

#[test]
fn a_side_is_added_and_another_one_removed() {
    let rt = virtual_rt(10);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(6).await;
        let mirror = volume.open().await;
        let third = blank(&rt, "third");
        mirror
            .add_side(third.clone(), None, false)
            .await
            .expect("added");
        assert_eq!(mirror.status().sides[2].health, "resyncing");
        put(&rt, &mirror, 30 * MIB, 0x30).await;
        until_complete(&rt, &mirror, 3).await;
        // Repeating the command that added a side succeeds; adding one of the original sides is an
        // error.
        let again = mirror.add_side(third.clone(), None, false).await;
        again.expect("it has been added");
        let old = volume.sides[0].clone();
        let again = mirror.add_side(old, None, false).await;
        assert!(again.unwrap_err().contains("already"));
        assert_eq!(mirror.status().sides.len(), 3);
        mirror.remove_side("side0").await.expect("removed");
        until_complete(&rt, &mirror, 2).await;
        put(&rt, &mirror, 31 * MIB, 0x31).await;
        mirror.remove_side("side1").await.expect("removed");
        let last = mirror.remove_side("third").await.unwrap_err();
        assert!(last.contains("last"), "{last}");
        let unknown = mirror.remove_side("side1").await.unwrap_err();
        assert!(unknown.contains("there are: third"), "{unknown}");
        put(&rt, &mirror, 32 * MIB, 0x32).await;
        mirror.close().await.expect("closed");
        let alone = open_these(&rt, &[&third], &OpenOptions::default()).await;
        let alone = alone.expect("it is the volume");
        assert!(!alone.status().degraded);
        for at in 0..6 {
            assert_eq!(byte_at(&alone, at * MIB).await, Ok(at as u8 + 1));
        }
        for at in 0x30..0x33 {
            let offset = (u64::from(at) - 0x12) * MIB;
            assert_eq!(byte_at(&alone, offset).await, Ok(at), "at {offset}");
        }
        alone.close().await.expect("closed");
        // A removed side is not accepted as a side, and does not prevent the volume from starting
        // without it.
        let sides = [&third, &volume.sides[0]];
        let with_old = open_these(&rt, &sides, &OpenOptions::default()).await;
        let with_old = with_old.expect("the other one is whole");
        assert_eq!(with_old.status().sides[1].health, "absent");
        assert_eq!(byte_at(&with_old, 30 * MIB).await, Ok(0x30));
        with_old.close().await.expect("closed");
    });
}

/// The only member of the epoch hangs while its superblock is written to record that another side
/// has joined. If this member were started alone, it would not know of the other side. So no flush
/// is allowed to complete without this member, however long it hangs.
#[test]
fn a_side_that_takes_itself_for_the_only_one_is_not_given_up() {
    let rt = virtual_rt(29);
    rt.block_on(async {
        let mut volume = Volume::format(&rt, 2).await;
        volume.fill(2).await;
        let alone = volume.open_without(&[1], &OpenOptions::default()).await;
        put(&rt, &alone, 0, 7).await;
        alone.close().await.expect("closed");
        let hanging = Hanging::over(&volume.sides[0].device);
        volume.sides[0].device = Rc::clone(&hanging) as Rc<dyn Device>;
        let mirror = volume.open().await;
        hanging.armed.set(true);
        rt.sleep(Duration::from_secs(1)).await;
        assert!(hanging.hangs.get(), "the other side has joined");
        put(&rt, &mirror, 0, 8).await;
        let flush = || mirror.submit(Request::flush());
        let flushed = rt.timeout(Duration::from_secs(300), flush()).await;
        assert!(
            flushed.is_err(),
            "the first side does not know of the other"
        );
        hanging.free();
        flush().await.expect("both sides have it");
        until_complete(&rt, &mirror, 2).await;
        mirror.close().await.expect("closed");
    });
}

#[test]
fn what_is_no_side_or_too_small_is_not_added() {
    let rt = virtual_rt(11);
    rt.block_on(async {
        let (volume, other) = (Volume::format(&rt, 2).await, Volume::format(&rt, 2).await);
        let mirror = volume.open().await;
        let taken = Candidate {
            name: "taken".to_owned(),
            device: Rc::clone(&other.sides[0].device),
        };
        let refused = mirror.add_side(taken, None, false).await.unwrap_err();
        assert!(refused.contains("already holds a side"), "{refused}");
        let small = Candidate {
            name: "small".to_owned(),
            device: Rc::new(MemoryDevice::new(&rt, 32 * MIB)),
        };
        let refused = mirror.add_side(small, None, false).await.unwrap_err();
        assert!(refused.contains("has room for"), "{refused}");
        let refused = mirror
            .add_side(blank(&rt, "new"), Some("none"), false)
            .await;
        assert!(refused.unwrap_err().contains("no side none"));
        assert_eq!(mirror.status().sides.len(), 2);
        mirror.close().await.expect("closed");
    });
}

/// Cuts the power at every change that the replacement of a side makes. After each cut the volume
/// opens with the old or with the new side, and has its full content.
#[test]
fn a_replacement_may_be_cut_short_anywhere() {
    for changes in 0..2000 {
        let rt = virtual_rt(12 + changes);
        let finished = rt.block_on(async {
            let volume = Volume::format(&rt, 2).await;
            volume.fill(3).await;
            let power = Rc::new(Cell::new(u64::MAX));
            let new = blank(&rt, "new");
            let powered = |side: &Candidate| Powered::side(side, &power);
            let sides = [powered(&volume.sides[0]), powered(&volume.sides[1])];
            let there = [&sides[0], &sides[1]];
            let mirror = open_these(&rt, &there, &OpenOptions::default()).await;
            let mirror = mirror.expect("it opens");
            put(&rt, &mirror, 0, 0x77).await;
            mirror.submit(Request::flush()).await.expect("flushed");
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
                rt.sleep(Duration::from_millis(50)).await;
            }
            let finished = power.get() > 0 && replaced.is_ok();
            power.set(0);
            let options = OpenOptions::default();
            let [first, second] = [&volume.sides[0], &volume.sides[1]];
            let (mut opened, mut refused) = (None, Vec::new());
            // While three sides are members, the volume opens only if the configuration names all
            // three.
            for sides in [
                vec![first, second],
                vec![first, &new],
                vec![first, second, &new],
            ] {
                match open_these(&rt, &sides, &options).await {
                    Ok(mirror) => opened = opened.or(Some(mirror)),
                    Err(error) => refused.push(error.to_string()),
                }
                if opened.is_some() {
                    break;
                }
            }
            let opened = opened.unwrap_or_else(|| panic!("after {changes} changes: {refused:?}"));
            assert_eq!(
                byte_at(&opened, 0).await,
                Ok(0x77),
                "after {changes} changes"
            );
            assert_eq!(
                byte_at(&opened, 2 * MIB).await,
                Ok(3),
                "after {changes} changes"
            );
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
    let rt = virtual_rt(13);
    rt.block_on(async {
        let volume = Volume::format(&rt, 2).await;
        volume.fill(4).await;
        let new = blank(&rt, "side1");
        let sides = [&volume.sides[0], &new];
        // An opening leaves the new disk unchanged, because no command has made it a side.
        let without = open_these(&rt, &sides, &OpenOptions::default()).await;
        let without = without.expect("side0 was closed cleanly");
        assert_eq!(without.status().sides[1].health, "absent");
        without.close().await.expect("closed");
        assert!(new.superblock().await.expect("readable").is_none());
        let rebuild = rebuilding("side1");
        let mirror = open_these(&rt, &sides, &rebuild).await.expect("made anew");
        assert_eq!(mirror.status().sides[1].health, "resyncing");
        until_complete(&rt, &mirror, 2).await;
        mirror.close().await.expect("closed");
        let mirror = open_these(&rt, &[&new, &volume.sides[0]], &OpenOptions::default()).await;
        let mirror = mirror.expect("both are sides");
        assert!(!mirror.status().degraded);
        assert_eq!(byte_at(&mirror, 3 * MIB).await, Ok(4));
        mirror.close().await.expect("closed");
        // The replaced disk works again, but is no longer a member of the volume.
        let sides = [&volume.sides[0], &volume.sides[1]];
        let refused = open_these(&rt, &sides, &OpenOptions::default()).await;
        let opened = refused.expect("side0 was closed cleanly");
        assert_eq!(opened.status().sides[1].health, "absent");
        opened.close().await.expect("closed");
    });
}

/// The configured reaction to a lost side must not apply to a side that is removed by command.
#[test]
fn a_side_that_is_removed_by_command_stops_nothing() {
    for on_degraded in [OnDegraded::Continue, OnDegraded::ReadOnly, OnDegraded::Stop] {
        let rt = virtual_rt(21);
        rt.block_on(async {
            let volume = Volume::format(&rt, 2).await;
            let names = volume.sides.iter().map(|side| side.name.clone());
            let mut config = MirrorConfig::of(names.collect());
            config.on_degraded = on_degraded;
            let side = |side: &Candidate| SideToOpen {
                name: side.name.clone(),
                device: there(side, true),
            };
            let sides = volume.sides.iter().map(side).collect();
            let mirror = Mirror::open(&rt, &config, sides, &OpenOptions::default()).await;
            let mirror = mirror.unwrap_or_else(|error| panic!("it opens: {error}"));
            put(&rt, &mirror, MIB, 1).await;
            let removed = mirror.remove_side(&volume.sides[0].name).await;
            removed.expect("the other one has everything");
            put(&rt, &mirror, 2 * MIB, 2).await;
            assert_eq!(byte_at(&mirror, MIB).await, Ok(1), "{on_degraded:?}");
            assert_eq!(byte_at(&mirror, 2 * MIB).await, Ok(2), "{on_degraded:?}");
            mirror.close().await.expect("closed");
        });
    }
}
