//! The writer's decisions that differ under the paper's rules ([`crate::paper`]): the cluster and
//! the form in which a node is written, the size of nodes, and the time at which a cluster is
//! cleaned. Without those rules each method of this module returns the engine's own choice.

use super::Writer;
use crate::error::Error;
use crate::node::HEADER_BYTES;
use crate::segments::Class;
use crate::tree::inner::{CHILD_BYTES, CHILDREN_MAX, Child};

/// Division of the children of an inner node among several inner nodes, if it has too many
/// children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChildrenShares {
    /// Maximum number of children of an inner node.
    pub max: usize,
    /// Maximum number of children that a node gets when a node with too many children is split. The
    /// children are divided about evenly.
    pub part: usize,
    /// If set, each part is filled with this number of children before the next part begins;
    /// otherwise the children are divided evenly.
    pub filled: Option<usize>,
}

impl Writer {
    /// Returns the memory for changes that are not in nodes yet, in bytes.
    pub(super) fn buffer_bytes(&self) -> u64 {
        match self.options.paper {
            Some(_) => 0,
            None => self.options.buffer_bytes,
        }
    }

    /// Returns the stream that a leaf with this update interval is written to.
    pub(super) fn leaf_class(&self, interval: u8) -> Class {
        let is_hot = self.classes.is_hot(interval) && self.has_hot_room();
        let class = if is_hot { Class::Hot } else { Class::Cold };
        self.stream(class)
    }

    /// Returns the stream that nodes of a class are written to.
    pub(super) fn stream(&self, class: Class) -> Class {
        let rules = &self.options.paper;
        rules.as_ref().map_or(class, |rules| rules.cluster(class))
    }

    /// Returns the stream for the live content that cleaning moves out of `segment`. Under the
    /// rules of the CHC-Tree paper, a node stays in its cluster.
    pub(super) fn survivor_stream(&self, segment: u32) -> Class {
        match self.options.paper {
            Some(_) => self.segments.class_of(segment),
            None => Class::Survivor,
        }
    }

    /// Returns true unless the hot cluster has a fixed size and has reached its limit of live
    /// bytes.
    fn has_hot_room(&self) -> bool {
        let sizes = self.options.paper.iter().flat_map(|rules| rules.sizes());
        let hot = sizes.filter(|(cluster, _)| *cluster == Class::Hot);
        hot.last().is_none_or(|(_, segments)| {
            let bytes = f64::from(segments) * f64::from(self.tree.geometry.segment_bytes);
            let limit = bytes * self.options.utilisation;
            self.segments.live_bytes_of(Class::Hot) as f64 + self.options.node_bytes as f64 <= limit
        })
    }

    /// Returns the minimum length of an image in `stream`, and sets whether the builder packs the
    /// image.
    pub(super) fn lay_out(&mut self, stream: Class) -> usize {
        let is_packed = |rules: &crate::paper::PaperRules| rules.is_packed(stream);
        let is_plain = self.options.paper.is_some_and(|rules| !is_packed(&rules));
        self.builder.set_plain(is_plain);
        if is_plain { self.options.node_bytes } else { 0 }
    }

    /// Returns the number of bytes to which each leaf is filled if keys are only appended at the
    /// end.
    pub(super) fn appended_bytes(&self) -> usize {
        let node_bytes = self.options.node_bytes;
        match &self.options.paper {
            Some(rules) => ((node_bytes - HEADER_BYTES) as f64 * rules.fill) as usize,
            // The rows of one leaf may need more space per row than the rows of all leaves on
            // average, so an eighth of the leaf is left empty.
            None => node_bytes / 8 * 7,
        }
    }

    /// Prepares the builder for size estimates. Under the paper's rules the content of a node is
    /// measured unpacked, whether it is packed or not.
    pub(super) fn lay_out_for_cutting(&mut self) {
        self.builder.set_plain(self.options.paper.is_some());
    }

    /// Returns the rules for dividing `children` among inner nodes: how many children each node
    /// gets.
    pub(super) fn children_shares(&self, children: &[Child], is_appended: bool) -> ChildrenShares {
        let Some(rules) = &self.options.paper else {
            return ChildrenShares {
                max: CHILDREN_MAX,
                part: CHILDREN_MAX / 4 * 3,
                filled: None,
            };
        };
        let longest = children.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
        let room = self.options.node_bytes - HEADER_BYTES;
        let max = (room / (longest + CHILD_BYTES)).max(4);
        let filled = (max as f64 * rules.fill) as usize;
        ChildrenShares {
            max,
            part: max,
            filled: is_appended.then_some(filled),
        }
    }

    /// Writes changed inner nodes immediately, if the index follows the paper's rules. Otherwise
    /// does nothing: the nodes are written with the next checkpoint.
    pub(super) fn write_inners_at_once(&mut self) -> Result<(), Error> {
        match self.options.paper {
            Some(_) => self.write_inners(),
            None => Ok(()),
        }
    }

    /// Returns a cluster of fixed size that has too many segments, if there is one.
    pub(super) fn overfull_cluster(&self) -> Option<Class> {
        let mut sizes = self.options.paper.iter().flat_map(|rules| rules.sizes());
        let overfull =
            sizes.find(|(cluster, size)| self.segments.used_by(*cluster) > *size as usize);
        overfull.map(|(cluster, _)| cluster)
    }
}
