//! Rules about imports between modules. Modules of one folder never import each other in a cycle,
//! not even through other modules, so that a folder can be read from the top down, and its modules
//! can be separated. A module in a lower room (a tier of the modules of a folder) never imports a
//! module of a higher room.

mod modules;
mod rooms;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use super::{Complaint, Tree};
use modules::{Import, Modules};
pub use rooms::rooms_in_order;
#[cfg(test)]
pub use rooms::{Rooms, rooms_of_page, rooms_upwards};

/// Names of the modules on the way from the root of a crate to a module.
type Path = Vec<String>;

/// Imports between the parts of one folder: for each importing part and each imported part, the
/// place of the first such import.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

/// A cycle of imports that is allowed for now.
pub struct Exception {
    /// The folder, as `crate::module::module`.
    pub folder: &'static str,
    /// All modules of the cycle, sorted.
    pub modules: &'static [&'static str],
    /// Description of the import cycle, and the reason why it still exists.
    pub why: &'static str,
}

/// The import cycles that still exist and are allowed.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        folder: "rt",
        modules: &[
            "awake",
            "buf",
            "executor",
            "mailbox",
            "net",
            "real_time",
            "sync",
            "thread",
            "turn",
        ],
        why: "the handle that tasks are given (`executor::Rt`) starts the drivers, streams and threads, all of which take that handle",
    },
    Exception {
        folder: "rt::real_time",
        modules: &["file", "message", "op"],
        why: "an operation keeps the memory of messages, and messages and files count and gather as operations do",
    },
    Exception {
        folder: "sim::tester",
        modules: &[
            "ambush",
            "changing",
            "client",
            "corruption",
            "disk",
            "extras",
            "plant",
            "probes",
            "report",
            "scenario",
            "stack",
            "world",
        ],
        why: "a scenario names the settings of ambushes, disks and changes, which are where the world does them, and it reads the scenario",
    },
];

/// Complains about modules of one folder, in any crate, that import each other in a cycle. A module
/// and the modules inside it are treated as one part, so a part of a folder is allowed to import
/// the folder.
pub fn no_import_cycles(tree: &Tree) -> Vec<Complaint> {
    cycles_except(tree, EXCEPTIONS)
}

/// Complains about import cycles that are not in `exceptions`, and about exceptions for cycles that
/// do not exist.
pub fn cycles_except(tree: &Tree, exceptions: &[Exception]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut needed = BTreeSet::new();
    for name in crates_of(tree) {
        for (folder, edges) in folders(&name, &Modules::of_crate(tree, &name).imports()) {
            for circle in circles(&edges) {
                let same = |e: &Exception| {
                    e.folder == folder
                        && circle
                            .iter()
                            .map(String::as_str)
                            .eq(e.modules.iter().copied())
                };
                match exceptions.iter().position(same) {
                    Some(known) => _ = needed.insert(known),
                    None => complaints.push(format!("{folder}: {}", walk(&edges, &circle))),
                }
            }
        }
    }
    let left = (0..).zip(exceptions).filter(|(at, _)| !needed.contains(at));
    complaints.extend(left.map(|(_, e)| {
        let modules = e.modules.join(", ");
        format!(
            "{}: {modules} make no circle, so they need no exception: {}",
            e.folder, e.why
        )
    }));
    complaints
}

/// Returns the crates of the tree that have source files.
fn crates_of(tree: &Tree) -> BTreeSet<String> {
    let name = |path: &str| {
        let (name, inside) = path.strip_prefix("crates/")?.split_once('/')?;
        inside.starts_with("src/").then(|| name.to_owned())
    };
    tree.rust().filter_map(|file| name(&file.path)).collect()
}

/// Returns the folders of a crate with the imports between their parts.
fn folders(name: &str, imports: &[Import]) -> BTreeMap<String, Edges> {
    let mut found: BTreeMap<String, Edges> = BTreeMap::new();
    for Import { from, to, place } in imports {
        let same = from.iter().zip(to).take_while(|(a, b)| a == b);
        let depth = same.count();
        let folder: Vec<&str> = [name]
            .into_iter()
            .chain(from[..depth].iter().map(String::as_str))
            .collect();
        let edges = found.entry(folder.join("::")).or_default();
        let targets = edges.entry(from[depth].clone()).or_default();
        targets
            .entry(to[depth].clone())
            .or_insert_with(|| place.clone());
    }
    found
}

/// Returns the cycles of a folder. A cycle is a group of parts that import each other, directly or
/// through other parts.
fn circles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = edges
        .keys()
        .map(|part| (part, reached_from(edges, part)))
        .collect();
    let mut found = BTreeSet::new();
    for (part, there) in &reached {
        if there.contains(part) {
            let back = |other: &&&String| reached.get(**other).is_some_and(|r| r.contains(part));
            found.insert(there.iter().filter(back).map(|p| (*p).clone()).collect());
        }
    }
    found.into_iter().collect()
}

/// Returns the parts that `start` imports, directly or through other parts. `start` itself is among
/// them only if it is in a cycle.
fn reached_from<'a>(edges: &'a Edges, start: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(at) = open.pop() {
        let targets = edges.get(at).into_iter().flat_map(BTreeMap::keys);
        open.extend(targets.filter(|target| reached.insert(*target)));
    }
    reached
}

/// Returns one path around a cycle as text, with the place of each import on the path.
fn walk(edges: &Edges, circle: &BTreeSet<String>) -> String {
    let mut walked: Vec<(&String, &str)> = Vec::new();
    let mut at = circle.first().expect("a circle has parts");
    loop {
        if let Some(first) = walked.iter().position(|(part, _)| *part == at) {
            let steps = walked[first..].iter();
            let steps: Vec<String> = steps
                .map(|(part, place)| format!("{part} ({place})"))
                .collect();
            return format!("{} -> {at}", steps.join(" -> "));
        }
        let mut targets = edges[at].iter();
        let (next, place) = targets
            .find(|(target, _)| circle.contains(*target))
            .expect("each part imports another one");
        walked.push((at, place));
        at = next;
    }
}
