//! The rule about dependencies between the crates of this tree. ARCHITECTURE.md has the only list
//! of them, a table; this rule compares the list with the manifests.

use std::collections::BTreeSet;

use super::{Complaint, Tree};

/// Page with the table of crates.
const PAGE: &str = "ARCHITECTURE.md";
/// First cells of the heading of the table.
const HEADING: &str = "| crate | depends on |";

/// A row of the table.
struct Row<'a> {
    /// Name of the crate, which is that of its folder in `crates/`.
    name: &'a str,
    /// Names of the crates in its second cell.
    dependencies: BTreeSet<String>,
}

/// The table of crates in ARCHITECTURE.md lists every crate with exactly the crates of this tree
/// that its manifest names, in all dependency sections. Each of them is in a row further down, so
/// there is no cycle, and a policy can never do I/O nor a codec need an executor.
///
/// A package outside `crates/` (the tests) may depend on anything.
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
        // Its own name, in dependencies for tests, only switches features on.
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

/// Returns the rows of the table of crates in `page`; none if there is no such table.
fn table(page: &str) -> Vec<Row<'_>> {
    let lines = page.lines().skip_while(|line| !line.starts_with(HEADING));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &'_ str| -> Option<(usize, usize)> {
        let second = line[1..].find('|')? + 1;
        let third = line[second + 1..].find('|')? + second + 1;
        Some((second, third))
    };
    rows.filter_map(|line| {
        let (second, third) = row(line)?;
        let dependencies = line[second + 1..third].split(',').map(str::trim);
        let dependencies = dependencies.map(|name| name.trim_matches('`').to_owned());
        Some(Row {
            name: line[1..second].trim().trim_matches('`'),
            dependencies: dependencies.filter(|name| !name.is_empty()).collect(),
        })
    })
    .collect()
}

/// Complains about each dependency that is not in a row further down than its crate.
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

/// The crates of ours in all dependency tables of a manifest, those of targets included.
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
