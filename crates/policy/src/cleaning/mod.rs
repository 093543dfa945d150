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

/// Returns the number of blocks that a side writes for each block of a load that overwrites all of
/// its content uniformly, if it cleans its oldest segment, by the formula for such a log:
/// `u = (f - 1) / ln f`, and each block is written `1 / (1 - f)` times. `live_share` is `u`, the
/// share of the segments that has content; shares outside of 0 to 1 count as the next one inside.
pub fn uniform_amplification(live_share: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..100 {
        let f: f64 = (low + high) / 2.0;
        match (f - 1.0) / f.ln() < live_share {
            true => low = f,
            false => high = f,
        }
    }
    1.0 / (1.0 - low)
}
