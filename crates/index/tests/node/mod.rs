//! Tests of the index's nodes against a simple model, and of the nodes' bytes against the
//! documented format.

mod golden;
mod history;
mod image;
mod model;
