//! Output that several verbs share: indented tables, shares in percent, and the exit status of
//! verbs that search for something.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use bimetal_console::table::Table;

/// Returns the exit status of a verb that searches for bugs or violations: 1 if one was found,
/// otherwise 0.
pub(crate) fn status_of(is_found: bool) -> ExitCode {
    if is_found {
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

/// Formats a share with its sign, in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}
