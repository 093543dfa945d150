//! Writing the changes of a leaf as a patch, where little of it has changed.
//!
//! A leaf that is not in memory is then neither read nor written whole, and one that is in memory
//! is put together there and not written whole; a few patches later it is, and costs once what it
//! would have cost each time (docs/index.md). What is in memory is one image, so that nobody who
//! reads there looks at patches.

use super::Writer;
use crate::error::Error;
use crate::footer::About;
use crate::node::{Delta, Image, NodeId, ROWS_MAX, Row, Seq};
use crate::segments::{Class, Location};
use crate::tree::patch::{Changes, Filter, Patch};
use crate::tree::slots::{Content, Node};

/// Patches of a leaf, at most.
pub(crate) const PATCHES_MAX: usize = 8;
/// A patch has at most this part of the bytes of the image,
const PATCH_SHARE: usize = 4;
/// so many rows,
const PATCH_ROWS_MAX: usize = ROWS_MAX / 2 / PATCHES_MAX - 1024;
/// and all patches of a leaf have at most this part of them, if it is not in memory: then to write
/// it whole is to read it, too.
const PATCHES_SHARE_AWAY: usize = 2;
/// Of leaves in memory patches only save writing, and what they take in space is worth less.
const PATCHES_SHARE_AT_HAND: usize = 4;
/// Leaves differ by so many eighths of that on either side, so that those that were first written
/// together are not all written anew together: commits would be slow at that time, and a third
/// faster between.
const PATCHES_SPREAD_EIGHTHS: usize = 2;

/// A patch that was written.
struct Written {
    image: Image,
    location: Location,
    /// How far the updates of its leaf lie apart.
    interval: u8,
}

impl Writer {
    /// Writes the changes of a leaf as a patch, if that is worth it. False if nothing was done.
    pub(super) fn write_patch(&mut self, id: NodeId) -> Result<bool, Error> {
        let oldest = self.readers.oldest();
        if self.options.paper.is_some() || !self.is_worth_a_patch(id, oldest) {
            return Ok(false);
        }
        let Some(content) = self.content_with_changes(id, oldest) else {
            return Ok(false);
        };
        self.collect_patch(id);
        let (interval, folded_at, logged_from) = {
            let node = self.tree.slots.get(id).node.read();
            (node.interval, node.folded_at, node.logged_at)
        };
        let interval = self.classes.observe(interval, folded_at, self.log.seq());
        let mut bytes = self.builder.finish_patch(id, self.log.seq(), interval);
        let about = About::Patch { logged_from };
        let location = self.append(Class::Patch, id, self.log.seq(), &mut bytes, about)?;
        let image = Image::parse(&bytes, self.tree.fillings.seal_of(location));
        let image = image.expect("an image that was just made can be read");
        self.figures.patches += 1;
        let written = Written {
            image,
            location,
            interval,
        };
        self.install_patch(id, written, content, oldest);
        Ok(true)
    }

    /// True if the changes of a leaf should be written as a patch.
    fn is_worth_a_patch(&self, id: NodeId, oldest: Seq) -> bool {
        let node = self.tree.slots.get(id).node.read();
        let Some(delta) = node.delta.as_deref() else {
            return false;
        };
        // An image that has not landed is pinned, with what it says and no more.
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

    /// What a leaf in memory is with its changes, and nothing for one that is away. `None` if they
    /// leave a value out of line without a reference: only writing the leaf anew frees it.
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

    /// The changes of a leaf are a patch now. `content` is what it is in memory with them.
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
        // Somebody may have read or evicted it since, and a leaf that is away must not come back
        // without this patch.
        node.content = match node.content {
            Content::Absent => Content::Absent,
            Content::Leaf(_) | Content::Inner(_) => content,
        };
        let patched = node.patched.get_or_insert_default();
        // There are as many of these as leaves, and most have one patch or two.
        patched.patches.reserve_exact(1);
        patched.patches.push(patch);
        patched.unlanded.reserve_exact(1);
        patched.unlanded.push((location, image));
        memory.change_content(before, node.content_bytes());
        let delta = node.delta.take();
        memory.change_delta(delta.map_or(0, |delta| delta.memory_bytes()), 0);
        node.floor = node.floor.max(oldest);
        node.folded_at = self.log.seq();
        node.interval = interval;
    }

    /// The patches of a leaf as it was are in its image now, or the leaf is gone.
    pub(super) fn release_patches(&mut self, id: NodeId, before: &Node) {
        self.nodes.note_whole(id);
        for patch in before.patches() {
            self.segments.release(patch.location);
        }
    }

    /// An image of a leaf with patches was written elsewhere. Readers find it in memory until it
    /// has landed.
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
        patched.unlanded.retain(|(at, _)| *at != from);
        patched.unlanded.push((to, image));
        memory.change_content(before, node.content_bytes());
        drop(node);
        if is_image {
            self.relocate(id, to);
        } else {
            self.segments.release(from);
        }
    }

    /// Images of leaves with patches that have landed can be read again.
    pub(super) fn patch_landed(&self, id: NodeId, location: Location) {
        let memory = &self.tree.memory;
        let mut node = self.tree.slots.get(id).node.write();
        let before = node.content_bytes();
        if let Some(patched) = &mut node.patched {
            patched.unlanded.retain(|(at, _)| *at != location);
            if patched.unlanded.is_empty() {
                // Not cleared: what it had would stay in memory for every leaf with patches.
                patched.unlanded = Vec::new();
            }
            memory.change_content(before, node.content_bytes());
        }
    }
}

/// How much of what patches may have is for those of this leaf, in eighths: the same each time.
fn eighths_of(id: NodeId) -> usize {
    let part = id as usize % (2 * PATCHES_SPREAD_EIGHTHS + 1);
    8 - PATCHES_SPREAD_EIGHTHS + part
}

/// Bytes of the keys and values of a delta, if it can be a patch: no reader is left that sees older
/// versions, and nothing in it is to go out of line or is about keys that it does not name.
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
