//! Facts from the superblocks of a volume: its unfinished operations, and the differences between
//! its sides and the sides in the configuration.

use anyhow::Result;
use bimetal_block::graph::{Graph, Node};
use bimetal_block::layers::mirror::sides_line;
use bimetal_block::layers::mirror::superblock::{
    Leaving, SideState, Superblock, Table, place_in, short_uuid,
};
use serde_json::json;

use super::{AllFacts, superblock_of};

/// State of a side in the configuration that is not, or no longer, a side of the volume.
const UNLISTED: &str = "not in the volume";

/// Adds the unfinished operations of each volume to the facts of its mirror, and marks configured
/// sides that are not in the volume. All devices must have been inspected before.
///
/// # Errors
/// If the superblocks of a side cannot be read.
pub(super) fn tell(graph: &Graph, all: &mut AllFacts) -> Result<()> {
    for (name, node) in graph.nodes() {
        let Node::Mirror(config) = node else { continue };
        let mut named = Vec::new();
        for side in &config.sides {
            if let Some(found) = superblock_of(graph, side, all)? {
                named.push((side.clone(), found));
            }
        }
        let last_acknowledged = |found: &&Superblock| {
            let epoch = found.history.current().number;
            (epoch, found.remembered.revision)
        };
        let heard = named.iter().map(|(_, found)| found);
        let heard = heard.filter(|found| found.state != SideState::Inconsistent);
        let Some(newest) = heard.max_by_key(last_acknowledged).cloned() else {
            continue;
        };
        let unlisted = named.iter().filter(|(_, found)| {
            let is_of_volume = found.volume == newest.volume && !found.awaits_formatting();
            is_of_volume && place_in(&newest.table, &found.side).is_none()
        });
        for (side, found) in unlisted {
            let more = &mut all.get_mut(side).expect("every device has facts").more;
            more.insert("state".into(), json!(UNLISTED));
            if !newest.remembered.has_left(&found.side) {
                let next = format!(
                    "`bimetal serve FILE --rebuild {side}` makes it a side again; otherwise remove \
                    it from `sides`"
                );
                more.insert("next".into(), json!(next));
            }
        }
        let names = names_of(graph, &newest, &named, all);
        if let Some(sentence) = sentence(name, &newest, &names, &config.sides) {
            let more = &mut all.get_mut(name).expect("every device has facts").more;
            more.insert("operations".into(), json!(sentence));
        }
    }
    Ok(())
}

/// Returns the names of the volume's sides by their index. If the configuration does not list a
/// side, its name is the name of the device on which it is found, provided that no mirror uses this
/// device. If there is no such device, its name is the short form of its UUID.
fn names_of(
    graph: &Graph,
    newest: &Superblock,
    named: &[(String, Superblock)],
    all: &AllFacts,
) -> Vec<Option<String>> {
    let unused = graph.roots().into_iter().filter(|root| {
        let below = graph.below(root);
        !below
            .iter()
            .any(|name| matches!(graph.nodes()[*name], Node::Mirror(_)))
    });
    // A device that cannot be read is ignored.
    let held = unused.filter_map(|root| {
        let found = superblock_of(graph, root, all).ok()??;
        Some((root.to_owned(), found))
    });
    let held: Vec<(String, Superblock)> = held.collect();
    let sides: &Table = &newest.table;
    let name = |side| {
        let mut all = named.iter().chain(&held);
        let found = all.find(|(_, found)| found.side == side);
        found.map_or_else(|| short_uuid(&side), |(name, _)| name.clone())
    };
    let names = sides.iter().map(|listed| Some(name((*listed)?.side)));
    names.collect()
}

/// Returns a sentence for the operator. It lists the operations that the next start resumes, and
/// the line to write into the configuration. Returns `None` if there are no such operations and the
/// configuration needs no change.
fn sentence(
    mirror: &str,
    newest: &Superblock,
    names: &[Option<String>],
    configured: &[String],
) -> Option<String> {
    let remembered = &newest.remembered;
    let (mut operations, mut staying) = (Vec::new(), Vec::new());
    for (place, name) in names.iter().enumerate() {
        let Some(name) = name else { continue };
        match remembered.leaving(place) {
            None => staying.push(name.clone()),
            Some(Leaving::Now) => operations.push(format!("remove {name}")),
            Some(Leaving::OnceComplete(new)) => {
                let new = names[new].as_deref().unwrap_or("?");
                operations.push(format!("replace {name} by {new}"));
            }
        }
        if let Some(kind) = remembered.converted_to(place) {
            operations.push(format!("convert {name} to layout {}", kind.name()));
        }
        let is_member = newest.history.current().has_member(place);
        let replaces = remembered.replaced_by(place).is_some();
        if remembered.is_added(place) && !is_member && !replaces {
            operations.push(format!("add {name}"));
        }
    }
    if remembered.scrub.is_some() {
        operations.push("scrub".to_owned());
    }
    let concerned = (0..names.len()).any(|place| remembered.concerns(place));
    let names_all = staying.iter().all(|name| configured.contains(name));
    let agree = names_all && staying.len() == configured.len();
    let differ = !agree && (concerned || remembered.left_count() > 0);
    let goes_on = (!operations.is_empty())
        .then(|| format!("the next `serve` resumes: {}", operations.join(", ")));
    let write = differ.then(|| format!("write into [device.{mirror}]: {}", sides_line(&staying)));
    let parts: Vec<String> = goes_on.into_iter().chain(write).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
