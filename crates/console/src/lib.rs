//! Terminal code that the programs share: their start and end, lines on standard error, text
//! tables, progress bars, words for a shell, and the formatting of latencies.
//!
//! This crate must not contain code for a particular verb or device. It must never panic because
//! the reader of the output has closed it.

// The macros `print` and `eprint` panic when the reader of the output has closed it. Results are
// therefore written with `write` and `?`, and other output with `stderr::say`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod latency;
pub mod program;
pub mod progress;
pub mod shell;
pub mod stderr;
pub mod table;
