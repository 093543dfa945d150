//! Writing a leaf back: the leaf's image and delta are merged into the rows of one new image, or of
//! several.
//!
//! Leaves are written back in the order in which they became dirty. So segments lose their live
//! content in the order in which they were written, and cleaning finds little live content
//! (docs/index.md). A leaf that has grown is split into even parts, or into full parts if keys were
//! only appended at its end. A leaf that has become small is merged with its neighbour. Without
//! space, the write must fail and leave everything unchanged.

use super::Writer;
use super::unsettled::LeafSources;
use crate::error::Error;
use crate::footer::{About, Base, NOT_LOGGED};
use crate::limits::blob_bytes_max;
use crate::node::{
    Delta, Image, KeyRange, Kind, NodeId, ROWS_MAX, Row, Seal, Seq, blob_image, consolidate,
};
use crate::planted::{Bug, is_planted};
use crate::segments::{Class, Location};
use crate::tree::Path;
use crate::tree::blob::Reference;
use std::ops::{Bound, Range};

/// Maximum number of versions of a key in an image.
const VERSIONS_MAX: usize = 1024;
/// Maximum number of rows of an image, except that all versions of a key stay in one image even if
/// the image then has more rows.
const PART_ROWS_MAX: usize = ROWS_MAX / 2;
/// Maximum number of leaves that are merged into one because a leaf is empty. The number is limited
/// because each of these leaves has to be read.
const EMPTY_JOINED_MAX: usize = 16;
/// Number of rows whose packed length is estimated in one step.
const ESTIMATED_ROWS: usize = 8192;

/// Rows of the leaves being rewritten.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    bytes: Vec<u8>,
    rows: Vec<ScratchRow>,
    /// References to blobs that no row needs any more.
    freed: Vec<Vec<u8>>,
    /// References to blobs that were written for these rows.
    new_blobs: Vec<Vec<u8>>,
    /// Parts of the new blobs that readers cannot find yet, with the locations of these parts.
    unpublished: Vec<(NodeId, Location)>,
    /// Sequence number below which a snapshot can lack versions, because a key had too many
    /// versions.
    floor: Seq,
    /// Log position from which the log has all changes that deltas contributed to these rows.
    logged_from: u64,
    /// Images of the leaves that these rows are made of.
    bases: Vec<Base>,
}

#[derive(Clone, Copy, Debug)]
struct ScratchRow {
    key_at: usize,
    value_at: usize,
    end: usize,
    seq: Seq,
    kind: Kind,
}

impl ScratchRow {
    /// Returns the row's share of an unpacked image, in bytes.
    fn bytes(&self) -> usize {
        self.end - self.key_at + 8
    }
}

fn push(bytes: &mut Vec<u8>, rows: &mut Vec<ScratchRow>, row: Row<'_>) {
    let key_at = bytes.len();
    bytes.extend_from_slice(row.key);
    let value_at = bytes.len();
    bytes.extend_from_slice(row.value);
    rows.push(ScratchRow {
        key_at,
        value_at,
        end: bytes.len(),
        seq: row.seq,
        kind: row.kind,
    });
}

impl Scratch {
    fn clear(&mut self) {
        self.floor = 0;
        self.logged_from = NOT_LOGGED;
        self.bases.clear();
        self.bytes.clear();
        self.rows.clear();
        self.freed.clear();
        self.new_blobs.clear();
        self.unpublished.clear();
    }

    fn row(&self, index: usize) -> Row<'_> {
        let row = &self.rows[index];
        Row {
            key: &self.bytes[row.key_at..row.value_at],
            seq: row.seq,
            kind: row.kind,
            value: &self.bytes[row.value_at..row.end],
        }
    }

    fn set_value(&mut self, index: usize, kind: Kind, value: &[u8]) {
        let row = &mut self.rows[index];
        row.kind = kind;
        // The key is copied too, so that key and value are adjacent.
        let key = row.key_at..row.value_at;
        row.key_at = self.bytes.len();
        self.bytes.extend_from_within(key);
        row.value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        row.end = self.bytes.len();
    }

    /// Returns the row at which to cut `part`, which has `bytes` bytes, in two: the first row of a
    /// key, as close to the middle of the bytes as possible. Returns `None` if the part has only
    /// one key.
    fn middle_of(&self, part: &Range<usize>, bytes: usize) -> Option<usize> {
        let is_border = |index: &usize| self.row(*index).key != self.row(index - 1).key;
        let borders = (part.start + 1..part.end).filter(is_border);
        let mut before = vec![0];
        for row in &self.rows[part.clone()] {
            before.push(before.last().copied().unwrap_or_default() + row.bytes());
        }
        borders.min_by_key(|index| before[index - part.start].abs_diff(bytes / 2))
    }

    /// Cuts the rows into parts of about `share` bytes each. All versions of a key are in the same
    /// part.
    fn cut(&self, share: usize) -> Vec<Range<usize>> {
        let (mut cuts, mut start, mut bytes) = (Vec::new(), 0, 0);
        for (index, row) in self.rows.iter().enumerate() {
            let is_due = bytes + row.bytes() / 2 > share || index - start >= PART_ROWS_MAX;
            if is_due && index > start && self.row(index).key != self.row(index - 1).key {
                cuts.push(start..index);
                (start, bytes) = (index, 0);
            }
            bytes += row.bytes();
        }
        cuts.push(start..self.rows.len());
        cuts
    }
}

/// Decision about a version of a key when its leaf is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Kept,
    /// The version is dropped: no reader sees it.
    Unseen,
    /// The version is dropped because its key has too many versions, although an open reader could
    /// still read it.
    Beyond,
}

/// State of the decision which versions of one key are kept. The versions are judged from the
/// newest to the oldest.
#[derive(Debug)]
struct OfKey {
    /// Sequence number of the version that was judged last. If the next version has the same key,
    /// this is the number of the next newer version of that key.
    newer: Seq,
    kept: usize,
    bytes: usize,
    /// Maximum number of bytes of all versions of a key together: they must fit one image, and the
    /// image must fit one segment.
    bytes_max: usize,
    /// Length of a value above which the image holds only a reference to a blob.
    inline_bytes_max: usize,
}

impl OfKey {
    fn new(bytes_max: usize, inline_bytes_max: usize) -> OfKey {
        OfKey {
            newer: 0,
            kept: 0,
            bytes: 0,
            bytes_max,
            inline_bytes_max,
        }
    }

    /// Decides whether the version `row` is kept. `is_same_key` is true if the previous version has
    /// the same key; the previous version is then the next newer one. `held` are the sequence
    /// numbers of the open readers, in ascending order. A reader sees a version if the number of
    /// the reader is at least the number of that version, and is below the number of the next newer
    /// version.
    fn judge(&mut self, row: &Row<'_>, is_same_key: bool, held: &[Seq]) -> Verdict {
        let value_bytes = match row.value.len() {
            long if long > self.inline_bytes_max => Reference::bytes_for(long),
            short => short,
        };
        let bytes = row.key.len() + value_bytes;
        let newer = std::mem::replace(&mut self.newer, row.seq);
        if !is_same_key {
            (self.kept, self.bytes) = (1, bytes);
            return Verdict::Kept;
        }
        let first = held.partition_point(|seq| *seq < row.seq);
        if held.get(first).is_none_or(|seq| *seq >= newer) {
            return Verdict::Unseen;
        }
        if self.kept == VERSIONS_MAX || self.bytes + bytes > self.bytes_max {
            return Verdict::Beyond;
        }
        self.kept += 1;
        self.bytes += bytes;
        Verdict::Kept
    }
}

/// An image of a leaf that has been written.
pub(super) struct Written {
    pub id: NodeId,
    pub separator: Box<[u8]>,
    pub image: Image,
    pub location: Location,
}

impl Writer {
    /// Writes back the leaf that has been dirty longest. Returns false if no leaf is dirty.
    pub(super) fn consolidate_oldest(&mut self) -> Result<bool, Error> {
        let Some(id) = self.dirty.oldest(&self.tree.slots) else {
            return Ok(false);
        };
        self.write_leaf_back(id)?;
        Ok(true)
    }

    /// Merges the image and the delta of a leaf, and appends the resulting rows to the scratch.
    /// Returns true if the delta only adds keys above the last key of the image.
    fn gather(&mut self, id: NodeId, oldest: Seq) -> Result<bool, Error> {
        let image = self.tree.leaf_image(id)?;
        self.scratch.freed.append(&mut self.tree.dropped_blobs(id)?);
        let node = self.tree.slots.get(id).node.read();
        let none = Delta::default();
        let delta = node.delta.as_deref().unwrap_or(&none);
        self.scratch.bases.extend(image.as_ref().map(|image| Base {
            node: id,
            lsn: image.stored_lsn(),
            patches: node.patches().len() as u8,
        }));
        if node.delta.is_some() {
            self.scratch.logged_from = self.scratch.logged_from.min(node.logged_at);
        }
        let Scratch {
            bytes,
            rows,
            freed,
            floor,
            ..
        } = &mut self.scratch;
        // The floor of a leaf is the lowest sequence number of a reader for which the leaf has all
        // versions. It already covers versions that were dropped because an earlier image had no
        // room for them.
        *floor = node.floor.max(*floor);
        let mut of_key = OfKey::new(
            self.tree.geometry.segment_bytes as usize / 4,
            self.options.inline_value_bytes,
        );
        let held = self.readers.held();
        let mut dropped = Vec::new();
        consolidate(
            image.as_ref(),
            delta,
            oldest,
            &mut |row| {
                let last = rows.last().map(|last| &bytes[last.key_at..last.value_at]);
                match of_key.judge(&row, last == Some(row.key), &held) {
                    Verdict::Kept => return push(bytes, rows, row),
                    Verdict::Unseen => {}
                    // The row is dropped because the image has no room for it. The rows of a key
                    // come newest first, so the last kept row is its oldest kept version. A reader
                    // below the number of that version gets [`Error::SnapshotTooOld`].
                    Verdict::Beyond => {
                        *floor = rows.last().map_or(0, |last| last.seq).max(*floor);
                    }
                }
                if row.kind == Kind::Blob {
                    dropped.push(row.value.to_vec());
                }
            },
            &mut |reference| freed.push(reference.to_vec()),
        );
        freed.append(&mut dropped);
        let Some(image) = image.filter(|image| image.rows() > 0) else {
            return Ok(true);
        };
        let mut least = None;
        delta.newest(&mut |row| {
            least.get_or_insert_with(|| row.key.to_vec());
        });
        let last = image.rows() - 1;
        Ok(least.is_some_and(|least| image.compare_key(last, &least).is_lt()))
    }

    /// Writes the changes of a leaf back: as a patch, or as a new image of the whole leaf.
    pub(super) fn write_leaf_back(&mut self, id: NodeId) -> Result<(), Error> {
        self.take_in_of(id)?;
        let has_changes = self.tree.slots.get(id).node.read().delta.is_some();
        if !has_changes || self.write_patch(id)? {
            return Ok(());
        }
        self.consolidate_leaf(id)
    }

    /// Writes a new image of a leaf, including its changes.
    pub(super) fn consolidate_leaf(&mut self, id: NodeId) -> Result<(), Error> {
        self.has_ids_left()?;
        let path = self.path_of(id)?;
        // The path is found first: once the waiting range deletions are applied, the leaf may have
        // no key that leads to it.
        self.take_in_at(&path, id)?;
        self.scratch.clear();
        let oldest = self.readers.oldest();
        let is_appended = self.gather(id, oldest)?;
        let leaves = self.with_neighbours(id, &path, oldest)?;
        let range = range_of(&path, &leaves);
        self.check_rows_are_within(id, &range)?;
        let origin = (self.checkpointer).trace(&self.scratch.bases, self.scratch.logged_from);
        let written = self.write_leaves(&leaves, &range, &origin, is_appended)?;
        for leaf in &written {
            self.checkpointer.note_leaf(leaf.id, origin.clone());
        }
        self.statistics.consolidations += 1;
        self.statistics.splits += u64::from(written.len() > leaves.len());
        self.statistics.joins += u64::from(leaves.len() > 1);
        self.statistics.consolidated_rows += self.scratch.rows.len() as u64;
        let change = self.plan(path, &leaves, &written);
        let floor = oldest.max(self.scratch.floor);
        self.install(change, &leaves, written, floor);
        for reference in std::mem::take(&mut self.scratch.freed) {
            self.free_blobs(&reference);
        }
        // Writing the inner nodes can fail, so they are written last. If this fails, the leaf still
        // counts as written.
        self.write_inners_at_once()
    }

    /// Returns the path to the leaf `id`, found by a key of the leaf. The path is empty if the leaf
    /// has no key that leads to it, which is allowed only for the root.
    pub(super) fn path_of(&self, id: NodeId) -> Result<Path, Error> {
        match self.a_key_of(id)? {
            Some(key) => Ok(self.tree.path(&key)?.0),
            None => Ok(Path::new()),
        }
    }

    /// Returns a key that leads to the leaf: a key that the leaf has or has had.
    fn a_key_of(&self, id: NodeId) -> Result<Option<Vec<u8>>, Error> {
        if let Some(delta) = &self.tree.slots.get(id).node.read().delta
            && let Some(key) = a_key_in(delta)
        {
            return Ok(Some(key));
        }
        if let Some(image) = self.tree.leaf_image(id)?
            && image.rows() > 0
        {
            let mut key = Vec::new();
            image.key(0, &mut key);
            return Ok(Some(key));
        }
        if let Some(key) = self.tree.key_in_pieces(id)? {
            return Ok(Some(key));
        }
        if id == self.tree.root() {
            return Ok(None);
        }
        Err(self.misplaced(id, "which is empty and not the root"))
    }

    /// Checks that the collected rows of the leaf (`scratch`) are within the key range of the leaf.
    /// Writing rows outside this range would break the key order of the tree.
    fn check_rows_are_within(&self, id: NodeId, range: &KeyRange) -> Result<(), Error> {
        let Some(last) = self.scratch.rows.len().checked_sub(1) else {
            return Ok(());
        };
        let is_below = self.scratch.row(0).key < &range.from[..];
        let is_above = matches!(&range.to, Some(to) if self.scratch.row(last).key >= &to[..]);
        match is_below || is_above {
            true => Err(self.misplaced(id, "with keys that belong to another leaf")),
            false => Ok(()),
        }
    }

    /// Returns the error for a leaf that an intact tree cannot have.
    fn misplaced(&self, id: NodeId, how: &str) -> Error {
        Error::Damaged {
            what: format!("leaf {id}, {how}"),
            offset: self.tree.offset(self.nodes.location(id)),
        }
    }

    /// Returns the leaves that are to be written as one, among them the leaf `id`. The scratch then
    /// holds the rows of all of them. There are three cases:
    ///
    /// - Usually, the leaf is written alone.
    /// - A leaf that has become small is joined with a neighbour if both fit into one image.
    /// - A leaf that has become empty is joined with its neighbours, up to the first one with a
    ///   row. It cannot just be removed: only an image of its key range proves that older images of
    ///   that range are obsolete.
    fn with_neighbours(
        &mut self,
        id: NodeId,
        path: &Path,
        oldest: Seq,
    ) -> Result<Vec<NodeId>, Error> {
        let Some((_, inner, index)) = path.last() else {
            return Ok(vec![id]);
        };
        if inner.child(*index) != id {
            return Err(self.misplaced(id, "whose keys belong to another leaf"));
        }
        if self.scratch.rows.is_empty() {
            return self.beside_nothing(path, oldest);
        }
        let bytes = self.scratch.bytes.len();
        let limit = self.options.node_bytes;
        if bytes > limit / 4 || inner.len() < 2 {
            return Ok(vec![id]);
        }
        let start = if index + 1 < inner.len() {
            *index
        } else {
            index - 1
        };
        let both = [inner.child(start), inner.child(start + 1)];
        let other = if both[0] == id { both[1] } else { both[0] };
        if bytes + self.nodes.location(other).bytes() > limit / 4 * 3 {
            return Ok(vec![id]);
        }
        self.take_in_at(path, other)?;
        self.scratch.clear();
        self.gather(both[0], oldest)?;
        let border = self.scratch.rows.len();
        self.gather(both[1], oldest)?;
        let is_between = 0 < border && border < self.scratch.rows.len();
        if is_between && self.scratch.row(border - 1).key >= self.scratch.row(border).key {
            return Err(self.misplaced(
                both[1],
                "whose keys are not above those of the leaf before it",
            ));
        }
        Ok(both.to_vec())
    }

    /// Gathers neighbours of the empty leaf at the end of `path`, until a neighbour has rows, there
    /// are no more neighbours, or `EMPTY_JOINED_MAX` leaves are joined. Returns the empty leaf and
    /// these neighbours, in the order of their keys.
    fn beside_nothing(&mut self, path: &Path, oldest: Seq) -> Result<Vec<NodeId>, Error> {
        let Some((_, inner, index)) = path.last() else {
            return Ok(Vec::new());
        };
        let index = *index;
        let (mut start, mut end) = (index, index + 1);
        // The loop ends at the first leaf with rows. Only one leaf contributes rows, so the order
        // in which leaves are gathered does not matter.
        while self.scratch.rows.is_empty() && end - start < EMPTY_JOINED_MAX {
            let next = if end < inner.len() {
                end += 1;
                end - 1
            } else if start > 0 {
                start -= 1;
                start
            } else {
                break;
            };
            self.take_in_at(path, inner.child(next))?;
            self.gather(inner.child(next), oldest)?;
        }
        Ok((start..end).map(|child| inner.child(child)).collect())
    }

    /// Writes the rows in the scratch buffer as one or more leaf images. The images get the node
    /// ids in `ids`, in order; any further image gets a new id.
    fn write_leaves(
        &mut self,
        ids: &[NodeId],
        range: &KeyRange,
        origin: &LeafSources,
        is_appended: bool,
    ) -> Result<Vec<Written>, Error> {
        let mut written = Vec::new();
        let result = self.write_blobs().and_then(|()| {
            let cuts = self.cuts(is_appended);
            for (number, cut) in cuts.iter().enumerate() {
                let first = |cut: &Range<usize>| Box::from(self.scratch.row(cut.start).key);
                let part = KeyRange {
                    from: if number == 0 {
                        range.from.clone()
                    } else {
                        first(cut)
                    },
                    to: cuts.get(number + 1).map(first).or_else(|| range.to.clone()),
                };
                let about = About::Leaf {
                    range: part,
                    bases: origin.bases.clone(),
                    logged_from: origin.logged_from,
                };
                let known = ids.get(number).copied();
                written.push(self.write_leaf(known, cut.clone(), about, ids[0])?);
            }
            Ok(())
        });
        match result {
            Ok(()) => Ok(written),
            Err(error) => {
                self.take_back(ids, written);
                Err(error)
            }
        }
    }

    /// Returns the range of rows that each image gets.
    fn cuts(&mut self, is_appended: bool) -> Vec<Range<usize>> {
        let rows = self.scratch.rows.len();
        if rows == 0 {
            return std::iter::once(0..0).collect();
        }
        self.lay_out_for_cutting();
        // Rows can pack worse in several small images than in one image. The estimate ignores this,
        // so an image can become longer than `node_bytes`.
        let mut packed = 0;
        for start in (0..rows).step_by(ESTIMATED_ROWS) {
            self.builder.clear();
            for index in start..rows.min(start + ESTIMATED_ROWS) {
                self.builder.push(self.scratch.row(index));
            }
            packed += self.builder.estimated_bytes();
        }
        let parts = packed
            .div_ceil(self.options.node_bytes)
            .max(rows.div_ceil(PART_ROWS_MAX));
        if parts <= 1 {
            return std::iter::once(0..rows).collect();
        }
        let raw: usize = self.scratch.rows.iter().map(ScratchRow::bytes).sum();
        // If keys are only appended at the end, each part is as full as an appended leaf should be.
        // Otherwise the parts are of equal size.
        let share = match is_appended {
            true => self.appended_bytes() * raw / packed,
            false => raw.div_ceil(parts),
        };
        let cuts = self.scratch.cut(share);
        cuts.into_iter()
            .flat_map(|cut| self.cut_to_fit(cut))
            .collect()
    }

    /// Cuts a part again if its image might be too long for a segment: rows that pack well together
    /// with all rows of the leaf can pack worse within their part. A single key with all its
    /// versions always fits.
    fn cut_to_fit(&mut self, part: Range<usize>) -> Vec<Range<usize>> {
        let bytes_max = self.tree.geometry.segment_bytes as usize / 2;
        let rows = &self.scratch.rows[part.clone()];
        let raw: usize = rows.iter().map(ScratchRow::bytes).sum();
        if raw <= bytes_max {
            return vec![part];
        }
        self.builder.clear();
        for index in part.clone() {
            self.builder.push(self.scratch.row(index));
        }
        let middle = self.scratch.middle_of(&part, raw);
        match middle.filter(|_| self.builder.estimated_bytes() > bytes_max) {
            None => vec![part],
            Some(middle) => {
                let mut parts = self.cut_to_fit(part.start..middle);
                parts.extend(self.cut_to_fit(middle..part.end));
                parts
            }
        }
    }

    fn write_leaf(
        &mut self,
        known: Option<NodeId>,
        rows: Range<usize>,
        about: About,
        like: NodeId,
    ) -> Result<Written, Error> {
        self.builder.clear();
        let separator = match &about {
            About::Leaf { range, .. } => {
                // Under the paper's rules the key range is left out: images have a fixed length,
                // and a rebuild cannot find them anyway.
                if self.options.paper.is_none() {
                    self.builder.set_range(range.clone());
                }
                range.from.clone()
            }
            About::Patch { .. } | About::Blob | About::Inner => Box::default(),
        };
        let mut rows_bytes = 0;
        for index in rows {
            let row = self.scratch.row(index);
            rows_bytes += row.key.len() + row.value.len();
            self.builder.push(row);
        }
        let interval = self.tree.slots.get(like).node.read().interval;
        let class = self.leaf_class(interval);
        let least_bytes = self.lay_out(class);
        let id = known.unwrap_or_else(|| self.new_id());
        let mut bytes = (self.builder).finish_padded(id, 0, self.log.seq(), interval, least_bytes);
        match self.append(class, id, self.log.seq(), &mut bytes, about) {
            Ok(location) => {
                self.cleaner.note_packed(rows_bytes, location.bytes());
                Ok(Written {
                    id,
                    separator,
                    image: made(&bytes, self.tree.generations.seal_of(location)),
                    location,
                })
            }
            Err(error) => {
                if known.is_none() {
                    self.nodes.free_id(id);
                }
                Err(error)
            }
        }
    }

    /// Discards images that were written but will not be used.
    fn take_back(&mut self, ids: &[NodeId], written: Vec<Written>) {
        for image in written {
            self.segments.release(image.location);
            if !ids.contains(&image.id) {
                self.nodes.free_id(image.id);
            }
        }
        for reference in std::mem::take(&mut self.scratch.new_blobs) {
            self.free_blobs(&reference);
        }
    }

    /// Writes long values as blobs, and replaces them by references in the rows of the scratch
    /// buffer.
    fn write_blobs(&mut self) -> Result<(), Error> {
        let mut has_any = false;
        for index in 0..self.scratch.rows.len() {
            let row = self.scratch.rows[index];
            if row.kind == Kind::Put && row.end - row.value_at > self.options.inline_value_bytes {
                let value = self.scratch.row(index).value.to_vec();
                let reference = self.write_blob(&value)?;
                self.scratch.set_value(index, Kind::Blob, &reference);
                has_any = true;
            }
        }
        if !has_any {
            return Ok(());
        }
        self.log_before_images()?;
        let storage = self.storage();
        self.segments.flush(&*storage, Class::Cold)?;
        self.publish_blobs();
        Ok(())
    }

    /// Publishes the locations of blob parts that have reached the storage. Readers must not find
    /// the parts before that: blob parts are never kept in memory, and their ids may have belonged
    /// to other blobs, for which slow readers may still search.
    fn publish_blobs(&mut self) {
        for (id, location) in self.scratch.unpublished.drain(..) {
            self.tree.slots.get(id).node.write().location = location;
        }
    }

    fn write_blob(&mut self, value: &[u8]) -> Result<Vec<u8>, Error> {
        let mut reference = Reference {
            bytes: value.len() as u64,
            crc: crc32c::crc32c(value),
            blobs: Vec::new(),
        };
        let longest = blob_bytes_max(self.tree.geometry.segment_bytes);
        for part in value.chunks(longest) {
            self.has_ids_left()?;
            let id = self.new_id();
            let mut bytes = blob_image(id, self.log.seq(), part);
            match self.append(Class::Cold, id, self.log.seq(), &mut bytes, About::Blob) {
                Ok(location) => {
                    self.relocate(id, location);
                    self.scratch.unpublished.push((id, location));
                    reference.blobs.push(id);
                    if is_planted(Bug::PublishesUnwritten) {
                        self.publish_blobs();
                    }
                }
                Err(error) => {
                    self.nodes.free_id(id);
                    self.free_blobs(&reference.encode());
                    return Err(error);
                }
            }
        }
        self.statistics.blobs += 1;
        let reference = reference.encode();
        self.scratch.new_blobs.push(reference.clone());
        Ok(reference)
    }

    /// Frees the blobs of a reference that no row has any more.
    fn free_blobs(&mut self, reference: &[u8]) {
        let Some(reference) = Reference::decode(reference) else {
            return;
        };
        for id in reference.blobs {
            if self.nodes.find(id).is_some() {
                self.forget(id);
            }
        }
    }
}

/// Returns a key that the delta changes.
fn a_key_in(delta: &Delta) -> Option<Vec<u8>> {
    let mut key = None;
    delta.newest(&mut |row| {
        key.get_or_insert_with(|| row.key.to_vec());
    });
    key.or_else(|| match &delta.ranges().first()?.start {
        Bound::Included(start) => Some(start.to_vec()),
        // A range deletion in a delta is cut to the range of its leaf, so its start is always a key
        // of that range, and these bounds do not occur.
        Bound::Excluded(_) | Bound::Unbounded => None,
    })
}

/// Returns the range of keys that neighbouring leaves cover together. The leaves are children of
/// the last inner node of `path`.
pub(super) fn range_of(path: &Path, leaves: &[NodeId]) -> KeyRange {
    let mut range = KeyRange::default();
    let mut has_start = false;
    for (level, (_, inner, index)) in path.iter().rev().enumerate() {
        let (start, end) = match level {
            0 => {
                let start = inner.children().position(|child| child == leaves[0]);
                let start = start.expect("the leaf is below its parent");
                (start, start + leaves.len())
            }
            _ => (*index, index + 1),
        };
        if !has_start && start > 0 {
            range.from = inner.separator(start).into();
            has_start = true;
        }
        if range.to.is_none() && end < inner.len() {
            range.to = Some(inner.separator(end).into());
        }
    }
    range
}

/// Parses an image from bytes that were just built and sealed.
fn made(bytes: &[u8], seal: Seal) -> Image {
    Image::parse(bytes, seal).expect("an image that was just made can be read")
}
