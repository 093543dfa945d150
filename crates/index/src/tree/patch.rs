//! Patches: changes of a leaf stored beside its image, so that a leaf not in memory need not be
//! read and written whole for a few changes.
//!
//! Patches override the image, and newer patches override older ones. Memory has a filter for each
//! patch: 16 bits of a hash of every key in the patch. So a reader usually reads only the image or
//! patch that has the answer. Content in memory is always the whole leaf, image and patches merged.
//! It must never be made from an image without all patches of that image.

use crate::node::{Builder, Delta, Image, Row, Seq, consolidate, seal};
use crate::segments::Location;
use std::sync::Arc;

/// Set of keys that a patch can contain, represented by their fingerprints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(Option<Arc<[u16]>>);

/// Returns the fingerprint of a key in a filter. The fingerprint is part of the storage format:
/// docs/format/index.md.
pub(crate) fn print_of(key: &[u8]) -> u16 {
    crc32c::crc32c(key) as u16
}

impl Filter {
    /// Returns the filter of a patch.
    pub(crate) fn of(patch: &Image) -> Filter {
        let mut key = Vec::new();
        let prints = (0..patch.rows()).map(|row| {
            patch.key(row, &mut key);
            print_of(&key)
        });
        Filter(Some(prints.collect()))
    }

    /// Creates a filter from fingerprints. With `None`, the filter reports that the patch can
    /// contain any key.
    pub(crate) fn from_prints(prints: Option<Vec<u16>>) -> Filter {
        Filter(prints.map(Arc::from))
    }

    /// Returns the fingerprints, if they are known.
    pub(crate) fn prints(&self) -> Option<&[u16]> {
        self.0.as_deref()
    }

    /// Returns true if the patch can contain a key with this fingerprint.
    pub(crate) fn may_have(&self, print: u16) -> bool {
        self.0.as_ref().is_none_or(|prints| prints.contains(&print))
    }
}

/// A patch on the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub location: Location,
    pub filter: Filter,
}

impl Patch {
    /// Returns the memory that the patch takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let prints = self.filter.prints().map_or(0, <[u16]>::len);
        size_of::<Patch>() + 2 * prints
    }
}

/// An image and its location.
pub(crate) type Placed = (Location, Image);

/// Additional state of a leaf with patches.
#[derive(Debug, Default)]
pub(crate) struct Patched {
    /// Patches, the oldest first.
    pub patches: Vec<Patch>,
    /// Images of this leaf that have not reached the storage.
    pub unflushed: Vec<Placed>,
    /// True if merging the patches into the image removes references to blobs. These blobs are
    /// freed only when the leaf is rewritten.
    pub drops_blobs: bool,
}

impl Patched {
    /// Returns the memory that the state takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let patches: usize = self.patches.iter().map(Patch::memory_bytes).sum();
        let spare_patches = self.patches.capacity() - self.patches.len();
        let patches = patches + spare_patches * size_of::<Patch>();
        let images = self.unflushed.iter().map(|(_, image)| image.memory_bytes());
        let places = self.unflushed.capacity() * size_of::<Placed>();
        size_of::<Patched>() + patches + places + images.sum::<usize>()
    }
}

/// Returns the image at a location, if it is in the list.
pub(crate) fn placed(images: &[Placed], location: Location) -> Option<&Image> {
    let mut images = images.iter();
    let found = images.find(|(at, _)| *at == location);
    found.map(|(_, image)| image)
}

/// Merges an image and its patches, the oldest first, into one image of the whole leaf for the
/// location `location`. Calls `freed` with the references to blobs that are replaced.
pub(crate) fn merged(
    image: &Image,
    patches: &[Image],
    location: Location,
    freed: &mut dyn FnMut(&[u8]),
) -> Image {
    let mut delta = Delta::new();
    let mut seq: Seq = image.lsn();
    let mut lsn = image.lsn();
    let mut key = Vec::new();
    for patch in patches {
        lsn = lsn.max(patch.lsn());
        // Rows of patches have no sequence numbers, so each patch gets one, above that of the
        // previous patch. Only the order of these numbers matters. The LSNs are not enough, because
        // several patches can have the same LSN. The LSN of the merged leaf is the highest LSN,
        // even if the last sequence number is higher.
        seq = patch.lsn().max(seq.saturating_add(1));
        for row in 0..patch.rows() {
            patch.key(row, &mut key);
            delta.insert(&key, seq, patch.kind(row), &patch.value(row), seq);
        }
    }
    let changes = Changes {
        delta: &delta,
        lsn,
        oldest: seq,
    };
    changes.over(image, location, &mut Builder::new(false), freed)
}

/// Changes to be merged into the image of a leaf in memory.
pub(crate) struct Changes<'a> {
    pub delta: &'a Delta,
    /// LSN that the leaf has with these changes.
    pub lsn: u64,
    /// Lowest sequence number at which a reader reads. If no reader at this number or above sees a
    /// version, the merge drops that version.
    pub oldest: Seq,
}

impl Changes<'_> {
    /// Merges these changes into `image`, and returns the result as an image for `location`. Keeps
    /// the versions of each key that readers may see. The rows pass through `builder`, which packs
    /// them and reuses its memory. Calls `freed` with the references to blobs that are replaced.
    pub(crate) fn over(
        &self,
        image: &Image,
        location: Location,
        builder: &mut Builder,
        freed: &mut dyn FnMut(&[u8]),
    ) -> Image {
        builder.clear();
        let mut push = |row: Row<'_>| builder.push(row);
        consolidate(Some(image), self.delta, self.oldest, &mut push, freed);
        // The merged image can be longer than an image on the storage: rows that packed well alone,
        // for instance keys with a long common prefix, can pack worse together with other rows.
        let mut bytes = builder.finish_for_memory(image.node(), self.lsn, image.interval());
        seal(&mut bytes, location.stored());
        Image::parse_for_memory(&bytes, location.stored(), image.stored_lsn())
            .expect("an image that was just made can be read")
    }
}
