//! Creates the runtime of a verb (a subcommand of `bimetal`), and warns the operator if a more
//! efficient I/O driver could not be used.

use anyhow::{Context, Result};
use bimetal_rt::{Driven, Rt, UringOptions};

use bimetal_console::stderr::{notices, say};

/// Creates a runtime, and prints one line if a more efficient I/O driver could not be used.
///
/// # Errors
/// If no I/O driver is available. The message contains the reason.
pub(crate) fn start(options: UringOptions) -> Result<Rt> {
    let rt = start_quietly(options)?;
    if let Some(warning) = rt.driven().and_then(Driven::warning) {
        say(format_args!("bimetal: {warning}"));
    }
    Ok(rt)
}

/// Creates a runtime without a warning about its I/O driver, for a verb whose speed does not depend
/// on the driver.
///
/// # Errors
/// The errors of [`start`].
pub(crate) fn start_quietly(options: UringOptions) -> Result<Rt> {
    let options = UringOptions {
        notices: notices(),
        ..options
    };
    Rt::real_time(options).context("cannot start the runtime")
}
