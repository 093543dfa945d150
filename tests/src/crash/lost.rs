//! Parser of the lost ranges that `serve` reports when it refuses a volume.

use std::ops::Range;

use crate::client::Outcome;

/// Data that is possibly lost, as `serve` reports it in a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Only these byte ranges can be lost.
    Ranges(Vec<Range<u64>>),
    /// The changes after some moment are not known, so every byte of the volume is possibly lost.
    Unknown,
}

impl Lost {
    /// Returns whether the refusal reports all of `range` as lost.
    pub fn covers(&self, range: Range<u64>) -> bool {
        let Lost::Ranges(ranges) = self else {
            return true;
        };
        let mut ranges = ranges.clone();
        ranges.sort_by_key(|r| r.start);
        let reached =
            ranges.iter().fold(
                range.start,
                |at, r| {
                    if r.start <= at { at.max(r.end) } else { at }
                },
            );
        reached >= range.end
    }
}

/// Parses a refusal of `serve`: either lines of the form `  OFFSET+LENGTH` in bytes, or a message
/// with the words `the last known change is`.
///
/// # Panics
/// If `outcome` is not a refusal, reports no loss, or contains a range that does not parse.
pub fn lost(outcome: &Outcome) -> Lost {
    let status = outcome.status.unwrap_or_else(|| panic!("{outcome}"));
    // Status 101 means a Rust panic, 124 a missed deadline, and 134 and above a signal, as a shell
    // reports it.
    assert!((1..=100).contains(&status), "not a refusal: {outcome}");
    assert!(outcome.stdout.is_empty(), "not a refusal: {outcome}");
    let lines = outcome.stderr.lines().filter(|line| {
        let line = line.strip_prefix("  ").unwrap_or("");
        line.starts_with(|c: char| c.is_ascii_digit()) && line.contains('+')
    });
    let range = |line: &str| {
        let (offset, length) = line.trim().split_once('+')?;
        let (offset, length) = (offset.parse::<u64>().ok()?, length.parse::<u64>().ok()?);
        Some(offset..offset.checked_add(length)?)
    };
    let ranges = lines.map(|line| range(line).unwrap_or_else(|| panic!("{line:?}: {outcome}")));
    let ranges: Vec<Range<u64>> = ranges.collect();
    if ranges.is_empty() && outcome.stderr.contains("the last known change is") {
        return Lost::Unknown;
    }
    assert!(!ranges.is_empty(), "a refusal names the loss: {outcome}");
    Lost::Ranges(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(stderr: &str) -> Outcome {
        Outcome {
            line: "serve".to_owned(),
            status: Some(1),
            stdout: String::new(),
            stderr: stderr.to_owned(),
        }
    }

    #[test]
    fn ranges_are_read_and_joined() {
        let text = "bimetal: side b: lacks writes\n  8192+4096\n  0+8192\n  40960+4096\nsay\n";
        let found = lost(&refusal(text));
        assert_eq!(
            found,
            Lost::Ranges(vec![8192..12288, 0..8192, 40960..45056])
        );
        assert!(found.covers(0..12288) && found.covers(40960..40961));
        assert!(!found.covers(0..12289) && !found.covers(36864..45056));
        let found = lost(&refusal("bimetal: the last known change is 7\n"));
        assert_eq!(found, Lost::Unknown);
        assert!(found.covers(0..u64::MAX));
    }

    #[test]
    #[should_panic(expected = "names the loss")]
    fn a_refusal_without_a_loss_is_none() {
        lost(&refusal("bimetal: side b: is behind\n"));
    }

    #[test]
    #[should_panic(expected = "not a refusal")]
    fn a_panic_is_no_refusal() {
        let status = Some(101);
        lost(&Outcome {
            status,
            ..refusal("  0+4096\n")
        });
    }
}
