//! Creates the runtime of a verb, and warns the operator if its driver is less efficient than
//! possible.

use anyhow::{Context, Result};
use bimetal_rt::{Driven, Rt, UringOptions};

use bimetal_console::stderr::{notices, say};

/// Creates a runtime, and prints one line if its driver is less efficient than possible.
///
/// # Errors
/// If no driver is available; the message names the reason.
pub(crate) fn start(options: UringOptions) -> Result<Rt> {
    let rt = start_quietly(options)?;
    if let Some(warning) = rt.driven().and_then(Driven::warning) {
        say(format_args!("bimetal: {warning}"));
    }
    Ok(rt)
}

/// Creates a runtime for a verb that does not depend on the speed of its driver, without the
/// warning.
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
