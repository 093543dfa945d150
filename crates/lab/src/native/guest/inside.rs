//! The first program of a guest: executes the run that the order (a file from the host) describes,
//! writes the answer, and powers the guest off.
//!
//! This must never run outside a guest: the mounts would hide folders of the machine, and the end
//! would power the machine off.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::mount::MountFlags;
use rustix::system::RebootCommand;

use super::{ANSWER, Answer, ORDER, Order};
use crate::device::{DeviceSettings, NativeDevice};
use crate::native::{NativeError, Session, io_error};
use crate::outcome::Outcome;
use crate::settings::Settings;

/// `HOSTFS_SUPER_MAGIC`: the type of the root file system in a guest. No other system has a root
/// file system of this type.
const HOSTFS: u64 = 0x00c0_ffee;
/// The second disk of the guest; User-Mode Linux reserves the first disk for a root file system.
const DEVICE: &str = "/dev/ubdb";

/// Executes the run that the order file in `folder` describes, writes the answer to `folder`, and
/// powers the guest off. Returns only on an error.
///
/// # Errors
/// If this process is not the first program of a guest, or the answer cannot be written.
pub fn run_inside(folder: &Path) -> Result<(), NativeError> {
    let root = rustix::fs::statfs("/").map_err(|e| io_error(Path::new("/"), e.into()))?;
    if std::process::id() != 1 || root.f_type as u64 != HOSTFS {
        return Err(NativeError::Refused(
            "this verb works only as the first program of a guest in User-Mode Linux".to_owned(),
        ));
    }
    let answer = match mount_all().and_then(|()| make(folder)) {
        Ok(outcome) => Answer::Made(Box::new(outcome)),
        Err(why) => Answer::Failed(why),
    };
    give(folder, &answer)?;
    rustix::system::reboot(RebootCommand::PowerOff).map_err(|source| NativeError::Io {
        what: "ending the guest".to_owned(),
        error: source.into(),
    })
}

/// Mounts the file systems that the first program of a system must mount, and a `tmpfs` for files
/// that are written during the run.
fn mount_all() -> Result<(), String> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")] {
        rustix::mount::mount(kind, place, kind, MountFlags::empty(), None)
            .map_err(|error| format!("mounting {place}: {error}"))?;
    }
    Ok(())
}

fn make(folder: &Path) -> Result<Outcome, String> {
    let path = folder.join(ORDER);
    let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let order: Order =
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    // The guest exists for this run alone and has the memory of the run, so the run needs no memory
    // limit.
    let inner = Settings {
        device: DeviceSettings::Native(NativeDevice::Block {
            path: PathBuf::from(DEVICE),
        }),
        memory_pages: 0,
        ..order.settings.clone()
    };
    let words = |error: NativeError| error.to_string();
    let mut session = Session::begin(Arc::new(AtomicBool::new(false))).map_err(words)?;
    let outcome = session.run(&order.choice, &inner, order.seed);
    let outcome = outcome.map_err(|error| error.to_string())?;
    session.end().map_err(words)?;
    Ok(Outcome {
        settings: order.settings,
        ..outcome
    })
}

/// Writes the answer to a file, which the host reads after the guest has ended.
fn give(folder: &Path, answer: &Answer) -> Result<(), NativeError> {
    let path = folder.join(ANSWER);
    let text = serde_json::to_vec(answer).expect("an answer is plain data");
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()
    });
    written.map_err(|source| io_error(&path, source))
}
