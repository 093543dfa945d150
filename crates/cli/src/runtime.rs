//! The runtime of a verb that serves or measures, with a word on its driver.

use anyhow::{Context, Result};
use bimetal_rt::{Driven, Rt, UringOptions};

use bimetal_console::stderr::{notices, say};

/// Makes a runtime, and says in one line where its driver is less than it could be.
///
/// # Errors
/// When no driver can be had; the message says what is in the way.
pub(crate) fn start(options: UringOptions) -> Result<Rt> {
    let rt = start_quietly(options)?;
    if let Some(warning) = rt.driven().and_then(Driven::warning) {
        say(format_args!("bimetal: {warning}"));
    }
    Ok(rt)
}

/// Makes a runtime for a verb that does not depend on the speed of its driver.
///
/// # Errors
/// As of [`start`].
pub(crate) fn start_quietly(options: UringOptions) -> Result<Rt> {
    let options = UringOptions {
        notices: notices(),
        ..options
    };
    Rt::real_time(options).context("cannot start the runtime")
}
