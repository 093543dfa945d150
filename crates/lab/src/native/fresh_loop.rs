//! Loop devices for this program alone. Each run creates a new loop device, because a reduced queue
//! depth stays with a device for as long as the device exists. A device is recorded in the journal
//! before it is created.

use std::fs::File;
use std::path::Path;

use super::NativeError;
use super::journal::{Change, Journal};
use super::loops::{self, Loop};

/// Lowest number to try for a new loop device. Other programs use the lowest free number, so a
/// higher number avoids conflicts with them.
const NUMBER_MIN: u32 = 64;
const NUMBER_MAX: u32 = 1 << 16;

/// Creates a loop device over `backing`.
pub(super) fn create(backing: &Path, journal: &mut Journal) -> Result<Loop, NativeError> {
    let control = loops::control()?;
    let number = make_node(&control, backing, journal)?;
    loops::configure(number, backing)
}

fn make_node(control: &File, backing: &Path, journal: &mut Journal) -> Result<u32, NativeError> {
    for number in NUMBER_MIN..NUMBER_MAX {
        if loops::exists(number) {
            continue;
        }
        let file = backing.to_owned();
        journal.record(Change::Loop { number, file })?;
        match loops::add(control, number) {
            Ok(true) => return Ok(number),
            Ok(false) => journal.forget_last()?,
            Err(error) => return Err(error),
        }
    }
    Err(NativeError::Refused(
        "there is no free loop device".to_owned(),
    ))
}
