//! What the writer does otherwise under the paper's rules ([`crate::paper`]): which cluster a node
//! is written to and in which form, where nodes are cut, and when a cluster is cleaned. Without
//! those rules each of these is what the engine does by itself.

use super::Writer;
use crate::error::Error;
use crate::node::HEADER_BYTES;
use crate::segments::Class;
use crate::tree::inner::{CHILD_BYTES, CHILDREN_MAX, Child};

/// How many children go into the parts of an inner node that has too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChildrenShares {
    /// An inner node has so many at most.
    pub max: usize,
    /// A part has so many at most, and all parts about as many.
    pub part: usize,
    /// Parts are filled one after the other instead, up to so many.
    pub filled: Option<usize>,
}

impl Writer {
    /// Memory for changes that are not in nodes yet, in bytes.
    pub(super) fn buffer_bytes(&self) -> u64 {
        match self.options.paper {
            Some(_) => 0,
            None => self.options.buffer_bytes,
        }
    }

    /// The stream that a leaf is written to.
    pub(super) fn leaf_class(&self, interval: u8) -> Class {
        let is_hot = self.classes.is_hot(interval) && self.has_hot_room();
        let class = if is_hot { Class::Hot } else { Class::Cold };
        self.stream(class)
    }

    /// The stream of nodes of a class.
    pub(super) fn stream(&self, class: Class) -> Class {
        let rules = &self.options.paper;
        rules.as_ref().map_or(class, |rules| rules.cluster(class))
    }

    /// The stream of what cleaning finds in use: under the paper's rules a node stays in its
    /// cluster.
    pub(super) fn survivor_stream(&self, segment: u32) -> Class {
        match self.options.paper {
            Some(_) => self.segments.class_of(segment),
            None => Class::Survivor,
        }
    }

    /// True unless the hot cluster has a fixed size and as much in use as it may.
    fn has_hot_room(&self) -> bool {
        let sizes = self.options.paper.iter().flat_map(|rules| rules.sizes());
        let hot = sizes.filter(|(cluster, _)| *cluster == Class::Hot);
        hot.last().is_none_or(|(_, segments)| {
            let bytes = f64::from(segments) * f64::from(self.tree.geometry.segment_bytes);
            let limit = bytes * self.options.utilisation;
            self.segments.live_bytes_of(Class::Hot) as f64 + self.options.node_bytes as f64 <= limit
        })
    }

    /// The least length of an image in a stream, and the builder is made to pack it or not.
    pub(super) fn lay_out(&mut self, stream: Class) -> usize {
        let is_packed = |rules: &crate::paper::PaperRules| rules.is_packed(stream);
        let is_plain = self.options.paper.is_some_and(|rules| !is_packed(&rules));
        self.builder.set_plain(is_plain);
        if is_plain { self.options.node_bytes } else { 0 }
    }

    /// Bytes that go into a leaf where keys are only added at the end.
    pub(super) fn appended_bytes(&self) -> usize {
        let node_bytes = self.options.node_bytes;
        match &self.options.paper {
            Some(rules) => ((node_bytes - HEADER_BYTES) as f64 * rules.fill) as usize,
            // Some room is left for what packs worse alone.
            None => node_bytes / 8 * 7,
        }
    }

    /// Under the paper's rules what a node holds is reckoned unpacked, whether it is packed or not.
    pub(super) fn lay_out_for_cutting(&mut self) {
        self.builder.set_plain(self.options.paper.is_some());
    }

    /// How many children inner nodes have that are made of `children`.
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

    /// Inner nodes wait for a checkpoint; under the paper's rules they are written when they
    /// change.
    pub(super) fn write_inners_at_once(&mut self) -> Result<(), Error> {
        match self.options.paper {
            Some(_) => self.write_inners(),
            None => Ok(()),
        }
    }

    /// The cluster that has more segments than it may, if there are clusters of fixed sizes.
    pub(super) fn overfull_cluster(&self) -> Option<Class> {
        let mut sizes = self.options.paper.iter().flat_map(|rules| rules.sizes());
        let overfull =
            sizes.find(|(cluster, size)| self.segments.used_by(*cluster) > *size as usize);
        overfull.map(|(cluster, _)| cluster)
    }
}
