//! Devices of a configuration that hold what is not ours to overwrite, or that are the same device
//! under two names.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use super::{Graph, Node};
use crate::device::Device;
use crate::disk::System;
use crate::disk::place::Place;
use crate::disk::signature::{self, Ends, Signature};
use crate::error::OpenError;
use crate::layers::mirror::superblock::is_marked;
use crate::media::file::FileConfig;
use crate::request::{BLOCK_BYTES, Flags, Op, Request};

impl Graph {
    /// Refuses two devices below `roots` that have bytes in common, by whatever names. What is
    /// missing has nothing in common with anything.
    ///
    /// # Errors
    /// The second of them, with the first.
    pub fn check_distinct(&self, roots: &[&str], system: &System) -> Result<(), OpenError> {
        let mut seen: Vec<(&str, &Path, Place)> = Vec::new();
        for name in roots.iter().flat_map(|root| self.below(root)) {
            let Node::File(config) = &self.nodes()[name] else {
                continue;
            };
            let is_known = seen.iter().any(|(known, ..)| *known == name);
            let Ok(place) = Place::of(&config.path, system) else {
                continue;
            };
            if is_known {
                continue;
            }
            if let Some((other, path, _)) = seen.iter().find(|(_, _, p)| p.overlaps(&place)) {
                return Err(OpenError::new(format!(
                    "{} is the same as {} of device {other}, or a part of it; each device needs one of its own",
                    config.path.display(),
                    path.display()
                ))
                .of(name));
            }
            seen.push((name, &config.path, place));
        }
        Ok(())
    }
}

/// The media below `root`, without the disk whose content is kept by the side `adopted`.
pub fn leaves<'g>(graph: &'g Graph, root: &str, adopted: Option<&str>) -> Vec<&'g str> {
    let kept = adopted.and_then(|side| match graph.nodes().get(side) {
        Some(Node::Adopted(config)) => Some(graph.below(&config.data)),
        _ => None,
    });
    let kept = kept.unwrap_or_default();
    let below = graph.below(root).into_iter();
    let media = below.filter(|name| graph.nodes()[*name].children().is_empty());
    media.filter(|name| !kept.contains(name)).collect()
}

fn refusal(name: &str, found: &[Signature]) -> Result<(), OpenError> {
    match signature::in_words(found) {
        None => Ok(()),
        Some(formats) => Err(OpenError::new(format!(
            "holds {formats}, which would be lost; --force overwrites it"
        ))
        .of(name)),
    }
}

/// Refuses files and block devices that hold something, before they are opened.
///
/// # Errors
/// The first of them; when one cannot be looked at.
pub(super) fn check_files_blank(
    graph: &Graph,
    leaves: &[&str],
    system: &System,
) -> Result<(), OpenError> {
    for name in leaves {
        if let Node::File(config) = &graph.nodes()[*name] {
            let found = signatures_in_file(config, system).map_err(|error| error.of(name))?;
            refusal(name, &found)?;
        }
    }
    Ok(())
}

/// The marks of formats in a file or on a block device; none where a side of a volume is, which is
/// refused by itself.
///
/// # Errors
/// When it cannot be looked at.
pub fn signatures_in_file(
    config: &FileConfig,
    system: &System,
) -> Result<Vec<Signature>, OpenError> {
    let geometry = config.look(system)?.geometry;
    let fail = |error| OpenError::new(format!("{}: {error}", config.path.display()));
    let file = std::fs::File::open(&config.path).map_err(fail)?;
    let size_bytes = geometry.size_bytes + geometry.tail_bytes;
    let mut read = Vec::new();
    for range in Ends::ranges(size_bytes) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start).map_err(fail)?;
        read.push(Some(bytes));
    }
    Ok(marks(size_bytes, read))
}

fn marks(size_bytes: u64, read: Vec<Option<Vec<u8>>>) -> Vec<Signature> {
    let head = read.first().and_then(Option::as_deref);
    if head.is_some_and(is_marked) {
        return Vec::new();
    }
    Ends::new(size_bytes, read).signatures()
}

/// The marks of formats on an open device. What it cannot read has none.
async fn signatures_on(device: &dyn Device) -> Vec<Signature> {
    let geometry = device.geometry();
    let mut read = Vec::new();
    for range in Ends::ranges(geometry.size_bytes) {
        let mut bytes = Some(Vec::new());
        let mut offset = range.start;
        while offset < range.end {
            let len = (range.end - offset).min(u64::from(geometry.transfer_bytes_max));
            let len = len - len % BLOCK_BYTES;
            match device.submit(Request::read(offset, len)).await {
                Ok(reply) => {
                    let part = reply.into_data().to_vec();
                    bytes
                        .iter_mut()
                        .for_each(|bytes| bytes.extend_from_slice(&part));
                }
                // Formatting it will say why.
                Err(_) => bytes = None,
            }
            offset += len;
        }
        read.push(bytes);
    }
    marks(geometry.size_bytes, read)
}

/// Refuses exports of other servers that hold something. Those on the thread of a shard are not
/// looked at.
///
/// # Errors
/// The first of them.
pub(super) async fn check_remotes_blank(
    graph: &Graph,
    leaves: &[&str],
    open: &BTreeMap<&str, Rc<dyn Device>>,
) -> Result<(), OpenError> {
    for name in leaves {
        let is_remote = matches!(&graph.nodes()[*name], Node::Remote(_) | Node::Brp(_));
        if let Some(device) = open.get(name).filter(|_| is_remote) {
            refusal(name, &signatures_on(&**device).await)?;
        }
    }
    Ok(())
}

/// Takes the marks away from devices that are given up, so that nothing takes them later for what
/// they were: those at the end of a device would stay in the home of a side.
///
/// # Errors
/// When a device fails.
pub(super) async fn erase(
    leaves: &[&str],
    open: &BTreeMap<&str, Rc<dyn Device>>,
) -> Result<(), OpenError> {
    for name in leaves {
        let Some(device) = open.get(name) else {
            continue;
        };
        for mark in signatures_on(&**device).await {
            let start = mark.range.start - mark.range.start % BLOCK_BYTES;
            let len = mark.range.end.next_multiple_of(BLOCK_BYTES) - start;
            let zero = Request::without_data(Op::WriteZeroes, start, len, Flags::NONE);
            device.submit(zero).await.map_err(|error| {
                OpenError::new(format!(
                    "removing what marks it as {}: {error}",
                    mark.format
                ))
                .of(name)
            })?;
        }
    }
    Ok(())
}
