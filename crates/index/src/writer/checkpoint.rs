//! Checkpoints: the location of every node at one point of the log, so that the log before that
//! point is not needed.
//!
//! A checkpoint is taken (the table of locations is copied in memory, which is quick), then written
//! in pieces between commits, and takes effect when a superblock that names it is written. Until
//! then the previous checkpoint is in effect, and nothing that the previous checkpoint names is
//! overwritten. No node holds a location, so a node can move without a change of its parent. Source
//! of this idea: the mapping table of log-structured file systems and of the Bw-tree.

use super::Writer;
use super::checkpointer::{TakenCheckpoint, WrittenCheckpoint};
use super::patch::PATCHES_MAX;
use crate::error::{At, Error};
use crate::footer::About;
use crate::layout::{CHECKPOINT_SEGMENTS_MAX, COUNTS_MAX, Geometry, Superblock};
use crate::node::{KEY_BYTES_MAX, NodeId};
use crate::planted::{Bug, is_planted};
use crate::segments::{Class, Location};
use crate::storage::{Aligned, Storage, round_up, sync};
use crate::tree::deletions::Deletion;
use crate::tree::patch::{Filter, Patch, Patched};
use crate::tree::slots::Content;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"bimetlay";
const HEAD_BYTES: usize = 32;
/// Magic of version 2 of the format, in which images do not name the generation of their segment.
const OLD_MAGIC: [u8; 8] = *b"bimetmap";
const OLD_HEAD_BYTES: usize = 24;
/// Bytes of a patch entry, without its filter.
const PATCH_BYTES: usize = 16;
/// Stored in place of the number of fingerprints of a patch if the filter of that patch is not
/// stored.
const UNKNOWN: u32 = u32::MAX;
/// Bytes of a range deletion, without its keys.
const DELETION_BYTES: usize = 16;
/// Stored in place of the length of the end key if a range deletion has no end key. The deletion
/// then covers all keys after its start.
const NO_END: u32 = u32::MAX;

/// Content of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub root: NodeId,
    pub locations: Vec<Location>,
    /// Generation tag of each segment. The images in a segment carry the tag of the segment. The
    /// list is empty in a checkpoint of version 2.
    pub generations: Vec<u32>,
    /// Patches of the leaves that have any, the oldest first.
    pub patches: BTreeMap<NodeId, Vec<Patch>>,
    /// Range deletions that some leaves might not have applied yet.
    pub deletions: Vec<Deletion>,
}

/// Level of detail of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The checkpoint has no filters of patches. So opening the index reads every patch to compute
    /// its filter.
    Places,
    /// The checkpoint has the filters of patches, so that opening the index does not have to read
    /// the patches. This level is used if the index is expected to be opened from the checkpoint.
    Filters,
}

/// Content of a checkpoint to be written.
struct NewCheckpoint<'a> {
    root: NodeId,
    locations: &'a [Location],
    generations: &'a [u32],
    /// Patches of leaves in ascending order, encoded by [`push_patches`].
    patches: &'a [u8],
    /// Range deletions, encoded by [`push_deletion`].
    deletions: &'a [u8],
}

impl NewCheckpoint<'_> {
    /// Returns the encoded checkpoint in whole blocks, and its number of bytes without padding.
    fn encode(&self) -> (Aligned, usize) {
        let places_end = HEAD_BYTES + self.locations.len() * 8;
        let generations_end = places_end + generations_bytes(self.generations.len());
        let patches_end = generations_end + self.patches.len();
        let used = patches_end + self.deletions.len();
        let mut bytes = Aligned::zeroed(round_up(used));
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.root.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.locations.len() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.patches.len() as u64).to_le_bytes());
        bytes[24..28].copy_from_slice(&(self.generations.len() as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&(self.deletions.len() as u32).to_le_bytes());
        bytes[generations_end..patches_end].copy_from_slice(self.patches);
        bytes[patches_end..used].copy_from_slice(self.deletions);
        let names = bytes[places_end..generations_end].chunks_exact_mut(4);
        for (name, generation) in names.zip(self.generations) {
            name.copy_from_slice(&generation.to_le_bytes());
        }
        let places = bytes[HEAD_BYTES..places_end].chunks_exact_mut(8);
        for (place, location) in places.zip(self.locations) {
            place.copy_from_slice(&location.stored().to_le_bytes());
        }
        (bytes, used)
    }
}

impl Stored {
    fn decode(bytes: &[u8], geometry: &Geometry, segments: u32) -> Option<Stored> {
        let is_old = bytes.starts_with(&OLD_MAGIC);
        let head_bytes = if is_old { OLD_HEAD_BYTES } else { HEAD_BYTES };
        let (head, rest) = bytes.split_at_checked(head_bytes)?;
        let number =
            |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
        let count = number(12) as usize;
        let generations_count = if is_old { 0 } else { number(24) as usize };
        let (places, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
        // This field, the length of the range deletions, is zero up to version 5 of the format.
        let deletions_len = if is_old { 0 } else { number(28) as usize };
        let (generations, rest) = rest.split_at_checked(generations_bytes(generations_count))?;
        let (patches, deletions) = rest.split_at_checked(rest.len().checked_sub(deletions_len)?)?;
        let patches_len = u64::from_le_bytes(head[16..24].try_into().unwrap_or_default());
        let is_known = is_old || head[..8] == MAGIC;
        if !is_known || patches.len() as u64 != patches_len {
            return None;
        }
        let names = generations.chunks_exact(4).take(generations_count);
        let generations: Vec<u32> = names
            .map(|name| u32::from_le_bytes(name.try_into().unwrap_or_default()))
            .collect();
        // Every location must be in a segment that existed when the checkpoint was taken.
        let segments = if is_old {
            segments
        } else {
            segments.min(generations_count as u32)
        };
        let places = places.chunks_exact(8);
        let locations = places.map(|place| {
            let stored = u64::from_le_bytes(place.try_into().unwrap_or_default());
            Location::from_stored(stored, geometry, segments)
        });
        let stored = Stored {
            root: number(8),
            locations: locations.collect::<Option<_>>()?,
            generations,
            patches: decode_patches(patches, geometry, segments)?,
            deletions: decode_deletions(deletions)?,
        };
        let is_based = |id: &NodeId| {
            let place = stored.locations.get(*id as usize);
            place.is_some_and(|location| !location.is_nowhere())
        };
        let is_whole = (stored.root as usize) < count && stored.patches.keys().all(is_based);
        is_whole.then_some(stored)
    }

    /// Reads the checkpoint that `superblock` names; returns an empty tree if `superblock` names
    /// none.
    pub(crate) fn read(storage: &dyn Storage, superblock: &Superblock) -> Result<Stored, Error> {
        let geometry = &superblock.geometry;
        if superblock.checkpoint.is_empty() {
            return Ok(Stored {
                root: 0,
                locations: vec![Location::NOWHERE],
                generations: Vec::new(),
                patches: BTreeMap::new(),
                deletions: Vec::new(),
            });
        }
        let segments = geometry.segments(storage.len_bytes());
        let damaged = || Error::Damaged {
            what: "the checkpoint".to_owned(),
            offset: geometry.segment_offset(superblock.checkpoint[0]),
        };
        // The list of segments is checked before memory is allocated: a list of existing, distinct
        // segments cannot ask for more memory than the storage has bytes.
        let named: BTreeSet<&u32> = superblock.checkpoint.iter().collect();
        let is_there = named.last().is_some_and(|last| **last < segments);
        if named.len() < superblock.checkpoint.len() || !is_there {
            return Err(damaged());
        }
        let used = superblock.checkpoint_bytes as usize;
        let mut bytes = Aligned::zeroed(round_up(used));
        let pieces = bytes.chunks_mut(geometry.segment_bytes as usize);
        for (piece, segment) in pieces.zip(&superblock.checkpoint) {
            let offset = geometry.segment_offset(*segment);
            storage
                .read(offset, piece)
                .at("reading the checkpoint", offset)?;
        }
        let bytes = &bytes[..used];
        if crc32c::crc32c(bytes) != superblock.checkpoint_crc {
            return Err(damaged());
        }
        Stored::decode(bytes, geometry, segments).ok_or_else(damaged)
    }
}

impl Writer {
    /// Encodes the patches of all leaves in the form that a checkpoint stores.
    fn encoded_patches(&self, detail: Detail) -> Vec<u8> {
        let patched = self.nodes.patched();
        let mut bytes = Vec::with_capacity(patched.len() * PATCH_BYTES * 2);
        for id in patched {
            let node = self.tree.slots.get(id).node.read();
            push_patches(&mut bytes, id, node.patches(), detail);
        }
        bytes
    }

    /// Returns the approximate length of a checkpoint without filters, in bytes.
    pub(super) fn checkpoint_bytes(&self) -> usize {
        let names_bytes = generations_bytes(self.segments.count());
        let patches_bytes = self.nodes.patched().len() * PATCH_BYTES * 2;
        self.nodes.locations().len() * 8 + names_bytes + patches_bytes
    }

    /// Returns true while a checkpoint is in progress.
    pub(super) fn is_checkpointing(&self) -> bool {
        self.checkpointer.is_under_way()
    }

    /// Takes a checkpoint. When this returns, every image that the checkpoint names has been
    /// written to the storage, but not necessarily made durable.
    pub(super) fn take_checkpoint(&mut self, detail: Detail) -> Result<(), Error> {
        assert!(!self.is_checkpointing(), "one checkpoint at a time");
        let storage = self.storage();
        self.write_log(true)?;
        self.write_first_image()?;
        self.write_inners()?;
        if !is_planted(Bug::NamesUnwritten) {
            self.segments.flush_all(&*storage)?;
        }
        self.release_memory();
        // `needed_from` first removes the range deletions that no leaf needs any more, so that the
        // checkpoint does not list them.
        let needed_from = self.needed_from();
        let mut deletions = Vec::new();
        if !is_planted(Bug::ForgetsDeletions) {
            let all = self.deletions.all();
            all.for_each(|deletion| push_deletion(&mut deletions, deletion));
        }
        let new = NewCheckpoint {
            root: self.tree.root(),
            locations: self.nodes.locations(),
            generations: &self.segments.names(),
            patches: &self.encoded_patches(detail),
            deletions: &deletions,
        };
        let (bytes, used) = new.encode();
        let segments = self.segments.take_for_checkpoint(&*storage, bytes.len())?;
        if segments.len() > CHECKPOINT_SEGMENTS_MAX {
            segments
                .into_iter()
                .for_each(|segment| self.segments.free(segment));
            return Err(Error::Full {
                len_bytes: storage.len_bytes(),
            });
        }
        let too_late = u64::from(is_planted(Bug::TailTooLate));
        let taken = TakenCheckpoint {
            bytes,
            used,
            segments,
            // The tail never passes the head. During a replay the end of the log is not known yet,
            // so the tail stays where it is.
            tail: (needed_from + too_late).min(self.log.head()),
            seq: self.log.seq(),
            emptied: self.segments.emptied(),
        };
        self.checkpointer.begin(taken, &self.tree.geometry);
        Ok(())
    }

    /// Writes an image of the root leaf if the tree has no image yet, even if the tree is empty.
    /// All superblocks and checkpoints can be lost. Only this image then proves that the log is
    /// complete: there was no content before the log that is now missing.
    fn write_first_image(&mut self) -> Result<(), Error> {
        let root = self.tree.root();
        let is_leaf = !self.nodes.is_changed(root);
        let is_nowhere = self.nodes.location(root).is_nowhere();
        match is_leaf && is_nowhere && self.options.paper.is_none() {
            true => self.consolidate_leaf(root),
            false => Ok(()),
        }
    }

    /// Writes the inner nodes that have changed.
    pub(super) fn write_inners(&mut self) -> Result<(), Error> {
        while let Some(id) = self.nodes.first_changed() {
            let content = self.tree.slots.get(id).node.read().content.clone();
            let Content::Inner(inner) = content else {
                unreachable!("what has changed is in memory and no leaf");
            };
            let stream = self.stream(Class::Inner);
            let least_bytes = self.lay_out(stream);
            let mut bytes = inner.image(&mut self.builder, id, self.log.seq(), least_bytes);
            let location = self.append(stream, id, self.log.seq(), &mut bytes, About::Inner)?;
            self.tree.slots.get(id).node.write().location = location;
            self.relocate(id, location);
            self.nodes.note_written(id);
        }
        Ok(())
    }

    /// Continues the checkpoint in progress: writes one piece, or syncs the storage and completes
    /// the checkpoint.
    pub(super) fn continue_checkpoint(&mut self) -> Result<(), Error> {
        let storage = self.storage();
        if self
            .checkpointer
            .write_piece(&*storage, &self.tree.geometry)?
        {
            return Ok(());
        }
        let Some(checkpoint) = self.checkpointer.take_written() else {
            return Ok(());
        };
        if !is_planted(Bug::UnsyncedCheckpoint) {
            let synced = sync(&*storage);
            synced.at("making a checkpoint durable", 0)?;
        }
        self.complete(checkpoint)
    }

    /// Puts a written checkpoint into effect, and frees the segments that only the previous
    /// checkpoint needed.
    fn complete(&mut self, checkpoint: WrittenCheckpoint) -> Result<(), Error> {
        let storage = self.storage();
        let left = self.log.settle(&*storage, &checkpoint)?;
        for segments in left.log {
            self.segments.release_log(segments);
        }
        if left.is_elsewhere {
            self.statistics.log_rings += 1;
            self.log.mark(&*storage)?;
        }
        self.checkpointer.settle(checkpoint.leaves_written);
        for segment in checkpoint.emptied.into_iter().chain(left.checkpoint) {
            self.segments.free(segment);
            self.cleaner.stop(segment);
        }
        self.statistics.checkpoints += 1;
        self.statistics.checkpoint_bytes += checkpoint.used_bytes;
        let spare = self.spare_segments() * 2;
        self.segments.shrink(&*storage, spare)
    }

    /// Completes the checkpoint in progress, if any, then takes and completes a new checkpoint.
    pub(crate) fn checkpoint_now(&mut self) -> Result<(), Error> {
        while self.is_checkpointing() {
            self.continue_checkpoint()?;
        }
        self.take_checkpoint(Detail::Filters)?;
        while self.is_checkpointing() {
            self.continue_checkpoint()?;
        }
        Ok(())
    }
}

/// Returns the number of bytes that `count` segment generations take in a checkpoint.
fn generations_bytes(count: usize) -> usize {
    (count * 4).next_multiple_of(8)
}

/// Returns true if these bytes are the start of a checkpoint.
pub(crate) fn begins_checkpoint(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC) || bytes.starts_with(&OLD_MAGIC)
}

/// Encodes the patches of a leaf, the oldest first, as a checkpoint stores them.
fn push_patches(bytes: &mut Vec<u8>, id: NodeId, patches: &[Patch], detail: Detail) {
    for patch in patches {
        let prints = patch.filter.prints();
        let prints = prints.filter(|_| detail == Detail::Filters);
        let count = prints.map_or(UNKNOWN, |prints| prints.len() as u32);
        bytes.extend_from_slice(&patch.location.stored().to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        for print in prints.unwrap_or_default() {
            bytes.extend_from_slice(&print.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
}

/// Decodes patches as a checkpoint stores them.
fn decode_patches(
    mut bytes: &[u8],
    geometry: &Geometry,
    segments: u32,
) -> Option<BTreeMap<NodeId, Vec<Patch>>> {
    let mut all: BTreeMap<NodeId, Vec<Patch>> = BTreeMap::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<PATCH_BYTES>()?;
        let stored = u64::from_le_bytes(*head.first_chunk()?);
        let location = Location::from_stored(stored, geometry, segments)?;
        let id = NodeId::from_le_bytes(*head[8..].first_chunk()?);
        let count = u32::from_le_bytes(*head[12..].first_chunk()?);
        let patches = all.entry(id).or_default();
        if location.is_nowhere() || patches.len() == PATCHES_MAX {
            return None;
        }
        let count = if count == UNKNOWN {
            None
        } else {
            Some(count as usize)
        };
        let (prints, rest) =
            rest.split_at_checked(count.unwrap_or(0).checked_mul(2)?.next_multiple_of(8))?;
        let prints = count.map(|count| {
            let prints = prints.chunks_exact(2).take(count);
            prints
                .map(|print| u16::from_le_bytes([print[0], print[1]]))
                .collect()
        });
        patches.push(Patch {
            location,
            filter: Filter::from_prints(prints),
        });
        bytes = rest;
    }
    Some(all)
}

/// Encodes a range deletion as a checkpoint stores it.
fn push_deletion(bytes: &mut Vec<u8>, deletion: &Deletion) {
    let Deletion { seq, start, end } = deletion;
    let end_bytes = end.as_ref().map_or(NO_END, |end| end.len() as u32);
    bytes.extend_from_slice(&seq.to_le_bytes());
    bytes.extend_from_slice(&(start.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&end_bytes.to_le_bytes());
    bytes.extend_from_slice(start);
    bytes.extend_from_slice(end.as_deref().unwrap_or_default());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// Decodes range deletions as a checkpoint stores them.
fn decode_deletions(mut bytes: &[u8]) -> Option<Vec<Deletion>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<DELETION_BYTES>()?;
        let length = |at: usize| Some(u32::from_le_bytes(*head[at..].first_chunk()?));
        let is_key = |length: &u32| *length as usize <= KEY_BYTES_MAX;
        let seq = u64::from_le_bytes(*head.first_chunk()?);
        let start_bytes = length(8).filter(is_key)? as usize;
        let end_bytes = match length(12)? {
            NO_END => None,
            bytes => Some(Some(bytes).filter(is_key)? as usize),
        };
        let used = start_bytes + end_bytes.unwrap_or(0);
        let (keys, rest) = rest.split_at_checked(used.next_multiple_of(8))?;
        let (start, end) = keys[..used].split_at(start_bytes);
        if seq >= COUNTS_MAX {
            return None;
        }
        all.push(Deletion {
            seq,
            start: start.into(),
            end: end_bytes.map(|_| end.into()),
        });
        bytes = rest;
    }
    Some(all)
}

/// Derives the state of the segments from the images that a checkpoint names.
///
/// # Errors
///
/// [`Error::Damaged`] if the checkpoint names more bytes in a segment than it has.
pub(crate) fn take_up(
    tree: &Arc<crate::tree::Tree>,
    superblock: &Superblock,
    stored: &Stored,
) -> Result<crate::segments::Segments, Error> {
    let geometry = superblock.geometry;
    let count = geometry.segments(tree.storage.len_bytes());
    let generations = Arc::clone(&tree.generations);
    let opening = superblock.opening + 1;
    let mut segments = crate::segments::Segments::new(geometry, count, opening, generations);
    let crowded = |segment: u32| Error::Damaged {
        what: format!("the checkpoint, which lists too many bytes in segment {segment}"),
        offset: geometry.segment_offset(segment),
    };
    for segment in &superblock.checkpoint {
        if !segments.take_up_checkpoint(*segment) {
            return Err(crowded(*segment));
        }
    }
    for ring in superblock.rings.all() {
        let taken = ring.segments(&geometry);
        if !segments.take_up_log(taken.clone()) {
            return Err(Error::Damaged {
                what: format!("the superblock, which places the log in segments {taken:?}"),
                offset: 0,
            });
        }
    }
    let mut take_up = |location: Location| match segments.take_up(location) {
        true => Ok(()),
        false => Err(crowded(location.segment())),
    };
    for (id, location) in stored.locations.iter().enumerate() {
        if !location.is_nowhere() {
            tree.slots.get(id as NodeId).node.write().location = *location;
            take_up(*location)?;
        }
    }
    let patched = match is_planted(Bug::ForgetsPatches) {
        true => &BTreeMap::new(),
        false => &stored.patches,
    };
    for (id, patches) in patched {
        let patched = Patched {
            patches: patches.clone(),
            ..Patched::default()
        };
        patches
            .iter()
            .try_for_each(|patch| take_up(patch.location))?;
        tree.memory.add_content(patched.memory_bytes());
        tree.slots.get(*id).node.write().patched = Some(Box::new(patched));
    }
    tree.set_root(stored.root);
    tree.set_nodes(stored.locations.len() as NodeId);
    Ok(segments)
}
