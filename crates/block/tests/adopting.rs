//! Adopting a disk: a disk with content becomes the first side of a volume. The devices are in
//! memory.

use crate::common;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::{Powered, blank_of, byte_at, open_these, put, until_complete};
use crate::common::{virtual_rt, write};
use bimetal_block::layers::adopted::Adopted;
use bimetal_block::layers::mirror::formatting::{self, Formatted, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Op, Request};
use bimetal_rt::Rt;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 3 * MIB + 5 * BLOCK;

/// A disk with content, the device for its metadata (`notes`), and the other side of the mirror.
struct Disks {
    disk: Rc<dyn Device>,
    notes: Rc<dyn Device>,
    other: Candidate,
}

impl Disks {
    /// Creates the devices. Every 64th block of the disk and its last block are filled with a byte;
    /// the other blocks are holes.
    async fn new(rt: &Rt, notes_bytes: u64, other_bytes: u64) -> Disks {
        let disk: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, DISK_BYTES));
        for at in places() {
            let put = write(rt, at, BLOCK as usize, byte_of(at));
            disk.submit(put).await.expect("memory can be written");
        }
        Disks {
            disk,
            notes: Rc::new(MemoryDevice::new(rt, notes_bytes)),
            other: blank_of(rt, "other", other_bytes),
        }
    }

    /// Returns both sides. Their devices fail once the power is cut.
    fn sides(&self, power: &Rc<Cell<u64>>) -> [Candidate; 2] {
        let data = Powered::device(&self.disk, power);
        let metadata = Powered::device(&self.notes, power);
        let old = Candidate {
            name: "old".to_owned(),
            device: Rc::new(Adopted::new(data, metadata).expect("there is room")),
        };
        [Powered::side(&self.other, power), old]
    }

    async fn is_as_it_was(&self) -> bool {
        let now = content(&*self.disk, 0).await;
        let block = |at: u64| now[at as usize..(at + BLOCK) as usize].to_vec();
        places().all(|at| block(at) == vec![byte_of(at); BLOCK as usize])
            && now.iter().filter(|byte| **byte != 0).count() as u64
                == places().count() as u64 * BLOCK
    }
}

fn places() -> impl Iterator<Item = u64> {
    let every = (0..DISK_BYTES).step_by(64 * BLOCK as usize);
    every.chain([DISK_BYTES - BLOCK])
}

fn byte_of(at: u64) -> u8 {
    (at / BLOCK % 251) as u8 + 1
}

async fn content(device: &dyn Device, from: u64) -> Vec<u8> {
    let read = device.submit(Request::read(from, DISK_BYTES)).await;
    read.expect("memory can be read").into_data().to_vec()
}

fn always() -> Rc<Cell<u64>> {
    Rc::new(Cell::new(u64::MAX))
}

async fn adopt(rt: &Rt, sides: &[Candidate], force: bool) -> Result<Formatted, String> {
    let formatting = Formatting {
        force,
        adopt: Some("old".to_owned()),
        ..Formatting::with_homes()
    };
    let made = formatting::format(rt, "vol", sides, &formatting).await;
    made.map_err(|error| error.to_string())
}

async fn open(rt: &Rt, sides: &[Candidate; 2]) -> Mirror {
    let opened = open_these(rt, &[&sides[0], &sides[1]], &OpenOptions::default()).await;
    opened.expect("it opens")
}

/// Scrubs the volume. Returns the number of blocks whose checksum the scrub has recorded for the
/// first time, and the number of corrupt blocks that it found.
async fn scrub(rt: &Rt, mirror: &Mirror) -> (u64, u64) {
    let status = common::sides::scrub(rt, mirror).await;
    (status.learned_blocks, status.found)
}

#[test]
fn a_disk_with_content_becomes_the_first_side() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let disks = Disks::new(&rt, 6 * MIB, 32 * MIB).await;
        let sides = disks.sides(&always());
        let made = adopt(&rt, &sides, false).await.expect("they are fit");
        assert_eq!(made.volume_bytes, DISK_BYTES);
        assert!(disks.is_as_it_was().await);
        let mirror = open(&rt, &sides).await;
        assert_eq!(mirror.geometry().size_bytes, DISK_BYTES);
        assert_eq!(mirror.status().sides[0].health, "resyncing");
        for at in places() {
            assert_eq!(byte_at(&mirror, at).await, Ok(byte_of(at)));
        }
        assert_eq!(byte_at(&mirror, BLOCK).await, Ok(0), "a hole");
        until_complete(&rt, &mirror, 2).await;
        // The holes of the disk were not copied. The disk allocates chunks of 16 blocks: data
        // blocks are in 12 whole chunks, and in a last chunk of only 5 blocks.
        let copied = mirror.status().sides[0].resynced_bytes;
        assert_eq!(copied, (12 * 16 + 5) * BLOCK);
        let (learned, found) = scrub(&rt, &mirror).await;
        assert_eq!((learned > 0, found), (true, 0));
        put(&rt, &mirror, 7 * BLOCK, 0xAB).await;
        mirror.close().await.expect("closed");
        // The disk by itself holds the content of the volume, and the data area of the other side
        // has the same content.
        let disk = content(&*disks.disk, 0).await;
        assert_eq!(disk[7 * BLOCK as usize], 0xAB);
        assert_eq!(disk[DISK_BYTES as usize - 1], byte_of(DISK_BYTES - BLOCK));
        let other = sides[0]
            .superblock()
            .await
            .expect("readable")
            .expect("there");
        let other = content(&*disks.other.device, other.layout.data.0).await;
        assert!(other == disk, "the data areas are equal");
        // Blocks of the disk are now verified against the checksums that the scrub has recorded.
        let corrupt = write(&rt, 0, BLOCK as usize, 0xEE);
        disks.disk.submit(corrupt).await.expect("memory");
        let mirror = open(&rt, &sides).await;
        assert_eq!(scrub(&rt, &mirror).await.1, 1);
        mirror.close().await.expect("closed");
        assert_eq!(content(&*disks.disk, 0).await[0], byte_of(0));
    });
}

#[test]
fn what_cannot_be_adopted_is_refused_and_untouched() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        // The metadata needs 64 KiB for the header, 64 KiB for the dirty-region bitmap, 64 KiB for
        // the checksums (of which one page is used), and 4 MiB for the log. The sum is rounded up
        // to whole MiB, and the second superblock takes 4 KiB more.
        let disks = Disks::new(&rt, 5 * MIB, 32 * MIB).await;
        let sides = disks.sides(&always());
        let refused = adopt(&rt, &sides, false).await.unwrap_err();
        assert!(
            refused.contains("side old") && refused.contains("needs 5 MiB and 4 KiB"),
            "{refused}"
        );
        let disks = Disks::new(&rt, 6 * MIB, 32 * MIB).await;
        let [other, old] = disks.sides(&always());
        let (both, plainly) = ([other.clone(), old.clone()], Formatting::with_homes());
        let refused = formatting::format(&rt, "vol", &both, &plainly).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("--adopt old"), "{refused}");
        let plain = Candidate {
            name: "old".to_owned(),
            device: Rc::clone(&disks.disk),
        };
        let plain = [blank_of(&rt, "other", 32 * MIB), plain];
        let refused = adopt(&rt, &plain, true).await.unwrap_err();
        assert!(refused.contains("side old"), "{refused}");
        let small = [blank_of(&rt, "other", 16 * MIB), old.clone()];
        let big = Rc::new(MemoryDevice::new(&rt, 100 * MIB));
        let big = Candidate {
            name: "old".to_owned(),
            device: Rc::new(Adopted::new(big, Rc::clone(&disks.notes)).expect("there is room")),
        };
        // The other side needs 109 MiB: beside the content it has 320 KiB of areas before the log,
        // a log of one 16th of the side, and a superblock in the last block.
        let refused = adopt(&rt, &[small[0].clone(), big], false)
            .await
            .unwrap_err();
        assert!(
            refused.contains("side other") && refused.contains("at least 109 MiB"),
            "{refused}"
        );
        assert!(disks.is_as_it_was().await);
        let written = disks.notes.submit(Request::without_data(
            Op::Extents,
            0,
            6 * MIB,
            bimetal_block::Flags::NONE,
        ));
        let written = written.await.expect("memory").into_extents();
        assert!(written.iter().all(|run| !run.data), "nothing was written");
        adopt(&rt, &[other.clone(), old.clone()], false)
            .await
            .expect("fit");
        let again = adopt(&rt, &[other.clone(), old.clone()], false)
            .await
            .unwrap_err();
        assert!(again.contains("already holds a side"), "{again}");
        adopt(&rt, &[other, old], true).await.expect("forced");
        assert!(disks.is_as_it_was().await);
    });
}

/// A metadata device of another size must be refused: the disk would begin at another offset of the
/// side, and reads would not return the content of the disk.
#[test]
fn another_size_of_the_metadata_is_noticed() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let mut disks = Disks::new(&rt, 6 * MIB, 32 * MIB).await;
        let sides = disks.sides(&always());
        adopt(&rt, &sides, false).await.expect("they are fit");
        let larger = MemoryDevice::new(&rt, 8 * MIB);
        let head = disks.notes.submit(Request::read(0, 6 * MIB)).await;
        let head = head.expect("memory").into_data();
        let copied = Request::write(0, head, bimetal_block::Flags::NONE);
        larger.submit(copied).await.expect("memory");
        disks.notes = Rc::new(larger);
        let sides = disks.sides(&always());
        let there = [&sides[0], &sides[1]];
        let refused = open_these(&rt, &there, &OpenOptions::default()).await;
        let refused = refused.err().expect("it lies elsewhere").to_string();
        assert!(
            refused.contains("its metadata device had another size"),
            "{refused}"
        );
    });
}

/// Cuts the power at every change that formatting makes. After each cut the disk is unchanged, and
/// either the volume exists or the sides can be formatted again.
#[test]
fn formatting_may_be_cut_short_anywhere() {
    for changes in 0..200 {
        let rt = virtual_rt(100 + changes);
        let finished = rt.block_on(async {
            let disks = Disks::new(&rt, 6 * MIB, 32 * MIB).await;
            let power = Rc::new(Cell::new(changes));
            let made = adopt(&rt, &disks.sides(&power), false).await.is_ok();
            assert!(disks.is_as_it_was().await, "after {changes} changes");
            let sides = disks.sides(&always());
            if !made {
                let again = adopt(&rt, &sides, true).await;
                again.unwrap_or_else(|error| panic!("after {changes} changes: {error}"));
            }
            let mirror = open(&rt, &sides).await;
            assert_eq!(byte_at(&mirror, 64 * BLOCK).await, Ok(byte_of(64 * BLOCK)));
            mirror.close().await.expect("closed");
            made
        });
        if finished {
            assert!(changes > 5, "it was cut {changes} times");
            return;
        }
    }
    panic!("it never came to its end");
}

/// Cuts the power at every change between the opening and the end of the first rebuild. After each
/// cut the volume opens with its full content, and the rebuild resumes.
#[test]
fn the_first_rebuild_may_be_cut_short_anywhere() {
    for changes in 0..500 {
        let rt = virtual_rt(300 + changes);
        let finished = rt.block_on(async {
            let disks = Disks::new(&rt, 6 * MIB, 32 * MIB).await;
            let power = always();
            let sides = disks.sides(&power);
            adopt(&rt, &sides, false).await.expect("they are fit");
            power.set(changes);
            let there = [&sides[0], &sides[1]];
            let opened = open_these(&rt, &there, &OpenOptions::default()).await;
            let mut finished = false;
            if let Ok(mirror) = &opened {
                // The power failure can eject the side under rebuild. After that, a write is
                // acknowledged only when the disk has durably recorded the ejection. Without power
                // this never happens, so the wait has a timeout.
                let flushed = async {
                    let written = mirror.submit(write(&rt, 9 * BLOCK, BLOCK as usize, 0x99));
                    written.await.is_ok() && mirror.submit(Request::flush()).await.is_ok()
                };
                let flushed = rt.timeout(Duration::from_secs(10), flushed).await == Ok(true);
                for _ in 0..100 {
                    finished = flushed && power.get() > 0 && !mirror.status().degraded;
                    if finished || power.get() == 0 {
                        break;
                    }
                    rt.sleep(Duration::from_millis(50)).await;
                }
                power.set(0);
                check(&rt, &disks, flushed.then_some(0x99), changes).await;
            } else {
                check(&rt, &disks, None, changes).await;
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

/// Opens the volume after a power cut, and checks its content. `flushed` is the byte that block 9
/// must contain, because it was written and flushed before the cut; `None` if the flush did not
/// complete.
async fn check(rt: &Rt, disks: &Disks, flushed: Option<u8>, changes: u64) {
    let sides = disks.sides(&always());
    let mirror = open(rt, &sides).await;
    until_complete(rt, &mirror, 2).await;
    for at in places() {
        let found = byte_at(&mirror, at).await;
        assert_eq!(found, Ok(byte_of(at)), "at {at} after {changes} changes");
    }
    if flushed.is_some() {
        assert_eq!(byte_at(&mirror, 9 * BLOCK).await.ok(), flushed, "{changes}");
    }
    mirror.close().await.expect("closed");
    let other = sides[0]
        .superblock()
        .await
        .expect("readable")
        .expect("there");
    let other = content(&*disks.other.device, other.layout.data.0).await;
    assert!(other == content(&*disks.disk, 0).await, "{changes}");
}
