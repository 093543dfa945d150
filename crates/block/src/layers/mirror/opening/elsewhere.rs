//! Sides that the volume has and the configuration does not name, because an interrupted operation
//! has brought them or is to take them away: which they are, so that whoever opens the volume can
//! look for their devices. Only reads.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::Rt;
use futures_util::future::join_all;

use super::SideToOpen;
use crate::device::Device;
use crate::layers::mirror::superblock::{Candidate, State, Superblock, Uuid};
use crate::layers::mirror::way::Way;

/// The sides that are on none of these devices, and that an operation concerns which the volume
/// remembers. Whether the volume may be opened is decided by the opening, with or without them.
pub async fn sides_elsewhere(rt: &Rt, sides: &[SideToOpen]) -> Vec<Uuid> {
    let devices = sides.iter().filter_map(|side| side.device.as_ref().ok());
    let looks = devices.map(|device| superblock_on(rt, device));
    let found: Vec<Superblock> = join_all(looks).await.into_iter().flatten().collect();
    let heard = found
        .iter()
        .filter(|side| side.state != State::Inconsistent);
    let told = |side: &&Superblock| {
        let epoch = side.history.current().number;
        (epoch, side.remembered.revision)
    };
    let Some(newest) = heard.max_by_key(told) else {
        return Vec::new();
    };
    let is_here = |side: &Uuid| found.iter().any(|here| here.side == *side);
    let listed = newest.table.iter().enumerate();
    let concerned = listed.filter_map(|(place, listed)| {
        let side = (*listed)?.side;
        newest.remembered.concerns(place).then_some(side)
    });
    concerned.filter(|side| !is_here(side)).collect()
}

/// True when a device holds this side.
pub async fn holds_side(rt: &Rt, device: &Rc<dyn Device>, side: &Uuid) -> bool {
    let found = superblock_on(rt, device).await;
    found.is_some_and(|found| found.side == *side)
}

/// The superblock on a device; nothing of one that does not answer in the time of an opening, or
/// cannot be believed: it is not there then.
async fn superblock_on(rt: &Rt, device: &Rc<dyn Device>) -> Option<Superblock> {
    let way = Way::new(rt, Rc::clone(device), &Rc::new(Cell::new(true)));
    let candidate = Candidate {
        name: String::new(),
        device: way,
    };
    candidate.superblock().await.ok().flatten()
}
