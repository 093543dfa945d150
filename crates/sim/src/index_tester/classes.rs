//! The classes of faults of an index and its disk, one by one.
//!
//! A class that is on occurs in a part of the seeds, and draws from its own random stream:
//! switching a class on changes only the seeds that draw it.

use crate::campaign::{ClassSet, FaultClass};

/// A class of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The power is cut at any operation of the disk.
    PowerCut,
    /// The power is cut while the index is opened, up to three times in a row.
    CutOpening,
    /// The program stops and the disk keeps its power, and its cache.
    Kill,
    /// Reads fail, once or permanently.
    FailedReads,
    /// Writes and changes of the length fail, once or permanently.
    FailedWrites,
    /// Syncs fail, once or permanently.
    FailedSyncs,
    /// Operations fail while the index is opened.
    FailedOpening,
    /// The disk is full for a while.
    Full,
    /// Snapshots may retain only few batches.
    OldSnapshots,
    /// The index is under the rules of the paper.
    Paper,
    /// Bit rot: bytes change at rest.
    Rot,
    /// Writes to the log and the superblocks are acknowledged but never done.
    LostWrites,
    /// Writes to the log and the superblocks go to another offset.
    MisdirectedWrites,
    /// Reads return the content of another offset.
    MisdirectedReads,
    /// Writes to the segments are lost or go to another offset.
    LostNodes,
    /// The log begins shorter than allowed later, grows, and is shortened again.
    GrowingLog,
    /// Some values are a mebibyte or longer, with a log that accepts them.
    HugeValues,
}

/// A set of classes.
pub type Classes = ClassSet<Class>;

impl Class {
    /// All classes.
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

    /// Returns all classes: the index detects even the faults that it cannot tolerate.
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
