//! Survey of every segment: the images in it, their key ranges, and whether they can be read.

use super::evidence::{CompleteLog, ImageLocation, Leaf, WholePatches, read_what_can_be};
use super::log::{Found, geometry_of_frame};
use super::pieces::Pieces;
use super::{RebuildProgress, RebuildStep, Rebuilt};
use crate::error::{At, Error};
use crate::footer::{About, Entry, Generation, HEAD_BYTES, Listed, NOT_LOGGED};
use crate::geometry::MIN_SEGMENT_BYTES;
use crate::layout::{Geometry, LOG_OFFSET, Superblock};
use crate::node::{GRANULE_BYTES, Image, NodeId, Seal, Seq, Sort, parse_blob};
use crate::segments::Location;
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up};
use std::collections::BTreeMap;
use std::ops::Range;

/// Number of log blocks that are searched for the identity of the index.
const LOG_BLOCKS_EXAMINED: u64 = 1 << 16;

/// A patch that was found or listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patch {
    pub place: ImageLocation,
    pub is_whole: bool,
    pub logged_from: u64,
}

/// Everything found in segments.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub leaves: Vec<Leaf>,
    /// Patches, sorted by LSN.
    pub patches: Vec<Patch>,
    /// Node and LSN of the readable patches.
    whole_patches: WholePatches,
    blobs: BTreeMap<NodeId, Vec<ImageLocation>>,
    /// LSN up to which images with unknown key ranges may be missing; 0 if no such image is
    /// missing.
    pub missing_up_to: Seq,
}

/// Reads the intact superblocks, the newer first.
///
/// # Errors
///
/// [`Error::Version`] if a superblock has another version of the format.
pub(super) fn superblocks(storage: &dyn Storage) -> Result<Vec<Superblock>, Error> {
    let mut blocks = Aligned::zeroed(2 * BLOCK_BYTES);
    if storage.len_bytes() < LOG_OFFSET {
        return Ok(Vec::new());
    }
    read_what_can_be(storage, 0, &mut blocks);
    Superblock::all_of(&blocks)
}

/// Determines the geometry of the index from any remaining source: a superblock, heads of segments,
/// or the log.
pub(super) fn geometry(
    storage: &dyn Storage,
    superblocks: &[Superblock],
    id: Option<u64>,
    progress: &mut RebuildProgress<'_>,
) -> Result<Geometry, Error> {
    let is_asked = |geometry: &Geometry| id.is_none_or(|id| id == geometry.id);
    let mut of_superblocks = superblocks.iter().map(|superblock| superblock.geometry);
    if let Some(geometry) = of_superblocks.find(is_asked) {
        return Ok(geometry);
    }
    let mut found: BTreeMap<u64, Geometry> = BTreeMap::new();
    let len_bytes = storage.len_bytes();
    let mut block = Aligned::zeroed(BLOCK_BYTES);
    let mut look = |offset: u64, found: &mut BTreeMap<u64, Geometry>| {
        read_what_can_be(storage, offset, &mut block);
        let of_head = Generation::of_head(&block)
            .filter(|generation| generation.geometry.segment_offset(generation.segment) == offset)
            .map(|generation| generation.geometry);
        let geometry = of_head.or_else(|| geometry_of_frame(storage, &block, offset));
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
        let log_end = (LOG_OFFSET + LOG_BLOCKS_EXAMINED * BLOCK_BYTES as u64).min(last + 1);
        for offset in (LOG_OFFSET..log_end).step_by(BLOCK_BYTES) {
            look(offset, &mut found);
        }
    }
    let ids: Vec<String> = found.keys().map(|id| format!("{id:016x}")).collect();
    let reason = match (found.pop_first(), ids.len()) {
        (Some((_, geometry)), 1) => return Ok(geometry),
        (None, _) => "no header of a segment and no frame of a log was found".to_owned(),
        _ => format!(
            "parts of several indexes were found, with the ids {}",
            ids.join(", ")
        ),
    };
    Err(Error::NotAnIndex { reason })
}

/// Content of a segment that was read.
#[derive(Clone, Copy)]
struct Content<'a> {
    bytes: &'a [u8],
    /// Offsets of the blocks that could not be read.
    unread: &'a [usize],
    geometry: Geometry,
    segment: u32,
}

impl Content<'_> {
    /// Returns the offset of the segment in bytes from the start of the storage.
    fn offset(&self) -> u64 {
        self.geometry.segment_offset(self.segment)
    }

    /// Returns the seal (location and generation tag) of an image of `bytes` bytes at the offset
    /// `at` of the segment, if its generation tag is `name`.
    fn seal(&self, at: usize, bytes: usize, name: u32) -> Seal {
        Seal {
            location: Location::new(self.segment, at, bytes).stored(),
            generation: name,
        }
    }
}

impl Survey {
    /// Reads all segments. Adds the frames of the log that are in segments to `frames`.
    pub(super) fn of(
        storage: &dyn Storage,
        geometry: Geometry,
        frames: &mut Found,
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
            if !unread.is_empty() {
                let count = unread.len();
                let what = format!("{count} blocks of segment {segment} cannot be read");
                rebuilt.problem(what, offset);
            }
            let content = Content {
                bytes: &bytes,
                unread: &unread,
                geometry,
                segment,
            };
            frames.look(storage, &geometry, offset, &bytes);
            survey.take(&content, rebuilt);
            rebuilt.segments += 1;
        }
        survey.patches.sort_by_key(|patch| patch.place.lsn);
        survey
    }

    /// Adds the images of a segment to the survey.
    fn take(&mut self, content: &Content<'_>, rebuilt: &mut Rebuilt) {
        let Content {
            bytes,
            geometry,
            segment,
            ..
        } = *content;
        if crate::writer::begins_checkpoint(bytes) {
            // The rest of the segment, after the checkpoint, has only remains of an earlier
            // generation.
            return;
        }
        let Listed { name, footers } = Listed::of(bytes, &geometry, segment);
        let mut listed_to = HEAD_BYTES;
        for footer in footers {
            if footer.from != listed_to {
                let what = format!("a footer of segment {segment} is damaged");
                rebuilt.problem(what, content.offset() + listed_to as u64);
                self.take_unlisted(content, Some(footer.name), listed_to..footer.from, rebuilt);
            }
            listed_to = footer.end;
            for entry in footer.entries {
                let seal = content.seal(entry.at, entry.bytes, footer.name);
                self.take_entry(content, seal, entry, rebuilt);
            }
        }
        self.take_unlisted(content, name, listed_to..bytes.len(), rebuilt);
    }

    fn take_entry(
        &mut self,
        content: &Content<'_>,
        seal: Seal,
        entry: Entry,
        rebuilt: &mut Rebuilt,
    ) {
        let place = ImageLocation {
            seal,
            offset: content.offset() + entry.at as u64,
            bytes: entry.bytes,
            node: entry.node,
            lsn: entry.lsn,
        };
        let image = &content.bytes[entry.at..entry.at + entry.bytes];
        let is_whole = match entry.about {
            About::Blob => blob_in(&place, image).is_some(),
            _ => image_in(&place, image).is_some(),
        };
        self.add(place, entry.about, is_whole, rebuilt);
    }

    fn add(&mut self, place: ImageLocation, about: About, is_whole: bool, rebuilt: &mut Rebuilt) {
        match about {
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
                    is_proven: false,
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

    /// Adds images that no footer lists, because the footer is damaged or was never written. Such
    /// an image states its node and key range itself. A damaged image that no footer lists is
    /// noticed only if its block cannot be read. `name` is the generation tag of the images, if it
    /// is known.
    fn take_unlisted(
        &mut self,
        content: &Content<'_>,
        name: Option<u32>,
        range: Range<usize>,
        rebuilt: &mut Rebuilt,
    ) {
        let is_inside = |at: &usize| at + BLOCK_BYTES > range.start && *at < range.end;
        if content.unread.iter().any(is_inside) {
            self.missing_up_to = Seq::MAX;
        }
        let Some(name) = name else {
            return;
        };
        let mut at = range.start;
        while at < range.end {
            let taken = self.take_image(content, name, at..range.end, rebuilt);
            at += taken.unwrap_or(GRANULE_BYTES);
        }
    }

    /// Adds the image at the start of a range, if there is an intact image of this generation.
    /// Returns the length of the image.
    fn take_image(
        &mut self,
        content: &Content<'_>,
        name: u32,
        range: Range<usize>,
        rebuilt: &mut Rebuilt,
    ) -> Option<usize> {
        let bytes = content.bytes.get(range.clone())?;
        let peek = Image::peek(bytes)?;
        let bytes = bytes.get(..peek.len_bytes)?;
        let place = ImageLocation {
            seal: content.seal(range.start, peek.len_bytes, name),
            offset: content.offset() + range.start as u64,
            bytes: peek.len_bytes,
            node: peek.node,
            lsn: peek.lsn,
        };
        let about = match peek.sort {
            Sort::Blob => {
                blob_in(&place, bytes)?;
                About::Blob
            }
            Sort::Patch => {
                image_in(&place, bytes)?;
                About::Patch {
                    logged_from: NOT_LOGGED,
                }
            }
            Sort::Node if peek.level > 0 => {
                Image::parse(bytes, place.seal).ok()?;
                About::Inner
            }
            Sort::Node => match image_in(&place, bytes)?.range() {
                Some(range) => About::Leaf {
                    range,
                    bases: Vec::new(),
                    logged_from: NOT_LOGGED,
                },
                None => {
                    // This image is of an older version of the format and has no key range, so the
                    // leaf cannot be used. Its changes are recorded as missing.
                    self.missing_up_to = self.missing_up_to.max(place.lsn);
                    About::Inner
                }
            },
        };
        self.add(place, about, true, rebuilt);
        Some(peek.len_bytes)
    }

    /// Returns the highest LSN of the images and patches found.
    pub(super) fn last_lsn(&self) -> Seq {
        let leaves = self.leaves.iter().map(|leaf| leaf.place.lsn);
        let patches = self.patches.iter().map(|patch| patch.place.lsn);
        leaves.chain(patches).max().unwrap_or(0)
    }

    /// Reads the image of a node again, from the place where the survey found it.
    pub(super) fn image(&self, storage: &dyn Storage, place: &ImageLocation) -> Option<Image> {
        image_in(place, &read_place(storage, place).ok()?)
    }

    /// Returns the distinct contents of all blobs with an id.
    pub(super) fn blobs(&self, storage: &dyn Storage, blob: NodeId) -> Vec<Vec<u8>> {
        let places = self.blobs.get(&blob).map_or(&[][..], Vec::as_slice);
        let contents = places.iter().filter_map(|place| {
            let bytes = read_place(storage, place).ok()?;
            blob_in(place, &bytes).map(<[u8]>::to_vec)
        });
        let mut contents: Vec<Vec<u8>> = contents.collect();
        // Cleaning copies blobs, so the same content may occur several times.
        contents.sort_unstable();
        contents.dedup();
        contents
    }

    /// Divides all keys into pieces, each with its source.
    pub(super) fn pieces(&self, whole: CompleteLog) -> Pieces {
        Pieces::of(&self.leaves, &self.whole_patches, whole)
    }
}

fn read_place(storage: &dyn Storage, place: &ImageLocation) -> Result<Vec<u8>, Error> {
    let first = place.offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let skip = (place.offset - first) as usize;
    let mut blocks = Aligned::zeroed(round_up(skip + place.bytes));
    storage
        .read(first, &mut blocks)
        .at("reading a node", place.offset)?;
    Ok(blocks[skip..skip + place.bytes].to_vec())
}

/// Returns the image of a leaf or of a patch, if it is the image that `place` describes.
fn image_in(place: &ImageLocation, bytes: &[u8]) -> Option<Image> {
    let image = Image::parse(bytes, place.seal).ok()?;
    let is_it = (image.node(), image.lsn(), image.level()) == (place.node, place.lsn, 0);
    is_it.then_some(image)
}

fn blob_in<'a>(place: &ImageLocation, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let blob = parse_blob(bytes, place.seal).ok()?;
    (blob.node == place.node).then_some(blob.content)
}
