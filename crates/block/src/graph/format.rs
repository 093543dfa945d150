//! Formats the sides of every mirror of a configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use bimetal_rt::Rt;

use super::{Graph, Node, OpenError, OpenOptions, content, shards};
use crate::device::Device;
use crate::disk::System;
use crate::layers::mirror::formatting::{self, Formatted, Formatting};
use crate::media::file::FileConfig;

/// Options of formatting.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Whether to overwrite devices that already hold a side of a volume or another recognised
    /// format.
    pub force: bool,
    /// Length of the log of each side; `None` derives it from the size of the device.
    pub log_bytes: Option<u64>,
    /// Size up to which the devices can later grow; `None` uses the configured value.
    pub grow_to_bytes: Option<u64>,
    /// Name of a side to adopt: only the mirror with this side is formatted, and the side's content
    /// becomes the content of the volume.
    pub adopt: Option<String>,
}

/// A mirror that has been formatted.
#[derive(Clone, Debug, PartialEq)]
pub struct FormattedMirror {
    /// The name of the mirror in the configuration.
    pub name: String,
    /// The volume that was created.
    pub volume: Formatted,
}

/// A file that has been created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedFile {
    /// The name of its device in the configuration.
    pub device: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file in bytes. The file is sparse: no block of it is allocated yet.
    pub size_bytes: u64,
}

/// Creates every missing file for which the configuration gives a `size`, at any depth of the
/// graph. If `adopt` names a side, only the files below the mirror with that side are created.
///
/// # Errors
/// Names the first file that cannot be created; files created before it are kept. Also if no mirror
/// can adopt the side.
pub fn create_files(graph: &Graph, adopt: Option<&str>) -> Result<Vec<CreatedFile>, OpenError> {
    let names: Vec<&str> = match adopt {
        None => graph.order().iter().map(String::as_str).collect(),
        Some(_) => {
            let mirrors = mirrors(graph, adopt)?.into_iter();
            mirrors.flat_map(|mirror| graph.below(mirror)).collect()
        }
    };
    let mut created = Vec::new();
    for name in names {
        let Node::File(config) = &graph.nodes()[name] else {
            continue;
        };
        let size_bytes = create_if_missing(config).map_err(|error| error.of(name))?;
        created.extend(size_bytes.map(|size_bytes| CreatedFile {
            device: name.to_owned(),
            path: config.path.clone(),
            size_bytes,
        }));
    }
    Ok(created)
}

/// Formats the sides of every mirror, starting with mirrors inside other mirrors. Creates missing
/// files below a mirror if the configuration gives their `size`.
///
/// # Errors
/// Names the first side that cannot be formatted. In this case, no side of its mirror has been
/// written, but missing files might have been created.
pub async fn format(
    rt: &Rt,
    graph: &Graph,
    options: FormatOptions,
) -> Result<Vec<FormattedMirror>, OpenError> {
    let mut formatted = Vec::new();
    let mut open: BTreeMap<&str, Rc<dyn Device>> = BTreeMap::new();
    for mirror in mirrors(graph, options.adopt.as_deref())? {
        for name in graph.below(mirror) {
            if let Node::File(config) = &graph.nodes()[name] {
                create_if_missing(config).map_err(|error| error.of(name))?;
            }
        }
        let system = System::default();
        graph.check_distinct(&[mirror], &system)?;
        let leaves = content::leaves(graph, mirror, options.adopt.as_deref());
        if !options.force {
            content::check_files_blank(graph, &leaves, &system)?;
        }
        for name in graph.on_this_thread(rt, mirror) {
            let node = &graph.nodes()[name];
            if open.contains_key(name) {
                continue;
            }
            let children = graph.children_here(rt, name);
            let children: Vec<_> = children.iter().map(|c| Rc::clone(&open[*c])).collect();
            if name == mirror {
                let sides = node.candidates(children.clone());
                let Node::Mirror(config) = node else {
                    unreachable!("only mirrors are formatted")
                };
                let formatting = Formatting {
                    force: options.force,
                    layouts: config.layout.clone(),
                    log_bytes: options.log_bytes.or(config.log.map(|size| size.0)),
                    grow_to_bytes: options.grow_to_bytes.or(config.grow_to.map(|size| size.0)),
                    volume_bytes: config.size.map(|size| size.0),
                    reserve: config.reserve,
                    room_bytes_max: None,
                    no_checksums: !config.checksums,
                    ephemeral: config.ephemeral.clone(),
                    adopt: options.adopt.clone(),
                };
                let of_mirror = |error: OpenError| error.of(name);
                let fit = formatting::check_fit(&sides, &formatting).await;
                fit.map_err(of_mirror)?;
                if options.force {
                    content::erase(&leaves, &open).await?;
                } else {
                    content::check_remotes_blank(graph, &leaves, &open).await?;
                }
                let volume = formatting::format(rt, name, &sides, &formatting)
                    .await
                    .map_err(of_mirror)?;
                formatted.push(FormattedMirror {
                    name: name.to_owned(),
                    volume,
                });
            }
            let is_needed_above = name != mirror || !graph.roots().contains(&name);
            if is_needed_above {
                let options = OpenOptions::default();
                let device = match node {
                    Node::Shard(_) if shards::have_threads(rt) => {
                        let shard = shards::start(rt, graph, name, &options).await;
                        shard.map(|shard| Rc::new(shard) as Rc<dyn Device>)
                    }
                    node => {
                        let children = children.into_iter().map(Ok).collect();
                        node.open(rt, name, children, &options).await
                    }
                };
                open.insert(name, device.map_err(|error| error.of(name))?);
            }
        }
    }
    for name in graph.order().iter().rev() {
        if let Some(device) = open.get(name.as_str()) {
            device.close().await.map_err(|error| {
                OpenError::new(format!("closing after formatting: {error}")).of(name)
            })?;
        }
    }
    Ok(formatted)
}

/// Returns the mirrors to be formatted, starting with mirrors inside other mirrors.
/// If `adopt` names a side, these are only the mirrors with that side.
///
/// # Errors
/// If no mirror has the side, or if the side has no adopted disk.
fn mirrors<'g>(graph: &'g Graph, adopt: Option<&str>) -> Result<Vec<&'g str>, OpenError> {
    let asked_for = |name: &&str| match &graph.nodes()[*name] {
        Node::Mirror(config) => {
            adopt.is_none_or(|adopt| config.sides.iter().any(|side| side == adopt))
        }
        _ => false,
    };
    let names = graph.order().iter().map(String::as_str);
    let mirrors: Vec<&str> = names.filter(asked_for).collect();
    let Some(side) = adopt else {
        return Ok(mirrors);
    };
    let is_adopted = |name: &&str| matches!(graph.nodes()[*name], Node::Adopted(_));
    if mirrors.is_empty() {
        Err(OpenError::new(format!(
            "no mirror has a side `{side}` to adopt"
        )))
    } else if !graph.below(side).iter().any(is_adopted) {
        Err(OpenError::new(format!(
            "side {side}: has no content to adopt, because it is not of type `adopted`"
        )))
    } else {
        Ok(mirrors)
    }
}

/// Creates a sparse file of the configured size and returns that size. Leaves an existing file
/// unchanged and returns `None`.
pub(super) fn create_if_missing(config: &FileConfig) -> Result<Option<u64>, OpenError> {
    let Some(size) = config.size else {
        return Ok(None);
    };
    let created = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&config.path);
    let fail = |what: &str, error: std::io::Error| {
        OpenError::new(format!("{}: {what}: {error}", config.path.display()))
    };
    match created {
        Ok(file) => file
            .set_len(size.0)
            .map(|()| Some(size.0))
            .map_err(|error| fail("cannot set its size", error)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(fail("cannot create", error)),
    }
}
