//! Facts about devices that can be determined without opening the devices: their sizes, and the
//! content of the superblocks of sides. This module only reads, even while a server uses the same
//! files.

mod remembered;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use bimetal_block::disk::{System, signature};
use bimetal_block::graph::{Graph, Node, leaves, signatures_in_file};
use bimetal_block::layers::adopted::{self, AdoptedConfig, On};
use bimetal_block::layers::mirror::superblock::{self, SideState, Superblock, show_uuid};
use bimetal_block::layers::mirror::{self, MirrorConfig};
use bimetal_block::layers::stripe;
use bimetal_block::media::file::FileConfig;
use bimetal_block::{BLOCK_BYTES, Geometry};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::exposure;

/// Facts about one device.
#[derive(Default)]
pub(crate) struct Facts {
    /// Size of the device, if it can be determined.
    pub(crate) size_bytes: Option<u64>,
    /// Geometry without the kernel's limits on requests. It is known for inspected media, and for
    /// layers that pass requests on to an inspected medium.
    geometry: Option<Geometry>,
    /// Other facts by their names, in the order in which they are shown.
    pub(crate) more: Map<String, Value>,
}

/// The facts of every device, by name.
pub(crate) type AllFacts = BTreeMap<String, Facts>;

/// Inspects all devices, each after the devices below it.
///
/// # Errors
/// The first device that cannot be used or that appears twice in a stack, or the first side that
/// belongs to another volume.
pub(crate) fn find(config: &Config) -> Result<AllFacts> {
    let mut all = AllFacts::new();
    let used = used(config);
    let place = |error| anyhow!("{}: {error}", config.path.display());
    // A device must not appear twice in a group of devices that are opened together. The exported
    // devices are one group, and each root device with the devices below it is another group.
    let exported: Vec<&str> = config.exports.iter().map(|e| e.device.as_str()).collect();
    let roots = config.graph.roots();
    let together = roots
        .iter()
        .map(std::slice::from_ref)
        .chain([&exported[..]]);
    for roots in together {
        let distinct = config.graph.check_distinct(roots, &System::default());
        distinct.map_err(place)?;
    }
    for name in config.graph.order() {
        let facts = of_device(&config.graph, name, used.contains(name.as_str()), &mut all)
            .with_context(|| format!("{}: device {name}", config.path.display()))?;
        all.insert(name.clone(), facts);
    }
    remembered::tell(&config.graph, &mut all)?;
    for export in &config.exports {
        if let Some(geometry) = &all[&export.device].geometry {
            let whole = geometry.check_whole();
            whole.map_err(|error| place(error.of(&export.device)))?;
        }
    }
    Ok(all)
}

/// Returns the devices that the exports use. If the configuration has no exports, returns all
/// devices, because any of them can be attached or mounted by its name.
fn used(config: &Config) -> BTreeSet<&str> {
    let graph = &config.graph;
    if config.exports.is_empty() {
        return graph.nodes().keys().map(String::as_str).collect();
    }
    let devices = config.exports.iter().map(|export| &export.device);
    devices.flat_map(|device| graph.below(device)).collect()
}

/// State of a device that is not in use and whose file does not exist, such as a side that
/// `side add` will add later.
const MISSING: &str = "missing";

fn of_device(graph: &Graph, name: &str, is_used: bool, all: &mut AllFacts) -> Result<Facts> {
    let mut facts = Facts::default();
    match &graph.nodes()[name] {
        Node::File(file) => {
            if !is_used && matches!(file.path.try_exists(), Ok(false)) {
                let how = match file.size {
                    Some(_) => "`bimetal format` or `side add` creates it",
                    None => "create it, or give it a `size`",
                };
                let next = format!("its file does not exist, and no export uses the device; {how}");
                facts.more.insert("path".into(), json!(file.path));
                facts.more.insert("state".into(), json!(MISSING));
                facts.more.insert("next".into(), json!(next));
                return Ok(facts);
            }
            facts = of_file(file).map_err(|error| match file.size {
                Some(_) if !file.path.exists() => {
                    error.context("`bimetal format` creates missing files")
                }
                _ => error,
            })?;
        }
        Node::Memory(memory) => facts.size_bytes = Some(memory.size.0),
        Node::Null(null) => facts.size_bytes = Some(null.size.0),
        Node::Mirror(mirror) => facts = of_mirror(graph, mirror, all)?,
        Node::Stripe(stripe) => {
            let sizes = stripe.devices.iter().map(|child| all[child].size_bytes);
            let smallest = sizes.min().flatten();
            let unit = stripe.unit.0;
            let whole_units = |bytes: u64| (bytes - bytes % unit) * stripe.devices.len() as u64;
            facts.size_bytes = smallest.map(whole_units);
        }
        Node::Adopted(config) => {
            if let Some(geometry) = &all[&config.data].geometry {
                let whole = geometry.check_whole();
                whole.map_err(|error| anyhow!("its data device {}", error.message))?;
            }
            let layout = adopted_layout(config, all)?;
            facts.size_bytes = layout.map(|layout| layout.size_bytes());
        }
        node => {
            // A layer with one device below it has the size of that device.
            if let [below] = node.children()[..] {
                facts.size_bytes = all[below].size_bytes;
                facts.geometry = all[below].geometry;
            }
        }
    }
    Ok(facts)
}

/// Returns the facts of a mirror, and adds facts from the superblocks to the facts of its sides.
fn of_mirror(graph: &Graph, config: &MirrorConfig, all: &mut AllFacts) -> Result<Facts> {
    let sides = &config.sides;
    let mut facts = Facts::default();
    let mut found = Vec::new();
    let (mut not_formatted, mut not_seen) = (Vec::new(), Vec::new());
    for side in sides {
        match superblock_of(graph, side, all)? {
            Some(superblock) => found.push((side, superblock)),
            None if is_remote(graph, side) => not_seen.push(side.as_str()),
            None => not_formatted.push(side.as_str()),
        }
    }
    if let Some((first, of_first)) = found.first() {
        if let Some((side, other)) = found.iter().find(|(_, s)| s.volume != of_first.volume) {
            bail!(
                "side {side} belongs to volume {} (\"{}\"), not to that of side {first}",
                show_uuid(&other.volume),
                other.name
            );
        }
        facts.size_bytes = Some(of_first.volume_bytes);
        let volume = show_uuid(&of_first.volume);
        facts.more.insert("volume".into(), json!(volume));
    }
    let of_found = volume_state(&found);
    let state = match of_found {
        _ if !not_formatted.is_empty() => NOT_FORMATTED,
        // A side that could not be inspected can have a newer state than the inspected sides. So
        // the state found is reported only in two cases: all sides were inspected, or the inspected
        // sides already show that the volume is `ACTIVE`.
        known if not_seen.is_empty() || known == ACTIVE && !found.is_empty() => known,
        _ => "unknown",
    };
    for (key, sides) in [("not_formatted", not_formatted), ("not_seen", not_seen)] {
        if !sides.is_empty() {
            facts.more.insert(key.into(), json!(sides));
        }
    }
    facts.more.insert("state".into(), json!(state));
    let next = what_comes_next(state).map(str::to_owned);
    let refused = (state == NOT_FORMATTED).then(|| what_is_lost(graph, sides, all));
    if let Some(next) = next.or(refused.flatten()) {
        facts.more.insert("next".into(), json!(next));
    }
    let logs = found.iter().map(|(_, superblock)| superblock.layout.log.1);
    let by_logs = logs.map(mirror::exposure_bytes_max_of_log).min();
    if let Some(line) = by_logs.and_then(|by_logs| exposure::reduced(config, by_logs)) {
        facts.more.insert("exposure".into(), json!(line));
    }
    for (side, superblock) in &found {
        let whole = is_newest(superblock, &found) && superblock.state == SideState::Clean;
        let place = data_place(graph, side, superblock, all);
        let place = place.map(|(path, offset)| (path.to_owned(), offset));
        let of_side = &mut all.get_mut(*side).expect("children come first").more;
        let of_place = place.as_ref().map(|place| place.1);
        let data_offset = of_place.or(superblock.layout.home_offset());
        if let Some((path, _)) = place {
            of_side.insert("data_path".into(), json!(path));
        }
        match data_offset {
            Some(offset) => of_side.insert("data_offset_bytes".into(), json!(offset)),
            // Only bimetal can read the volume from this side.
            None => of_side.insert("layout".into(), json!("log")),
        };
        let state = match of_found {
            _ if superblock.state == SideState::Inconsistent => "being rebuilt",
            SPLIT | ACTIVE => of_found,
            _ if whole => "clean",
            _ => "out of sync",
        };
        of_side.insert("state".into(), json!(state));
        let epoch = superblock.history.current().number;
        of_side.insert("epoch".into(), json!(epoch));
        of_side.insert("digest".into(), json!(superblock.digest.name()));
        of_side.insert("side".into(), json!(show_uuid(&superblock.side)));
    }
    Ok(facts)
}

/// Replaces states from superblocks by the states that the running server reports for its volumes:
/// from its superblocks alone, a volume in use looks like a volume that was not stopped cleanly.
/// `status` is the server's answer to the verb `status`; `None` if no server answers.
pub(crate) fn hear_server(config: &Config, status: Option<&Value>, all: &mut AllFacts) {
    let graph = &config.graph;
    let active = |facts: &Facts| facts.more.get("state") == Some(&json!(ACTIVE));
    for (name, node) in graph.nodes() {
        let Node::Mirror(mirror) = node else { continue };
        if !all.get(name).is_some_and(active) {
            continue;
        }
        let of_server = status.map(|status| &status["devices"][name.as_str()]);
        let served = of_server.filter(|device| device.is_object());
        let (state, next) = match (served, status) {
            (Some(device), Some(status)) => {
                let state = device["statistics"]["state"].as_str().unwrap_or("open");
                let pid = &status["pid"];
                let next = format!(
                    "the server with pid {pid} serves it; `bimetal status` shows its state"
                );
                (format!("in use, {state}"), next)
            }
            _ => {
                let next = what_comes_next(ACTIVE).unwrap_or_default();
                let control = config.server.control.display();
                let heard = match status {
                    Some(_) => format!("the server at {control} does not serve it"),
                    None => format!("no server answers at {control}"),
                };
                (ACTIVE.to_owned(), format!("{heard}; {next}"))
            }
        };
        let facts = all.get_mut(name).expect("every device has facts");
        facts.more.insert("state".into(), json!(state));
        facts.more.insert("next".into(), json!(next));
        let Some(device) = served else { continue };
        for side in &mirror.sides {
            let facts = all.get_mut(side).expect("every device has facts");
            let health = device["parts"][side.as_str()]["health"].as_str();
            if active(facts)
                && let Some(health) = health
            {
                facts
                    .more
                    .insert("state".into(), json!(format!("in use, {health}")));
            }
        }
    }
}

/// Returns true if a volume is in use or was not stopped cleanly, according to its superblocks. The
/// superblocks look the same in both cases. Only a server can tell which of the two is the case.
pub(crate) fn any_active(all: &AllFacts) -> bool {
    let active = |facts: &Facts| facts.more.get("state") == Some(&json!(ACTIVE));
    all.values().any(active)
}
/// Returns a message that names the content that `format` refuses to overwrite, on the media of the
/// sides. Returns `None` if there is no such content.
fn what_is_lost(graph: &Graph, sides: &[String], all: &AllFacts) -> Option<String> {
    let media = sides
        .iter()
        .flat_map(|side| leaves(graph, side, Some(side)));
    let held = media.filter_map(|name| {
        let formats = all[name].more.get("holds")?.as_str()?;
        Some(format!("{name} holds {formats}"))
    });
    let held: Vec<String> = held.collect();
    (!held.is_empty()).then(|| {
        let held = held.join(", ");
        format!("`bimetal format` refuses it without --force: {held}, which would be lost")
    })
}

/// State of a mirror that has a side without a superblock.
const NOT_FORMATTED: &str = "not formatted";

/// State of a volume that is in use or was not stopped cleanly. The superblocks do not show which
/// of the two is the case.
const ACTIVE: &str = "in use or not cleanly stopped";

/// State of a volume with diverged sides (split brain): each of them has accepted writes without
/// the other.
const SPLIT: &str = "split";

/// State of a cleanly stopped volume with out-of-sync sides. It can be opened from its newest sides
/// alone.
const OUT_OF_SYNC_SIDES: &str = "clean, with out-of-sync sides";

/// Returns an explanation for the operator of how `serve` will treat a volume in this state; `None`
/// for a state that needs none.
fn what_comes_next(state: &str) -> Option<&'static str> {
    match state {
        ACTIVE => Some(
            "if no server is running, the last one was killed or lost power; `bimetal serve` \
            recovers all flushed data",
        ),
        SPLIT => Some(
            "`bimetal serve` refuses it: choose the side to keep, and rebuild the other one with \
            `--rebuild SIDE`",
        ),
        OUT_OF_SYNC_SIDES => Some("`bimetal serve` resynchronizes the out-of-sync sides"),
        _ => None,
    }
}

fn volume_state(found: &[(&String, Superblock)]) -> &'static str {
    let heard = |s: &Superblock| s.state != SideState::Inconsistent;
    if found.iter().any(|(_, s)| heard(s)) && !found.iter().any(|(_, s)| is_newest(s, found)) {
        return SPLIT;
    }
    let clean = |s: &Superblock| s.state == SideState::Clean && is_newest(s, found);
    match found.iter().filter(|(_, s)| clean(s)).count() {
        0 => ACTIVE,
        all if all == found.len() => "clean",
        _ => OUT_OF_SYNC_SIDES,
    }
}

/// Returns true if the side with this superblock has the history of all other sides in `found`.
/// Returns false for an out-of-sync side, which lacks writes that other sides have. A side that is
/// being rebuilt is never the newest side, and its history need not be in the newest side.
fn is_newest(superblock: &Superblock, found: &[(&String, Superblock)]) -> bool {
    let heard = found
        .iter()
        .filter(|(_, s)| s.state != SideState::Inconsistent);
    let descends = |s: &Superblock| superblock.history.contains(&s.history.current().id);
    superblock.state != SideState::Inconsistent && heard.into_iter().all(|(_, s)| descends(s))
}

/// Returns the newest superblock on a side; `None` if the side has no superblock or the files of
/// the side are not known.
fn superblock_of(graph: &Graph, side: &str, all: &AllFacts) -> Result<Option<Superblock>> {
    // The superblocks of a side are in its first and in its last block.
    let last = all[side].size_bytes.map(|bytes| bytes - BLOCK_BYTES);
    let offsets = [Some(0), last].into_iter().flatten();
    let places = offsets.filter_map(|offset| place_of(graph, side, offset, all));
    let mut copies = Vec::new();
    for (path, offset) in places {
        let place = || format!("side {side}: {}", path.display());
        let mut file = match File::open(path) {
            // The missing file belongs to a device that no export uses. If a device in use had no
            // file, an error would already have been reported.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(place)?,
        };
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.seek(SeekFrom::Start(offset)).with_context(place)?;
        file.read_exact(&mut block).with_context(place)?;
        copies.push(Ok(block));
    }
    superblock::newest(copies).map_err(|why| anyhow!("side {side}: {why}"))
}

/// Returns true if the first block of a device is on another server. Other servers are not queried.
fn is_remote(graph: &Graph, name: &str) -> bool {
    match &graph.nodes()[name] {
        Node::Remote(_) | Node::Brp(_) => true,
        Node::Adopted(config) => is_remote(graph, &config.metadata),
        node => node
            .children()
            .first()
            .is_some_and(|below| is_remote(graph, below)),
    }
}

/// Returns the file that holds the byte at `offset` of a device, and the offset of the byte in the
/// file; `None` if there is no such file.
fn place_of<'g>(
    graph: &'g Graph,
    name: &str,
    offset: u64,
    all: &AllFacts,
) -> Option<(&'g Path, u64)> {
    let byte = offset..offset + 1;
    let (child, offset) = match &graph.nodes()[name] {
        Node::File(file) => return Some((&file.path, offset)),
        Node::Memory(_) | Node::Null(_) | Node::Mirror(_) => return None,
        Node::Stripe(config) => {
            let layout = stripe::StripeLayout::new(config.devices.len(), config.unit.0);
            let piece = layout.pieces(byte).next()?;
            (
                config.devices.get(piece.child)?.as_str(),
                piece.child_offset,
            )
        }
        Node::Adopted(config) => {
            let piece = adopted_layout(config, all).ok()??.pieces(byte).next()?;
            let device = match piece.on {
                On::Data => &config.data,
                On::Metadata => &config.metadata,
            };
            (device.as_str(), piece.offset)
        }
        layer => (*layer.children().first()?, offset),
    };
    place_of(graph, child, offset, all)
}

/// Returns the layout of an adopted disk, which keeps its data in place and has its metadata on a
/// separate device; `None` if the size of one of the two devices is not known.
fn adopted_layout(
    config: &AdoptedConfig,
    all: &AllFacts,
) -> Result<Option<adopted::AdoptedLayout>> {
    let sizes = [&config.data, &config.metadata].map(|name| all[name].size_bytes);
    let [Some(data_bytes), Some(metadata_bytes)] = sizes else {
        return Ok(None);
    };
    let layout = adopted::AdoptedLayout::of(data_bytes, metadata_bytes);
    layout
        .map(Some)
        .context("its metadata device needs more than 1 MiB")
}

/// Returns the file that holds the whole data area of a side contiguously, and the offset of the
/// data area in the file; `None` if there is no such file.
fn data_place<'g>(
    graph: &'g Graph,
    side: &str,
    superblock: &Superblock,
    all: &AllFacts,
) -> Option<(&'g Path, u64)> {
    let (start, len) = (superblock.layout.home_offset()?, superblock.layout.data.1);
    let (path, first) = place_of(graph, side, start, all)?;
    let (path_of_last, last) = place_of(graph, side, start + len - 1, all)?;
    (path == path_of_last && last - first == len - 1).then_some((path, first))
}

/// Returns facts about a file or block device: the properties that the kernel reports, and the
/// formats recognized in its content.
fn of_file(file: &FileConfig) -> Result<Facts> {
    let system = System::default();
    let looked = file
        .look(&system)
        .map_err(|error| anyhow!("{}", error.message))?;
    let (geometry, limits) = (looked.geometry, &looked.limits);
    let mut more = Map::new();
    more.insert("path".into(), json!(file.path));
    more.insert("rotational".into(), json!(geometry.rotational));
    more.insert(
        "physical_block_bytes".into(),
        json!(geometry.physical_bytes),
    );
    more.insert("optimal_io_bytes".into(), json!(geometry.preferred_bytes));
    // The limits of a regular file are unknown until the file is opened.
    for (key, known) in [
        ("zeroing", limits.can_zero),
        ("discards", limits.can_discard),
    ] {
        if let Some(known) = known {
            more.insert(key.into(), json!(known));
        }
    }
    if let Some(zoned) = &limits.zoned {
        more.insert("zoned".into(), json!(zoned));
    }
    if geometry.tail_bytes > 0 {
        more.insert("unused_tail_bytes".into(), json!(geometry.tail_bytes));
    }
    let found = signatures_in_file(file, &system).map_err(|error| anyhow!("{}", error.message))?;
    if let Some(formats) = signature::in_words(&found) {
        more.insert("holds".into(), json!(formats));
    }
    Ok(Facts {
        size_bytes: Some(geometry.size_bytes),
        geometry: Some(geometry),
        more,
    })
}
