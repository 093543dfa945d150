//! Changes of a leaf that stand on the storage beside its image, so that a leaf that is not in
//! memory need not be read and written whole for a few of them.
//!
//! Patches lie over the image, the newest on top. Memory has a filter for each: 16 bits of a hash
//! of every key in it, so that a reader asks the one image that has the answer and hardly ever
//! another. Content in memory is always the whole leaf, image and patches in one. It must never be
//! made of an image without the patches over it.

use crate::node::{Builder, Delta, Image, Row, Seq, fold, seal};
use crate::segments::Location;
use std::sync::Arc;

/// Which keys a patch may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(Option<Arc<[u16]>>);

/// What a filter keeps of a key. On the storage, too: docs/format/index.md.
pub(crate) fn print_of(key: &[u8]) -> u16 {
    crc32c::crc32c(key) as u16
}

impl Filter {
    /// That of a patch.
    pub(crate) fn of(patch: &Image) -> Filter {
        let mut key = Vec::new();
        let prints = (0..patch.rows()).map(|row| {
            patch.key(row, &mut key);
            print_of(&key)
        });
        Filter(Some(prints.collect()))
    }

    /// That of these prints; of `None` one that may have every key.
    pub(crate) fn from_prints(prints: Option<Vec<u16>>) -> Filter {
        Filter(prints.map(Arc::from))
    }

    /// The prints, if they are known.
    pub(crate) fn prints(&self) -> Option<&[u16]> {
        self.0.as_deref()
    }

    /// Whether the patch may have a key of this print.
    pub(crate) fn may_have(&self, print: u16) -> bool {
        self.0.as_ref().is_none_or(|prints| prints.contains(&print))
    }
}

/// Changes of a leaf on the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    pub location: Location,
    pub filter: Filter,
}

impl Patch {
    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let prints = self.filter.prints().map_or(0, <[u16]>::len);
        size_of::<Patch>() + 2 * prints
    }
}

/// An image and where it is.
pub(crate) type Placed = (Location, Image);

/// What a leaf with patches has beside what every node has.
#[derive(Debug, Default)]
pub(crate) struct Patched {
    /// The oldest first.
    pub patches: Vec<Patch>,
    /// Images of this leaf that have not reached the storage.
    pub unlanded: Vec<Placed>,
    /// Putting image and patches together leaves values out of line that nothing refers to any
    /// more. Only writing the leaf anew frees them.
    pub drops_blobs: bool,
}

impl Patched {
    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let patches: usize = self.patches.iter().map(Patch::memory_bytes).sum();
        let spare_patches = self.patches.capacity() - self.patches.len();
        let patches = patches + spare_patches * size_of::<Patch>();
        let images = self.unlanded.iter().map(|(_, image)| image.memory_bytes());
        let places = self.unlanded.capacity() * size_of::<Placed>();
        size_of::<Patched>() + patches + places + images.sum::<usize>()
    }
}

/// The image at a place, if it is at hand.
pub(crate) fn placed(images: &[Placed], location: Location) -> Option<&Image> {
    let mut images = images.iter();
    let found = images.find(|(at, _)| *at == location);
    found.map(|(_, image)| image)
}

/// The leaf of an image and the patches over it, the oldest first, for the place of the image.
/// `freed` is given the references of values out of line that are replaced.
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
        // Rows of patches have no numbers, since every reader sees them; what counts is which is
        // over which. Patches may be of one moment, and the leaf is then of that moment, not of a
        // later one.
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

/// What changes the image of a leaf in memory.
pub(crate) struct Changes<'a> {
    pub delta: &'a Delta,
    /// What the leaf is as of, with them.
    pub lsn: u64,
    /// Readers from here on may see what was before.
    pub oldest: Seq,
}

impl Changes<'_> {
    /// The leaf of an image and of these changes, for the place of the image: of each key what
    /// readers may see. The rows go through `builder`, which packs and keeps its memory. `freed` is
    /// given the references of values out of line that are replaced.
    pub(crate) fn over(
        &self,
        image: &Image,
        location: Location,
        builder: &mut Builder,
        freed: &mut dyn FnMut(&[u8]),
    ) -> Image {
        builder.clear();
        let mut push = |row: Row<'_>| builder.push(row);
        fold(Some(image), self.delta, self.oldest, &mut push, freed);
        // What packed well alone, keys with a long prefix for instance, need not pack with others.
        let mut bytes = builder.finish_for_memory(image.node(), self.lsn, image.interval());
        seal(&mut bytes, location.stored());
        Image::parse_for_memory(&bytes, location.stored(), image.stored_lsn())
            .expect("an image that was just made can be read")
    }
}
