//! Rules about the shape of the tree: dependencies between crates, test programs, pages and names.

use super::{Complaint, Tree};
use crate::rust_text::code_only;
use std::collections::BTreeSet;

/// For each crate of this workspace, the crates of this workspace on which it may depend. Every
/// dependency goes down the data path.
const DIRECTION: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "export", "lab", "sim", "index", "trace", "block", "client", "rt", "policy", "proto",
            "rdma", "tls",
        ],
    ),
    ("py", &["lab", "index", "trace", "policy"]),
    ("lab", &["sim", "index", "trace", "block", "rt", "policy"]),
    (
        "sim",
        &[
            "export", "index", "block", "proto", "trace", "rt", "policy", "flash",
        ],
    ),
    ("export", &["block", "client", "proto", "rdma", "tls", "rt"]),
    ("index", &["block", "rt"]),
    (
        "block",
        &["client", "policy", "proto", "trace", "rt", "flash"],
    ),
    ("capi", &["client"]),
    ("client", &["proto", "rdma", "tls", "rt"]),
    ("rdma", &["rt"]),
    ("tls", &["rt"]),
    ("rt", &[]),
    ("policy", &[]),
    ("proto", &[]),
    ("trace", &[]),
    ("flash", &[]),
];

/// Complains about a crate that depends on a crate beside or above it, in any section of its
/// manifest. So a policy can never do I/O, and a codec never needs an executor.
///
/// A package outside `crates/` (the tests) may depend on any crate.
pub fn crate_direction(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        let Some(name) = file
            .path
            .strip_prefix("crates/")
            .and_then(|p| p.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let Some((_, allowed)) = DIRECTION.iter().find(|(krate, _)| *krate == name) else {
            complaints.push(format!(
                "{}: a crate without a place in the order",
                file.path
            ));
            continue;
        };
        let manifest: toml::Table = match file.text.parse() {
            Ok(manifest) => manifest,
            Err(e) => {
                complaints.push(format!("{}: {e}", file.path));
                continue;
            }
        };
        let needs = own_dependencies(&manifest);
        let wrong = needs
            .iter()
            .filter(|n| *n != name && !allowed.contains(&n.as_str()));
        complaints.extend(wrong.map(|n| format!("{}: {name} must not depend on {n}", file.path)));
    }
    complaints
}

/// Returns this workspace's crates in all dependency tables of a manifest, including the tables of
/// targets.
fn own_dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (section, value) in manifest {
        let Some(table) = value.as_table() else {
            continue;
        };
        if section.ends_with("dependencies") {
            let own = table.keys().filter_map(|k| k.strip_prefix("bimetal-"));
            found.extend(own.map(str::to_owned));
        } else if section == "target" {
            for target in table.values().filter_map(|v| v.as_table()) {
                found.extend(own_dependencies(target));
            }
        }
    }
    found
}

/// Complains if Cargo.lock names 150 packages or more.
pub fn few_packages(tree: &Tree) -> Vec<Complaint> {
    let lock = tree.files.iter().find(|f| f.path == "Cargo.lock");
    let count = lock.map_or(0, |f| {
        f.text.lines().filter(|l| *l == "[[package]]").count()
    });
    (count >= 150)
        .then(|| format!("Cargo.lock: {count} packages"))
        .into_iter()
        .collect()
}

/// Complains about a layer or medium without a page: for every file or folder
/// `crates/block/src/layers/NAME` or `crates/block/src/media/NAME` there must be a page `NAME.md`
/// or `NAMEs.md` somewhere under `docs/`, with `-` for `_`.
///
/// A folder counts once, by its name; `mod.rs` and `tests.rs` are not layers.
pub fn documented_layers(tree: &Tree) -> Vec<Complaint> {
    let pages: BTreeSet<&str> = tree
        .markdown()
        .filter(|f| f.path.starts_with("docs/"))
        .filter_map(|f| f.path.rsplit('/').next())
        .collect();
    let mut wanted = BTreeSet::new();
    for file in tree.rust() {
        let place = ["crates/block/src/layers/", "crates/block/src/media/"];
        let Some(rest) = place.iter().find_map(|p| file.path.strip_prefix(p)) else {
            continue;
        };
        let name = rest
            .split('/')
            .next()
            .unwrap_or(rest)
            .trim_end_matches(".rs");
        if !matches!(name, "mod" | "tests") {
            wanted.insert(name.replace('_', "-"));
        }
    }
    let found = |n: &str| {
        ["", "s"]
            .iter()
            .any(|s| pages.contains(format!("{n}{s}.md").as_str()))
    };
    let missing = wanted.iter().filter(|name| !found(name));
    missing
        .map(|name| format!("docs/**/{name}.md: missing, its source is there"))
        .collect()
}

/// Complains about a test file that no test program includes. If a package has one test program
/// (`tests/main.rs`), every file directly under its `tests/` must be a module of that program, or
/// be named as a program in the manifest: cargo discovers no tests there by itself, so tests in any
/// other file would never run.
pub fn tests_run(tree: &Tree) -> Vec<Complaint> {
    let text_of = |path: &str| tree.files.iter().find(|f| f.path == path).map(|f| &f.text);
    let mut complaints = Vec::new();
    for file in &tree.files {
        let Some((package, name)) = file
            .path
            .strip_suffix(".rs")
            .and_then(|path| path.rsplit_once("/tests/"))
        else {
            continue;
        };
        let Some(main) = text_of(&format!("{package}/tests/main.rs")) else {
            continue;
        };
        let manifest = text_of(&format!("{package}/Cargo.toml"));
        let is_program =
            manifest.is_some_and(|m| m.contains(&format!("[[test]]\nname = \"{name}\"")));
        let is_module = main.lines().any(|line| line == format!("mod {name};"));
        if !(name == "main" || name.contains('/') || is_program || is_module) {
            complaints.push(format!("{}: in no test program", file.path));
        }
    }
    complaints
}

/// Words that say nothing about the subject of a file: each subject has a name in the field.
const EMPTY_WORDS: &[&str] = &["manager", "handler", "helper", "helpers", "util", "utils"];

/// Complains about a file, folder or module whose name contains an empty word.
pub fn names(tree: &Tree) -> Vec<Complaint> {
    let empty = |name: &str| {
        name.split(['_', '-', '.'])
            .any(|part| EMPTY_WORDS.contains(&part))
    };
    let mut complaints = Vec::new();
    for file in &tree.files {
        if file.path.split('/').any(empty) {
            complaints.push(format!("{}: name it for what it does", file.path));
        }
        let code = code_only(&file.text);
        let modules = code.lines().filter_map(|l| {
            let (_, rest) = l.trim_start().split_once("mod ")?;
            let name = rest
                .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next()?;
            (file.path.ends_with(".rs") && empty(name)).then_some(name)
        });
        complaints.extend(modules.map(|m| format!("{}: module {m}", file.path)));
    }
    complaints
}
