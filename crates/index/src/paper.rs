//! The rules of the CHC-Tree's paper in place of the engine's own, so that its experiment runs on
//! the same nodes, classifier, segments and cleaning (docs/experiments/chc-tree.md).
//!
//! Source: Byun 2011, section 2: hot and cold clusters of fixed sizes, cold nodes packed, hot ones
//! not; and the B+-trees that it is compared with. Nothing here weakens what an index promises: the
//! log and the checkpoints are as ever. It must never be the default: a node is written for each
//! change.

use crate::error::Error;
use crate::segments::Class;

/// The rules of the paper. Every batch writes its leaves at once, whole pages at a time; nodes are
/// read from the storage each time; a node holds what fits into
/// [`Options::node_bytes`](crate::Options) unpacked, and unpacked it is stored at that length; a
/// leaf is joined with a neighbour only if that one is packed. What was there when the index was
/// opened counts as cold until it is written again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperRules {
    /// The segments of nodes, and which of these are packed.
    pub clusters: Clusters,
    /// How full nodes are made where keys are only added at the end: 0.5 to 1. Other full nodes are
    /// cut in half.
    pub fill: f64,
}

/// Clusters of a fixed number of segments: one that is full is cleaned. What a cluster's nodes need
/// even so, it takes beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clusters {
    /// One for all nodes, none of which is packed: a B+-tree.
    One {
        /// Its size.
        segments: u32,
    },
    /// The CHC-Tree. Hot leaves are not packed; cold leaves and inner nodes are. The hot cluster
    /// takes no leaf beyond [`Options::utilisation`](crate::Options) of its size.
    HotAndCold {
        /// Size of the hot cluster.
        hot_segments: u32,
        /// Size of the cold cluster.
        cold_segments: u32,
    },
}

/// The least segments of a cluster: one that is filled, one that is cleaned, and some.
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

    /// The cluster that nodes of this class are in.
    pub(crate) fn cluster(&self, class: Class) -> Class {
        match (self.clusters, class) {
            (Clusters::HotAndCold { .. }, Class::Hot) => Class::Hot,
            _ => Class::Cold,
        }
    }

    /// Whether nodes in this cluster are packed.
    pub(crate) fn is_packed(&self, cluster: Class) -> bool {
        matches!(self.clusters, Clusters::HotAndCold { .. }) && cluster != Class::Hot
    }

    /// The clusters and their sizes in segments.
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
