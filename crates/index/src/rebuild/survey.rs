//! Looking through every segment: which images there are, which keys they are for, and which of them can
//! be read.

use super::pieces::{Pieces, WholeLog};
use super::{RebuildProgress, RebuildStep, Rebuilt};
use crate::error::{At, Error};
use crate::footer::{About, Base, Entry, Filling, Footer, HEAD_BYTES, KeyRange};
use crate::layout::{Geometry, LOG_OFFSET, MIN_SEGMENT_BYTES, Superblock};
use crate::log::Header;
use crate::node::{GRANULE_BYTES, Image, NodeId, Seal, Seq, Sort, parse_blob};
use crate::segments::Location;
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of the log that are looked at for what index it is of.
const LOG_BLOCKS_LOOKED_AT: u64 = 1 << 16;

/// An image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// What it is sealed for.
    pub seal: Seal,
    /// In bytes from the start of the storage.
    pub offset: u64,
    pub bytes: usize,
    pub node: NodeId,
    pub lsn: Seq,
}

/// An image of a leaf.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub place: Place,
    pub range: KeyRange,
    pub is_whole: bool,
    /// The leaves that it was made of, when it was written.
    pub bases: Vec<Base>,
    /// What it adds to them is in the log from here on.
    pub logged_from: u64,
}

/// Changes of a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patch {
    pub place: Place,
    pub is_whole: bool,
    pub logged_from: u64,
}

/// An image of a leaf or a patch that is in no footer that can be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlisted {
    pub place: Place,
    /// A footer is damaged that had listed it; else it stands behind the last one.
    pub was_listed: bool,
}

/// All that was found in segments.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub leaves: Vec<Leaf>,
    /// By the batch that they are as new as.
    pub patches: Vec<Patch>,
    /// Node and batch of those that can be read.
    whole_patches: WholePatches,
    blobs: BTreeMap<NodeId, Vec<Place>>,
    /// Images of leaves and patches that are in no footer that can be read, by the batch that they are as
    /// new as.
    pub unlisted: Vec<Unlisted>,
}

/// Patches by node and batch.
pub(super) type WholePatches = BTreeSet<(NodeId, Seq)>;

/// Reads, block by block where that fails; what cannot be read is zeroes. How many blocks that are.
pub(super) fn read_what_can_be(storage: &dyn Storage, offset: u64, buffer: &mut [u8]) -> u64 {
    if storage.read(offset, buffer).is_ok() {
        return 0;
    }
    let mut unread = 0;
    for (block, at) in buffer
        .chunks_mut(BLOCK_BYTES)
        .zip((offset..).step_by(BLOCK_BYTES))
    {
        if storage.read(at, block).is_err() {
            block.fill(0);
            unread += 1;
        }
    }
    unread
}

/// What the index is, from whatever is left that says it: a superblock, heads of segments, or the log.
pub(super) fn geometry(
    storage: &dyn Storage,
    id: Option<u64>,
    progress: &mut RebuildProgress<'_>,
) -> Result<Geometry, Error> {
    let is_asked = |geometry: &Geometry| id.is_none_or(|id| id == geometry.id);
    match Superblock::read(storage) {
        Ok(superblock) if is_asked(&superblock.geometry) => return Ok(superblock.geometry),
        Err(error @ (Error::Version { .. } | Error::Storage { .. })) => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let mut found: BTreeMap<u64, Geometry> = BTreeMap::new();
    let len_bytes = storage.len_bytes();
    let mut block = Aligned::zeroed(BLOCK_BYTES);
    let mut look = |offset: u64, found: &mut BTreeMap<u64, Geometry>| {
        read_what_can_be(storage, offset, &mut block);
        let of_head = Filling::of_head(&block)
            .filter(|filling| filling.geometry.segment_offset(filling.segment) == offset)
            .map(|filling| filling.geometry);
        let geometry = of_head.or_else(|| Header::geometry_of(&block, offset));
        if let Some(geometry) = geometry.filter(is_asked) {
            found.insert(geometry.id, geometry);
        }
    };
    let last = len_bytes.saturating_sub(BLOCK_BYTES as u64);
    for offset in (LOG_OFFSET..=last).step_by(MIN_SEGMENT_BYTES as usize) {
        progress(RebuildStep::Finding, offset, len_bytes);
        look(offset, &mut found);
    }
    if found.is_empty() {
        let log_end = (LOG_OFFSET + LOG_BLOCKS_LOOKED_AT * BLOCK_BYTES as u64).min(last + 1);
        for offset in (LOG_OFFSET..log_end).step_by(BLOCK_BYTES) {
            look(offset, &mut found);
        }
    }
    let ids: Vec<String> = found.keys().map(|id| format!("{id:016x}")).collect();
    let reason = match (found.pop_first(), ids.len()) {
        (Some((_, geometry)), 1) => return Ok(geometry),
        (None, _) => "neither a head of a segment nor a frame of a log was found".to_owned(),
        _ => format!(
            "parts of several were found, with the ids {}",
            ids.join(", ")
        ),
    };
    Err(Error::NotAnIndex { reason })
}

impl Survey {
    /// Reads all segments.
    pub(super) fn of(
        storage: &dyn Storage,
        geometry: Geometry,
        rebuilt: &mut Rebuilt,
        progress: &mut RebuildProgress<'_>,
    ) -> Survey {
        let mut survey = Survey::default();
        let count = geometry.segments(storage.len_bytes());
        let mut bytes = Aligned::zeroed(geometry.segment_bytes as usize);
        for segment in 0..count {
            progress(RebuildStep::Reading, segment.into(), count.into());
            let offset = geometry.segment_offset(segment);
            let unread = read_what_can_be(storage, offset, &mut bytes);
            if unread > 0 {
                let what = format!("{unread} blocks of segment {segment} cannot be read");
                rebuilt.problem(what, offset);
            }
            survey.take(&bytes, geometry, segment, rebuilt);
            rebuilt.segments += 1;
        }
        survey.patches.sort_by_key(|patch| patch.place.lsn);
        survey.unlisted.sort_by_key(|image| image.place.lsn);
        survey
    }

    /// Takes what a segment has.
    fn take(&mut self, bytes: &[u8], geometry: Geometry, segment: u32, rebuilt: &mut Rebuilt) {
        if crate::writer::begins_checkpoint(bytes) {
            // Behind it stands what is left of an earlier filling.
            return;
        }
        let footers = Footer::all(bytes, &geometry, segment);
        let offset = geometry.segment_offset(segment);
        let head = Filling::of_head(bytes).filter(|head| head.geometry == geometry);
        let mut listed_to = HEAD_BYTES;
        for footer in footers {
            if footer.from != listed_to {
                let what = format!("a footer of segment {segment} is damaged");
                rebuilt.problem(what, offset + listed_to as u64);
                self.take_unlisted(bytes, segment, offset, listed_to..footer.from, true);
            }
            listed_to = footer.end;
            for entry in footer.entries {
                let seal = Seal {
                    location: Location::new(segment, entry.at, entry.bytes).stored(),
                    filling: footer.name,
                };
                self.take_entry(bytes, offset, seal, entry, rebuilt);
            }
        }
        if head.is_some() {
            self.take_unlisted(bytes, segment, offset, listed_to..bytes.len(), false);
        }
    }

    fn take_entry(
        &mut self,
        bytes: &[u8],
        offset: u64,
        seal: Seal,
        entry: Entry,
        rebuilt: &mut Rebuilt,
    ) {
        let place = Place {
            seal,
            offset: offset + entry.at as u64,
            bytes: entry.bytes,
            node: entry.node,
            lsn: entry.lsn,
        };
        let image = &bytes[entry.at..entry.at + entry.bytes];
        let is_whole = match entry.about {
            About::Blob => blob_in(&place, image).is_some(),
            _ => image_in(&place, image).is_some(),
        };
        match entry.about {
            About::Leaf {
                range,
                bases,
                logged_from,
            } => {
                rebuilt.leaves += u64::from(is_whole);
                self.leaves.push(Leaf {
                    place,
                    range,
                    is_whole,
                    bases,
                    logged_from,
                });
            }
            About::Patch { logged_from } => {
                rebuilt.patches += u64::from(is_whole);
                if is_whole {
                    self.whole_patches.insert((place.node, place.lsn));
                }
                self.patches.push(Patch {
                    place,
                    is_whole,
                    logged_from,
                });
            }
            About::Blob if is_whole => self.blobs.entry(place.node).or_default().push(place),
            About::Blob | About::Inner => {}
        }
    }

    /// Takes images that no footer lists. Those behind the last footer may be of a write that a power cut
    /// has ended, or of an earlier filling.
    fn take_unlisted(
        &mut self,
        bytes: &[u8],
        segment: u32,
        offset: u64,
        range: std::ops::Range<usize>,
        was_listed: bool,
    ) {
        let mut at = range.start;
        while at < range.end.min(bytes.len()) {
            let peek = Image::peek(&bytes[at..]);
            let peek = peek.filter(|peek| at + peek.len_bytes <= bytes.len());
            let Some(peek) = peek.filter(|peek| peek.sort != Sort::Blob && peek.level == 0) else {
                at += GRANULE_BYTES;
                continue;
            };
            let place = Place {
                seal: Seal {
                    location: Location::new(segment, at, peek.len_bytes).stored(),
                    ..peek.seal
                },
                offset: offset + at as u64,
                bytes: peek.len_bytes,
                node: peek.node,
                lsn: peek.lsn,
            };
            if image_in(&place, &bytes[at..at + peek.len_bytes]).is_some() {
                at += peek.len_bytes;
                self.unlisted.push(Unlisted { place, was_listed });
            } else {
                at += GRANULE_BYTES;
            }
        }
    }

    /// The batch that the newest image is as new as.
    pub(super) fn last_lsn(&self) -> Seq {
        let leaves = self.leaves.iter().map(|leaf| leaf.place.lsn);
        let patches = self.patches.iter().map(|patch| patch.place.lsn);
        leaves.chain(patches).max().unwrap_or(0)
    }

    /// An image of a node, read again.
    pub(super) fn image(&self, storage: &dyn Storage, place: &Place) -> Option<Image> {
        image_in(place, &read_place(storage, place).ok()?)
    }

    /// The contents of all blobs of a number.
    pub(super) fn blobs(&self, storage: &dyn Storage, blob: NodeId) -> Vec<Vec<u8>> {
        let places = self.blobs.get(&blob).map_or(&[][..], Vec::as_slice);
        let contents = places.iter().filter_map(|place| {
            let bytes = read_place(storage, place).ok()?;
            blob_in(place, &bytes).map(<[u8]>::to_vec)
        });
        let mut contents: Vec<Vec<u8>> = contents.collect();
        // Cleaning copies them.
        contents.sort_unstable();
        contents.dedup();
        contents
    }

    /// The pieces of all keys.
    pub(super) fn pieces(&self, whole: WholeLog) -> Pieces {
        Pieces::of(&self.leaves, &self.whole_patches, whole)
    }
}

fn read_place(storage: &dyn Storage, place: &Place) -> Result<Vec<u8>, Error> {
    let first = place.offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let skip = (place.offset - first) as usize;
    let mut blocks = Aligned::zeroed(round_up(skip + place.bytes));
    storage
        .read(first, &mut blocks)
        .at("reading a node", place.offset)?;
    Ok(blocks[skip..skip + place.bytes].to_vec())
}

/// The image of a leaf or a patch, if it is the one that was listed.
fn image_in(place: &Place, bytes: &[u8]) -> Option<Image> {
    let image = Image::parse(bytes, place.seal).ok()?;
    let is_it = (image.node(), image.lsn(), image.level()) == (place.node, place.lsn, 0);
    is_it.then_some(image)
}

fn blob_in<'a>(place: &Place, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let blob = parse_blob(bytes, place.seal).ok()?;
    (blob.node == place.node).then_some(blob.content)
}
