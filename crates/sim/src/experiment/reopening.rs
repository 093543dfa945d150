//! Ends a mirror of an experiment as `kill -9` ends a program, and opens it again.

use std::rc::Rc;

use bimetal_block::IoError;
use bimetal_block::device::Device;
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OpenOptions, SideToOpen};
use bimetal_rt::Rt;
use serde::Serialize;

use super::hetero::ExperimentError;

/// What opening a mirror after a kill took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Opening {
    /// Seconds until the first request could be sent.
    pub seconds: f64,
    /// Bytes that were read from both devices meanwhile.
    pub read_bytes: u64,
}

/// A device that a program loses when it is killed.
pub(super) struct Killable {
    below: Rc<dyn Device>,
    control: Rc<FaultControl>,
}

impl Killable {
    /// Returns the device for the program, and the means to take it away.
    pub(super) fn over(rt: &Rt, below: Rc<dyn Device>) -> (Rc<dyn Device>, Killable) {
        let device = Fault::new(rt, Rc::clone(&below), FaultPlan::default(), 0);
        let control = device.control();
        (Rc::new(device), Killable { below, control })
    }
}

/// Kills the program of a mirror, whose devices are `devices` in the order of its sides, and opens
/// the mirror again. Returns the number of seconds that the opening took.
///
/// # Errors
/// When the mirror cannot be opened.
pub(super) async fn kill_and_open(
    rt: &Rt,
    (mirror, config): (Mirror, &MirrorConfig),
    devices: &[Killable],
) -> Result<(Mirror, f64), ExperimentError> {
    for device in devices {
        device.control.set_error(Some(IoError::Offline));
    }
    // This ends the tasks of the mirror. Its devices are gone, so it writes nothing, and can fail.
    let _ = mirror.close().await;
    let sides = config.sides.iter().zip(devices);
    let sides = sides.map(|(name, device)| SideToOpen {
        name: name.clone(),
        device: Ok(Rc::clone(&device.below)),
    });
    let begun = rt.now();
    let opened = Mirror::open(rt, config, sides.collect(), &OpenOptions::default()).await;
    let opened = opened.map_err(|error| ExperimentError::Mirror(error.to_string()))?;
    Ok((opened, rt.now().since(begun).as_secs_f64()))
}
