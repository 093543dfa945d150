//! The classes of faults of an index and its disk, which can be switched on and off one by one.
//!
//! A class that is on occurs in a fraction of the seeds and draws from its own random stream, so
//! switching a class on changes only the seeds in which the class occurs.

use crate::campaign::{ClassSet, FaultClass};

/// A class of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The power is cut at some operation of the disk.
    PowerCut,
    /// The power is cut while the index is opened, up to three times in a row.
    CutOpening,
    /// The program is killed, while the disk keeps its power and its cache.
    Kill,
    /// Reads fail, once or permanently.
    FailedReads,
    /// Writes, and changes of the length of the disk, fail once or permanently.
    FailedWrites,
    /// Syncs fail, once or permanently.
    FailedSyncs,
    /// Disk operations fail while the index is opened.
    FailedOpening,
    /// The disk is full for a while.
    Full,
    /// The options set a low maximum age of snapshots, as a number of batches, so that snapshots
    /// become invalid.
    OldSnapshots,
    /// The index runs with the rules of the CHC-Tree paper.
    Paper,
    /// Bit rot: bytes change at rest.
    Rot,
    /// A write to the log or a superblock is acknowledged but never applied.
    LostWrites,
    /// A write to the log or a superblock goes to another offset.
    MisdirectedWrites,
    /// A read returns the content of another offset.
    MisdirectedReads,
    /// A write to the segments is lost or goes to another offset.
    LostNodes,
    /// The log starts shorter than its maximum length, grows, and becomes shorter again.
    GrowingLog,
    /// Some values are up to 1.5 MiB long, with a log that accepts such values.
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

    /// Returns all classes of faults: for each of them, the index must tolerate the fault or detect
    /// it.
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
