//! The tutorial layer: it forwards every request unchanged. Copy this file to write a layer.
//!
//! A layer is three things: a configuration type, a device that holds its child (or children), and
//! a variant of [`crate::graph::Node`] that creates the device from the configuration. This layer
//! does nothing with the requests; its comments say how a layer could act at each point.

use std::rc::Rc;

use serde::Deserialize;

use crate::device::{Device, IoFuture, Statistic, StatisticVisitor};
use crate::geometry::Geometry;
use crate::request::Request;

/// The configuration of `type = "passthrough"`. Every layer refuses unknown keys with
/// `deny_unknown_fields`, so that a misspelled key is never silently ignored.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassthroughConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
}

/// The layer itself. It holds its child by `Rc`, because a task of the layer (for delayed work)
/// would need its own handle to the child. It needs no lock, because a stack belongs to one thread.
pub struct Passthrough {
    below: Rc<dyn Device>,
    requests: std::cell::Cell<u64>,
}

impl Passthrough {
    /// Creates a layer over `below`.
    pub fn new(below: Rc<dyn Device>) -> Passthrough {
        Passthrough {
            below,
            requests: std::cell::Cell::new(0),
        }
    }
}

impl Device for Passthrough {
    fn geometry(&self) -> &Geometry {
        // This layer has the geometry of its child, even when the child grows. A layer that keeps a
        // header computes its own geometry from that of its child; a layer over several children
        // uses `Geometry::stacked`.
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        // State behind a `Cell` is accessed before or after an await, never across one.
        self.requests.set(self.requests.get() + 1);
        // A layer that only forwards returns the child's future unchanged, at no cost. A layer that
        // acts after the child returns `IoFuture::new(async move { ... })`, and a layer that
        // already knows the answer returns `IoFuture::ready(...)`. A layer that treats operations
        // differently matches on `request.op` without a catch-all arm, so that the compiler reports
        // every place that a new operation concerns.
        self.below.submit(request)
    }

    // The default `close` suffices, because this layer has no work of its own to finish. A layer
    // that delays writes completes them in `close`, and joins its tasks. A layer does not close its
    // child; the graph does.

    fn interruptions(&self) -> Option<u64> {
        // One child, so its interruptions are the interruptions of this device. A layer over
        // several children returns the sum.
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        out.statistic("", "requests", Statistic::Counter(self.requests.get()));
    }
}
