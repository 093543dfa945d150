//! Looking through a whole index without opening it: is everything there that should be, and nothing in
//! two places? Nothing is written.

use crate::error::Error;
use crate::layout::Superblock;
use crate::log::Reader;
use crate::node::{Image, Kind, NodeId, parse_blob};
use crate::segments::Location;
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up};
use crate::tree::blob::Reference;
use crate::writer::Stored;

/// Problems that are listed; more are only counted.
const LISTED_MAX: usize = 100;

/// What is in an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Inner nodes.
    pub inner_nodes: u64,
    /// Leaves.
    pub leaves: u64,
    /// Rows in them, older versions included; without what is only in the log.
    pub rows: u64,
    /// Values out of line.
    pub blobs: u64,
    /// Bytes of images and blobs.
    pub live_bytes: u64,
    /// Frames of the log after its tail.
    pub log_frames: u64,
    /// Bytes of the storage.
    pub len_bytes: u64,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// How much is wrong; as many as are listed, or more.
    pub problems_found: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What.
    pub what: String,
    /// Where, in bytes from the start of the storage.
    pub offset: u64,
}

struct Walk<'a> {
    storage: &'a dyn Storage,
    superblock: Superblock,
    stored: Stored,
    is_seen: Vec<bool>,
    found: Verified,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// Checks everything. `progress` is told how many nodes have been looked at, and of how many.
///
/// # Errors
///
/// If there is no index, it is of another version, or nothing leads to its nodes. What is wrong
/// further down is in the result.
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
        stored,
        found: Verified {
            len_bytes: storage.len_bytes(),
            ..Verified::default()
        },
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

    /// No two images share bytes, and none is in a segment of the checkpoint.
    fn check_places(&mut self) {
        let mut places: Vec<(Location, NodeId)> =
            self.stored.locations.iter().copied().zip(0..).collect();
        places.retain(|(location, _)| !location.is_nowhere());
        places.sort_by_key(|(location, _)| location.stored());
        for pair in places.windows(2) {
            let ((first, a), (second, b)) = (pair[0], pair[1]);
            let overlap =
                first.segment() == second.segment() && first.at() + first.bytes() > second.at();
            if overlap {
                let offset = self.offset(second);
                self.problem(format!("nodes {a} and {b} share bytes"), offset);
            }
        }
        for (location, id) in &places {
            if self.superblock.checkpoint.contains(&location.segment()) {
                let offset = self.offset(*location);
                self.problem(format!("node {id} is where the checkpoint is"), offset);
            }
        }
        self.found.live_bytes = places
            .iter()
            .map(|(location, _)| location.bytes() as u64)
            .sum();
    }

    /// The place of a node that has not been seen; notes that it has.
    fn see(&mut self, id: NodeId, whose: &str) -> Option<Location> {
        let Some(location) = self.stored.locations.get(id as usize).copied() else {
            self.problem(format!("{whose} names node {id}, which does not exist"), 0);
            return None;
        };
        if location.is_nowhere() {
            self.problem(format!("{whose} names node {id}, which is nowhere"), 0);
            return None;
        }
        if std::mem::replace(&mut self.is_seen[id as usize], true) {
            let offset = self.offset(location);
            self.problem(format!("node {id} is named more than once"), offset);
            return None;
        }
        let seen = self.found.leaves + self.found.inner_nodes + self.found.blobs;
        if seen.is_multiple_of(1024) {
            (self.progress)(seen, self.is_seen.len() as u64);
        }
        Some(location)
    }

    fn read(&mut self, id: NodeId, location: Location) -> Option<Vec<u8>> {
        let offset = self.offset(location);
        let first = offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let skip = (offset - first) as usize;
        let mut blocks = Aligned::zeroed(round_up(skip + location.bytes()));
        match self.storage.read(first, &mut blocks) {
            Ok(()) => Some(blocks[skip..skip + location.bytes()].to_vec()),
            Err(error) => {
                self.problem(format!("node {id} cannot be read: {error}"), offset);
                None
            }
        }
    }

    /// Checks a node and what is below it. Its keys are from `from` to before `to`.
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
        let Some(bytes) = self.read(id, location) else {
            return;
        };
        let image = match Image::parse(bytes, location.stored()) {
            Ok(image) => image,
            Err(error) => return self.problem(format!("node {id}: {error}"), offset),
        };
        if image.node() != id {
            let what = format!("node {} is where node {id} should be", image.node());
            return self.problem(what, offset);
        }
        if level.is_some_and(|level| level != image.level()) {
            return self.problem(format!("node {id} has level {}", image.level()), offset);
        }
        if image.level() == 0 {
            self.found.leaves += 1;
            self.check_leaf(&image, offset, from, to);
        } else {
            self.found.inner_nodes += 1;
            self.check_inner(&image, offset, from, to);
        }
    }

    fn check_leaf(&mut self, image: &Image, offset: u64, from: Option<&[u8]>, to: Option<&[u8]>) {
        let id = image.node();
        self.found.rows += image.rows() as u64;
        let mut key = Vec::new();
        for row in [0, image.rows().saturating_sub(1)] {
            if row < image.rows() {
                image.key(row, &mut key);
                let is_in =
                    from.is_none_or(|from| from <= &key[..]) && to.is_none_or(|to| &key[..] < to);
                if !is_in {
                    self.problem(format!("leaf {id} has a key that is not its own"), offset);
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
            return self.problem(format!("leaf {leaf} has a reference that is none"), offset);
        };
        self.found.blobs += 1;
        let (mut bytes, mut crc) = (0, 0);
        for blob in reference.blobs {
            let Some(location) = self.see(blob, "a row") else {
                return;
            };
            let Some(image) = self.read(blob, location) else {
                return;
            };
            match parse_blob(&image, location.stored()) {
                Ok(read) if read.node == blob => {
                    bytes += read.content.len() as u64;
                    crc = crc32c::crc32c_append(crc, read.content);
                }
                Ok(read) => {
                    let at = self.offset(location);
                    let what = format!("blob {} is where {blob} should be", read.node);
                    return self.problem(what, at);
                }
                Err(error) => {
                    let at = self.offset(location);
                    return self.problem(format!("blob {blob}: {error}"), at);
                }
            }
        }
        if (bytes, crc) != (reference.bytes, reference.crc) {
            self.problem(format!("a value of leaf {leaf} is not what it was"), offset);
        }
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
            // The first child has what is below the second separator, from the node's own bound on.
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

    fn check_unseen(&mut self) {
        for id in 0..self.is_seen.len() {
            let location = self.stored.locations[id];
            if !self.is_seen[id] && !location.is_nowhere() {
                let offset = self.offset(location);
                self.problem(format!("nothing leads to node {id}"), offset);
            }
        }
    }

    fn check_log(&mut self) -> Result<(), Error> {
        let tail = self.superblock.log_tail;
        let mut log = Reader::new(self.storage, self.superblock.geometry, tail);
        loop {
            match log.next() {
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
