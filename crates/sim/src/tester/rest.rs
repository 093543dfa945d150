//! Events that change sides at rest, between two lives of the program.

use bimetal_block::BLOCK_BYTES;
use bimetal_block::layers::mirror::superblock::Superblock;
use bimetal_rt::Rng;

use super::corruption::SideMap;
use super::faults;
use super::platter::Platter;
use super::scenario::AtRest;
use super::world::World;

/// Content of the disks of every side at an earlier time.
pub type Snapshot = Vec<Vec<Platter>>;

/// Applies an event to a side. Skips the event if no other side still holds all content. `whole`
/// tells for each side whether it was healthy at the end of the last life and has lost nothing
/// since.
pub fn happen(
    world: &World,
    what: AtRest,
    whole: &mut [bool],
    snapshot: Option<&Snapshot>,
    rng: &mut Rng,
) {
    let (AtRest::SuperblockLost { side, .. } | AtRest::Older { side } | AtRest::Rot { side, .. }) =
        what;
    let mut others = whole.iter().enumerate();
    if !others.any(|(other, &whole)| whole && other != side) {
        world.reach("at rest: no other side was whole");
        return;
    }
    let map = world.around.rule.side(side);
    match what {
        AtRest::SuperblockLost {
            first,
            second,
            garbage,
            ..
        } => {
            let kept = if first {
                map.size_bytes() - BLOCK_BYTES
            } else {
                0
            };
            let (disk, at) = map.on_disk(kept);
            let index = (at / BLOCK_BYTES) as usize;
            // If only one copy of the superblock is to be overwritten, the other copy must be valid
            // and durable. Otherwise nothing is overwritten. After a power cut, the other copy can
            // be torn. After a kill, a later power cut can still tear the other copy, because no
            // flush followed the last writes.
            let is_whole = {
                let platter = map.platters[disk].borrow();
                let block = platter.block(index as u64).map(|block| block.to_vec());
                let found = block.map(|block| Superblock::decode(&block));
                let settled = platter.is_durable(index) && !platter.is_corrupt(index);
                settled && matches!(found, Some(Ok(Some(_))))
            };
            if !(is_whole || first && second) {
                return;
            }
            world.reach(if first && second {
                "at rest: both superblocks lost"
            } else {
                "at rest: a superblock lost"
            });
            if first && second {
                world.blank.borrow_mut().insert(side);
                // Without a superblock, the side also cannot reveal that another side was replaced
                // by an older copy.
                whole[side] = false;
            }
            if first {
                lose(world, &map, 0, garbage, rng);
            }
            if second {
                lose(world, &map, map.size_bytes() - BLOCK_BYTES, garbage, rng);
            }
        }
        AtRest::Older { .. } => {
            let Some(snapshot) = snapshot else { return };
            world.reach("at rest: an older side");
            world.blank.borrow_mut().remove(&side);
            whole[side] = false;
            for (disk, old) in map.platters.iter().zip(&snapshot[side]) {
                disk.borrow_mut().become_copy_of(old);
            }
        }
        AtRest::Rot { blocks, .. } => {
            let spared = world.scenario.steadfast;
            if spared.is_some_and(|spared| whole[spared]) {
                faults::rot(world, side, blocks, rng);
            }
        }
    }
    world
        .trace
        .event(&[10, side as u64], || format!("{what:?}"));
}

/// Overwrites the block at an offset of the side with zeroes or garbage.
fn lose(world: &World, map: &SideMap, offset: u64, garbage: bool, rng: &mut Rng) {
    let (disk, at) = map.on_disk(offset);
    let content = garbage.then(|| {
        let mut block = world.rt.pool().alloc_now(BLOCK_BYTES as usize);
        rng.fill(&mut block);
        block.freeze().into()
    });
    let index = (at / BLOCK_BYTES) as usize;
    let mut platter = map.platters[disk].borrow_mut();
    platter.set(index, content);
    platter.flushed_blocks(index as u64..index as u64 + 1);
}
