//! Tests of the volatile disk on which the crash tests run. A disk that kept too much at a power
//! cut would let every crash test pass, and one that lost too much would fail all of them.

use bimetal_tests::client::Client;
use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::{FUA, Request, Wire, cmd, errno};
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::uri;
use bimetal_tests::volatile_disk::{BLOCK_BYTES, Keep, SECTOR_BYTES, VolatileDisk};
use bimetal_tests::volume::MIB;
use std::collections::BTreeSet;

const BLOCK: usize = BLOCK_BYTES as usize;

fn disk(name: &str) -> (Scratch, VolatileDisk) {
    let dir = Scratch::new(name);
    dir.sparse("d.img", 4 * MIB);
    let disk = VolatileDisk::start(&dir, "d");
    (dir, disk)
}

fn attached(disk: &VolatileDisk) -> Wire {
    Wire::attached(disk.socket(), "").0
}

fn write_fua(wire: &mut Wire, offset: u64, bytes: &[u8]) {
    let request = Request {
        flags: FUA,
        ..Request::new(cmd::WRITE, offset, bytes.len() as u32)
    };
    assert_eq!(wire.run(request, bytes).expect("a reply"), 0);
}

#[test]
fn a_power_cut_takes_what_was_not_flushed() {
    let (dir, disk) = disk("disk-cut");
    let mut wire = attached(&disk);
    wire.write(0, &[1; BLOCK]);
    wire.flush();
    wire.write(0, &[2; BLOCK]);
    wire.write(BLOCK_BYTES, &[2; BLOCK]);
    write_fua(&mut wire, 2 * BLOCK_BYTES, &[2; BLOCK]);
    assert_eq!(disk.counts().unflushed_blocks, 2);
    // Another connection must see completed writes, whether or not they are flushed.
    assert_eq!(
        attached(&disk).read(0, 3 * BLOCK as u32),
        vec![2; 3 * BLOCK]
    );
    disk.cut(Keep::Nothing);
    assert!(wire.drained().is_empty());
    let mut wire = attached(&disk);
    let left = [vec![1; BLOCK], vec![0; BLOCK], vec![2; BLOCK]].concat();
    assert_eq!(wire.read(0, 3 * BLOCK as u32), left);
    assert_eq!(disk.counts().unflushed_blocks, 0);
    // The backing file must have the same content as the disk.
    let file = std::fs::read(dir.file("d.img")).expect("the file");
    assert_eq!(file[..3 * BLOCK], left);
    wire.write(0, &[3; BLOCK]);
    disk.cut(Keep::Everything);
    assert_eq!(attached(&disk).read(0, BLOCK as u32), vec![3; BLOCK]);
}

#[test]
fn zeroes_and_trims_are_writes() {
    let (_dir, disk) = disk("disk-zero");
    let mut wire = attached(&disk);
    wire.write(0, &[1; 3 * BLOCK]);
    wire.flush();
    for (command, offset) in [(cmd::WRITE_ZEROES, 0), (cmd::TRIM, BLOCK_BYTES)] {
        let request = Request::new(command, offset, BLOCK as u32);
        assert_eq!(wire.run(request, &[]).expect("a reply"), 0);
    }
    let zeroed = [vec![0; 2 * BLOCK], vec![1; BLOCK]].concat();
    assert_eq!(wire.read(0, 3 * BLOCK as u32), zeroed);
    disk.cut(Keep::Nothing);
    let found = attached(&disk).read(0, 3 * BLOCK as u32);
    assert_eq!(found, vec![1; 3 * BLOCK]);
}

#[test]
fn a_cut_by_seed_keeps_some_blocks_and_tears_others() {
    let (_dir, disk) = disk("disk-torn");
    let bytes = |keep| {
        let mut wire = attached(&disk);
        wire.write(0, &[1; 64 * BLOCK]);
        wire.flush();
        wire.write(0, &[2; 64 * BLOCK]);
        disk.cut(keep);
        attached(&disk).read(0, 64 * BLOCK as u32)
    };
    let kinds = |found: &[u8], unit: u64| -> Vec<BTreeSet<u8>> {
        let units = found.chunks(unit as usize);
        units.map(|u| u.iter().copied().collect()).collect()
    };
    let found = kinds(&bytes(Keep::Blocks(3)), BLOCK_BYTES);
    assert!(found.iter().all(|block| block.len() == 1));
    assert!(found.contains(&BTreeSet::from([1])) && found.contains(&BTreeSet::from([2])));
    let torn = bytes(Keep::Sectors(3));
    let blocks = kinds(&torn, BLOCK_BYTES);
    assert!(blocks.contains(&BTreeSet::from([1, 2])), "no block is torn");
    let sectors = kinds(&torn, SECTOR_BYTES);
    assert!(sectors.iter().all(|sector| sector.len() == 1));
    assert_eq!(bytes(Keep::Sectors(3)), torn, "a seed repeats a cut");
}

#[test]
fn a_frozen_disk_answers_nothing_and_a_cut_ends_what_it_held() {
    let (_dir, disk) = disk("disk-frozen");
    let mut wire = attached(&disk);
    disk.freeze();
    let write = Request::new(cmd::WRITE, 0, BLOCK as u32);
    let mut bytes = write.bytes();
    bytes.extend([5; BLOCK]);
    wire.send(&bytes).expect("send");
    eventually(10, "the write waits", || {
        (disk.counts().waiting == 1).then_some(())
    });
    assert_eq!(disk.counts().writes, 0);
    disk.thaw();
    assert_eq!(wire.simple_reply().expect("a reply"), (0, write.cookie));
    wire.flush();
    disk.freeze();
    bytes[28..].fill(6);
    wire.send(&bytes).expect("send");
    eventually(10, "the write waits", || {
        (disk.counts().waiting == 1).then_some(())
    });
    disk.cut(Keep::Everything);
    assert!(wire.drained().is_empty(), "no answer after the cut");
    // After the power cut the disk is no longer frozen, and the write that it had not answered is
    // lost.
    assert_eq!(attached(&disk).read(0, BLOCK as u32), vec![5; BLOCK]);
    assert_eq!(disk.counts().waiting, 0);
}

#[test]
fn a_lying_disk_loses_what_it_called_durable() {
    let (_dir, disk) = disk("disk-lie");
    disk.lie();
    let mut wire = attached(&disk);
    wire.write(0, &[1; BLOCK]);
    wire.flush();
    write_fua(&mut wire, BLOCK_BYTES, &[1; BLOCK]);
    disk.cut(Keep::Nothing);
    let found = attached(&disk).read(0, 2 * BLOCK as u32);
    assert_eq!(found, vec![0; 2 * BLOCK]);
}

#[test]
fn requests_beyond_the_end_or_of_parts_of_sectors_are_refused() {
    let (_dir, disk) = disk("disk-refuse");
    let mut wire = attached(&disk);
    let cases = [
        (cmd::READ, 4 * MIB, 512, errno::EINVAL),
        (cmd::WRITE_ZEROES, 4 * MIB - 512, 1024, errno::ENOSPC),
        (cmd::TRIM, u64::MAX - 511, 512, errno::EINVAL),
        (cmd::READ, 1, 512, errno::EINVAL),
        (cmd::WRITE_ZEROES, 0, 0, errno::EINVAL),
        (cmd::BLOCK_STATUS, 0, 512, errno::EINVAL),
    ];
    for (command, offset, length, error) in cases {
        let request = Request::new(command, offset, length);
        assert_eq!(wire.run(request, &[]).expect("a reply"), error);
    }
    wire.write(0, &[1; 512]);
    assert_eq!(wire.read(0, 1024)[..], [[1; 512], [0; 512]].concat());
}

/// Unmodified clients can use the disk on several connections, even if the disk is slow.
#[test]
fn it_is_an_nbd_server_to_others() {
    let (dir, disk) = disk("disk-others");
    let image = dir.file("in.img");
    let bytes: Vec<u8> = (0..4 * MIB).map(|at| (at / 512 % 251) as u8).collect();
    std::fs::write(&image, &bytes).expect("an image");
    disk.delay(1);
    disk.limit(10_000);
    let address = uri(disk.socket(), "any");
    let copy = || Client::new("nbdcopy").args(["--connections=4", "--flush"]);
    copy().arg(&image).arg(&address).ok();
    disk.cut(Keep::Nothing);
    let back = dir.file("back.img");
    copy().arg(&address).arg(&back).ok();
    assert!(std::fs::read(back).expect("the copy") == bytes);
    assert!(disk.counts().writes > 0 && disk.counts().flushes > 0);
}

/// If a client dies in the middle of a request, the disk must still serve the next client.
#[test]
fn it_survives_its_client() {
    let (_dir, disk) = disk("disk-survives");
    let mut wire = attached(&disk);
    let write = Request::new(cmd::WRITE, 0, BLOCK as u32).bytes();
    wire.send(&write).expect("send");
    wire.send(&[1; 100]).expect("a part of the payload");
    drop(wire);
    let mut wire = attached(&disk);
    assert_eq!(wire.read(0, BLOCK as u32), vec![0; BLOCK]);
    drop(wire);
}
