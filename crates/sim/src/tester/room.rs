//! Checks of a volume of which only a part may have content at a time. What the volume counts as
//! content is compared with what it reports as data, which it finds in another way.

use bimetal_block::request::{EXTENTS_MAX, Extent};
use bimetal_block::{BLOCK_BYTES, Device, Request};

use super::world::{Program, World};

/// Checks the count of the content of a volume to which no client writes.
pub async fn check(world: &World, program: &Program) {
    let Some(room) = program.mirror.status().room else {
        return;
    };
    if room.content_bytes > room.room_bytes {
        world
            .findings
            .add(format!("more content than room: {room:?}"));
    }
    let Some(wrong) = miscounted(program).await else {
        return;
    };
    if program.mirror.status().room != Some(room) {
        return;
    }
    // A write that every side failed, and a block that was lost, may count as content.
    let may_be_more = world.scenario.steadfast.is_none() || world.scenario.corrupts;
    let may_be_less = world.scenario.corrupts;
    for (block, counts) in wrong {
        let is_wrong = if counts { !may_be_more } else { !may_be_less };
        if is_wrong {
            let counted = if counts { "counts" } else { "does not count" };
            let what = format!("block {block} {counted} as content: {room:?}");
            return world.findings.add(what);
        }
    }
    world.reach("content was counted");
    if room.content_bytes == room.room_bytes {
        world.reach("no room was left");
    }
}

/// Returns the blocks that have content although they do not count as content, or that have none
/// although they do, each with whether it counts; `None` if the volume cannot tell. A block without
/// a place has no content, even if the volume reports data: a side whose checksum of the block was
/// lost cannot tell that it is a hole.
async fn miscounted(program: &Program) -> Option<Vec<(u64, bool)>> {
    let all_bytes = program.mirror.geometry().size_bytes;
    let (mut position, mut wrong) = (0, Vec::new());
    while position < all_bytes {
        let ask = Request::extents(position, all_bytes - position, EXTENTS_MAX);
        let extents = program.mirror.submit(ask).await.ok()?.into_extents();
        for Extent { len, data } in extents {
            for at in (position..position + len).step_by(BLOCK_BYTES as usize) {
                let counts = program.mirror.counts_as_content(at);
                let is_placed = |side: usize| program.mirror.place_on(side, at).is_some();
                if counts != (data && (0..program.sides.len()).any(is_placed)) {
                    wrong.push((at / BLOCK_BYTES, counts));
                }
            }
            position += len;
        }
    }
    Some(wrong)
}
