//! A copy of a volume from one side alone: it has everything that the side has, lists what is
//! missing, and changes nothing on the side.

use std::rc::Rc;

use bimetal_block::layers::mirror::Layouts;
use bimetal_block::layers::mirror::rescue::{Rescue, Rescued};
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Flags, Op, Request};
use bimetal_rt::{Rng, Rt};

use crate::common::segments::spoil_map;
use crate::common::virtual_rt;
use crate::common::volume::{OpenVolume, Volume};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

async fn formatted(rt: &Rt, kind: SideKind) -> Volume {
    let mut volume = Volume::unformatted(rt, 2);
    volume.config.layout = Layouts::All(kind);
    volume.try_format("vol").await.expect("the sides are fit");
    volume
}

/// Writes random blocks, discards some, and returns what each block should hold.
async fn write_some(mirror: &OpenVolume, count: u64) -> Vec<u8> {
    let mut rng = Rng::labelled(3, "rescue");
    let mut bytes = vec![0; (mirror.geometry().size_bytes / BLOCK) as usize];
    for _ in 0..count {
        let block = rng.below(bytes.len() as u64);
        let byte = match rng.below(10) {
            0 => 0,
            _ => 1 + rng.below(255) as u8,
        };
        bytes[block as usize] = byte;
        match byte {
            0 => {
                let discard = Request::without_data(Op::Discard, block * BLOCK, BLOCK, Flags::NONE);
                mirror.submit(discard).await.expect("a side takes it");
            }
            byte => mirror.put(block * BLOCK, byte).await,
        }
    }
    bytes
}

/// Rescues a side. Returns the result, and the first byte of each block of the copy.
async fn rescue(rt: &Rt, volume: &Volume, side: usize) -> (Rescued, Vec<u8>) {
    let device = &volume.sides[side].device;
    let rescue = Rescue::open(rt, "side", device, &|_| ()).await;
    let rescue = rescue.expect("the side can be read");
    let bytes = rescue.facts().volume_bytes;
    let copy = Rc::new(MemoryDevice::new(rt, bytes)) as Rc<dyn Device>;
    let rescued = rescue.copy(&copy, &|_| ()).await.expect("it is copied");
    let mut found = Vec::new();
    for offset in (0..bytes).step_by(MIB as usize) {
        let read = Request::read(offset, MIB.min(bytes - offset));
        let data = copy.submit(read).await.expect("it can be read");
        let data = data.into_data().to_vec();
        found.extend(data.chunks(BLOCK as usize).map(|block| block[0]));
    }
    (rescued, found)
}

#[test]
fn a_side_of_either_layout_is_copied_whole() {
    for kind in [SideKind::Home, SideKind::Log] {
        let rt = virtual_rt(31);
        rt.block_on(async {
            let mut volume = formatted(&rt, kind).await;
            let mirror = volume.open().await;
            let bytes = write_some(&mirror, 20_000).await;
            mirror.flush().await;
            // The server dies, so that the newest changes are in the log alone.
            volume.kill(&rt).await;
            for side in [0, 1] {
                let before = volume.superblock(side).await;
                let (rescued, found) = rescue(&rt, &volume, side).await;
                assert_eq!(rescued.missing, [], "{kind:?}");
                assert_eq!(rescued.unverified_bytes, 0, "{kind:?}");
                assert!(found == bytes, "{kind:?}: side {side} differs");
                assert_eq!(volume.superblock(side).await, before);
            }
            let mirror = volume.open().await;
            for (block, byte) in (0..).zip(&bytes) {
                assert_eq!(mirror.byte_at(block * BLOCK).await, Ok(*byte));
            }
            mirror.close().await;
        });
    }
}

#[test]
fn what_is_damaged_is_listed_and_nothing_else() {
    for kind in [SideKind::Home, SideKind::Log] {
        let rt = virtual_rt(32);
        rt.block_on(async {
            let volume = formatted(&rt, kind).await;
            volume.fill(8).await;
            let mirror = volume.open_alone(0).await;
            let place = volume.place(&mirror, 0, 5 * MIB);
            drop(mirror);
            volume.spoil(0, place).await;
            let (rescued, found) = rescue(&rt, &volume, 0).await;
            let [missing] = &rescued.missing[..] else {
                panic!("{kind:?}: {rescued:?}");
            };
            assert_eq!(*missing, 5 * MIB..5 * MIB + BLOCK, "{kind:?}");
            for mib in 0..8u64 {
                let expected = if mib == 5 { 0 } else { mib as u8 + 1 };
                assert_eq!(found[(mib * MIB / BLOCK) as usize], expected, "{kind:?}");
            }
        });
    }
}

/// A block whose place was lost, and whose content is damaged, stays lost. Later openings know that
/// from the page of the map, which a commit has written again.
#[test]
fn what_was_lost_before_is_listed_too() {
    let rt = virtual_rt(34);
    rt.block_on(async {
        let volume = formatted(&rt, SideKind::Log).await;
        let mirror = volume.open().await;
        // More than the journal takes of the last page of the checksums, so that it is written.
        mirror.fill(0..10 * MIB, 7).await;
        let place = mirror.place_on(0, 5 * MIB).expect("it has a place");
        mirror.close().await;
        volume.spoil(0, place).await;
        spoil_map(&volume, 0, false).await;
        let mirror = volume.open_alone(0).await;
        mirror.put(9 * MIB, 9).await;
        mirror.close().await;
        let (rescued, _) = rescue(&rt, &volume, 0).await;
        let [missing] = &rescued.missing[..] else {
            panic!("{rescued:?}");
        };
        assert_eq!(*missing, 5 * MIB..5 * MIB + BLOCK);
    });
}

#[test]
fn what_is_no_side_is_refused() {
    let rt = virtual_rt(33);
    rt.block_on(async {
        let blank = Rc::new(MemoryDevice::new(&rt, 64 * MIB)) as Rc<dyn Device>;
        let refused = Rescue::open(&rt, "disk", &blank, &|_| ()).await;
        let why = refused.err().expect("it is blank").to_string();
        assert!(why.contains("disk") && why.contains("no side"), "{why}");
    });
}
