//! Making a volume of a disk that already has content (adoption); see `docs/layers/adopted.md`.
//!
//! The existing content is valid from the start: the adopted side is the only member of the first
//! epoch, and all of its checksums are unknown. The other sides lack everything, like newly added
//! sides. This module must never write to the data area of the adopted side. The adopted side gets
//! its superblock last: before that there is no volume, and the content of the disk is unchanged.

use std::cell::Cell;

use bimetal_rt::Rt;

use super::making::{
    Formatted, Formatting, NewSide, check_room, described, first_superblocks, make_side,
};
use crate::error::{IoError, OpenError};
use crate::layers::mirror::store;
use crate::layers::mirror::superblock::{Candidate, Epoch, FIRST_CHANGE, History, SideLayout};
use crate::request::BLOCK_BYTES;

/// Prepares sides for a volume that gets the content of the side at index `kept`. The sides have
/// passed their checks, and get the given layouts.
///
/// # Errors
/// When another side has no room for the content, in which case nothing has been written; or when a
/// device fails.
pub(super) async fn adopt(
    rt: &Rt,
    name: &str,
    sides: &[Candidate],
    layouts: &[SideLayout],
    kept: usize,
    formatting: &Formatting,
) -> Result<Formatted, OpenError> {
    let volume_bytes = layouts[kept].data.1;
    for (side, layout) in sides.iter().zip(layouts) {
        check_room(side, layout, volume_bytes, formatting)?;
    }
    let mut superblocks = first_superblocks(rt, name, layouts, formatting)?;
    let own = &mut superblocks[kept];
    own.flags = formatting.flags(&sides[kept].name);
    // The existing content is treated as the first change.
    own.complete_below = FIRST_CHANGE + 1;
    own.unknown_blocks = volume_bytes / BLOCK_BYTES;
    own.history = History::new(Epoch {
        members: 1 << own.place(),
        ..*own.history.current()
    });
    let own = own.clone();
    let side = &sides[kept];
    let failed = |what: &'static str| move |error: IoError| side.error(&format!("{what}: {error}"));
    side.wipe()
        .await
        .map_err(failed("removing old superblocks"))?;
    let empty = store::initialise(rt, &side.device, own.side, &own.layout, true).await;
    empty.map_err(failed("preparing its areas"))?;
    for (place, (side, superblock)) in sides.iter().zip(&mut superblocks).enumerate() {
        if place != kept {
            let new = NewSide {
                asked: formatting.asked(side),
                not_durable: formatting.flags(&side.name).not_durable,
            };
            *superblock = make_side(rt, side, &own, place, new).await?;
        }
    }
    let written = side.write(&own, &Cell::new(Some(0)), rt).await;
    written.map_err(failed("writing the superblock"))?;
    Ok(described(sides, layouts, &superblocks, formatting))
}

/// Returns the index of the side to adopt; `None` when no side is to be adopted.
///
/// # Errors
/// When the named side cannot be adopted.
pub(super) fn kept_side(
    sides: &[Candidate],
    formatting: &Formatting,
) -> Result<Option<usize>, OpenError> {
    let Some(adopted) = &formatting.adopt else {
        return Ok(None);
    };
    let kept = sides.iter().position(|side| side.name == *adopted);
    let kept = kept.ok_or_else(|| OpenError::new(format!("it has no side {adopted}")))?;
    let side = &sides[kept];
    if side.device.geometry().content_offset_bytes.is_none() {
        return Err(side.error(
            "is not a device of type \"adopted\": a side also has metadata, and the disk itself \
            has no room for it",
        ));
    }
    if formatting.volume_bytes.is_some() {
        return Err(side.error("gives the volume its size: leave out `size`"));
    }
    if formatting.flags(adopted).not_durable {
        return Err(side.error("is ephemeral, and would at first be the only copy of the volume"));
    }
    Ok(Some(kept))
}
