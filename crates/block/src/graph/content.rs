//! Checks before formatting: devices that hold foreign content, which must not be overwritten, and
//! devices that are the same storage under two names.

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
    /// Checks that no two file devices below `roots` share bytes of the same storage, even under
    /// different names. A file whose location cannot be determined, such as a missing file, is not
    /// compared.
    ///
    /// # Errors
    /// Two devices overlap. The error names both devices.
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

/// Returns the media below `root`: the devices that have no device below them. If `adopted` names
/// an adopted side, the disk of that side is left out, because the side keeps the content of the
/// disk.
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

/// Returns an error if a medium holds a recognised format. For the disk of an adopted side, the
/// error first names the option that keeps the content of the disk.
fn refusal(graph: &Graph, name: &str, found: &[Signature]) -> Result<(), OpenError> {
    let Some(formats) = signature::in_words(found) else {
        return Ok(());
    };
    let adopts = |node: &Node| match node {
        Node::Adopted(config) => graph.below(&config.data).contains(&name),
        _ => false,
    };
    let adopted = graph.nodes().iter().find(|(_, node)| adopts(node));
    let keep = adopted.map_or(String::new(), |(side, _)| {
        format!("`format --adopt {side}` keeps it as the content of the volume, ")
    });
    Err(OpenError::new(format!(
        "holds {formats}, which would be lost; {keep}--force overwrites it"
    ))
    .of(name))
}

/// Checks that no file and no block device among `leaves` holds a recognised format. The check
/// needs no open device.
///
/// # Errors
/// Names the first device that holds a format, or that cannot be read.
pub(super) fn check_files_blank(
    graph: &Graph,
    leaves: &[&str],
    system: &System,
) -> Result<(), OpenError> {
    for name in leaves {
        if let Node::File(config) = &graph.nodes()[*name] {
            let found = signatures_in_file(config, system).map_err(|error| error.of(name))?;
            refusal(graph, name, &found)?;
        }
    }
    Ok(())
}

/// Returns the signatures of formats found in a file or on a block device. Returns none for a
/// device that holds a side of a volume, because a separate check refuses such a device.
///
/// # Errors
/// When the file or block device cannot be read.
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

/// Returns the signatures of formats found on an open device. A part of the device that cannot be
/// read yields no signature.
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
                // Formatting the device will report the error.
                Err(_) => bytes = None,
            }
            offset += len;
        }
        read.push(bytes);
    }
    marks(geometry.size_bytes, read)
}

/// Checks that no export of another server among `leaves` holds a recognised format. An export that
/// is open on the thread of a shard is not checked.
///
/// # Errors
/// Names the first device that holds a format.
pub(super) async fn check_remotes_blank(
    graph: &Graph,
    leaves: &[&str],
    open: &BTreeMap<&str, Rc<dyn Device>>,
) -> Result<(), OpenError> {
    for name in leaves {
        let is_remote = matches!(&graph.nodes()[*name], Node::Remote(_) | Node::Brp(_));
        if let Some(device) = open.get(name).filter(|_| is_remote) {
            refusal(graph, name, &signatures_on(&**device).await)?;
        }
    }
    Ok(())
}

/// Zeroes the signatures of foreign formats on the devices that formatting overwrites, so that no
/// tool later recognises the old format. Without this step, a signature at the end of a device
/// would survive in the data area of a side.
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
                    "cannot erase the signature of {}: {error}",
                    mark.format
                ))
                .of(name)
            })?;
        }
    }
    Ok(())
}
