//! The loads: programs over the file layer, or over the bare device, by a seed.

pub mod postmark;
