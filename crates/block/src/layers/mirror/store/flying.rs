//! What a log has to write: appends that wait, and entries in flight. Also the counters of both.

use std::rc::Rc;

use bimetal_rt::Payload;
use bimetal_rt::sync::OnceValue;

use super::append::Append;
use super::entry::Header;
use crate::error::IoError;

/// Result of an append, set once it is known.
pub(in super::super) type Outcome = Rc<OnceValue<Result<(), IoError>>>;

/// An append that waits to be put into an entry.
pub(super) struct Pending {
    pub(super) append: Append,
    pub(super) outcome: Outcome,
}

/// An entry in flight.
pub(super) struct Flying {
    pub(super) header: Header,
    /// Outcomes of the appends whose last part is in this entry; set when the entry is stored.
    pub(super) last_parts: Vec<Outcome>,
    /// Outcomes of all appends with a part in this entry. They are set if the entry fails.
    pub(super) parts: Vec<Outcome>,
    /// What is written together with the entry, with its offset on the device: the summary of the
    /// segment of a logged side, behind its last entry.
    pub(super) summary: Option<(u64, Vec<u8>)>,
    /// Data of the entry, which are written again if the entry is overtaken.
    pub(super) data: Payload,
    /// Whether later entries in flight repeat the entry.
    pub(super) is_overtaken: bool,
    pub(super) outcome: Option<Result<(), IoError>>,
}

/// What an entry is formed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntrySource {
    /// New changes.
    New,
    /// Relogged changes.
    Again,
    /// What overtaken entries hold.
    Overtaken,
}

/// Counters of a log since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct LogCounts {
    /// Number of entries written.
    pub(in super::super) entries: u64,
    /// Number of bytes written, including headers.
    pub(in super::super) bytes: u64,
    /// Number of records in the entries written.
    pub(in super::super) records: u64,
    /// Number of times that changes began to wait for space.
    pub(in super::super) full: u64,
    /// Number of entries that were overtaken.
    pub(in super::super) overtaken: u64,
}

impl LogCounts {
    /// Returns the counters, each with its name in the statistics.
    pub(super) fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("log_entries", self.entries),
            ("log_entries_overtaken", self.overtaken),
            ("log_records", self.records),
            ("log_written_bytes", self.bytes),
            ("log_full", self.full),
        ]
    }
}
