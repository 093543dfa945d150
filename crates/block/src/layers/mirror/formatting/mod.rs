//! Formatting: erasing and writing the superblocks of sides, and preparing their areas.
//!
//! An interrupted formatting must never leave a device that looks like a side but is not a complete
//! side. So the old superblocks are erased first, then the areas are emptied, and the new
//! superblocks are written last.

mod adopting;
mod making;

use std::cell::Cell;

use bimetal_rt::Rt;

use self::making::{check_formattable, clear, described, first_superblocks};
use super::store;
use super::superblock::{Candidate, SIDES_MAX, SideLayout};
use crate::error::OpenError;

pub use self::making::{Formatted, Formatting};
pub(super) use self::making::{NewSide, make_side, make_side_over};

/// Prepares sides for a new volume, which is empty or has the content of an adopted side. Nothing
/// is written before every side has passed its checks.
///
/// # Errors
/// When a side is too small, cannot be written, or holds a volume or content and `force` is not
/// set.
///
/// # Panics
/// When there are no sides, or more than [`SIDES_MAX`].
pub async fn format(
    rt: &Rt,
    name: &str,
    sides: &[Candidate],
    formatting: &Formatting,
) -> Result<Formatted, OpenError> {
    assert!(
        (1..=SIDES_MAX).contains(&sides.len()),
        "the table has room for the sides"
    );
    let layouts = check_fit(sides, formatting).await?;
    if let Some(kept) = adopting::kept_side(sides, formatting)? {
        return adopting::adopt(rt, name, sides, &layouts, kept, formatting).await;
    }
    let mut superblocks = first_superblocks(rt, name, &layouts, formatting)?;
    for (side, superblock) in sides.iter().zip(&mut superblocks) {
        superblock.flags = formatting.flags(&side.name);
    }
    for side in sides {
        let wiped = side.wipe().await;
        wiped.map_err(|error| side.error(&format!("removing old superblocks: {error}")))?;
    }
    for (side, superblock) in sides.iter().zip(&superblocks) {
        let (device, uuid) = (&side.device, superblock.side);
        let mut empty = store::initialise(rt, device, uuid, &superblock.layout, false).await;
        if empty.is_ok() && superblock.flags.no_checksums {
            // Without checksums, nothing records that a block was never written, so all blocks must
            // be zeroed.
            let (start, len) = (superblock.layout.data.0, superblock.volume_bytes);
            empty = clear(&*side.device, start, len).await;
        }
        empty.map_err(|error| side.error(&format!("emptying its areas: {error}")))?;
        let written = side.write(superblock, &Cell::new(Some(0)), rt).await;
        written.map_err(|error| side.error(&format!("writing the superblock: {error}")))?;
    }
    Ok(described(sides, &layouts, &superblocks, formatting))
}

/// Returns the layouts that the sides would get, without writing anything.
///
/// # Errors
/// When a side is too small, cannot be written, or holds a volume or content and `force` is not
/// set; or when the side to adopt cannot be adopted.
pub async fn check_fit(
    sides: &[Candidate],
    formatting: &Formatting,
) -> Result<Vec<SideLayout>, OpenError> {
    adopting::kept_side(sides, formatting)?;
    let mut layouts = Vec::new();
    for side in sides {
        layouts.push(check_formattable(side, formatting).await?);
    }
    Ok(layouts)
}
