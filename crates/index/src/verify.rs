//! Verification of a whole index without opening it: every node must be present and intact, and be
//! referenced exactly once. The verification writes nothing.

use crate::error::Error;
use crate::layout::Superblock;
use crate::log::Reader;
use crate::node::{Image, KeyRange, Kind, NodeId, parse_blob};
use crate::segments::{Generations, Location};
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up};
use crate::tree::blob::Reference;
use crate::tree::patch::Filter;
use crate::writer::Stored;

/// Maximum number of listed problems. Further problems are only counted.
const LISTED_MAX: usize = 100;

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of inner nodes.
    pub inner_nodes: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of patches of leaves.
    pub patches: u64,
    /// Number of rows in leaves and patches, including older versions, but not changes that are
    /// only in the log.
    pub rows: u64,
    /// Number of out-of-line values.
    pub blobs: u64,
    /// Bytes of images and blobs.
    pub live_bytes: u64,
    /// Number of log frames after the tail.
    pub log_frames: u64,
    /// Length of the storage in bytes.
    pub len_bytes: u64,
    /// Problems found, up to a maximum number.
    pub problems: Vec<Problem>,
    /// Number of problems found, including those that are not listed.
    pub problems_found: u64,
}

/// A problem found in an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Description of the problem.
    pub what: String,
    /// Location of the problem, in bytes from the start of the storage.
    pub offset: u64,
}

struct Walk<'a> {
    storage: &'a dyn Storage,
    superblock: Superblock,
    stored: Stored,
    generations: Generations,
    is_seen: Vec<bool>,
    found: Verified,
    /// True if a node that may be an inner node could not be read, so that the nodes below it were
    /// not checked.
    is_cut: bool,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// Verifies a whole index. Calls `progress` with the number of nodes checked so far, and the total
/// number of node ids.
///
/// # Errors
///
/// If the storage has no index or an index of another version, if the checkpoint is damaged or
/// cannot be read, or if the log cannot be read. Other damage is listed in the result.
pub fn verify(
    storage: &dyn Storage,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Verified, Error> {
    let superblock = Superblock::read(storage)?;
    let stored = Stored::read(storage, &superblock)?;
    let mut walk = Walk {
        is_seen: vec![false; stored.locations.len()],
        storage,
        superblock,
        generations: Generations::new(stored.generations.clone()),
        stored,
        found: Verified {
            len_bytes: storage.len_bytes(),
            ..Verified::default()
        },
        is_cut: false,
        progress,
    };
    walk.check_places();
    let root = walk.stored.root;
    if !walk.stored.locations[root as usize].is_nowhere() {
        walk.check_node(root, None, None, None);
    }
    walk.check_unseen();
    walk.check_log()?;
    Ok(walk.found)
}

impl Walk<'_> {
    fn problem(&mut self, what: String, offset: u64) {
        self.found.problems_found += 1;
        if self.found.problems.len() < LISTED_MAX {
            self.found.problems.push(Problem { what, offset });
        }
    }

    fn offset(&self, location: Location) -> u64 {
        self.superblock.geometry.segment_offset(location.segment()) + location.at() as u64
    }

    /// Checks that no two images share bytes, and that no image is in a segment of the checkpoint.
    fn check_places(&mut self) {
        let mut places: Vec<(Location, NodeId)> =
            self.stored.locations.iter().copied().zip(0..).collect();
        let patches = self.stored.patches.iter();
        places.extend(patches.flat_map(|(id, all)| all.iter().map(|p| (p.location, *id))));
        places.retain(|(location, _)| !location.is_nowhere());
        places.sort_by_key(|(location, _)| location.stored());
        for pair in places.windows(2) {
            let ((first, a), (second, b)) = (pair[0], pair[1]);
            let overlap =
                first.segment() == second.segment() && first.at() + first.bytes() > second.at();
            if overlap {
                let offset = self.offset(second);
                self.problem(format!("nodes {a} and {b} overlap"), offset);
            }
        }
        for (location, id) in &places {
            if self.superblock.checkpoint.contains(&location.segment()) {
                let offset = self.offset(*location);
                self.problem(format!("node {id} overlaps the checkpoint"), offset);
            }
        }
        self.found.live_bytes = places
            .iter()
            .map(|(location, _)| location.bytes() as u64)
            .sum();
    }

    /// Marks a node as visited, and returns its location. Records a problem if the node does not
    /// exist or was visited before.
    fn see(&mut self, id: NodeId, whose: &str) -> Option<Location> {
        let Some(location) = self.stored.locations.get(id as usize).copied() else {
            self.problem(
                format!("{whose} refers to node {id}, which does not exist"),
                0,
            );
            return None;
        };
        if location.is_nowhere() {
            self.problem(
                format!("{whose} refers to node {id}, which has no location"),
                0,
            );
            return None;
        }
        if std::mem::replace(&mut self.is_seen[id as usize], true) {
            let offset = self.offset(location);
            self.problem(format!("node {id} is referred to more than once"), offset);
            return None;
        }
        let seen = self.found.leaves + self.found.inner_nodes + self.found.blobs;
        if seen.is_multiple_of(1024) {
            (self.progress)(seen, self.is_seen.len() as u64);
        }
        Some(location)
    }

    fn read(&self, id: NodeId, location: Location) -> Result<Vec<u8>, String> {
        let offset = self.offset(location);
        let first = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let skip = (offset - first) as usize;
        let mut blocks = Aligned::zeroed(round_up(skip + location.bytes()));
        match self.storage.read(first, &mut blocks) {
            Ok(()) => Ok(blocks[skip..skip + location.bytes()].to_vec()),
            Err(error) => Err(format!("node {id} cannot be read: {error}")),
        }
    }

    /// Checks a node and all nodes below it. The keys of the node must be in the range from `from`
    /// to before `to`.
    fn check_node(
        &mut self,
        id: NodeId,
        level: Option<u8>,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) {
        let Some(location) = self.see(id, "an inner node") else {
            return;
        };
        let offset = self.offset(location);
        match self.read_node(id, location, level) {
            Ok(image) if image.is_patch() => {
                self.problem(format!("node {id}: a patch in place of its image"), offset);
            }
            Ok(image) if image.level() == 0 => {
                self.found.leaves += 1;
                self.check_leaf(&image, offset, from, to);
            }
            Ok(image) => {
                self.found.inner_nodes += 1;
                self.check_inner(&image, offset, from, to);
            }
            Err(what) => {
                self.is_cut |= level != Some(0);
                self.problem(what, offset);
            }
        }
    }

    /// Reads the image of a node, or describes the problem if there is no valid image.
    fn read_node(
        &self,
        id: NodeId,
        location: Location,
        level: Option<u8>,
    ) -> Result<Image, String> {
        let bytes = self.read(id, location)?;
        let image = Image::parse(&bytes, self.generations.seal_of(location))
            .map_err(|e| format!("node {id}: {e}"))?;
        if image.node() != id {
            return Err(format!(
                "node {} is in the place of node {id}",
                image.node()
            ));
        }
        if level.is_some_and(|level| level != image.level()) {
            return Err(format!("node {id} has level {}", image.level()));
        }
        Ok(image)
    }

    fn check_leaf(&mut self, image: &Image, offset: u64, from: Option<&[u8]>, to: Option<&[u8]>) {
        let id = image.node();
        self.check_rows(image, offset, from, to);
        let is_as_in_the_tree =
            |range: KeyRange| *range.from == *from.unwrap_or_default() && range.to.as_deref() == to;
        if !image.range().is_none_or(is_as_in_the_tree) {
            self.problem(format!("leaf {id} records another range of keys"), offset);
        }
        for patch in self.stored.patches.get(&id).cloned().unwrap_or_default() {
            let at = self.offset(patch.location);
            match self.read_node(id, patch.location, Some(0)) {
                Ok(image) if !image.is_patch() => {
                    self.problem(format!("node {id}: its patch is missing"), at);
                }
                Ok(image) => {
                    self.found.patches += 1;
                    if patch.filter.prints().is_some() && patch.filter != Filter::of(&image) {
                        self.problem(format!("node {id}: the filter of a patch is wrong"), at);
                    }
                    self.check_rows(&image, at, from, to);
                }
                Err(what) => self.problem(what, at),
            }
        }
    }

    fn check_rows(&mut self, image: &Image, offset: u64, from: Option<&[u8]>, to: Option<&[u8]>) {
        let id = image.node();
        self.found.rows += image.rows() as u64;
        let mut key = Vec::new();
        for row in [0, image.rows().saturating_sub(1)] {
            if row < image.rows() {
                image.key(row, &mut key);
                let is_in =
                    from.is_none_or(|from| from <= &key[..]) && to.is_none_or(|to| &key[..] < to);
                if !is_in {
                    self.problem(format!("leaf {id} has a key outside its range"), offset);
                }
            }
        }
        for row in 0..image.rows() {
            if image.kind(row) == Kind::Blob {
                self.check_blob(id, image.value(row).as_slice(), offset);
            }
        }
    }

    fn check_blob(&mut self, leaf: NodeId, reference: &[u8], offset: u64) {
        let Some(reference) = Reference::decode(reference) else {
            return self.problem(format!("leaf {leaf} has an invalid reference"), offset);
        };
        self.found.blobs += 1;
        let (mut bytes, mut crc) = (0, 0);
        for blob in reference.blobs {
            let Some(location) = self.see(blob, "a row") else {
                return;
            };
            match self.read_blob(blob, location) {
                Ok(content) => {
                    bytes += content.len() as u64;
                    crc = crc32c::crc32c_append(crc, &content);
                }
                Err(what) => {
                    let at = self.offset(location);
                    return self.problem(what, at);
                }
            }
        }
        if (bytes, crc) != (reference.bytes, reference.crc) {
            self.problem(format!("a value of leaf {leaf} is corrupt"), offset);
        }
    }

    fn read_blob(&self, blob: NodeId, location: Location) -> Result<Vec<u8>, String> {
        let image = self.read(blob, location)?;
        let read = parse_blob(&image, self.generations.seal_of(location))
            .map_err(|e| format!("blob {blob}: {e}"))?;
        if read.node != blob {
            return Err(format!("blob {} is in the place of blob {blob}", read.node));
        }
        Ok(read.content.to_vec())
    }

    fn check_inner(&mut self, image: &Image, offset: u64, from: Option<&[u8]>, to: Option<&[u8]>) {
        let keys: Vec<Vec<u8>> = (0..image.rows())
            .map(|row| {
                let mut key = Vec::new();
                image.key(row, &mut key);
                key
            })
            .collect();
        for row in 0..image.rows() {
            // The range of the first child begins at the lower bound of the node itself.
            let lower = if row == 0 { from } else { Some(&keys[row][..]) };
            let upper = keys.get(row + 1).map(|key| &key[..]).or(to);
            if let (Some(lower), Some(upper)) = (lower, upper)
                && lower >= upper
            {
                let id = image.node();
                self.problem(
                    format!("inner node {id} has separators out of order"),
                    offset,
                );
                continue;
            }
            self.check_node(image.child(row), Some(image.level() - 1), lower, upper);
        }
    }

    /// Records a problem for each node that no other node references. Records nothing if an inner
    /// node could not be read, because the nodes below it were then not visited.
    fn check_unseen(&mut self) {
        if self.is_cut {
            return;
        }
        for id in 0..self.is_seen.len() {
            let location = self.stored.locations[id];
            if !self.is_seen[id] && !location.is_nowhere() {
                let offset = self.offset(location);
                self.problem(format!("no node refers to node {id}"), offset);
            }
        }
    }

    fn check_log(&mut self) -> Result<(), Error> {
        let mut log = Reader::new(self.storage, &self.superblock);
        loop {
            let frame = log.next().and_then(|frame| match frame {
                Some(frame) => frame.each(|_, _| Ok(())).map(Some),
                None => Ok(None),
            });
            match frame {
                Ok(Some(_)) => self.found.log_frames += 1,
                Ok(None) => return Ok(()),
                Err(Error::Damaged { what, offset }) => {
                    self.problem(what, offset);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}
