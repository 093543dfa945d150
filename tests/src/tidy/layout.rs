//! Rules about the shape of the tree: dependencies between crates, test programs, pages and names.

use super::{Complaint, Tree};
use crate::rust_text::code_only;
use std::collections::BTreeSet;

/// Complains if Cargo.lock names 165 packages or more.
pub fn few_packages(tree: &Tree) -> Vec<Complaint> {
    let lock = tree.files.iter().find(|f| f.path == "Cargo.lock");
    let count = lock.map_or(0, |f| {
        f.text.lines().filter(|l| *l == "[[package]]").count()
    });
    (count >= 165)
        .then(|| format!("Cargo.lock: {count} packages"))
        .into_iter()
        .collect()
}

/// Complains about a layer or medium without a page. For every file or folder
/// `crates/block/src/layers/NAME` or `crates/block/src/media/NAME` there must be a page `NAME.md`
/// or `NAMEs.md` under `docs/`, in which `-` replaces `_`.
///
/// A folder with several files needs only one page, which has the name of the folder. The files
/// `mod.rs` and `tests.rs` are not layers.
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

/// Complains about a test file that no test program includes. If a package has the test program
/// `tests/main.rs`, every other file directly in `tests/` must be a module of that program or be
/// named as a program in the manifest. Cargo does not discover tests in such a package by itself,
/// so tests in any other file would never run.
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

/// Words that a name must not contain, because they do not say what a file is about. A file is
/// named with the technical term for its subject instead.
const EMPTY_WORDS: &[&str] = &["manager", "handler", "helper", "helpers", "util", "utils"];

/// Complains about a file, folder or module whose name contains a word of `EMPTY_WORDS`.
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
