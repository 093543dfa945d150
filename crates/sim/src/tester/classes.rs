//! The classes of faults and of checks, which can be switched on and off one by one.
//!
//! A class describes a fault, not how a volume must handle it. The default set contains the classes
//! that the mirror withstands; the commit that makes the mirror withstand a class adds the class to
//! the set. Each class draws from its own random stream, so switching a class on changes only the
//! seeds in which the class occurs.

use crate::campaign::{ClassSet, FaultClass};

/// A class of faults or checks; see the fault model in [`disk`](super::disk).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A power cut tears blocks at boundaries of 512 bytes.
    Torn,
    /// A freeze lasts 1 to 120 s, or is permanent.
    LongHangs,
    /// A side becomes absent and returns many times in a row.
    Flapping,
    /// The program is killed while the disks keep their power. Requests in flight can be applied
    /// later, but before the disks answer the next program.
    Kill,
    /// Like [`Class::Kill`], but without fencing: the disks answer the next program immediately,
    /// while requests of the killed program can still be applied.
    Unfenced,
    /// Blocks change at rest (bit rot).
    Rot,
    /// Disks acknowledge writes without applying them.
    LostWrites,
    /// Writes change blocks at another offset.
    MisdirectedWrites,
    /// Reads return blocks from another offset.
    MisdirectedReads,
    /// Fault: one copy of a side's superblock is overwritten with zeroes or garbage.
    SuperblockCopy,
    /// Both copies of a side's superblock are overwritten with zeroes or garbage.
    SuperblockBoth,
    /// A side returns with the content that it had at the end of an earlier life.
    OlderSide,
    /// A side of another volume replaces a side.
    ForeignSide,
    /// Between two lives, the volume is opened from each side alone, on a copy.
    Alone,
    /// All copies of a block are corrupt, so an error is the only correct answer to a read.
    AllCopies,
    /// Power is cut while the volume opens.
    CutOpening,
    /// Several lives in a row read without a load and are then killed. A value that a read has
    /// returned must not change in a later life.
    FirstAnswer,
    /// While a side does not answer, the clients write more bytes than the smallest log can hold.
    FullLog,
    /// A scrub runs, and the program crashes during the scrub.
    CrashInScrub,
    /// A crash during a resync.
    CrashInResync,
    /// A crash shortly after a side has become absent, has returned or has become healthy. Such a
    /// change can start a new epoch.
    CrashAtEpoch,
    /// A side is added, replaced or removed, and the power is cut during the change.
    ChangeOfSides,
    /// The logs are full, and the program dies several times in a row while it opens the volume. No
    /// attempt is allowed to leave a member of the newest epoch with less content than before
    /// (T14).
    DeathsInOpening,
    /// A change is acknowledged only when every member of the mirror has stored it.
    AcknowledgeAll,
    /// Requests in flight together exceed the smallest log, while sides freeze: the scenarios of
    /// this class need a deep queue.
    DeepQueue,
    /// Some sides, or all, are a log and nothing else.
    LoggedSides,
    /// Logged sides are written so much that they commit their map all the time, and a crash comes
    /// shortly after a commit or in the next one.
    CrashInCommit,
    /// Logged sides keep only some pages of their map and of their checksums in memory.
    SmallMap,
    /// A side is converted to the other layout in place, and the power is cut during that.
    ConvertedSides,
    /// Only a part of the volume may have content at a time; all sides are logged.
    LimitedRoom,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 30] = [
        Class::Torn,
        Class::LongHangs,
        Class::Flapping,
        Class::Kill,
        Class::Unfenced,
        Class::Rot,
        Class::LostWrites,
        Class::MisdirectedWrites,
        Class::MisdirectedReads,
        Class::SuperblockCopy,
        Class::SuperblockBoth,
        Class::OlderSide,
        Class::ForeignSide,
        Class::Alone,
        Class::AllCopies,
        Class::CutOpening,
        Class::FirstAnswer,
        Class::FullLog,
        Class::CrashInScrub,
        Class::CrashInResync,
        Class::CrashAtEpoch,
        Class::ChangeOfSides,
        Class::DeathsInOpening,
        Class::AcknowledgeAll,
        Class::DeepQueue,
        Class::LoggedSides,
        Class::CrashInCommit,
        Class::SmallMap,
        Class::ConvertedSides,
        Class::LimitedRoom,
    ];

    /// Returns the name of the class on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Class::Torn => "torn",
            Class::LongHangs => "long-hangs",
            Class::Flapping => "flapping",
            Class::Kill => "kill",
            Class::Unfenced => "unfenced",
            Class::Rot => "rot",
            Class::LostWrites => "lost-writes",
            Class::MisdirectedWrites => "misdirected-writes",
            Class::MisdirectedReads => "misdirected-reads",
            Class::SuperblockCopy => "superblock-copy",
            Class::SuperblockBoth => "superblock-both",
            Class::OlderSide => "older-side",
            Class::ForeignSide => "foreign-side",
            Class::Alone => "alone",
            Class::AllCopies => "all-copies",
            Class::CutOpening => "cut-opening",
            Class::FirstAnswer => "first-answer",
            Class::FullLog => "full-log",
            Class::CrashInScrub => "crash-in-scrub",
            Class::CrashInResync => "crash-in-resync",
            Class::CrashAtEpoch => "crash-at-epoch",
            Class::ChangeOfSides => "change-of-sides",
            Class::DeathsInOpening => "deaths-in-opening",
            Class::AcknowledgeAll => "acknowledge-all",
            Class::DeepQueue => "deep-queue",
            Class::LoggedSides => "logged-sides",
            Class::CrashInCommit => "crash-in-commit",
            Class::SmallMap => "small-map",
            Class::ConvertedSides => "converted-sides",
            Class::LimitedRoom => "limited-room",
        }
    }
}

/// A set of classes.
pub type Classes = ClassSet<Class>;

impl FaultClass for Class {
    fn all() -> &'static [Class] {
        &Class::ALL
    }

    /// Returns the default set: the classes that the mirror withstands.
    fn withstood() -> Vec<Class> {
        vec![
            Class::Torn,
            Class::LongHangs,
            Class::Flapping,
            Class::Kill,
            Class::SuperblockCopy,
            Class::SuperblockBoth,
            Class::OlderSide,
            Class::ForeignSide,
            Class::Alone,
            Class::CutOpening,
            Class::FirstAnswer,
            Class::FullLog,
            Class::CrashInScrub,
            Class::CrashInResync,
            Class::CrashAtEpoch,
            Class::ChangeOfSides,
            Class::DeathsInOpening,
            Class::AcknowledgeAll,
            Class::DeepQueue,
        ]
    }

    fn name(self) -> &'static str {
        Class::name(self)
    }

    fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_reads_as_it_is_written() {
        for text in ["none", "torn", "torn,rot", "kill,alone"] {
            let classes = Classes::parse(text).unwrap();
            assert_eq!(Classes::parse(&classes.text()), Ok(classes));
        }
        let all_but_rot = Classes::parse("all,-rot").unwrap();
        assert!(!all_but_rot.has(Class::Rot) && all_but_rot.has(Class::Torn));
        assert_eq!(all_but_rot.iter().count(), Class::ALL.len() - 1);
        assert!(Classes::parse("torn,nonsense").is_err());
    }
}
