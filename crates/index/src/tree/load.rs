//! Reading images of nodes: a whole one into its slot, or the one piece that a reader needs.
//!
//! No lock is held while the storage is asked, so a node may have moved when the answer is there, and its
//! place may be another's: what was read counts only if the node is still where it was. Where memory is
//! short a node may be given up before whoever has read it looks again; so it gets what was read, too.

use super::Tree;
use super::inner::Inner;
use super::patch::{Patch, Placed, merged, placed};
use super::slots::{Content, Node, Slot};
use crate::error::{At, Error};
use crate::node::{Image, NodeId, ROWS_MAX, Seq};
use crate::planted::{Bug, is_planted};
use crate::segments::Location;
use crate::storage::{Aligned, BLOCK_BYTES};
use crate::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Readings of an image that was moved meanwhile, at most: more are damage that moves.
pub(super) const ATTEMPTS_MAX: usize = 64;

impl Tree {
    /// Reads a node into its slot, unless somebody was faster, and returns it: where memory is short it may
    /// be given up again before the next look.
    pub(super) fn load(&self, id: NodeId, slot: &Slot) -> Result<Option<Loaded>, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(places) = Places::of(&slot.node.read()) else {
                return Ok(None);
            };
            let read = self.read_whole(id, &places);
            let mut node = slot.node.write();
            // If it has moved, what was read may be anything.
            let is_there = Places::of(&node).as_ref() == Some(&places);
            if is_there || is_planted(Bug::BelievesOldReads) {
                let (content, drops_blobs) = read?;
                self.memory
                    .put_content(id, slot, &mut node, content.clone());
                if let Some(patched) = &mut node.patched {
                    patched.drops_blobs = drops_blobs;
                }
                slot.touch();
                drop(node);
                self.memory.evict(&self.slots);
                return Ok(Some(Loaded { places, content }));
            }
        }
        let location = slot.node.read().location;
        Err(Error::Damaged {
            what: format!("node {id}, which cannot be read where it is said to be"),
            offset: self.offset(location),
        })
    }

    /// A node, and whether values out of line are left without a reference when its images are put
    /// together.
    fn read_whole(&self, id: NodeId, places: &Places) -> Result<(Content, bool), Error> {
        if places.patches.is_empty() {
            return Ok((self.read_content(id, places.location)?, false));
        }
        let mut drops_blobs = false;
        let image = self.read_merged(id, places, &mut |_| drops_blobs = true)?;
        Ok((Content::Leaf(image), drops_blobs))
    }

    fn read_merged(
        &self,
        id: NodeId,
        places: &Places,
        freed: &mut dyn FnMut(&[u8]),
    ) -> Result<Image, Error> {
        let read = |location: &Location| match placed(&places.unlanded, *location) {
            Some(image) => Ok(image.clone()),
            None => self.read_piece(id, *location),
        };
        let image = read(&places.location)?;
        let patches: Vec<Image> = places.patches.iter().map(read).collect::<Result<_, _>>()?;
        let rows = patches.iter().map(|patch| patch.rows()).sum::<usize>() + image.rows();
        let is_leaf = !image.is_patch() && image.level() == 0 && rows <= ROWS_MAX;
        if !is_leaf || !patches.iter().all(|patch| patch.is_patch()) {
            return Err(Error::Damaged {
                what: format!("node {id}, which should be a leaf with patches"),
                offset: self.offset(places.location),
            });
        }
        Ok(merged(&image, &patches, places.location, freed))
    }

    /// A key that an image or a patch of a leaf says something of. For the one that changes.
    pub(crate) fn key_in_pieces(&self, id: NodeId) -> Result<Option<Vec<u8>>, Error> {
        let places = {
            let node = self.slots.get(id).node.read();
            if node.patches().is_empty() {
                return Ok(None);
            }
            Places::at(&node)
        };
        for location in places.patches.iter().chain([&places.location]) {
            let image = match placed(&places.unlanded, *location) {
                Some(image) => image.clone(),
                None => self.read_piece(id, *location)?,
            };
            if image.rows() > 0 {
                let mut key = Vec::new();
                image.key(0, &mut key);
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// The references of values out of line that the patches of a leaf have replaced. For the one that
    /// changes.
    pub(crate) fn dropped_blobs(&self, id: NodeId) -> Result<Vec<Vec<u8>>, Error> {
        let mut dropped = Vec::new();
        let places = {
            let node = self.slots.get(id).node.read();
            let drops = node.patched.as_ref().is_some_and(|p| p.drops_blobs);
            if drops {
                Places::at(&node)
            } else {
                return Ok(dropped);
            }
        };
        self.read_merged(id, &places, &mut |reference| {
            dropped.push(reference.to_vec())
        })?;
        Ok(dropped)
    }

    /// The byte at which an image begins.
    pub(crate) fn offset(&self, location: Location) -> u64 {
        self.geometry.segment_offset(location.segment()) + location.at() as u64
    }

    /// The bytes of an image, as they are on the storage.
    pub(crate) fn read_image(&self, location: Location) -> Result<Vec<u8>, Error> {
        let offset = self.offset(location);
        let first = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let skip = (offset - first) as usize;
        let len = crate::storage::round_up(skip + location.bytes());
        let mut blocks = Aligned::zeroed(len);
        self.image_reads.fetch_add(1, Ordering::Relaxed);
        self.storage
            .read(first, &mut blocks)
            .at("reading a node", offset)?;
        Ok(blocks[skip..skip + location.bytes()].to_vec())
    }

    /// One image of a node: all of it, or a patch.
    fn read_piece(&self, id: NodeId, location: Location) -> Result<Image, Error> {
        let bytes = self.read_image(location)?;
        self.piece_of(id, location, &bytes)
    }

    /// The image of a node that was read from its place.
    fn piece_of(&self, id: NodeId, location: Location, bytes: &[u8]) -> Result<Image, Error> {
        let offset = self.offset(location);
        let damaged = |what: String| Error::Damaged { what, offset };
        let image = Image::parse(bytes, self.fillings.seal_of(location))
            .map_err(|error| damaged(format!("node {id}: {error}")))?;
        if image.node() != id {
            return Err(damaged(format!(
                "node {id}, where node {} is",
                image.node()
            )));
        }
        Ok(image)
    }

    fn read_content(&self, id: NodeId, location: Location) -> Result<Content, Error> {
        let bytes = self.read_image(location)?;
        self.content_of(id, location, &bytes)
    }

    /// What a node has in memory whose image was read from its place.
    pub(super) fn content_of(
        &self,
        id: NodeId,
        location: Location,
        bytes: &[u8],
    ) -> Result<Content, Error> {
        let image = self.piece_of(id, location, bytes)?;
        let offset = self.offset(location);
        if image.is_patch() {
            return Err(Error::Damaged {
                what: format!("node {id}: a patch where its image belongs"),
                offset,
            });
        }
        if image.level() == 0 {
            return Ok(Content::Leaf(image));
        }
        Ok(Content::Inner(Arc::new(self.inner_of(&image, offset)?)))
    }

    /// The inner node of an image, if all that it names is there.
    pub(crate) fn inner_of(&self, image: &Image, offset: u64) -> Result<Inner, Error> {
        let inner = Inner::from_image(image, offset)?;
        let children: BTreeSet<NodeId> = inner.children().collect();
        let is_there = children.last().is_some_and(|last| self.has(*last));
        if is_there && children.len() == inner.len() {
            return Ok(inner);
        }
        let id = image.node();
        Err(Error::Damaged {
            what: format!("node {id}, which names nodes twice or that do not exist"),
            offset,
        })
    }

    /// Gets a leaf for a reader; of one with patches the one image that is needed, unless it is asked for
    /// again and again.
    pub(super) fn fetch(
        &self,
        id: NodeId,
        location: Location,
        at_hand: &mut AtHand,
    ) -> Result<(), Error> {
        let slot = self.slots.get(id);
        let is_patched = !slot.node.read().patches().is_empty();
        if !is_patched || (at_hand.pieces.is_empty() && self.memory.is_missed_again(slot)) {
            at_hand.whole = self.load(id, slot)?;
            return Ok(());
        }
        match self.read_piece(id, location) {
            Ok(image) => at_hand.pieces.push((location, image)),
            Err(error) => {
                // If it is not there any more, the next look says where to go.
                let node = slot.node.read();
                let is_there = |patch: &Patch| patch.location == location;
                if node.location == location || node.patches().iter().any(is_there) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// What one reader has read of a leaf, for its next look.
#[derive(Default)]
pub(super) struct AtHand {
    pub whole: Option<Loaded>,
    pub pieces: Vec<Placed>,
}

impl AtHand {
    /// The image of a whole leaf, `Some(None)` for one that has none; `None` if it is not at hand.
    pub fn image_of<'a>(&'a self, node: &'a Node) -> Option<Option<&'a Image>> {
        match &node.content {
            Content::Leaf(image) => return Some(Some(image)),
            Content::Inner(_) => return Some(None),
            Content::Absent if node.location.is_nowhere() => return Some(None),
            Content::Absent => {}
        }
        match &self.whole {
            Some(Loaded {
                places,
                content: Content::Leaf(image),
            }) if *places == Places::at(node) => Some(Some(image)),
            _ => None,
        }
    }
}

/// A node that was read.
pub(super) struct Loaded {
    places: Places,
    pub content: Content,
}

/// Where the images of a node are that is not in memory, and as of when.
#[derive(Debug)]
pub(super) struct Places {
    location: Location,
    patches: Vec<Location>,
    unlanded: Vec<Placed>,
    /// A place may have been freed and taken again by the same node.
    folded_at: Seq,
}

impl PartialEq for Places {
    fn eq(&self, other: &Places) -> bool {
        // Landing changes nothing of what they say.
        (self.location, self.folded_at) == (other.location, other.folded_at)
            && self.patches == other.patches
    }
}

impl Places {
    /// `None` if there is nothing to be read.
    fn of(node: &Node) -> Option<Places> {
        let is_read = !matches!(node.content, Content::Absent) || node.location.is_nowhere();
        (!is_read).then(|| Places::at(node))
    }

    fn at(node: &Node) -> Places {
        Places {
            location: node.location,
            patches: node.patches().iter().map(|p| p.location).collect(),
            unlanded: node.unlanded().to_vec(),
            folded_at: node.folded_at,
        }
    }
}
