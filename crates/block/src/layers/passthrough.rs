//! The tutorial layer: it passes everything on. Copy this file to write a layer.
//!
//! A layer is three things: a configuration type, a device that holds its child (or children), and
//! a line in the graph ([`crate::graph::Node`]) that makes the one from the other. This one does
//! nothing in between, and says at each point what could be done there.

use std::rc::Rc;

use serde::Deserialize;

use crate::device::{Device, Figure, FigureVisitor, IoFuture};
use crate::geometry::Geometry;
use crate::request::Request;

/// The configuration of `type = "passthrough"`. Unknown keys are refused by `deny_unknown_fields`,
/// which every layer has: a typing error must never be taken for a wish.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassthroughConfig {
    /// The device below, by its name in the file.
    pub below: String,
}

/// The layer itself. It holds its child by `Rc`, because tasks that it might start (for delayed
/// work) would need a handle of their own; it needs no lock, because a stack belongs to one thread.
pub struct Passthrough {
    below: Rc<dyn Device>,
    requests: std::cell::Cell<u64>,
}

impl Passthrough {
    /// A layer over `below`.
    pub fn new(below: Rc<dyn Device>) -> Passthrough {
        Passthrough {
            below,
            requests: std::cell::Cell::new(0),
        }
    }
}

impl Device for Passthrough {
    fn geometry(&self) -> &Geometry {
        // Here nothing changes, also when what is below grows. A layer that keeps a header computes
        // a geometry of its own from that of its child, one that copies to several children takes
        // `Geometry::stacked`.
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        // State behind a `Cell` is touched before or after an await, never across one.
        self.requests.set(self.requests.get() + 1);
        // A layer that only passes on returns the child's future as it is, which costs nothing. A
        // layer that does something after the child returns `IoFuture::new(async move { ... })`,
        // and one that knows the answer returns `IoFuture::ready(...)`. Whoever treats operations
        // differently matches on `request.op` without a catch-all arm, so that a new operation
        // cannot slip through unnoticed.
        self.below.submit(request)
    }

    // `close` is left as it is: this layer has no work of its own to finish. A layer that delays
    // writes drains them here, and joins its tasks. It does not close its child; the graph does.

    fn interruptions(&self) -> Option<u64> {
        // A layer over several children passes on the sum of theirs.
        self.below.interruptions()
    }

    fn figures(&self, out: &mut dyn FigureVisitor) {
        out.figure("", "requests", Figure::Counter(self.requests.get()));
    }
}
