//! Rules about the content of source files.

use super::{Complaint, File, Tree, lines_with};
use crate::rust_text::code_only;

/// Maximum length of a Rust file in lines. A longer file is assumed to have two subjects.
const MOST_LINES: usize = 800;

/// Complains about a Rust file that is longer than 800 lines.
pub fn file_length(tree: &Tree) -> Vec<Complaint> {
    let length = |f: &File| (f.path.clone(), f.text.lines().count());
    let long = tree
        .rust()
        .map(length)
        .filter(|(_, lines)| *lines > MOST_LINES);
    long.map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect()
}

/// Complains about a source file, manifest or script that is not ASCII. Other characters can be
/// invisible or look like ASCII characters, so a reader might not see the text that is compiled.
pub fn ascii_only(tree: &Tree) -> Vec<Complaint> {
    let source = |f: &&File| {
        let kinds = [".rs", ".toml", ".sh", ".py", "Makefile", ".ci/run"];
        kinds.iter().any(|kind| f.path.ends_with(kind))
    };
    let line = |f: &File| {
        Some((
            f.path.clone(),
            f.text.lines().position(|l| !l.is_ascii())? + 1,
        ))
    };
    let found = tree.files.iter().filter(source).filter_map(line);
    found
        .map(|(path, number)| format!("{path}:{number}: not ASCII"))
        .collect()
}

/// Complains about a Rust file that does not start with a `//!` comment. This comment must say why
/// the file exists.
pub fn module_head(tree: &Tree) -> Vec<Complaint> {
    let folders = ["crates/", "tests/", "fuzz/", "benches/"];
    let ours = |f: &&File| folders.iter().any(|folder| f.path.starts_with(folder));
    let bare = tree
        .rust()
        .filter(ours)
        .filter(|f| !f.text.trim_start().starts_with("//!"));
    bare.map(|f| format!("{}: no //! at its head", f.path))
        .collect()
}

/// A banned call, the path prefixes of the files in which it is allowed, and the code to use
/// instead.
struct Ban {
    words: &'static str,
    allowed_in: &'static [&'static str],
    instead: &'static str,
}

/// Path prefixes of the files that are allowed to read the real clock: the runtime's driver (which
/// parks a thread until a time), the binary, the tests of the lab's binary, and the module for
/// deadlines in these tests. All other code uses the runtime's time, because a simulation cannot
/// advance the real clock.
const CLOCK: &[&str] = &[
    "crates/rt/src/real_time",
    "crates/cli/",
    "crates/lab-cli/tests/",
    "tests/src/deadline.rs",
];

const BANS: &[Ban] = &[
    Ban {
        words: "Instant::now",
        allowed_in: CLOCK,
        instead: "ask the runtime for the time",
    },
    Ban {
        words: "SystemTime::now",
        allowed_in: CLOCK,
        instead: "ask the runtime for the time",
    },
    Ban {
        words: "thread::sleep",
        allowed_in: &[
            "crates/cli/",
            "crates/control/src/client.rs",
            "crates/lab-cli/tests/",
        ],
        instead: "the runtime's sleep",
    },
    Ban {
        words: "std::collections::HashMap",
        allowed_in: &[],
        instead: "BTreeMap",
    },
    Ban {
        words: "std::collections::HashSet",
        allowed_in: &[],
        instead: "BTreeSet",
    },
    Ban {
        words: "std::collections::hash_map",
        allowed_in: &[],
        instead: "BTreeMap",
    },
    Ban {
        words: "dbg!",
        allowed_in: &[],
        instead: "nothing, it is a leftover",
    },
    Ban {
        words: "todo!",
        allowed_in: &[],
        instead: "the code",
    },
    Ban {
        words: "unimplemented!",
        allowed_in: &[],
        instead: "the code",
    },
];

/// Complains about leftovers (such as `dbg!`), about code that reads the real clock or sleeps in a
/// file that is not allowed to do so, and about the hash maps and hash sets of the standard
/// library.
pub fn banned_calls(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in tree.rust() {
        let code = code_only(&file.text);
        for ban in BANS {
            if ban
                .allowed_in
                .iter()
                .any(|place| file.path.starts_with(place))
            {
                continue;
            }
            // The name of a macro ends in `!`. The searched word therefore ends there, whatever
            // character follows.
            for line in lines_with(&code, ban.words) {
                let (path, words, instead) = (&file.path, ban.words, ban.instead);
                complaints.push(format!("{path}:{line}: {words}; use {instead}"));
            }
        }
        complaints.extend(imported_hash_maps(&file.path, &code));
    }
    complaints
}

/// Complains about an import of the form `use std::collections::{.., HashMap, ..}`, which can
/// extend over several lines.
fn imported_hash_maps(path: &str, code: &str) -> Vec<Complaint> {
    let group = |(at, start): (usize, &str)| {
        let names = code[at + start.len()..].split('}').next().unwrap_or("");
        let line = code[..at].lines().count().max(1);
        ["HashMap", "HashSet"]
            .iter()
            .filter(|name| !lines_with(names, name).is_empty())
            .map(|name| format!("{path}:{line}: std's {name}; use a BTree"))
            .collect::<Vec<_>>()
    };
    code.match_indices("std::collections::{")
        .flat_map(group)
        .collect()
}

/// Complains about `unsafe` outside of the files that need it:
///
/// - the runtime, which owns buffers and operations in flight;
/// - the C library, because only its callers can vouch for the pointers that they pass;
/// - a driver that lends its buffers to commands that no other code understands;
/// - the verbs of RDMA, which hand memory to a device;
/// - the index, whose images are in memory on huge pages;
/// - the lab, which sets up loop devices, counters and mounts for which no available library has a
///   call;
/// - a benchmark outside of the workspace that opens LMDB, because only the caller can vouch for a
///   mapped file.
pub fn unsafe_places(tree: &Tree) -> Vec<Complaint> {
    let allowed = [
        "crates/rt/src/buf",
        "crates/rt/src/real_time",
        "crates/export/src/ublk",
        "crates/export/src/fuse/loop_device.rs",
        "crates/lab/src/native/sys.rs",
        "crates/rdma/src/verbs",
        "crates/index/src/node/arena",
        "crates/capi/src/lib.rs",
        "crates/capi/src/memory.rs",
        "crates/capi/src/completions/event.rs",
        "benches/index/src/engine/lmdb.rs",
    ];
    let others = tree
        .rust()
        .filter(|f| !allowed.iter().any(|place| f.path.starts_with(place)));
    let places = others.flat_map(|f| {
        let path = f.path.clone();
        let lines = lines_with(&code_only(&f.text), "unsafe");
        lines
            .into_iter()
            .map(move |line| format!("{path}:{line}: unsafe outside its places"))
    });
    places.collect()
}

/// Complains about `#[ignore]` without a reason.
pub fn reasoned_ignore(tree: &Tree) -> Vec<Complaint> {
    let places = tree.rust().flat_map(|f| {
        let code = code_only(&f.text);
        let bare = (1..)
            .zip(code.lines())
            .filter(|(_, l)| l.contains("#[ignore]"));
        bare.map(|(line, _)| format!("{}:{line}: #[ignore] without a reason", f.path))
            .collect::<Vec<_>>()
    });
    places.collect()
}

/// Complains about a text that contains the absolute path of a folder that exists on one machine
/// only.
pub fn local_paths(tree: &Tree) -> Vec<Complaint> {
    // The names are concatenated at compile time, so that this file does not break its own rule.
    let roots = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let mut complaints = Vec::new();
    for file in &tree.files {
        for (number, line) in (1..).zip(file.text.lines()) {
            // Only the start of an absolute path counts, not a folder with the same name inside
            // another path.
            let absolute = |root: &&&str| {
                line.match_indices(**root).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.}$~".contains(c))
                })
            };
            let found = roots.iter().filter(absolute);
            complaints.extend(found.map(|r| format!("{}:{number}: {r}", file.path)));
        }
    }
    complaints
}
