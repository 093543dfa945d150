//! Numbers of the lines or records of a file, by outcome.
//!
//! A line is either a request, or bad, or skipped for a named reason. There is no other outcome, so
//! every line is counted, and the numbers can be reported.

use std::fmt;

/// Reason for skipping a line that is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// An empty line, or a line of white space.
    Blank,
    /// A line that begins with `#`.
    Comment,
    /// A first line that names the columns.
    Heading,
    /// A line that belongs to the format itself, such as the first line of a fio log or the `*` of
    /// LIRS.
    Mark,
    /// An event of blkparse that is not of the kind that is read as requests.
    OtherEvent,
    /// A flush or another request of blkparse that has no sectors.
    NoSectors,
    /// A line in a text of blkparse that is not an event, such as the totals at the end of the
    /// text.
    NoEvent,
    /// An action in a log of fio that moves no data: `open`, `sync`, `wait` and so on.
    NoData,
}

impl Ignored {
    /// Every reason.
    pub const ALL: [Ignored; 8] = [
        Ignored::Blank,
        Ignored::Comment,
        Ignored::Heading,
        Ignored::Mark,
        Ignored::OtherEvent,
        Ignored::NoSectors,
        Ignored::NoEvent,
        Ignored::NoData,
    ];

    /// Returns the reason in words. In a message, the count of the ignored lines comes before these
    /// words, as in `3 comments`.
    pub fn words(self) -> &'static str {
        match self {
            Ignored::Blank => "blank",
            Ignored::Comment => "comments",
            Ignored::Heading => "headings",
            Ignored::Mark => "marks of the format",
            Ignored::OtherEvent => "other events",
            Ignored::NoSectors => "requests without sectors, such as flushes",
            Ignored::NoEvent => "no events",
            Ignored::NoData => "actions that move no data",
        }
    }

    /// Returns true if the number of lines skipped for this reason should be reported. Blank lines
    /// and marks of the format are not reported, because no user would expect them to be requests.
    /// A heading is reported separately, with its line.
    fn is_worth_saying(self) -> bool {
        !matches!(self, Ignored::Blank | Ignored::Mark | Ignored::Heading)
    }
}

/// Counts of the lines (or binary records) of a file, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of lines or records that were requests. In some formats a single line describes
    /// several requests.
    pub requests: u64,
    /// Number of bad lines or records that were skipped because the options allow it.
    pub bad: u64,
    ignored: [u64; Ignored::ALL.len()],
}

impl Tally {
    /// Returns the number of lines skipped for the reason `why`.
    pub fn ignored(&self, why: Ignored) -> u64 {
        self.ignored[why as usize]
    }

    /// Returns the number of all lines or records: requests, bad lines, and skipped lines.
    pub fn total(&self) -> u64 {
        self.requests + self.bad + self.ignored.iter().sum::<u64>()
    }

    /// Counts a skipped line.
    pub(crate) fn ignore(&mut self, why: Ignored) {
        self.ignored[why as usize] += 1;
    }
}

/// Shows, for each reason that should be reported, the number of lines skipped for that reason.
/// Shows nothing if no line was skipped for such a reason.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = Ignored::ALL.into_iter().filter(|why| why.is_worth_saying());
        let said: Vec<String> = reasons
            .filter(|why| self.ignored(*why) > 0)
            .map(|why| format!("{} {}", self.ignored(why), why.words()))
            .collect();
        if said.is_empty() {
            return Ok(());
        }
        let total = self.total();
        write!(f, "not requests, of {total} lines: {}", said.join("; "))
    }
}
