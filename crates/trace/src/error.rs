//! Errors of traces, each with the file, the position and the reason.

use std::fmt;

/// A place in a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of text.
    Line(u64),
    /// A record of a binary format.
    Record(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(number) => write!(f, "line {number}"),
            Place::Record(number) => write!(f, "record {number}"),
        }
    }
}

/// An error of a reader or writer of traces.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read or written.
    #[error("{file}: {reason}")]
    Io {
        /// Which file.
        file: String,
        /// Why.
        reason: std::io::Error,
    },
    /// The compressed or binary form of the file is damaged.
    #[error("{file}: {place}: cannot be read: {what}")]
    Damaged {
        /// Which file.
        file: String,
        /// How far it could be read.
        place: Place,
        /// Why.
        what: String,
    },
    /// A record is not one of this format.
    #[error("{file}: {place}: {what}")]
    Bad {
        /// Which file.
        file: String,
        /// Where.
        place: Place,
        /// What is wrong.
        what: String,
    },
    /// More bad records than the caller allows.
    #[error(
        "{file}: {place}: {what}; {skipped} bad records were skipped before, which is the limit"
    )]
    TooManyBad {
        /// Which file.
        file: String,
        /// Where the one too many is.
        place: Place,
        /// What is wrong with it.
        what: String,
        /// Bad records before it.
        skipped: u64,
    },
    /// Neither the name nor the content says what format the file has.
    #[error("{file}: the format is not recognised; say it with --format ({formats})")]
    UnknownFormat {
        /// Which file.
        file: String,
        /// The formats there are.
        formats: String,
    },
    /// A text of blkparse without any event that can stand for a request.
    #[error("{file}: no request: it has no event {events}")]
    NoEvents {
        /// Which file.
        file: String,
        /// The events that can stand for a request.
        events: &'static str,
    },
    /// The trace is too large to be held decoded.
    #[error("{file}: {full}")]
    Full {
        /// Which file.
        file: String,
        /// Of what there is too much.
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
            "{what}; take larger pages (--page-bytes), or count records (--key record)"
        )
    }
}
