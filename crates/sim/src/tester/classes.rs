//! The classes of faults and of checks that can be switched on and off, one by one.
//!
//! A class says nothing about how a volume deals with it. The set that is on by default is what the
//! mirror withstands; a class joins it in the commit that makes the mirror withstand it. Each class
//! draws from a stream of its own, so that switching one on leaves every seed as it was that does
//! not draw it.

use crate::campaign::{ClassSet, FaultClass};

/// A class; see the fault model in [`disk`](super::disk).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A power cut tears blocks at 512 bytes.
    Torn,
    /// A freeze lasts 1 to 120 s, or for ever.
    LongHangs,
    /// A side goes and comes back many times in a row.
    Flapping,
    /// The program is killed while the disks keep their power: what they were given may land later,
    /// but before they answer the next program.
    Kill,
    /// As [`Class::Kill`], but the disks answer the next program at once.
    Unfenced,
    /// Blocks change at rest.
    Rot,
    /// Writes are acknowledged and never done.
    LostWrites,
    /// Writes land on other blocks.
    MisdirectedWrites,
    /// Reads answer with other blocks.
    MisdirectedReads,
    /// One copy of a side's superblock is zeroes or garbage.
    SuperblockCopy,
    /// Both copies of a side's superblock are.
    SuperblockBoth,
    /// A side returns as it was at the end of an earlier life.
    OlderSide,
    /// A side of another volume stands where one of ours should.
    ForeignSide,
    /// Each side is booted alone.
    Alone,
    /// All copies of a block are corrupt, so that an error is the only right answer.
    AllCopies,
    /// Power is cut while the volume opens.
    CutOpening,
    /// Lives that only read and are killed, again and again: the first answer is final.
    FirstAnswer,
    /// A log that is hardly longer than what waits for a side that does not answer.
    FullLog,
    /// A scrub, and a death in the middle of it.
    CrashInScrub,
    /// A death in the middle of a resync.
    CrashInResync,
    /// A death when a side becomes absent, comes back or becomes whole.
    CrashAtEpoch,
    /// A side is added, replaced or removed, and power is cut meanwhile.
    ChangeOfSides,
    /// Logs are full, and the program dies several times in a row while it opens the volume: no
    /// member of the newest epoch may hold less afterwards than before (T14).
    DeathsInOpening,
    /// A change is acknowledged when every side that counts has it.
    AcknowledgeAll,
    /// More requests are under way at once than the smallest log takes, while sides freeze.
    DeepQueue,
}

impl Class {
    /// All of them.
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

    /// The name on a command line.
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

    /// What the mirror withstands today.
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
