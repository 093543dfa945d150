//! Writing the changes of a leaf as a patch, if only a little of the leaf has changed.
//!
//! Without patches, each write-back would write the whole leaf. With patches, it writes only the
//! changes. If the leaf is not in memory, the leaf is not read. If it is in memory, the changes are
//! merged into its image there. A leaf is written whole only after several patches, so several
//! write-backs together cost only one whole image (docs/index.md). In memory a leaf is always one
//! image, so a reader that finds the leaf in memory never reads patches.

use super::Writer;
use crate::error::Error;
use crate::footer::About;
use crate::node::{Delta, Image, NodeId, ROWS_MAX, Row, Seq};
use crate::segments::{Class, Location};
use crate::tree::patch::{Changes, Filter, Patch};
use crate::tree::slots::{Content, Node};

/// Maximum number of patches of a leaf.
pub(crate) const PATCHES_MAX: usize = 8;
/// Divisor of the length of the image: the quotient is the maximum number of bytes of the keys and
/// values in one patch.
const PATCH_SHARE: usize = 4;
/// Maximum number of rows in a patch.
const PATCH_ROWS_MAX: usize = ROWS_MAX / 2 / PATCHES_MAX - 1024;
/// Divisor of the length of the image: the quotient limits the total bytes of all patches of a leaf
/// that is not in memory. Writing such a leaf whole also requires reading it, so its patches are
/// allowed more space.
const PATCHES_SHARE_AWAY: usize = 2;
/// Divisor of the length of the image: the quotient limits the total bytes of all patches of a leaf
/// that is in memory. Patches of such a leaf save only writing, not reading, so they are allowed
/// less space.
const PATCHES_SHARE_AT_HAND: usize = 4;
/// Maximum variation of the limit on the total bytes of a leaf's patches, in eighths of that limit,
/// upwards or downwards. The node id of the leaf determines the variation. Without the variation,
/// leaves that were first written together would also be rewritten together. The speed of commits
/// would then alternate: slow during these rewrites, and a third faster at other times.
const PATCHES_SPREAD_EIGHTHS: usize = 2;

/// A patch that was written.
struct Written {
    image: Image,
    location: Location,
    /// Interval between the updates of the leaf, as a power of two.
    interval: u8,
}

impl Writer {
    /// Writes the changes of a leaf as a patch, if that is worthwhile. Returns false if no patch
    /// was written.
    pub(super) fn write_patch(&mut self, id: NodeId) -> Result<bool, Error> {
        let oldest = self.readers.oldest();
        if self.options.paper.is_some() || !self.is_worth_a_patch(id, oldest) {
            return Ok(false);
        }
        let Some(content) = self.content_with_changes(id, oldest) else {
            return Ok(false);
        };
        self.collect_patch(id);
        let (interval, consolidated_at, logged_from) = {
            let node = self.tree.slots.get(id).node.read();
            (node.interval, node.consolidated_at, node.logged_at)
        };
        let interval = self
            .classes
            .observe(interval, consolidated_at, self.log.seq());
        let mut bytes = self.builder.finish_patch(id, self.log.seq(), interval);
        let about = About::Patch { logged_from };
        let location = self.append(Class::Patch, id, self.log.seq(), &mut bytes, about)?;
        let image = Image::parse(&bytes, self.tree.generations.seal_of(location));
        let image = image.expect("an image that was just made can be read");
        self.statistics.patches += 1;
        let written = Written {
            image,
            location,
            interval,
        };
        self.install_patch(id, written, content, oldest);
        Ok(true)
    }

    /// Returns true if the changes of a leaf should be written as a patch.
    fn is_worth_a_patch(&self, id: NodeId, oldest: Seq) -> bool {
        let node = self.tree.slots.get(id).node.read();
        let Some(delta) = node.delta.as_deref() else {
            return false;
        };
        // A leaf whose image has not reached the storage yet is pinned in its current state, and
        // gets no patch.
        let is_stored = !node.location.is_nowhere() && !node.is_pinned;
        if !is_stored || node.patches().len() >= PATCHES_MAX {
            return false;
        }
        let all_share = match node.content {
            Content::Absent => PATCHES_SHARE_AWAY,
            Content::Leaf(_) | Content::Inner(_) => PATCHES_SHARE_AT_HAND,
        };
        let Some(bytes) = patch_bytes(delta, oldest, self.options.inline_value_bytes) else {
            return false;
        };
        let image = node.location.bytes();
        let patches = node.patches().iter().map(|p| p.location.bytes());
        let all = bytes + patches.sum::<usize>();
        bytes * PATCH_SHARE <= image && all * all_share * 8 <= image * eighths_of(id)
    }

    /// Returns the content of a leaf that is in memory, merged with the changes of the leaf.
    /// Returns `Absent` if the leaf is not in memory. Returns `None` if the changes drop a
    /// reference to a blob, because only rewriting the leaf frees that blob.
    fn content_with_changes(&mut self, id: NodeId, oldest: Seq) -> Option<Content> {
        let node = self.tree.slots.get(id).node.read();
        let (Content::Leaf(image), Some(delta)) = (&node.content, node.delta.as_deref()) else {
            return Some(Content::Absent);
        };
        let mut drops_blobs = false;
        let mut freed = |_: &[u8]| drops_blobs = true;
        let changes = Changes {
            delta,
            lsn: self.log.seq(),
            oldest,
        };
        let whole = changes.over(image, node.location, &mut self.builder, &mut freed);
        (!drops_blobs).then(|| Content::Leaf(whole))
    }

    /// Puts the changes of a leaf into the builder.
    fn collect_patch(&mut self, id: NodeId) {
        let node = self.tree.slots.get(id).node.read();
        self.builder.clear();
        let builder = &mut self.builder;
        if let Some(delta) = node.delta.as_deref() {
            delta.newest(&mut |row| builder.push(Row { seq: 0, ..row }));
        }
    }

    /// Replaces the delta of a leaf by the written patch. `content` is the leaf's content in
    /// memory, merged with the delta.
    fn install_patch(&mut self, id: NodeId, written: Written, content: Content, oldest: Seq) {
        let Written {
            image,
            location,
            interval,
        } = written;
        let patch = Patch {
            location,
            filter: Filter::of(&image),
        };
        self.nodes.note_patched(id);
        let memory = &self.tree.memory;
        let mut node = self.tree.slots.get(id).node.write();
        let before = node.content_bytes();
        // Another thread may have read or evicted the leaf meanwhile. A leaf that has been evicted
        // stays evicted: content without this patch must not return to memory.
        node.content = match node.content {
            Content::Absent => Content::Absent,
            Content::Leaf(_) | Content::Inner(_) => content,
        };
        let patched = node.patched.get_or_insert_default();
        // The list is kept as short as possible, because every leaf with patches has one, and most
        // of these leaves have only one or two patches.
        patched.patches.reserve_exact(1);
        patched.patches.push(patch);
        patched.unflushed.reserve_exact(1);
        patched.unflushed.push((location, image));
        memory.change_content(before, node.content_bytes());
        let delta = node.delta.take();
        memory.change_delta(delta.map_or(0, |delta| delta.memory_bytes()), 0);
        node.floor = node.floor.max(oldest);
        node.consolidated_at = self.log.seq();
        node.interval = interval;
    }

    /// Releases the patches that a leaf had in the state `before`, because its new image includes
    /// them or the leaf has been removed.
    pub(super) fn release_patches(&mut self, id: NodeId, before: &Node) {
        self.nodes.note_whole(id);
        for patch in before.patches() {
            self.segments.release(patch.location);
        }
    }

    /// Notes that one image of a leaf with patches (the image of the whole leaf, or a patch) was
    /// moved. Readers find the moved image in memory until it has reached the storage.
    pub(super) fn move_patched(&mut self, id: NodeId, from: Location, to: Location, image: Image) {
        let memory = &self.tree.memory;
        let mut node = self.tree.slots.get(id).node.write();
        let before = node.content_bytes();
        let is_image = node.location == from;
        if is_image {
            node.location = to;
        }
        let patched = node.patched.get_or_insert_default();
        if let Some(patch) = patched.patches.iter_mut().find(|p| p.location == from) {
            patch.location = to;
        }
        patched.unflushed.retain(|(at, _)| *at != from);
        patched.unflushed.push((to, image));
        memory.change_content(before, node.content_bytes());
        drop(node);
        if is_image {
            self.relocate(id, to);
        } else {
            self.segments.release(from);
        }
    }

    /// Drops the copy in memory of one image of a patched leaf (the image of the whole leaf, or a
    /// patch), after that image has reached the storage.
    pub(super) fn patch_flushed(&self, id: NodeId, location: Location) {
        let memory = &self.tree.memory;
        let mut node = self.tree.slots.get(id).node.write();
        let before = node.content_bytes();
        if let Some(patched) = &mut node.patched {
            patched.unflushed.retain(|(at, _)| *at != location);
            if patched.unflushed.is_empty() {
                // The list is replaced rather than cleared: otherwise its allocation would stay for
                // every leaf with patches.
                patched.unflushed = Vec::new();
            }
            memory.change_content(before, node.content_bytes());
        }
    }
}

/// Returns the factor for the limit on the total bytes of this leaf's patches, in eighths. The
/// factor depends only on the node id, so it is the same in each call.
fn eighths_of(id: NodeId) -> usize {
    let part = id as usize % (2 * PATCHES_SPREAD_EIGHTHS + 1);
    8 - PATCHES_SPREAD_EIGHTHS + part
}

/// Returns the number of bytes of the keys and values of a delta, or `None` if the delta cannot be
/// written as a patch. A patch requires that no reader sees older versions, that no value is long
/// enough for a blob, and that the delta has no range deletions.
fn patch_bytes(delta: &Delta, oldest: Seq, value_bytes_max: usize) -> Option<usize> {
    if !delta.ranges().is_empty() || delta.is_empty() || delta.rows() > PATCH_ROWS_MAX {
        return None;
    }
    let (mut bytes, mut fits) = (0, true);
    delta.newest(&mut |row| {
        fits &= row.seq <= oldest && row.value.len() <= value_bytes_max;
        bytes += row.key.len() + row.value.len();
    });
    fits.then_some(bytes)
}
