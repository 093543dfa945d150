//! The order of rooms. A room is a tier of the modules of a folder: a module in a lower room does
//! not import modules of a higher room.

use std::collections::BTreeSet;

use super::folders;
use super::modules::Modules;
use crate::tidy::{Complaint, Tree};

/// The page that documents the order of rooms.
const PAGE: &str = "ARCHITECTURE.md";

/// The order of the rooms of one folder.
pub struct Rooms {
    /// The folder, as `crate::module::module`.
    pub folder: &'static str,
    /// The rooms (tiers of modules) from the top down, each as the list of its modules.
    pub rooms: &'static [&'static [&'static str]],
}

/// The folders whose modules are divided into rooms.
const ROOMS: &[Rooms] = &[
    Rooms {
        folder: "block",
        rooms: &[
            &["graph"],
            &["layers"],
            &["media"],
            &["disk"],
            &["tap", "document"],
            &["range_lock", "range_set", "extent_map", "token_bucket"],
            &[
                "device", "latency", "extents", "units", "geometry", "request", "error",
            ],
        ],
    },
    Rooms {
        folder: "block::layers::mirror",
        rooms: &[
            &[
                "status",
                "operations",
                "changing",
                "converting",
                "growing",
                "rejoin",
                "rebuild",
                "scrub",
                "quiesce",
                "marking",
                "monitor",
                "health",
                "shutdown",
                "rescue",
            ],
            &["read", "write", "flush", "following"],
            &[
                "shared",
                "admission",
                "undecided",
                "flushes",
                "exposure",
                "preference",
                "membership",
            ],
            &["sides", "side", "queue", "work", "out_of_sync", "block_set"],
            &["opening", "formatting", "device_path", "durable"],
            &["volume", "family"],
            &[
                "config",
                "repair",
                "share",
                "scrub_progress",
                "pace",
                "capacity",
                "lifecycle",
            ],
            &["store"],
            &[
                "superblock",
                "digest",
                "written_blocks",
                "planted",
                "lately",
            ],
        ],
    },
];

/// Complains about a module that imports a module of a higher room (tier) of its folder, about a
/// module that is in no room, and about a difference between the table `ROOMS` and ARCHITECTURE.md.
pub fn rooms_in_order(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = rooms_upwards(tree, ROOMS);
    complaints.extend(rooms_of_page(tree, ROOMS));
    complaints
}

/// Complains about imports from a lower room (tier of modules) to a higher one, about modules that
/// are in no room, and about listed modules that do not exist.
pub fn rooms_upwards(tree: &Tree, table: &[Rooms]) -> Vec<Complaint> {
    table
        .iter()
        .flat_map(|order| upwards_in(tree, order))
        .collect()
}

fn upwards_in(tree: &Tree, order: &Rooms) -> Vec<Complaint> {
    let folder = order.folder;
    let mut names = folder.split("::").map(str::to_owned);
    let name = names.next().expect("a folder is of a crate");
    let modules = Modules::of_crate(tree, &name);
    let listed: BTreeSet<String> = order
        .rooms
        .iter()
        .copied()
        .flatten()
        .map(|m| (*m).to_owned())
        .collect();
    let there = modules.parts(&names.collect::<Vec<_>>());
    let mut complaints = Vec::new();
    complaints.extend(
        there
            .difference(&listed)
            .map(|m| format!("{folder}: {m} has no room")),
    );
    complaints.extend(
        listed
            .difference(&there)
            .map(|m| format!("{folder}: {m} has a room and is not there")),
    );
    let room = |module: &str| order.rooms.iter().position(|room| room.contains(&module));
    let edges = folders(&name, &modules.imports())
        .remove(folder)
        .unwrap_or_default();
    for (from, targets) in &edges {
        for (to, place) in targets {
            // A module that is in no room was reported above.
            if let (Some(own), Some(other)) = (room(from), room(to))
                && other < own
            {
                complaints.push(format!(
                    "{place}: {folder}: {from} imports {to} of a higher room"
                ));
            }
        }
    }
    complaints
}

/// Complains about differences between `table` and ARCHITECTURE.md.
///
/// For each folder the page has a line that starts with "Rooms of `FOLDER`", and below it an
/// indented block with a line for each room: its modules, separated by commas, then two spaces and
/// the purpose of the room.
pub fn rooms_of_page(tree: &Tree, table: &[Rooms]) -> Vec<Complaint> {
    let page = tree.files.iter().find(|file| file.path == PAGE);
    let text = page.map_or("", |file| &file.text);
    let wrong = table.iter().filter(|order| {
        let told = told_rooms(text, order.folder);
        let same = |room: &&[&str], told: &Vec<String>| {
            room.iter().copied().eq(told.iter().map(String::as_str))
        };
        let all = order
            .rooms
            .iter()
            .zip(&told)
            .all(|(room, told)| same(room, told));
        told.len() != order.rooms.len() || !all
    });
    wrong
        .map(|order| {
            format!(
                "{PAGE}: its rooms of {} are not those of the table",
                order.folder
            )
        })
        .collect()
}

/// Parses the text of ARCHITECTURE.md. Returns the tiers of modules (rooms) that the text lists for
/// a folder, the top tier first.
fn told_rooms(text: &str, folder: &str) -> Vec<Vec<String>> {
    let head = format!("Rooms of `{folder}`");
    let behind = text
        .lines()
        .skip_while(|line| !line.starts_with(&head))
        .skip(1);
    let block = behind
        .skip_while(|line| !line.starts_with("    "))
        .take_while(|line| line.starts_with("    "));
    let mut rooms: Vec<Vec<String>> = Vec::new();
    for line in block {
        let modules = line.trim_start().split("  ").next().unwrap_or_default();
        let modules = modules
            .split(',')
            .map(|m| m.trim().to_owned())
            .filter(|m| !m.is_empty());
        // A list that ends with a comma continues in the next line.
        let goes_on = rooms
            .last()
            .is_some_and(|room| room.last().is_some_and(String::is_empty));
        if goes_on {
            let room = rooms.last_mut().expect("a line before this one");
            room.pop();
            room.extend(modules);
        } else {
            rooms.push(modules.collect());
        }
        if line.trim_end().ends_with(',') {
            rooms
                .last_mut()
                .expect("the room of this line")
                .push(String::new());
        }
    }
    rooms
}
