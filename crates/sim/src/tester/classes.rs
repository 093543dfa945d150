//! The classes of faults and of checks that can be switched on and off, one by one.
//!
//! A class does not say how a volume handles it. The default set contains the classes that the
//! mirror withstands; a class joins the set in the commit that makes the mirror withstand it. Each
//! class draws from its own random stream, so that switching a class on changes only the seeds that
//! draw it.

use crate::campaign::{ClassSet, FaultClass};

/// A class; see the fault model in [`disk`](super::disk).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A power cut tears blocks at 512 bytes.
    Torn,
    /// A freeze lasts 1 to 120 s, or is permanent.
    LongHangs,
    /// A side becomes absent and returns many times in a row.
    Flapping,
    /// The program is killed while the disks keep their power. Requests in flight may be applied
    /// later, but before the disks answer the next program.
    Kill,
    /// As [`Class::Kill`], but the disks answer the next program at once.
    Unfenced,
    /// Blocks change at rest.
    Rot,
    /// Writes are acknowledged and never done.
    LostWrites,
    /// Writes change other blocks.
    MisdirectedWrites,
    /// Reads return other blocks.
    MisdirectedReads,
    /// One copy of a side's superblock is zeroes or garbage.
    SuperblockCopy,
    /// Both copies of a side's superblock are zeroes or garbage.
    SuperblockBoth,
    /// A side returns as it was at the end of an earlier life.
    OlderSide,
    /// A side of another volume takes the place of a side.
    ForeignSide,
    /// Each side is booted alone.
    Alone,
    /// All copies of a block are corrupt, so that an error is the only right answer.
    AllCopies,
    /// Power is cut while the volume opens.
    CutOpening,
    /// Lives that only read and are killed, several in a row: the first answer is final.
    FirstAnswer,
    /// The load writes more than the smallest log holds while a side does not answer.
    FullLog,
    /// A scrub, and a crash during the scrub.
    CrashInScrub,
    /// A crash during a resync.
    CrashInResync,
    /// A crash when a side becomes absent, returns or becomes healthy.
    CrashAtEpoch,
    /// A side is added, replaced or removed, and the power is cut meanwhile.
    ChangeOfSides,
    /// Logs are full, and the program dies several times in a row while it opens the volume: no
    /// member of the newest epoch may hold less afterwards than before (T14).
    DeathsInOpening,
    /// A change is acknowledged only when every side that counts has it.
    AcknowledgeAll,
    /// More requests are in flight at once than the smallest log holds, while sides freeze.
    DeepQueue,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 25] = [
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
    ];

    /// Returns the name on a command line.
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
        }
    }
}

/// A set of classes.
pub type Classes = ClassSet<Class>;

impl FaultClass for Class {
    fn all() -> &'static [Class] {
        &Class::ALL
    }

    /// Returns the classes that the mirror withstands today.
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
