//! Detection of corrupt blocks by the mirror's digests, on sides in memory. Some of the content
//! ends with its own CRC32C, and some sides are formatted by an older version of the program.

use crate::common;
use crate::common::sides::{blank, open_these, open_without};
use crate::common::virtual_rt;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::{BlockDigest, Candidate};
use bimetal_block::layers::mirror::{Mirror, OpenOptions};
use bimetal_block::{Device, Flags, Request};
use bimetal_rt::Rt;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 16;

/// Returns a block whose last bytes are the CRC32C of its other bytes, as in a directory block of
/// ext4. The content is that of version `version` of block `block`.
fn with_own_crc(block: u64, version: u8) -> Vec<u8> {
    let mut bytes = vec![version; BLOCK as usize - 4];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn write(rt: &Rt, offset: u64, bytes: &[u8]) -> Request {
    Request::write(offset, rt.pool().copy_of(bytes), Flags::NONE)
}

/// Two sides. A test can make each of them look as if an older version of the program, which
/// computes digests differently, had formatted it.
struct Sides([Candidate; 2]);

impl Sides {
    async fn formatted(rt: &Rt, older: &[usize]) -> Sides {
        let sides = Sides(["one", "two"].map(|name| blank(rt, name)));
        let made = formatting::format(rt, "vol", &sides.0, &Formatting::with_homes()).await;
        made.expect("the sides are fit");
        for side in older {
            sides.make_older(rt, *side).await;
        }
        sides
    }

    /// Makes a freshly formatted side look as if an older version of the program had formatted it.
    /// No digest is stored yet, so only the superblock differs.
    async fn make_older(&self, rt: &Rt, side: usize) {
        let side = &self.0[side];
        let mut superblock = side.superblock().await.expect("readable").expect("there");
        assert_eq!(superblock.digest, BlockDigest::Xxh3, "sides are made so");
        superblock.digest = BlockDigest::Crc32c;
        let block = superblock.encode();
        for offset in [0, side.device.geometry().size_bytes - BLOCK] {
            let written = side.device.submit(write(rt, offset, &block)).await;
            written.expect("memory can be written");
        }
    }

    async fn open(&self, rt: &Rt) -> Mirror {
        let opened = open_these(rt, &[&self.0[0], &self.0[1]], &OpenOptions::default()).await;
        opened.unwrap_or_else(|error| panic!("it opens: {error}"))
    }

    async fn open_alone(&self, rt: &Rt, side: usize) -> Mirror {
        let (both, options) = ([&self.0[0], &self.0[1]], OpenOptions::default());
        let opened = open_without(rt, &both, &[1 - side], &options).await;
        opened.unwrap_or_else(|error| panic!("it opens alone: {error}"))
    }

    /// Overwrites the home location of a block with version 1 of the block, as if the device had
    /// lost the last write of the block.
    async fn lose_last_write(&self, rt: &Rt, side: usize, block: u64) {
        let side = &self.0[side];
        let superblock = side.superblock().await.expect("readable").expect("there");
        let home = superblock.layout.data.0 + block * MIB;
        let older = with_own_crc(block, 1);
        let done = side.device.submit(write(rt, home, &older)).await;
        done.expect("memory can be written");
    }
}

async fn fill(rt: &Rt, mirror: &Mirror, version: u8) {
    for block in 0..BLOCKS {
        let bytes = with_own_crc(block, version);
        let written = mirror.submit(write(rt, block * MIB, &bytes)).await;
        written.expect("a side takes it");
    }
}

/// Reads all blocks as a client, and returns the version of each block.
async fn versions(mirror: &Mirror) -> Vec<u8> {
    let mut versions = Vec::new();
    for block in 0..BLOCKS {
        let read = mirror.submit(Request::read(block * MIB, BLOCK)).await;
        let bytes = read.expect("a side has it").into_data().to_vec();
        assert_eq!(
            bytes,
            with_own_crc(block, bytes[8]),
            "block {block} is whole"
        );
        versions.push(bytes[8]);
    }
    versions
}

#[test]
fn a_lost_write_of_what_ends_with_its_own_crc_is_noticed() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let sides = Sides::formatted(&rt, &[]).await;
        for version in [1, 2] {
            let mirror = sides.open(&rt).await;
            fill(&rt, &mirror, version).await;
            mirror.close().await.expect("everything goes home");
        }
        for block in 0..BLOCKS {
            let side = (block % 2) as usize;
            sides.lose_last_write(&rt, side, block).await;
        }
        let mirror = sides.open(&rt).await;
        assert_eq!(versions(&mirror).await, [2; BLOCKS as usize]);
        mirror.close().await.expect("closed");
    });
}

/// If a device loses the write of a log entry's data, the log area still holds the data of an older
/// entry. The opening must detect this by the digest.
#[test]
fn an_entry_of_the_log_is_told_from_one_whose_data_is_older() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let sides = Sides::formatted(&rt, &[]).await;
        let mirror = sides.open(&rt).await;
        fill(&rt, &mirror, 2).await;
        mirror.submit(Request::flush()).await.expect("flushed");
        let place = mirror.place_on(0, 3 * MIB).expect("it has a place");
        let older = write(&rt, place, &with_own_crc(3, 1));
        sides.0[0].device.submit(older).await.expect("memory");
        drop(mirror);
        let mirror = sides.open(&rt).await;
        assert_eq!(versions(&mirror).await, [2; BLOCKS as usize]);
        mirror.close().await.expect("closed");
    });
}

/// Sides that compute digests in different ways must hold the same volume. The test covers the
/// logs, the home locations, a crash, each side opened alone, and a side that resynchronizes the
/// other.
#[test]
fn sides_of_older_and_newer_programs_live_together() {
    for (seed, older) in (3..).zip([&[0][..], &[1], &[0, 1]]) {
        let rt = virtual_rt(seed);
        rt.block_on(async {
            let sides = Sides::formatted(&rt, older).await;
            let mirror = sides.open(&rt).await;
            fill(&rt, &mirror, 1).await;
            mirror.submit(Request::flush()).await.expect("flushed");
            // The volume is dropped without a close, as at a power cut, while all writes are still
            // in the logs.
            drop(mirror);
            let mirror = sides.open(&rt).await;
            assert_eq!(versions(&mirror).await, [1; BLOCKS as usize]);
            mirror.close().await.expect("closed");
            for alone in [0, 1] {
                let mirror = sides.open_alone(&rt, alone).await;
                let version = 2 + alone as u8;
                fill(&rt, &mirror, version).await;
                mirror.close().await.expect("closed");
                let mirror = sides.open(&rt).await;
                common::sides::until_complete(&rt, &mirror, 2).await;
                assert_eq!(versions(&mirror).await, [version; BLOCKS as usize]);
                mirror.close().await.expect("closed");
            }
            let mirror = sides.open(&rt).await;
            let found = common::sides::scrub(&rt, &mirror).await;
            assert_eq!((found.state, found.found), ("done", 0), "{found:?}");
            mirror.close().await.expect("closed");
        });
    }
}
