//! Rules of the CHC-Tree's paper in place of the engine's own, so that the paper's experiment runs
//! on the same nodes, classifier, segments and cleaning (docs/experiments/chc-tree.md).
//!
//! Source: Byun 2011, section 2: hot and cold clusters of fixed sizes, where cold nodes are packed
//! and hot nodes are not; and the B+-trees that the paper compares with them. The rules do not
//! weaken the promises of an index: the log and the checkpoints are unchanged. The rules must never
//! be the default, because they write a node for each change.

use crate::error::Error;
use crate::segments::Class;

/// Rules of the CHC-Tree paper. Every batch writes its leaves immediately, in whole pages. Every
/// access reads its nodes from the storage. A node holds as much content as fits into
/// [`Options::node_bytes`](crate::Options) unpacked, and an unpacked node is stored at that length.
/// A leaf is merged with a neighbour only if the neighbour is packed. Nodes that exist when the
/// index is opened are classified as cold until they are rewritten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperRules {
    /// Clusters of segments in which nodes are stored. The variant also says in which of these
    /// clusters nodes are packed.
    pub clusters: Clusters,
    /// Fill factor of nodes to which keys are only appended: 0.5 to 1. Other full nodes are split
    /// in half.
    pub fill: f64,
}

/// Clusters with a fixed number of segments. A full cluster is cleaned. If the nodes of a cluster
/// need more space even after that, the cluster grows beyond its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// A single cluster for all nodes: a B+-tree. No node is packed, so each node is stored at its
    /// full length.
    One {
        /// Size of the cluster.
        segments: u32,
    },
    /// The CHC-Tree: cold leaves and inner nodes are packed, hot leaves are not. Hot leaves take at
    /// most the share of the hot cluster that [`Options::utilisation`](crate::Options) sets.
    HotAndCold {
        /// Size of the hot cluster.
        hot_segments: u32,
        /// Size of the cold cluster.
        cold_segments: u32,
    },
}

/// Minimum number of segments of a cluster: one that is being filled, one that is being cleaned,
/// and two others.
const SEGMENTS_MIN: u32 = 4;

impl PaperRules {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |reason: &str| Error::Option {
            option: "paper",
            reason: reason.to_owned(),
        };
        if !(0.5..=1.0).contains(&self.fill) {
            return Err(refused("a fill of 0.5 to 1"));
        }
        let least = match self.clusters {
            Clusters::One { segments } => segments,
            Clusters::HotAndCold {
                hot_segments,
                cold_segments,
            } => hot_segments.min(cold_segments),
        };
        if least < SEGMENTS_MIN {
            return Err(refused("a cluster of 4 segments or more"));
        }
        Ok(())
    }

    /// Returns the cluster of nodes of this class.
    pub(crate) fn cluster(&self, class: Class) -> Class {
        match (self.clusters, class) {
            (Clusters::HotAndCold { .. }, Class::Hot) => Class::Hot,
            _ => Class::Cold,
        }
    }

    /// Returns true if nodes in this cluster are packed.
    pub(crate) fn is_packed(&self, cluster: Class) -> bool {
        matches!(self.clusters, Clusters::HotAndCold { .. }) && cluster != Class::Hot
    }

    /// Returns the clusters and their sizes in segments.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (Class, u32)> {
        let (hot, cold) = match self.clusters {
            Clusters::One { segments } => (None, segments),
            Clusters::HotAndCold {
                hot_segments,
                cold_segments,
            } => (Some((Class::Hot, hot_segments)), cold_segments),
        };
        hot.into_iter().chain([(Class::Cold, cold)])
    }
}
