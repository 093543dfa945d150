//! I/O traces: the record type, readers of common formats, splitting into pages, this project's
//! compact format, and the writer of trace files.
//!
//! Readers stream: memory does not grow with the length of a trace. No content of a file can cause
//! a panic, or an allocation whose size is not bounded. An invalid record is either an error with
//! its position or skipped and counted, as the caller chose; its content is never guessed. Each
//! line that is not a request is counted by the reason for skipping it ([`Tally`]), and a reader
//! reports the decisions that it made by itself ([`Reader::notes`]).

mod accesses;
mod blkparse;
mod columns;
mod compact;
mod compressed;
mod error;
mod format;
mod input;
mod interner;
mod layouts;
mod output;
mod reader;
mod sample;
mod stack_distance;
mod summary;
mod tally;

pub use accesses::{Accesses, Collector, Key, Kind};
pub use columns::{Columns, InvalidColumns};
pub use compact::CompactWriter;
pub use error::{Full, Position, TraceError};
pub use format::{Format, UnknownFormat};
pub use interner::Interner;
pub use output::TraceFile;
pub use reader::{Options, Reader, SkipBad};
pub use sample::{InvalidRate, Sample};
pub use stack_distance::StackDistances;
pub use summary::Summary;
pub use tally::{Ignored, Tally};

/// Operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A read of the range. Also the operation of every record in formats without operation types.
    Read,
    /// Writes the range.
    Write,
    /// Discards the range (TRIM).
    Trim,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time in nanoseconds since any fixed start; 0 in formats without times.
    pub time_ns: u64,
    /// Operation.
    pub op: Op,
    /// Offset in bytes. All devices and files of a trace share one address space, in which the
    /// device or file with number `n` starts at `n << 44`. The numbers are those in the trace, or
    /// are assigned in the order of first appearance.
    pub offset_bytes: u64,
    /// Length in bytes; at least 1.
    pub length_bytes: u64,
}

/// Number of bytes of address space for each device or file of a trace.
const DEVICE_BYTES: u64 = 1 << 44;
/// Maximum length of a record in bytes. No device accepts a longer request, and a corrupt number
/// must not become millions of pages.
const LENGTH_BYTES_MAX: u64 = 4 << 30;
/// Maximum number of devices or files in a trace.
const DEVICES_MAX: u64 = 1 << 19;

#[cfg(test)]
mod tests;
