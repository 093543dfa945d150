//! Tests of the tree's nodes against a plain model, and of their bytes against the format page.

mod golden;
mod history;
mod image;
mod model;
