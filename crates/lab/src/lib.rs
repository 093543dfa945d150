//! Experiments in storage: which device, scheduler, read-ahead, write mode and file system suits a
//! load?
//!
//! A plan (one TOML file) names axes, and a cell is one choice on each axis. A run of a cell is an
//! isolated world in virtual time: a workload over a virtual file layer, over the real `queue`
//! layer, over a modelled device. A run may also use real time, over devices of our stack
//! ([`stack`]) or over the kernel's schedulers and file systems ([`native`]). The counters of a run
//! are checked for consistency, and a reported value is a median with an interval. The crate must
//! never hold a second version of a policy, a layer or a model.

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
