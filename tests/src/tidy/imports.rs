//! Which module of a layer imports which: neighbours in a folder never import each other, not even
//! by way of others, so a folder is read from the top down and can be taken apart.

use std::collections::{BTreeMap, BTreeSet};

use super::{Complaint, Tree};

/// The folder whose modules are held to this.
const ROOT: &str = "crates/block/src/layers/";
/// The same folder as a path of modules.
const ROOT_PATH: [&str; 1] = ["layers"];

type Path = Vec<String>;

/// Modules of the layers that import each other, with one cycle for each group of them. A module
/// and those inside it are one: what a folder is made of may know the folder.
pub fn no_import_cycles(tree: &Tree) -> Vec<Complaint> {
    let files = tree.rust().filter_map(|file| {
        let inside = file.path.strip_prefix(ROOT)?;
        let is_test = inside.contains("/tests/") || inside.ends_with("tests.rs");
        (!is_test).then(|| (module_of(inside), file.text.as_str()))
    });
    let files: Vec<(Path, &str)> = files.collect();
    let modules: BTreeSet<Path> = files.iter().map(|(module, _)| module.clone()).collect();
    // For each folder, which of its parts imports which other one.
    let mut imports: BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, text) in &files {
        for target in imported(module, text, &modules) {
            let same = module.iter().zip(&target).take_while(|(a, b)| a == b);
            let depth = same.count();
            if depth < module.len() && depth < target.len() {
                let folder = imports.entry(module[..depth].to_vec()).or_default();
                let from = folder.entry(module[depth].clone()).or_default();
                from.insert(target[depth].clone());
            }
        }
    }
    let complaint = |(folder, parts): (&Path, &BTreeMap<String, BTreeSet<String>>)| {
        let cycle = cycle_in(parts)?;
        Some(format!("{}: {}", folder.join("::"), cycle.join(" -> ")))
    };
    imports.iter().filter_map(complaint).collect()
}

/// The module of a file of the layers, as a path from the root of its crate.
fn module_of(inside: &str) -> Path {
    let inside = inside.trim_end_matches(".rs");
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    let parts = inside.split('/').filter(|part| *part != "mod");
    ROOT_PATH
        .into_iter()
        .chain(parts)
        .map(str::to_owned)
        .collect()
}

/// The modules of the layers that a module imports.
fn imported(module: &Path, text: &str, modules: &BTreeSet<Path>) -> Vec<Path> {
    let own = text
        .find("#[cfg(test)]\nmod tests {")
        .map_or(text, |end| &text[..end]);
    let mut found = Vec::new();
    for statement in own.split(';') {
        let Some(at) = statement.rfind("use ") else {
            continue;
        };
        let paths = expanded(&statement[at + 4..].split_whitespace().collect::<String>());
        let targets = paths
            .iter()
            .filter_map(|path| target_of(module, path, modules));
        found.extend(targets.filter(|target| target != module));
    }
    found
}

/// The longest path of a module in what is imported; `None` when it is none of the layers.
fn target_of(module: &Path, path: &str, modules: &BTreeSet<Path>) -> Option<Path> {
    let mut parts = path.split("::").peekable();
    let mut base: Path = match *parts.peek()? {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        _ => return None,
    };
    while let Some(part) = parts.next_if(|part| ["crate", "self", "super"].contains(part)) {
        if part == "super" {
            base.pop()?;
        }
    }
    let mut longest = None;
    for part in parts {
        base.push(part.to_owned());
        if modules.contains(&base) {
            longest = Some(base.clone());
        }
    }
    longest
}

/// The paths that an import with braces stands for.
fn expanded(import: &str) -> Vec<String> {
    let Some(open) = import.find('{') else {
        return vec![import.to_owned()];
    };
    let (before, inside) = (&import[..open], import[open + 1..].trim_end_matches('}'));
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth <= 0 => {
                // The last brace of a nested group was taken off with the outer one.
                let item = &inside[start..at];
                let closed = if item.contains('{') && !item.contains('}') {
                    format!("{item}}}")
                } else {
                    item.to_owned()
                };
                paths.extend(expanded(&format!("{before}{closed}")));
                start = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// A cycle among the parts of a folder, if there is one.
fn cycle_in(parts: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    // What imports nothing that is left is taken away, until nothing changes.
    let mut left = parts.clone();
    loop {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, targets| targets.iter().any(|target| names.contains(target)));
        if left.len() == names.len() {
            break;
        }
    }
    let mut at = left.keys().next()?.clone();
    let mut walked = vec![at.clone()];
    loop {
        let next = left[&at].iter().find(|target| left.contains_key(*target));
        at = next.expect("each of them imports one that is left").clone();
        if let Some(first) = walked.iter().position(|name| *name == at) {
            walked.push(at);
            return Some(walked.split_off(first));
        }
        walked.push(at.clone());
    }
}
