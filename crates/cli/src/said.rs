//! Output of lines for people on standard error.
//!
//! A failed write is ignored. A server must not end because the reader of its warnings is gone, as
//! it would with `eprintln!`. No other module of this program writes to standard error, except for
//! progress bars on a terminal.

use std::fmt::Display;
use std::io::Write;
use std::sync::LazyLock;

use bimetal_rt::{Instant, Notices};

/// Notices that the runtimes of this program have posted.
static NOTICES: LazyLock<Notices> = LazyLock::new(Notices::default);

/// Returns the collection to which every runtime of this program posts its notices.
pub(crate) fn notices() -> Notices {
    NOTICES.clone()
}

/// Prints the notices that have not been reported yet. It is called at the end of the program;
/// verbs that end soon report their notices only here.
pub(crate) fn say_notices() {
    for notice in NOTICES.take(Instant::MAX) {
        say(format_args!("bimetal: {notice}"));
    }
}

/// Prints a line with one write.
pub(crate) fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
