//! Common parts of the verbs that make many runs: seeds, a progress bar, tables, and the exit
//! status.

use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::table::Table;

/// Parses a range of seeds, written `A..B`.
pub(crate) fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let expected = "expected a range of seeds such as 0..1000";
    let (from, to) = text.split_once("..").ok_or(expected)?;
    let number = |part: &str| part.parse::<u64>().map_err(|_| expected);
    let range = number(from)?..number(to)?;
    if range.is_empty() {
        return Err("the range of seeds is empty".to_owned());
    }
    Ok(range)
}

/// Creates a progress bar for `length` runs.
pub(crate) fn progress_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}  eta {eta}  {msg}");
    bar.set_style(style.expect("the template is well formed"));
    bar
}

/// Returns the exit status of the program: 1 if something was `found`, else 0.
pub(crate) fn status_of(found: bool) -> ExitCode {
    if found {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Writes an indented table and an empty line.
pub(crate) fn print_lines(out: &mut impl Write, table: &Table) -> Result<()> {
    for line in table.lines() {
        writeln!(out, "    {line}")?;
    }
    writeln!(out)?;
    Ok(())
}

/// Formats a share in percent, with its sign.
pub(crate) fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("3..9"), Ok(3..9));
        for bad in ["", "3", "3..", "9..3", "3..3", "a..b", "-1..3"] {
            assert!(parse_seeds(bad).is_err(), "{bad}");
        }
    }
}
