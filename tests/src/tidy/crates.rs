//! The rule about dependencies between the crates of this tree. Only ARCHITECTURE.md lists these
//! dependencies, in a table; the rule compares the table with the manifests.

use std::collections::BTreeSet;

use super::{Complaint, Tree};

/// Page with the table of crates.
const PAGE: &str = "ARCHITECTURE.md";
/// First cells of the heading row of the table of crates.
const HEADING: &str = "| crate | depends on |";

/// A row of the table of crates.
struct Row<'a> {
    /// Name of the crate, which is also the name of its folder in `crates/`.
    name: &'a str,
    /// Names of the crates in the second cell of the row.
    dependencies: BTreeSet<String>,
}

/// Complains unless the table of crates in ARCHITECTURE.md lists every crate with exactly the
/// crates of this tree that its manifest names, in all dependency sections. Each named crate must
/// be in a row further down. So there is no cycle. A crate of policies cannot depend on a crate
/// that does I/O, and a crate of codecs cannot depend on an executor.
///
/// A package outside of `crates/` (the tests) is allowed to depend on any crate.
pub fn crate_direction(tree: &Tree) -> Vec<Complaint> {
    let page = tree.files.iter().find(|file| file.path == PAGE);
    let rows = page.map_or_else(Vec::new, |page| table(&page.text));
    let mut complaints = upward(&rows);
    let mut unseen: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    for file in &tree.files {
        let name = file.path.strip_prefix("crates/");
        let Some(name) = name.and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        unseen.remove(name);
        let manifest: toml::Table = match file.text.parse() {
            Ok(manifest) => manifest,
            Err(error) => {
                complaints.push(format!("{}: {error}", file.path));
                continue;
            }
        };
        let mut found = own_dependencies(&manifest);
        // A crate can name itself among its dependencies for tests, to enable its own features in
        // the tests. Such a dependency is ignored.
        found.remove(name);
        let row = rows.iter().find(|row| row.name == name);
        if row.is_none_or(|row| row.dependencies != found) {
            let list: Vec<String> = found.iter().map(|name| format!("`{name}`")).collect();
            let path = &file.path;
            complaints.push(format!(
                "{path}: the table in {PAGE} must have the row `{name}` with {}",
                list.join(", ")
            ));
        }
    }
    complaints.extend(unseen.iter().map(|name| format!("{PAGE}: no crate {name}")));
    complaints
}

/// Returns the rows of the table of crates in `page`; none if the page has no such table.
fn table(page: &str) -> Vec<Row<'_>> {
    let lines = page.lines().skip_while(|line| !line.starts_with(HEADING));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|');
        let (name, dependencies) = (cells.next()?, cells.next()?);
        let dependencies = dependencies
            .split(',')
            .map(|name| name.trim().trim_matches('`'));
        let dependencies = dependencies.filter(|name| !name.is_empty());
        Some(Row {
            name: name.trim().trim_matches('`'),
            dependencies: dependencies.map(str::to_owned).collect(),
        })
    })
    .collect()
}

/// Complains about each dependency of a crate whose row, in the table of crates, is not below the
/// row of that crate.
fn upward(rows: &[Row<'_>]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let is_below = |name: &str| rows[at + 1..].iter().any(|row| row.name == name);
        let upward = row.dependencies.iter().filter(|name| !is_below(name));
        let name = row.name;
        complaints.extend(upward.map(|other| {
            format!("{PAGE}: `{name}` depends on `{other}`, which is not in a row below it")
        }));
    }
    complaints
}

/// Returns the crates of this tree that a manifest names in any dependency table, including the
/// tables of targets.
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
