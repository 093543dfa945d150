//! I/O traces: what a record is, readers of the formats in use, splitting into pages, and a compact
//! form of our own.
//!
//! Readers stream: memory does not grow with the length of a trace. No bytes of a file can cause a
//! panic or an allocation that they alone decide. A record that cannot be right is an error with
//! its place, or is skipped and counted, as the caller chose; it is never guessed at. A line that
//! is no request is counted by its reason ([`Tally`]), and what a reader decided by itself it tells
//! ([`Reader::notes`]).

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
pub use error::{Full, Place, TraceError};
pub use format::{Format, UnknownFormat};
pub use interner::Interner;
pub use reader::{Options, Reader, SkipBad};
pub use sample::{InvalidRate, Sample};
pub use stack_distance::StackDistances;
pub use summary::Summary;
pub use tally::{Ignored, Tally};

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads; also what a format without types says.
    Read,
    /// Writes.
    Write,
    /// Gives the range up (TRIM, discard).
    Trim,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds since any fixed start; 0 in formats without times.
    pub time_ns: u64,
    /// What.
    pub op: Op,
    /// Where, in bytes. Devices and files of a trace lie far apart in one space: number `n` of them
    /// starts at `n << 44`, in the order of their first appearance or by the number that they have.
    pub offset_bytes: u64,
    /// How much, in bytes; at least 1.
    pub length_bytes: u64,
}

/// Bytes of address space for each device or file of a trace.
const DEVICE_BYTES: u64 = 1 << 44;
/// Bytes of a record, at most: no device takes a longer request, and one bad number must not become
/// millions of pages.
const LENGTH_BYTES_MAX: u64 = 4 << 30;
/// Devices or files in a trace, at most.
const DEVICES_MAX: u64 = 1 << 19;

#[cfg(test)]
mod tests;
