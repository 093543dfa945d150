//! What the programs share at the terminal: how they start and end, lines on standard error, text
//! tables, progress bars, and latencies as text.
//!
//! Nothing here knows a verb or a device. It must never panic because a reader of the output has
//! gone.

// Both macros panic when the reader is gone: results are written with `?`, other output with
// `stderr::say`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod latency;
pub mod program;
pub mod progress;
pub mod stderr;
pub mod table;
