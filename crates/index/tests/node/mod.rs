//! The node of the tree against a plain model, and its bytes against the page.

mod golden;
mod history;
mod image;
mod model;
