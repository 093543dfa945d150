//! Errors of traces, each with the file, the position and the reason.

use std::fmt;

/// A place in a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// A line of text.
    Line(u64),
    /// A record of a binary format.
    Record(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Line(number) => write!(f, "line {number}"),
            Position::Record(number) => write!(f, "record {number}"),
        }
    }
}

/// An error of a reader or writer of traces.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read or written.
    #[error("{file}: {reason}")]
    Io {
        /// Name of the file.
        file: String,
        /// Reason for the failure.
        reason: std::io::Error,
    },
    /// The compressed or binary form of the file is damaged.
    #[error("{file}: {place}: cannot be read: {what}")]
    Damaged {
        /// Name of the file.
        file: String,
        /// Place up to which the file could be read.
        place: Position,
        /// Description of the damage.
        what: String,
    },
    /// A record is invalid in this format.
    #[error("{file}: {place}: {what}")]
    Bad {
        /// Name of the file.
        file: String,
        /// Place of the record.
        place: Position,
        /// Description of the mistake.
        what: String,
    },
    /// More bad records than the caller allows.
    #[error(
        "{file}: {place}: {what}; {skipped} bad records were skipped before, which is the limit"
    )]
    TooManyBad {
        /// Name of the file.
        file: String,
        /// Place of the record that exceeds the limit.
        place: Position,
        /// Description of the mistake in that record.
        what: String,
        /// Number of bad records skipped before that record.
        skipped: u64,
    },
    /// The format can be recognised neither from the name nor from the content of the file.
    #[error("{file}: the format is not recognized; select it with --format ({formats})")]
    UnknownFormat {
        /// Name of the file.
        file: String,
        /// Names of all formats.
        formats: String,
    },
    /// A text of blkparse contains no event that can be read as a request.
    #[error("{file}: no request: it has no event {events}")]
    NoEvents {
        /// Name of the file.
        file: String,
        /// The events that can stand for a request.
        events: &'static str,
    },
    /// The decoded trace would be too large.
    #[error("{file}: {full}")]
    Full {
        /// Name of the file.
        file: String,
        /// The limit that would be exceeded.
        full: Full,
    },
}

/// The limit that a decoded trace has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Distinct pages.
    Pages,
    /// Accesses.
    Accesses,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Full::Pages => "more than 2^30 distinct pages",
            Full::Accesses => "more than 2^31 page accesses",
        };
        write!(
            f,
            "{what}; use larger pages (--page-bytes), or count records (--key record)"
        )
    }
}
