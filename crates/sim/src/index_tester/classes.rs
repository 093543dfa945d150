//! The classes of what can go wrong with an index and its disk, one by one.
//!
//! Each class is in a part of the seeds when it is on, and draws from a stream of its own:
//! switching one on leaves every seed as it was that does not draw it.

use crate::campaign::{ClassSet, FaultClass};

/// A class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The power is cut at any operation of the disk.
    PowerCut,
    /// The power is cut while the index is opened, up to three times in a row.
    CutOpening,
    /// The program stops and the disk keeps its power, and its cache.
    Kill,
    /// Reads fail, once or for good.
    FailedReads,
    /// Writes and changes of the length fail, once or for good.
    FailedWrites,
    /// Syncs fail, once or for good.
    FailedSyncs,
    /// Operations fail while the index is opened.
    FailedOpening,
    /// The disk is full for a while.
    Full,
    /// Snapshots may hold back few batches only.
    OldSnapshots,
    /// The index is under the rules of the paper.
    Paper,
    /// Bytes change at rest.
    Rot,
    /// Writes to the log and the superblocks are acknowledged and never done.
    LostWrites,
    /// Writes to the log and the superblocks land elsewhere.
    MisdirectedWrites,
    /// Reads answer with what is elsewhere.
    MisdirectedReads,
    /// Writes to the segments are lost or land elsewhere.
    LostNodes,
    /// The log begins shorter than it may be, grows, and is made short again.
    GrowingLog,
    /// Some values have a mebibyte or more, beside a log that takes them.
    HugeValues,
}

/// A set of classes.
pub type Classes = ClassSet<Class>;

impl Class {
    /// All of them.
    pub const ALL: [Class; 17] = [
        Class::PowerCut,
        Class::CutOpening,
        Class::Kill,
        Class::FailedReads,
        Class::FailedWrites,
        Class::FailedSyncs,
        Class::FailedOpening,
        Class::Full,
        Class::OldSnapshots,
        Class::Paper,
        Class::Rot,
        Class::LostWrites,
        Class::MisdirectedWrites,
        Class::MisdirectedReads,
        Class::LostNodes,
        Class::GrowingLog,
        Class::HugeValues,
    ];
}

impl FaultClass for Class {
    fn all() -> &'static [Class] {
        &Class::ALL
    }

    /// All of them: what cannot be withstood is noticed.
    fn withstood() -> Vec<Class> {
        Class::ALL.to_vec()
    }

    fn name(self) -> &'static str {
        match self {
            Class::PowerCut => "power-cut",
            Class::CutOpening => "cut-opening",
            Class::Kill => "kill",
            Class::FailedReads => "failed-reads",
            Class::FailedWrites => "failed-writes",
            Class::FailedSyncs => "failed-syncs",
            Class::FailedOpening => "failed-opening",
            Class::Full => "full",
            Class::OldSnapshots => "old-snapshots",
            Class::Paper => "paper",
            Class::Rot => "rot",
            Class::LostWrites => "lost-writes",
            Class::MisdirectedWrites => "misdirected-writes",
            Class::MisdirectedReads => "misdirected-reads",
            Class::LostNodes => "lost-nodes",
            Class::GrowingLog => "growing-log",
            Class::HugeValues => "huge-values",
        }
    }

    fn number(self) -> u32 {
        self as u32
    }
}
