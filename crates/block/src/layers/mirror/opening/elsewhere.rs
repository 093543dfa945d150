//! Sides of the volume that the configuration does not name, because an interrupted operation has
//! added them or is to remove them. This module identifies these sides, so that the caller of the
//! opening can find their devices. It only reads.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::Rt;
use futures_util::future::join_all;

use super::SideToOpen;
use crate::device::Device;
use crate::layers::mirror::device_path::DevicePath;
use crate::layers::mirror::superblock::{Candidate, SideState, Superblock, Uuid};

/// Returns the sides that an unfinished operation of the volume adds or removes and that are not on
/// the given devices. The opening itself decides later whether the volume can be opened without
/// them.
pub async fn sides_elsewhere(rt: &Rt, sides: &[SideToOpen]) -> Vec<Uuid> {
    let devices = sides.iter().filter_map(|side| side.device.as_ref().ok());
    let looks = devices.map(|device| superblock_on(rt, device));
    let found: Vec<Superblock> = join_all(looks).await.into_iter().flatten().collect();
    let heard = found
        .iter()
        .filter(|side| side.state != SideState::Inconsistent);
    let acknowledged = |side: &&Superblock| {
        let epoch = side.history.current().number;
        (epoch, side.remembered.revision)
    };
    let Some(newest) = heard.max_by_key(acknowledged) else {
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

/// Returns true if the device holds the side with this identifier.
pub async fn holds_side(rt: &Rt, device: &Rc<dyn Device>, side: &Uuid) -> bool {
    let found = superblock_on(rt, device).await;
    found.is_some_and(|found| found.side == *side)
}

/// Reads the superblock on a device. Returns `None` if the device does not answer within the
/// timeout of an opening, or if the superblock is invalid. The side on the device is then treated
/// as absent.
async fn superblock_on(rt: &Rt, device: &Rc<dyn Device>) -> Option<Superblock> {
    let device_path = DevicePath::new(rt, Rc::clone(device), &Rc::new(Cell::new(true)));
    let candidate = Candidate {
        name: String::new(),
        device: device_path,
    };
    candidate.superblock().await.ok().flatten()
}
