//! I/O traces: the record type, readers of the formats in use, splitting into pages, and a compact
//! format of the project.
//!
//! Readers stream: memory does not grow with the length of a trace. No bytes of a file can cause a
//! panic or an allocation whose size they alone determine. An invalid record is an error with its
//! position, or is skipped and counted, as the caller chose; its content is never guessed. A line
//! that is no request is counted by its reason ([`Tally`]), and a reader reports the decisions that
//! it made by itself ([`Reader::notes`]).

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
pub use reader::{Options, Reader, SkipBad};
pub use sample::{InvalidRate, Sample};
pub use stack_distance::StackDistances;
pub use summary::Summary;
pub use tally::{Ignored, Tally};

/// Operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads the range; also used for formats without operation types.
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
    /// Offset in bytes. All devices and files of a trace share one address space: number `n` starts
    /// at `n << 44`, numbered in the order of first appearance or by the trace's own numbers.
    pub offset_bytes: u64,
    /// Length in bytes; at least 1.
    pub length_bytes: u64,
}

/// Bytes of address space for each device or file of a trace.
const DEVICE_BYTES: u64 = 1 << 44;
/// Maximum length of a record in bytes: no device accepts a longer request, and one bad number must
/// not become millions of pages.
const LENGTH_BYTES_MAX: u64 = 4 << 30;
/// Maximum number of devices or files in a trace.
const DEVICES_MAX: u64 = 1 << 19;

#[cfg(test)]
mod tests;
