//! Experiments in storage: which device, scheduler, read-ahead, write mode and file system suits a
//! load?
//!
//! A plan (one file of TOML) names axes; a cell is one choice on each; a run of a cell is a world
//! of its own in virtual time: a workload over a virtual file layer over the real `queue` layer
//! over a modelled device; or the same in real time over devices of our stack ([`stack`]), or on
//! the kernel's own ([`native`]). What is counted in a run is checked against itself, and what is
//! reported is a median with an interval. The crate must never hold a second version of a policy, a
//! layer or a model.

pub mod cell;
pub mod compare;
pub mod device;
pub mod failure;
pub mod files;
pub mod latency;
pub mod layer;
pub mod native;
pub mod outcome;
pub mod plan;
pub mod plot;
pub mod report;
pub mod results;
pub mod settings;
pub mod stack;
pub mod statistics;
pub mod workload;
