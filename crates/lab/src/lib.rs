//! Storage experiments that find the device, scheduler, read-ahead, write mode and file system that
//! suit a load.
//!
//! A plan (one TOML file) names the choices on several axes, and a cell of the plan is one choice
//! on each axis. A run of a cell is isolated and usually in virtual time: a workload above a
//! virtual file layer, the real `queue` layer, and a modelled device. A run can also use real time,
//! on devices of this project's stack ([`stack`]) or on the schedulers and file systems of the
//! kernel ([`native`]). The counters of a run are checked for consistency, and each reported value
//! is a median with an interval. This crate must never contain a second implementation of a policy,
//! a layer or a model.

pub mod cache;
pub mod cell;
pub mod compare;
pub mod device;
pub mod failure;
pub mod files;
pub mod latency;
pub mod layer;
pub mod native;
pub mod outcome;
pub mod papers;
pub mod plan;
pub mod plot;
pub mod report;
pub mod results;
pub mod settings;
pub mod stack;
pub mod statistics;
pub mod workload;
