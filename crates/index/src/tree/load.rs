//! Reading images of nodes: a whole node into its slot, or the one image that a reader needs.
//!
//! No lock is held during I/O. So when the read completes, the node can have moved, and its
//! location can belong to another node. If the node is still at the same [`Spot`], the content read
//! is valid, and a failed read is a sign of damage. Otherwise the result of the read has no
//! meaning. If memory is short, the node can be evicted before the thread that has read it accesses
//! it again. So that thread also gets the content directly.

use super::Tree;
use super::inner::Inner;
use super::patch::{Placed, merged, placed};
use super::slots::{Content, Node, Slot};
use crate::error::{At, Error};
use crate::node::{Image, NodeId, ROWS_MAX, Seq};
use crate::planted::{Bug, is_planted};
use crate::segments::{Generations, Location, Spot};
use crate::storage::{Aligned, BLOCK_BYTES};
use crate::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of attempts to read an image. An attempt is repeated if the image has moved
/// during it. If the image moves during every attempt, the index is considered damaged.
pub(super) const ATTEMPTS_MAX: usize = 64;

impl Tree {
    /// Reads a node into its slot, unless another thread has read it into the slot first. Also
    /// returns the node, because it may be evicted before the next access if memory is short.
    pub(super) fn load(&self, id: NodeId, slot: &Slot) -> Result<Option<Loaded>, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(places) = Places::of(&slot.node.read(), &self.generations) else {
                return Ok(None);
            };
            let read = self.read_whole(id, &places);
            let mut node = slot.node.write();
            // If the node has moved during the read, the bytes may be content of another node, so
            // the node is read again.
            let is_there = Places::of(&node, &self.generations).as_ref() == Some(&places);
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
            what: format!("node {id}, which cannot be read at its recorded location"),
            offset: self.offset(location),
        })
    }

    /// Reads a node. The second result is true if the patches of the node replace references to
    /// blobs, so that the merged image does not refer to these blobs any more.
    fn read_whole(&self, id: NodeId, places: &Places) -> Result<(Content, bool), Error> {
        if places.patches.is_empty() {
            return Ok((self.read_content(id, places.image)?, false));
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
        let read = |spot: &Spot| match placed(&places.unflushed, spot.location) {
            Some(image) => Ok(image.clone()),
            None => self.read_piece(id, *spot),
        };
        let image = read(&places.image)?;
        let patches: Vec<Image> = places.patches.iter().map(read).collect::<Result<_, _>>()?;
        let rows = patches.iter().map(|patch| patch.rows()).sum::<usize>() + image.rows();
        let is_leaf = !image.is_patch() && image.level() == 0 && rows <= ROWS_MAX;
        if !is_leaf || !patches.iter().all(|patch| patch.is_patch()) {
            return Err(Error::Damaged {
                what: format!("node {id}, which should be a leaf with patches"),
                offset: self.offset(places.image.location),
            });
        }
        Ok(merged(&image, &patches, places.image.location, freed))
    }

    /// Returns one key of a leaf that has patches: the first key of a patch or of the image.
    /// Returns `None` if the leaf has no patches, or if none of its pieces has rows. Only the
    /// writer calls this.
    pub(crate) fn key_in_pieces(&self, id: NodeId) -> Result<Option<Vec<u8>>, Error> {
        let places = {
            let node = self.slots.get(id).node.read();
            if node.patches().is_empty() {
                return Ok(None);
            }
            Places::at(&node, &self.generations)
        };
        for spot in places.patches.iter().chain([&places.image]) {
            let image = match placed(&places.unflushed, spot.location) {
                Some(image) => image.clone(),
                None => self.read_piece(id, *spot)?,
            };
            if image.rows() > 0 {
                let mut key = Vec::new();
                image.key(0, &mut key);
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Returns the references to blobs that the leaf had before its patches replaced them. Only the
    /// writer calls this.
    pub(crate) fn dropped_blobs(&self, id: NodeId) -> Result<Vec<Vec<u8>>, Error> {
        let mut dropped = Vec::new();
        let places = {
            let node = self.slots.get(id).node.read();
            let drops = node.patched.as_ref().is_some_and(|p| p.drops_blobs);
            if drops {
                Places::at(&node, &self.generations)
            } else {
                return Ok(dropped);
            }
        };
        self.read_merged(id, &places, &mut |reference| {
            dropped.push(reference.to_vec())
        })?;
        Ok(dropped)
    }

    /// Returns the byte offset of an image on the storage.
    pub(crate) fn offset(&self, location: Location) -> u64 {
        self.geometry.segment_offset(location.segment()) + location.at() as u64
    }

    /// Reads the bytes of an image from the storage.
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

    /// Reads one image of a node: the image of the whole node, or a patch.
    fn read_piece(&self, id: NodeId, spot: Spot) -> Result<Image, Error> {
        let bytes = self.read_image(spot.location)?;
        self.piece_of(id, spot, &bytes)
    }

    /// Parses the image of a node that was read from this spot.
    fn piece_of(&self, id: NodeId, spot: Spot, bytes: &[u8]) -> Result<Image, Error> {
        let offset = self.offset(spot.location);
        let damaged = |what: String| Error::Damaged { what, offset };
        let image = Image::parse(bytes, spot.seal())
            .map_err(|error| damaged(format!("node {id}: {error}")))?;
        if image.node() != id {
            return Err(damaged(format!(
                "node {id}, in whose place node {} is",
                image.node()
            )));
        }
        Ok(image)
    }

    fn read_content(&self, id: NodeId, spot: Spot) -> Result<Content, Error> {
        let bytes = self.read_image(spot.location)?;
        self.content_of(id, spot, &bytes)
    }

    /// Converts the image `bytes` of the node `id` to the content that is kept in memory. The image
    /// was read from the location in `spot`.
    pub(super) fn content_of(
        &self,
        id: NodeId,
        spot: Spot,
        bytes: &[u8],
    ) -> Result<Content, Error> {
        let image = self.piece_of(id, spot, bytes)?;
        let offset = self.offset(spot.location);
        if image.is_patch() {
            return Err(Error::Damaged {
                what: format!("node {id}: a patch in place of its image"),
                offset,
            });
        }
        if image.level() == 0 {
            return Ok(Content::Leaf(image));
        }
        Ok(Content::Inner(Arc::new(self.inner_of(&image, offset)?)))
    }

    /// Returns the inner node of an image after checking that all its children exist and are
    /// distinct.
    pub(crate) fn inner_of(&self, image: &Image, offset: u64) -> Result<Inner, Error> {
        let inner = Inner::from_image(image, offset)?;
        let children: BTreeSet<NodeId> = inner.children().collect();
        let is_there = children.last().is_some_and(|last| self.has(*last));
        if is_there && children.len() == inner.len() {
            return Ok(inner);
        }
        let id = image.node();
        Err(Error::Damaged {
            what: format!("node {id}, which refers to nodes twice or to nodes that do not exist"),
            offset,
        })
    }

    /// Reads a leaf, or one image of it, for a reader. The whole leaf is read if it has no patches,
    /// or if readers have missed it repeatedly. Otherwise only the image at `spot` is read, which
    /// the reader needs.
    pub(super) fn fetch(
        &self,
        id: NodeId,
        spot: Spot,
        at_hand: &mut AtHand<'_>,
    ) -> Result<(), Error> {
        let slot = self.slots.get(id);
        let is_patched = !slot.node.read().patches().is_empty();
        if !is_patched || (at_hand.pieces.is_empty() && self.memory.is_missed_again(slot)) {
            at_hand.whole = self.load(id, slot)?;
            return Ok(());
        }
        match self.read_piece(id, spot) {
            Ok(image) => at_hand.pieces.push((spot, image)),
            Err(error) => {
                // The read may have failed because the image has moved. In this case no error is
                // returned, and the reader's next attempt finds the new location.
                let node = slot.node.read();
                let mut places = node.patches().iter().map(|patch| patch.location);
                let is_named = node.location == spot.location
                    || places.any(|location| location == spot.location);
                if is_named && self.generations.spot(spot.location) == spot {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Images of a leaf that a lookup or a scan has already read. Its next attempt uses them without
/// reading them again.
pub(super) struct AtHand<'a> {
    generations: &'a Generations,
    pub whole: Option<Loaded>,
    pieces: Vec<(Spot, Image)>,
}

impl<'a> AtHand<'a> {
    /// Creates an empty set.
    pub fn new(generations: &'a Generations) -> AtHand<'a> {
        AtHand {
            generations,
            whole: None,
            pieces: Vec::new(),
        }
    }

    /// Returns the image or patch at `location`, if the reader has already read it. Otherwise
    /// returns, as the error, the spot to read it from. `location` must be one of the node's
    /// current locations.
    pub fn piece(&self, location: Location) -> Result<&Image, Spot> {
        let spot = self.generations.spot(location);
        let mut pieces = self.pieces.iter();
        let found = pieces.find(|(at, _)| *at == spot);
        found.map(|(_, image)| image).ok_or(spot)
    }

    /// Returns the whole image of a leaf: `Some(None)` if the leaf has no image, and `None` if the
    /// image is not in memory and was not read yet.
    pub fn image_of<'n>(&'n self, node: &'n Node) -> Option<Option<&'n Image>> {
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
            }) if *places == Places::at(node, self.generations) => Some(Some(image)),
            _ => None,
        }
    }
}

/// Content of a node that was read, and the locations that it was read from.
pub(super) struct Loaded {
    places: Places,
    pub content: Content,
}

/// Locations of the images of a node that is not in memory, and the sequence number at which the
/// node was last written back.
#[derive(Debug)]
pub(super) struct Places {
    image: Spot,
    patches: Vec<Spot>,
    unflushed: Vec<Placed>,
    consolidated_at: Seq,
}

impl PartialEq for Places {
    fn eq(&self, other: &Places) -> bool {
        // `unflushed` is not compared. It lists images that have not reached the storage, and an
        // image does not change when it reaches the storage.
        (self.image, self.consolidated_at) == (other.image, other.consolidated_at)
            && self.patches == other.patches
    }
}

impl Places {
    /// Returns the locations of the node's image and patches, or `None` if the node is in memory or
    /// has no image.
    fn of(node: &Node, generations: &Generations) -> Option<Places> {
        let is_read = !matches!(node.content, Content::Absent) || node.location.is_nowhere();
        (!is_read).then(|| Places::at(node, generations))
    }

    /// Returns the locations of the image of a leaf and of its patches. The caller holds the lock
    /// of the node.
    fn at(node: &Node, generations: &Generations) -> Places {
        let patches = node.patches().iter();
        Places {
            image: generations.spot(node.location),
            patches: patches
                .map(|patch| generations.spot(patch.location))
                .collect(),
            unflushed: node.unflushed().to_vec(),
            consolidated_at: node.consolidated_at,
        }
    }
}
