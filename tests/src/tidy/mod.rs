//! The tree's own rules: each is a function that takes a tree of files and returns the places that
//! break the rule.
//!
//! A rule is worth having only if it can fail, so every rule has a unit test with a sample that
//! breaks the rule and one that does not. `tests/tests/tidy.rs` runs all rules on the tree itself.

mod crates;
mod imports;
mod layout;
mod pages;
mod prose;
mod source;
mod terms;
#[cfg(test)]
mod tests;

pub use crates::crate_direction;
pub use imports::{no_import_cycles, rooms_in_order};
pub use layout::{documented_layers, few_packages, names, tests_run};
pub use pages::{code_blocks_end, links_resolve, toml_examples_parse};
pub use prose::prose_columns;
pub use source::{
    ascii_only, banned_calls, file_length, local_paths, module_head, reasoned_ignore, unsafe_places,
};
pub use terms::old_terms;

use std::path::Path;

/// A text file of the tree.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the root of the repository, with `/` as separator.
    pub path: String,
    /// Content of the file.
    pub text: String,
}

/// The text files of a tree.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files, in no particular order.
    pub files: Vec<File>,
}

/// Description of one place that breaks a rule.
pub type Complaint = String;

/// Function that returns the places in a tree that break a rule.
pub type Rule = fn(&Tree) -> Vec<Complaint>;

/// All rules, each with the name under which it is reported.
pub const RULES: &[(&str, Rule)] = &[
    (
        "crates depend downwards only, as ARCHITECTURE.md lists",
        crate_direction,
    ),
    ("no modules of a folder import each other", no_import_cycles),
    ("no room imports a higher one", rooms_in_order),
    ("the dependency tree stays under 165 packages", few_packages),
    ("every layer and medium has its page", documented_layers),
    ("files and modules are named for what they are", names),
    ("every file of tests is in a test program", tests_run),
    (
        "a file passes 800 lines only if it has two subjects",
        file_length,
    ),
    ("source is ASCII", ascii_only),
    ("a line of prose has at most 100 columns", prose_columns),
    ("the words are those of docs/glossary.md", old_terms),
    ("every file says why it exists", module_head),
    (
        "clock, sleep, hash maps and leftovers stay out",
        banned_calls,
    ),
    (
        "unsafe code stays where the runtime and the C library need it",
        unsafe_places,
    ),
    ("an ignored test has a reason", reasoned_ignore),
    ("no path of somebody's machine", local_paths),
    ("code blocks in pages begin and end", code_blocks_end),
    ("links in pages resolve", links_resolve),
    ("configs in pages parse", toml_examples_parse),
];

impl Tree {
    /// Reads the files that git tracks or would track, which excludes build products.
    ///
    /// # Panics
    /// If git cannot list the files.
    pub fn of_repository(root: &Path) -> Self {
        let list = crate::client::Client::new("git")
            // Read the repository even if it belongs to another user than the user who runs the
            // tests.
            .args([
                "-c",
                "safe.directory=*",
                "ls-files",
                "-z",
                "-co",
                "--exclude-standard",
            ])
            .in_dir(root)
            .ok();
        let read = |path: &str| {
            // Skip a file that is deleted but still tracked, and a file that is not text.
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(File {
                path: path.to_owned(),
                text,
            })
        };
        Self {
            files: list
                .stdout
                .split('\0')
                .filter(|p| !p.is_empty())
                .filter_map(read)
                .collect(),
        }
    }

    /// Creates a tree of paths and texts, for the test of a rule.
    pub fn sample(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).into(),
            text: (*text).into(),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }

    /// Returns the Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|f| f.path.ends_with(".rs"))
    }

    /// Returns the Markdown pages.
    pub fn markdown(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|f| f.path.ends_with(".md"))
    }

    /// Returns whether `path` is a file of the tree or a folder with files in it.
    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        path.is_empty()
            || self
                .files
                .iter()
                .any(|f| f.path == path || f.path.starts_with(&folder))
    }
}

/// Returns the numbers, from 1, of the lines of `code` that contain `word` as a whole word.
fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let holds = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part)
        })
    };
    (1..)
        .zip(code.lines())
        .filter(|(_, l)| holds(l))
        .map(|(number, _)| number)
        .collect()
}
