//! The external tests of the index, as one program, so that the index is built and linked for them
//! only once.

mod beyond;
mod boundaries;
mod crash;
mod damage;
#[cfg(feature = "device")]
mod device;
mod file;
mod findings;
mod golden;
mod isolation;
mod kill;
mod model;
mod node;
mod paper;
mod patches;
mod ranges;
mod rebuild;
mod rebuild_damage;
mod reopen;
mod snapshots;
mod space;
mod threads;
mod uses;
mod world;
