//! Lines for people on standard error.
//!
//! What cannot be written there is passed over, for nobody is left to tell: a server must not end because
//! whoever read its warnings has gone, which is what `eprintln!` does. Nothing else in this program
//! writes there, except for progress bars on a terminal.

use std::fmt::Display;
use std::io::Write;

/// Says a line, in one piece.
pub(crate) fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
