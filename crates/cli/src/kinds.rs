//! The kinds of events: the names that programs rely on, how urgent each is, and what to do.
//! docs/operations.md lists the same names; a test compares the two.

/// How urgent a line of a log is, as the number of sd-daemon(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Error = 3,
    Warning = 4,
    Notice = 5,
    Info = 6,
}

/// A kind of event.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) priority: Priority,
    /// What to do, in a sentence; empty if there is nothing to do.
    pub(crate) advice: &'static str,
}

const fn kind(name: &'static str, priority: Priority, advice: &'static str) -> Kind {
    Kind {
        name,
        priority,
        advice,
    }
}

/// All kinds, in the order of the table in docs/operations.md.
pub(crate) const KINDS: [Kind; 28] = {
    use Priority::{Error, Info, Notice, Warning};
    [
        kind(
            "health",
            Notice,
            "`bimetal status` shows the volume and its sides",
        ),
        kind(
            "side-absent",
            Error,
            "restore the path to its device, or replace the side",
        ),
        kind(
            "side-blank",
            Warning,
            "`bimetal serve FILE --rebuild SIDE` makes the device a side",
        ),
        kind(
            "side-unformatted",
            Error,
            "see the cause, and convert the side again",
        ),
        kind(
            "side-unlisted",
            Warning,
            "add the side again, or remove it from `sides`",
        ),
        kind("side-back", Info, ""),
        kind("side-rebuilt", Info, ""),
        kind(
            "corruption-found",
            Warning,
            "scrub the volume; if it repeats, replace the side",
        ),
        kind(
            "corruption-unrepairable",
            Error,
            "restore the content from a backup",
        ),
        kind(
            "volume-read-only",
            Error,
            "restore or replace the absent side",
        ),
        kind(
            "volume-stopped",
            Error,
            "restore or replace the absent side",
        ),
        kind("volume-open", Notice, ""),
        kind(
            "room-low",
            Warning,
            "delete files, and discard what they held",
        ),
        kind(
            "room-nearly-full",
            Warning,
            "delete files, and discard what they held",
        ),
        kind(
            "room-full",
            Error,
            "delete files, and discard what they held",
        ),
        kind(
            "log-full",
            Warning,
            "clients get the rate of this side; a longer log helps",
        ),
        kind(
            "device-failed",
            Error,
            "see the kernel log; if it repeats, replace the device",
        ),
        kind(
            "connection-lost",
            Warning,
            "check the server and the network path to it",
        ),
        kind("connection-back", Info, ""),
        kind(
            "connection-offline",
            Error,
            "check the server and the network path to it",
        ),
        kind("connection-changed", Notice, ""),
        kind(
            "connection-refused",
            Error,
            "make the server what it was, or describe it anew",
        ),
        kind(
            "mount-full",
            Error,
            "restore the device of the mounted file",
        ),
        kind(
            "client-refused",
            Notice,
            "see the rights and certificates of the export",
        ),
        kind("hangup", Info, ""),
        kind("notices-dropped", Warning, "see `bimetal status`"),
        // Lines of the log that are not events.
        kind("warning", Warning, ""),
        kind("message", Info, ""),
    ]
};

/// Returns the kind with this name. A name that is not listed is as urgent as a warning.
pub(crate) fn of(name: &str) -> &'static Kind {
    const UNKNOWN: Kind = kind("warning", Priority::Warning, "");
    KINDS
        .iter()
        .find(|kind| kind.name == name)
        .unwrap_or(&UNKNOWN)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/operations.md");

    /// Returns the names in the first column of the table of events.
    fn documented() -> BTreeSet<&'static str> {
        let (_, table) = PAGE.split_once("\n| event | meaning |").expect("the table");
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let names = rows.flat_map(|row| {
            let cell = row.split('|').nth(1).expect("a cell");
            cell.split('`').skip(1).step_by(2)
        });
        names.collect()
    }

    #[test]
    fn the_page_and_the_program_list_the_same_events() {
        let listed: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(listed.len(), KINDS.len(), "each once");
        assert_eq!(listed, documented());
    }

    /// Collects the source of all crates.
    fn collect(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("kinds.rs") {
                *text += &std::fs::read_to_string(path).expect("source");
            }
        }
    }

    #[test]
    fn each_listed_event_happens() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut text = String::new();
        for name in ["block", "cli", "client", "console", "export", "rt"] {
            collect(&crates.join(name).join("src"), &mut text);
        }
        for kind in &KINDS {
            let literal = format!("\"{}\"", kind.name);
            assert!(text.contains(&literal), "{} never happens", kind.name);
        }
    }
}
