//! Which module imports which: neighbours in a folder never import each other, not even by way of
//! others, so a folder is read from the top down and can be taken apart; and a lower room never
//! imports a higher one.

mod modules;
mod rooms;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use super::{Complaint, Tree};
use modules::{Import, Modules};
pub use rooms::rooms_in_order;
#[cfg(test)]
pub use rooms::{Rooms, rooms_of_page, rooms_upwards};

/// The names of modules from the root of a crate.
type Path = Vec<String>;

/// The imports between the parts of one folder: from, to, and where the first of them stands.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

/// Neighbours that import each other and may for now.
pub struct Exception {
    /// The folder, as `crate::module::module`.
    pub folder: &'static str,
    /// All the modules of the circle, sorted.
    pub modules: &'static [&'static str],
    /// The circle in words, and why it is still there.
    pub why: &'static str,
}

/// The circles that are left.
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

/// Neighbours in a folder, in any crate, that import each other. A module and those inside it are
/// one: what a folder is made of may know the folder.
pub fn no_import_cycles(tree: &Tree) -> Vec<Complaint> {
    cycles_except(tree, EXCEPTIONS)
}

/// Circles that are not in `exceptions`, and exceptions that are not needed.
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

/// The crates of the tree that have source.
fn crates_of(tree: &Tree) -> BTreeSet<String> {
    let name = |path: &str| {
        let (name, inside) = path.strip_prefix("crates/")?.split_once('/')?;
        inside.starts_with("src/").then(|| name.to_owned())
    };
    tree.rust().filter_map(|file| name(&file.path)).collect()
}

/// The folders of a crate with the imports between their parts.
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

/// The parts of a folder that reach each other, each group by itself.
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

/// The parts that are reached from `start`; with `start` itself only if it is reached again.
fn reached_from<'a>(edges: &'a Edges, start: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(at) = open.pop() {
        let targets = edges.get(at).into_iter().flat_map(BTreeMap::keys);
        open.extend(targets.filter(|target| reached.insert(*target)));
    }
    reached
}

/// One way around among the parts of a circle, with where each step stands.
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
