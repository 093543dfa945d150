//! Messages for people on standard error.
//!
//! A line that cannot be written is dropped. A server must not exit because the reader of its
//! warnings has closed the pipe, as it would with `eprintln!`. Except for progress bars on a
//! terminal, the programs write to standard error only through this module.

use std::fmt::Display;
use std::io::Write;
use std::sync::LazyLock;

use bimetal_rt::{Instant, Notices};

/// Notices of all runtimes of this process.
static NOTICES: LazyLock<Notices> = LazyLock::new(Notices::default);

/// Returns the list to which every runtime of this process adds its notices (reports to the
/// operator).
pub fn notices() -> Notices {
    NOTICES.clone()
}

/// Writes the pending notices to standard error, each preceded by the name of the program. Must be
/// called at the end of the program.
pub fn say_notices(program: &str) {
    for notice in NOTICES.take(Instant::MAX) {
        say(format_args!("{program}: {notice}"));
    }
}

/// Writes one line to standard error, with a single system call.
pub fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
