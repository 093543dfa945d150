//! Changes of the tree's structure: the effect of splitting, merging or emptying a leaf on the
//! nodes above that leaf.
//!
//! A change is planned in full, then carried out in one step, during which readers wait. Inner
//! nodes are replaced in memory and written with the next checkpoint. If the process crashes before
//! that checkpoint is in effect, the old images and the log give the same content.

use super::Writer;
use super::consolidate::Written;
use crate::node::{NodeId, Seq};
use crate::tree::Path;
use crate::tree::inner::{CHILD_BYTES, Child, Inner};
use crate::tree::slots::{Content, Node};
use std::sync::Arc;

/// Planned change of the nodes above leaves.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Inner nodes with their new content, or `None` if they are removed.
    inners: Vec<(NodeId, Option<Inner>)>,
    root: Option<NodeId>,
    /// True if the leaves are the last ones of the tree.
    is_appended: bool,
}

impl Writer {
    /// Plans the replacement of neighbouring leaves by the images `written`: the changes of the
    /// inner nodes above these leaves. `leaves` are the leaves to replace, at the end of `path`.
    pub(super) fn plan(
        &mut self,
        mut path: Path,
        leaves: &[NodeId],
        written: &[Written],
    ) -> Change {
        let is_last = |(_, inner, index): &(_, Arc<Inner>, usize)| index + 1 == inner.len();
        let mut change = Change {
            is_appended: path.iter().all(is_last),
            ..Change::default()
        };
        if leaves.len() == 1 && written.len() == 1 {
            return change;
        }
        let Some((parent, inner, _)) = path.pop() else {
            // The leaf is the root.
            if written.len() > 1 {
                let children: Vec<Child> = written.iter().map(child_of).collect();
                self.plan_root(&mut change, 1, children);
            }
            return change;
        };
        let start = inner.children().position(|child| child == leaves[0]);
        let start = start.expect("the leaf is below its parent");
        let mut news: Vec<Child> = written.iter().map(child_of).collect();
        if let Some(first) = news.first_mut() {
            first.0 = inner.separator(start).into();
        }
        let mut children = inner.to_children();
        children.splice(start..start + leaves.len(), news);
        self.plan_above(&mut change, path, parent, inner.level(), children);
        change
    }

    /// Plans that the inner node `id` gets these children, including the splits, removals and
    /// replacements that this requires in the nodes above.
    fn plan_above(
        &mut self,
        change: &mut Change,
        mut path: Path,
        id: NodeId,
        level: u8,
        children: Vec<Child>,
    ) {
        if path.is_empty() && children.len() == 1 {
            change.inners.push((id, None));
            change.root = Some(children[0].1);
            return;
        } else if self.fits_a_node(&children, change.is_appended) {
            change.inners.push((id, Some(Inner::new(level, &children))));
            return;
        }
        let parts = self.plan_parts(change, id, level, &children);
        let Some((above, inner, index)) = path.pop() else {
            self.plan_root(change, level + 1, parts);
            return;
        };
        let mut siblings = inner.to_children();
        let mut parts = parts;
        if let Some(first) = parts.first_mut() {
            first.0 = inner.separator(index).into();
        }
        siblings.splice(index..=index, parts);
        self.plan_above(change, path, above, inner.level(), siblings);
    }

    /// Splits children into parts as `children_shares` says; the first part keeps the node id `id`.
    fn plan_parts(
        &mut self,
        change: &mut Change,
        id: NodeId,
        level: u8,
        children: &[Child],
    ) -> Vec<Child> {
        let shares = self.children_shares(children, change.is_appended);
        let parts = children.len().div_ceil(shares.part);
        let even = children.len().div_ceil(parts);
        let share = shares.filled.unwrap_or(even);
        let mut above = Vec::with_capacity(parts);
        for (number, part) in parts_of(children, share, self.inner_bytes_max()).enumerate() {
            let part_id = if number == 0 { id } else { self.new_id() };
            change.inners.push((part_id, Some(Inner::new(level, part))));
            above.push((part[0].0.clone(), part_id));
        }
        above
    }

    /// Returns true if one inner node can hold all these children.
    fn fits_a_node(&self, children: &[Child], is_appended: bool) -> bool {
        let is_few = children.len() <= self.children_shares(children, is_appended).max;
        is_few && children_bytes(children) <= self.inner_bytes_max()
    }

    /// Returns the maximum number of bytes that the children of one inner node may take in an
    /// unpacked image. The limit is low enough that the node's image fits a segment even if the
    /// children pack badly.
    fn inner_bytes_max(&self) -> usize {
        self.tree.geometry.segment_bytes as usize / 2
    }

    fn plan_root(&mut self, change: &mut Change, level: u8, children: Vec<Child>) {
        let root = self.new_id();
        let above = self.plan_parts(change, root, level, &children);
        if above.len() > 1 {
            self.plan_root(change, level + 1, above);
        } else {
            change.root = Some(root);
        }
    }

    /// Carries out a change: installs the written leaves, and the planned inner nodes above them.
    pub(super) fn install(
        &mut self,
        change: Change,
        leaves: &[NodeId],
        written: Vec<Written>,
        floor: Seq,
    ) {
        let like = leaves[0];
        let (interval, consolidated_at) = {
            let node = self.tree.slots.get(like).node.read();
            (node.interval, node.consolidated_at)
        };
        let interval = self
            .classes
            .observe(interval, consolidated_at, self.log.seq());
        let ids: Vec<NodeId> = written.iter().map(|image| image.id).collect();
        let tree = Arc::clone(&self.tree);
        let is_simple = change.inners.is_empty() && change.root.is_none();
        if is_simple && ids == leaves {
            self.install_leaves(written, interval, floor);
            return;
        }
        tree.restructure(|| {
            self.install_leaves(written, interval, floor);
            if ids.is_empty() {
                // A neighbour of these leaves covers their key ranges from now on. For readers
                // below `floor`, the versions of these leaves are lost. The node of the neighbour
                // does not record this loss, so the tree records it.
                tree.forget_before(floor);
            }
            for leaf in leaves.iter().filter(|leaf| !ids.contains(leaf)) {
                self.forget(*leaf);
            }
            if let Some(root) = change.root {
                self.tree.set_root(root);
            }
            for (id, inner) in change.inners {
                match inner {
                    Some(inner) => self.replace_inner(id, inner),
                    None => self.forget(id),
                }
            }
        });
    }

    fn install_leaves(&mut self, written: Vec<Written>, interval: u8, floor: Seq) {
        for Written {
            id,
            image,
            location,
            ..
        } in written
        {
            let slot = self.tree.slots.get(id);
            let mut node = slot.node.write();
            let before = std::mem::replace(
                &mut *node,
                Node {
                    location,
                    floor,
                    consolidated_at: self.log.seq(),
                    interval,
                    is_pinned: true,
                    ..Node::default()
                },
            );
            let memory = &self.tree.memory;
            memory.drop_content(before.content_bytes());
            memory.put_content(id, slot, &mut node, Content::Leaf(image));
            slot.touch();
            if let Some(delta) = &before.delta {
                memory.change_delta(delta.memory_bytes(), 0);
            }
            drop(node);
            self.relocate(id, location);
            self.release_patches(id, &before);
        }
    }

    fn replace_inner(&mut self, id: NodeId, inner: Inner) {
        let slot = self.tree.slots.get(id);
        let mut node = slot.node.write();
        node.is_pinned = true;
        let content = Content::Inner(Arc::new(inner));
        self.tree.memory.put_content(id, slot, &mut node, content);
        drop(node);
        self.nodes.note_changed(id);
    }
}

/// Returns the number of bytes that children take in an unpacked image.
fn children_bytes(children: &[Child]) -> usize {
    children
        .iter()
        .map(|(key, _)| key.len() + CHILD_BYTES)
        .sum()
}

/// Splits children into parts of `share` children each. A part has fewer children if `share`
/// children would take more than three quarters of `bytes_max`.
fn parts_of(children: &[Child], share: usize, bytes_max: usize) -> impl Iterator<Item = &[Child]> {
    let mut rest = children;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fits = |child: &&Child| {
            bytes += child.0.len() + CHILD_BYTES;
            bytes <= bytes_max / 4 * 3
        };
        let count = rest.iter().take(share).take_while(fits).count().max(1);
        let (part, others) = rest.split_at(count);
        rest = others;
        Some(part)
    })
}

fn child_of(written: &Written) -> Child {
    (written.separator.clone(), written.id)
}
