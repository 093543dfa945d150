//! Use of the unfinished operations in superblocks when an opening is decided: selects the
//! superblock whose operations are valid, and finds the configured sides that a command has removed
//! from the volume.

use super::{Absence, Plan, Present, Seen};
use crate::layers::mirror::superblock::{Remembered, Table, place_in};

/// Returns the unfinished operations of the volume. Among the superblocks with the newest epoch,
/// the superblock with the highest revision has the valid operations.
pub(super) fn remembered(consistent: &[Present<'_>], holder: &Present<'_>) -> Remembered {
    let newest = holder.current().id;
    let as_new = consistent.iter().filter(|side| side.current().id == newest);
    let last_acknowledged = as_new.max_by_key(|side| side.superblock.remembered.revision);
    last_acknowledged.unwrap_or(holder).superblock.remembered
}

/// Returns the configured sides that a command has removed from the volume; they are not missing
/// sides. If a device cannot be read, its side is assumed to be a removed one, provided that
/// commands have removed sides and that every side in the table was found on another device.
pub(super) fn gone(seen: &[Seen], plan: &Plan) -> Vec<usize> {
    let is_made = |index: usize| plan.made.iter().any(|(made, _)| *made == index);
    let are_all_found = plan.table.iter().enumerate().all(|(place, listed)| {
        let is_found = |side: &Seen| {
            let found = side.found.as_ref().ok();
            let at = found.and_then(|found| place_in(&plan.table, &found.side));
            at == Some(place)
        };
        listed.is_none() || seen.iter().any(is_found)
    });
    let has_left = |index: usize| match &seen[index].found {
        Ok(found) => is_unlisted(&plan.table, seen, index) && plan.remembered.has_left(&found.side),
        // A blank device is never taken for a removed side. It can be a new disk, and the operator
        // decides whether a new disk replaces a side.
        Err(Absence::NoVolume) => false,
        Err(_) => are_all_found && plan.remembered.left_count() > 0,
    };
    let indices = 0..seen.len();
    indices
        .filter(|&index| !is_made(index) && has_left(index))
        .collect()
}

fn is_unlisted(table: &Table, seen: &[Seen], index: usize) -> bool {
    let found = seen[index].found.as_ref();
    found.is_ok_and(|found| place_in(table, &found.side).is_none())
}
