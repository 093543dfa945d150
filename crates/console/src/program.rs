//! How a program starts and ends: one verb of its command line is run, and the outcome becomes an
//! exit status: 0, 1 for a failure, 2 for a wrong command line, and the statuses that verbs return.
//!
//! A failure is reported as one line on standard error that states the problem, its place and the
//! remedy; a refused volume adds a list after the line.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use clap::error::ErrorKind;

use crate::stderr::{say, say_notices};

/// Parses the command line of this process, runs the verb with `run`, writes the notices of all
/// runtimes, and returns the exit status. `program` is the name before every line on standard
/// error.
pub fn main<C: Parser>(program: &str, run: impl FnOnce(C) -> Result<ExitCode>) -> ExitCode {
    bimetal_rt::real_time::fail_writes_instead_of_ending();
    let command = match C::try_parse() {
        Ok(command) => command,
        Err(error) => return report_usage(program, &error),
    };
    let outcome = run(command);
    say_notices(program);
    outcome.unwrap_or_else(|error| report_failure(program, &error))
}

/// Prints help and version to standard output; an error becomes one line and status 2.
fn report_usage(program: &str, error: &clap::Error) -> ExitCode {
    let asked_for = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If the terminal is gone, the failed output is ignored.
        let _ = error.print();
        return if asked_for {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(2)
        };
    }
    say(format_args!(
        "{program}: {}; see `{program} --help`",
        usage_line(&error.to_string())
    ));
    ExitCode::from(2)
}

/// Returns the message of a usage error as one line, without the usage that follows it.
fn usage_line(rendered: &str) -> String {
    let message = rendered.split("\n\nUsage").next().unwrap_or(rendered);
    let message = message.split("\n\nFor more").next().unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let parts = message.split("\n\n").map(one_line);
    parts.collect::<Vec<_>>().join("; ")
}

/// Writes the line about a failed verb, and returns the exit status. A pipe closed by its reader is
/// no failure.
pub fn report_failure(program: &str, error: &anyhow::Error) -> ExitCode {
    let reader_left = error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if reader_left {
        // The reader has closed the pipe, as `head` does: it wants no more output, which is no
        // failure.
        return ExitCode::SUCCESS;
    }
    say(format_args!(
        "{program}: {}",
        line_and_list(&format!("{error:#}"))
    ));
    ExitCode::FAILURE
}

/// Joins `text` into one line, but keeps the indented lines after it that begin with a digit: they
/// are a list for programs to read.
fn line_and_list(text: &str) -> String {
    let is_item = |line: &&str| {
        let item = line.strip_prefix("  ");
        item.is_some_and(|item| item.starts_with(|c: char| c.is_ascii_digit()))
    };
    let (items, words): (Vec<&str>, Vec<&str>) = text.lines().partition(is_item);
    let mut lines = vec![one_line(&words.join(" "))];
    lines.extend(items.into_iter().map(str::to_owned));
    lines.join("\n")
}

/// Returns `text` with every run of white space replaced by one space.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        /// The configuration
        #[arg(value_name = "FILE")]
        _file: String,
    }

    #[test]
    fn a_list_stays_behind_the_line() {
        let text = "vol.toml: nothing\n  known;\nmay be lost:\n  0+4096\n  8192+12288";
        let line = "vol.toml: nothing known; may be lost:\n  0+4096\n  8192+12288";
        assert_eq!(line_and_list(text), line);
        assert_eq!(line_and_list("a\n b"), "a b");
    }

    #[test]
    fn usage_errors_become_one_line() {
        let error = Command::try_parse_from(["program"]).unwrap_err();
        let line = usage_line(&error.to_string());
        assert!(line.contains("<FILE>") && !line.contains("Usage"), "{line}");
        assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
    }
}
