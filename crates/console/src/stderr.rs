//! Messages for people on standard error.
//!
//! A line that cannot be written is dropped. A server must not exit because the reader of its
//! warnings has closed the pipe, as it would with `eprintln!`. Except for progress bars on a
//! terminal, the programs write to standard error only through this module.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::{LazyLock, OnceLock};

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

/// Turns a line of text into the line that is written; see [`say_in_form`].
pub type Form = fn(&str) -> String;

/// The form in which lines are written; `None` until it is set: as they are.
static FORM: OnceLock<Form> = OnceLock::new();

/// Makes [`say`] write every line of this process in this form from now on. Only the first call
/// has an effect.
pub fn say_in_form(form: Form) {
    let _ = FORM.set(form);
}

/// Writes one line to standard error, with a single system call, in the form of this process.
pub fn say(line: impl Display) {
    let line = line.to_string();
    say_as_is(FORM.get().map_or(line.clone(), |form| form(&line)));
}

/// Writes one line to standard error, with a single system call, whatever the form is.
pub fn say_as_is(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Returns true if standard error is the journal of systemd, which reads priorities at the start of
/// lines as in sd-daemon(3): the variable `JOURNAL_STREAM` has its device and inode.
pub fn is_journal() -> bool {
    let journal = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|found| is_stream(&journal, (found.dev(), found.ino())))
}

fn is_stream(journal: &str, stderr: (u64, u64)) -> bool {
    let parsed = journal.split_once(':').and_then(|(device, inode)| {
        let number = |text: &str| text.parse::<u64>().ok();
        Some((number(device)?, number(inode)?))
    });
    parsed == Some(stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_known_by_its_device_and_inode() {
        assert!(is_stream("8:12", (8, 12)));
        for other in ["", "8", "8:13", "9:12", "8:12:1", "a:b"] {
            assert!(!is_stream(other, (8, 12)), "{other}");
        }
    }
}
