//! Lines for people on standard error.
//!
//! What cannot be written there is passed over, for nobody is left to tell: a server must not end
//! because whoever read its warnings has gone, which is what `eprintln!` does. Nothing else in this
//! program writes there, except for progress bars on a terminal.

use std::fmt::Display;
use std::io::Write;
use std::sync::LazyLock;

use bimetal_rt::{Instant, Notices};

/// What the runtimes of this program leave to be told.
static NOTICES: LazyLock<Notices> = LazyLock::new(Notices::default);

/// Where every runtime of this program leaves its notices.
pub(crate) fn notices() -> Notices {
    NOTICES.clone()
}

/// Says the notices that nobody has told. For the end of the program, and for verbs that are over
/// soon.
pub(crate) fn say_notices() {
    for notice in NOTICES.take(Instant::MAX) {
        say(format_args!("bimetal: {notice}"));
    }
}

/// Says a line, in one piece.
pub(crate) fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
