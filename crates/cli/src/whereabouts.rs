//! Where the sides of volumes are that are not where the configuration says. A side is known by its
//! superblock, so the search finds it under the name that its device or file has now.
//!
//! The search only reads, and only where a person would look: the block devices of the machine, and
//! the folders of the files that the configuration names. It must never delay a start for long, so
//! it runs on a thread of its own, which is left behind when a device does not answer.

use std::fs::{File, read_dir};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use bimetal_block::graph::Node;
use bimetal_block::layers::mirror::superblock::{Superblock, Uuid, short_uuid};
use bimetal_block::{BLOCK_BYTES, Geometry};

use crate::config::Config;
use crate::init;

/// Stack of the thread that searches, in bytes. It stays with the process, locked into memory, when
/// the thread has ended.
const STACK_BYTES: usize = 512 << 10;
/// Time for which a start waits for the search.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of files of one folder, and of block devices, that are read.
const LOOKS_MAX: usize = 1024;
/// Folder with an entry for each block device of the machine.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// What was found at the path of a side that the configuration names.
#[derive(Clone, Debug)]
struct Named {
    mirror: String,
    side: String,
    path: PathBuf,
    found: Option<Superblock>,
}

impl Named {
    fn is_of(&self, volume: &Uuid) -> bool {
        let of_volume = |found: &Superblock| found.volume == *volume;
        self.found.as_ref().is_some_and(of_volume)
    }
}

/// A side that was found at a path that the configuration does not name.
#[derive(Clone, Debug)]
struct Elsewhere {
    mirror: String,
    volume: Uuid,
    side: Uuid,
    path: PathBuf,
}

impl Elsewhere {
    fn sentence(&self) -> String {
        let (uuid, path) = (short_uuid(&self.side), self.path.display());
        format!("another side of the volume ({uuid}) is at {path}")
    }
}

/// What was found at the paths of a configuration, and elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whereabouts {
    named: Vec<Named>,
    elsewhere: Vec<Elsewhere>,
}

impl Whereabouts {
    /// Reads the superblocks at the paths of a configuration, and searches for the sides that are
    /// not there. Finds nothing if a device does not answer.
    pub(crate) fn find(config: &Config) -> Whereabouts {
        let mut named = Vec::new();
        for (mirror, node) in config.graph.nodes() {
            let Node::Mirror(of_mirror) = node else {
                continue;
            };
            for side in &of_mirror.sides {
                // A side on several devices has no path, and a remote one has none here.
                if let Some(Node::File(file)) = config.graph.nodes().get(side) {
                    named.push(Named {
                        mirror: mirror.clone(),
                        side: side.clone(),
                        path: file.path.clone(),
                        found: None,
                    });
                }
            }
        }
        let files = config.graph.nodes().values().filter_map(|node| match node {
            Node::File(file) => Some(file.path.clone()),
            _ => None,
        });
        let (files, config): (Vec<PathBuf>, PathBuf) = (files.collect(), config.path.clone());
        let (to, from) = sync_channel(1);
        let thread = std::thread::Builder::new().name("whereabouts".to_owned());
        let thread = thread.stack_size(STACK_BYTES);
        // Without an answer, the messages lack what the search would add.
        let started = thread.spawn(move || to.send(search(named, &files, &config)));
        match started {
            Ok(_) => from.recv_timeout(PATIENCE).unwrap_or_default(),
            Err(_) => Whereabouts::default(),
        }
    }

    /// Says in words why a side of a mirror that was not found may be absent: what is at its path,
    /// and where the side is. Returns `None` if there is nothing to say.
    pub(crate) fn of_side(&self, mirror: &str, side: &str) -> Option<String> {
        let named = |named: &&Named| named.mirror == mirror && named.side == side;
        let named = self.named.iter().find(named)?;
        let mut parts = Vec::new();
        if named.path.exists() {
            let path = named.path.display();
            parts.extend(match &named.found {
                None => Some(format!("{path} holds no side of a volume")),
                Some(found)
                    if self
                        .beside(mirror, side)
                        .any(|volume| volume != found.volume) =>
                {
                    let (volume, name) = (short_uuid(&found.volume), &found.name);
                    Some(format!(
                        "{path} holds a side of the volume {name} ({volume})"
                    ))
                }
                Some(_) => None,
            });
        }
        parts.extend(self.found_for(mirror, side));
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Returns what the message of a refused mirror lacks: the path of each side, and where the
    /// sides are that are not at these paths. Empty if the mirror has no sides with paths.
    pub(crate) fn of_mirror(&self, mirror: &str) -> String {
        let of_mirror = || self.named.iter().filter(|named| named.mirror == mirror);
        let paths = of_mirror().map(|named| format!("{} is {}", named.side, named.path.display()));
        let found = of_mirror().flat_map(|named| self.found_for(mirror, &named.side));
        let mut parts: Vec<String> = paths.chain(found).collect();
        // Two devices may hold the same side, so that each of them holds a side of the volume.
        let beside_both = self.elsewhere.iter().filter(|found| {
            found.mirror == mirror && of_mirror().all(|named| named.is_of(&found.volume))
        });
        parts.extend(beside_both.map(Elsewhere::sentence));
        parts.join("; ")
    }

    /// Returns the volumes of the other sides of a mirror.
    fn beside<'w>(&'w self, mirror: &'w str, side: &'w str) -> impl Iterator<Item = Uuid> + 'w {
        let others = move |named: &&Named| named.mirror == mirror && named.side != side;
        let others = self.named.iter().filter(others);
        others.filter_map(|named| Some(named.found.as_ref()?.volume))
    }

    /// Returns a sentence for each path at which the side was found. If several sides of the mirror
    /// are not at their paths, it is not known which of them is which.
    fn found_for(&self, mirror: &str, side: &str) -> Vec<String> {
        let found = self.elsewhere.iter().filter(|found| found.mirror == mirror);
        let found = found.filter(|found| self.beside(mirror, side).any(|v| v == found.volume));
        let sentences = found.filter_map(|found| {
            let of_mirror = self.named.iter().filter(|named| named.mirror == mirror);
            let mut without = of_mirror.filter(|named| !named.is_of(&found.volume));
            let is_first = without.next().is_some_and(|first| first.side == side);
            let path = found.path.display();
            is_first.then(|| match without.next() {
                None => format!(
                    "the side, or a copy of it, is at {path}: to use it, write path = \"{path}\" \
                    into [device.{side}]"
                ),
                Some(_) => found.sentence(),
            })
        });
        sentences.collect()
    }
}

/// Reads the superblocks at the paths of the sides, and searches for the sides that are missing.
fn search(mut named: Vec<Named>, files: &[PathBuf], config: &Path) -> Whereabouts {
    for side in &mut named {
        side.found = superblock_at(&side.path);
    }
    let missing = missing(&named);
    if missing.is_empty() {
        return Whereabouts {
            named,
            elsewhere: Vec::new(),
        };
    }
    let known: Vec<(u64, u64)> = files.iter().filter_map(|path| place_of(path)).collect();
    let mut elsewhere = Vec::new();
    for path in candidates(files) {
        if place_of(&path).is_none_or(|place| known.contains(&place)) {
            continue;
        }
        let Some(found) = superblock_at(&path) else {
            continue;
        };
        let path = init::written(&path, config).unwrap_or(path);
        let wanted = missing
            .iter()
            .filter(|(_, volume, sides)| *volume == found.volume && sides.contains(&found.side));
        elsewhere.extend(wanted.map(|(mirror, volume, _)| Elsewhere {
            mirror: mirror.clone(),
            volume: *volume,
            side: found.side,
            path: path.clone(),
        }));
    }
    Whereabouts { named, elsewhere }
}

/// Returns for each mirror and each volume of which it has a side: the sides of that volume that
/// are at no path of the mirror.
fn missing(named: &[Named]) -> Vec<(String, Uuid, Vec<Uuid>)> {
    let mut missing: Vec<(String, Uuid, Vec<Uuid>)> = Vec::new();
    for side in named {
        let Some(found) = &side.found else { continue };
        let is_same = |(mirror, volume, _): &(String, Uuid, _)| {
            *mirror == side.mirror && *volume == found.volume
        };
        if missing.iter().any(is_same) {
            continue;
        }
        let of_mirror = named.iter().filter(|other| other.mirror == side.mirror);
        let here = of_mirror.filter_map(|other| other.found.as_ref());
        let here: Vec<&Superblock> = here.filter(|s| s.volume == found.volume).collect();
        let by_epoch = |superblock: &&&Superblock| superblock.history.current().number;
        let Some(newest) = here.iter().max_by_key(by_epoch) else {
            continue;
        };
        let listed = newest.table.iter().flatten().map(|listed| listed.side);
        let is_here = |side: &Uuid| here.iter().any(|found| found.side == *side);
        let away: Vec<Uuid> = listed.filter(|side| !is_here(side)).collect();
        missing.push((side.mirror.clone(), found.volume, away));
    }
    missing.retain(|(_, _, sides)| !sides.is_empty());
    missing
}

/// Returns the block devices of the machine, and the files in the folders of the given files.
fn candidates(files: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(devices) = read_dir(BLOCK_DEVICES) {
        let names = devices.filter_map(|entry| Some(entry.ok()?.file_name()));
        found.extend(
            names
                .map(|name| Path::new("/dev").join(name))
                .take(LOOKS_MAX),
        );
    }
    let mut folders: Vec<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders
        .into_iter()
        .filter(|folder| !folder.starts_with("/dev"))
    {
        let of_process = folder.as_os_str().is_empty();
        let Ok(entries) = read_dir(if of_process { Path::new(".") } else { folder }) else {
            continue;
        };
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        found.extend(names.map(|name| folder.join(name)).take(LOOKS_MAX));
    }
    found.sort_unstable();
    found
}

/// Returns what identifies a regular file or a block device, whatever its name; `None` for anything
/// else.
fn place_of(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    match found.file_type() {
        kind if kind.is_file() => Some((found.dev(), found.ino())),
        kind if kind.is_block_device() => Some((u64::MAX, found.rdev())),
        _ => None,
    }
}

/// Returns the superblock at the start or at the end of a regular file or a block device, if it
/// describes all of it; so the end of a disk is not taken for the end of its last partition.
fn superblock_at(path: &Path) -> Option<Superblock> {
    place_of(path)?;
    let mut file = File::open(path).ok()?;
    let size_bytes = file.seek(SeekFrom::End(0)).ok()?;
    let size_bytes = size_bytes - size_bytes % BLOCK_BYTES;
    let last = size_bytes.checked_sub(BLOCK_BYTES)?;
    let read = |offset| {
        let mut block = vec![0; BLOCK_BYTES as usize];
        file.seek(SeekFrom::Start(offset)).ok()?;
        file.read_exact(&mut block).ok()?;
        Superblock::decode(&block).ok().flatten()
    };
    let copies = [0, last].into_iter().filter_map(read);
    let fits = |found: &Superblock| found.fits(&Geometry::of_size(size_bytes)).is_ok();
    copies.filter(fits).max_by_key(|found| found.generation)
}
