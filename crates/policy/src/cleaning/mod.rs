//! The policy of a log-structured side of a mirror: which segment is cleaned next, which blocks are
//! appended together, and how many appends are admitted while cleaning goes on.
//!
//! A log-structured side never overwrites a block. It appends each block to an open segment, and
//! the old version of the block is dead from then on. *Cleaning* a segment, the *victim*, moves its
//! live blocks to open segments; then the whole victim is free. Each module answers one question of
//! this work:
//!
//! - [`victims`]: which segment is cleaned next, and how many blocks must be moved for each block
//!   of space that cleaning gains;
//! - [`heat`]: to which of four streams a block is appended, so that blocks that die at about the
//!   same time share a segment;
//! - [`admission`]: how many blocks may be appended now, and how much cleaning is due;
//! - [`source`]: from which side the content that is moved is read;
//! - [`order`]: which parts of the volume are appended again in the order of the volume.
//!
//! All times are counts of blocks. The clock of a side is the number of blocks ever appended to it,
//! written and moved ones together, so a policy behaves the same on a fast device and on a slow
//! one, and the age of a segment does not grow while the side is idle.
//!
//! The policy must never do I/O or read a clock of its own, and it must never keep memory for each
//! block.

pub mod admission;
pub mod heat;
pub mod order;
pub mod source;
pub mod victims;

#[cfg(test)]
mod tests;
