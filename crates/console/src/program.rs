//! Start and end of a program: one verb of its command line is run, and the outcome becomes an exit
//! status. The status is 0 for success, 1 for a failure, 2 for an invalid command line, or another
//! status that the verb returns.
//!
//! A failure is reported as one line on standard error that states the problem, its location and
//! the remedy. If a volume is refused, a list can follow the line.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use clap::error::ErrorKind;

use crate::stderr::{say, say_notices};

/// Parses the command line of this process, runs the verb with `run`, writes the pending notices of
/// all runtimes, and returns the exit status. Every line on standard error begins with the name
/// `program`.
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

/// Reports the result of parsing a command line that does not run a verb. Help and version are
/// printed to standard output; an error is printed as one line, and the exit status is 2.
fn report_usage(program: &str, error: &clap::Error) -> ExitCode {
    let asked_for = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Failed output is ignored, because the reader may have closed the output.
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

/// Writes the message of a failed verb to standard error, and returns the exit status. It is not a
/// failure if the reader of the output has closed the pipe.
pub fn report_failure(program: &str, error: &anyhow::Error) -> ExitCode {
    let reader_left = error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if reader_left {
        // The reader has closed the pipe because it needs no more output, as `head` does. This is
        // not a failure.
        return ExitCode::SUCCESS;
    }
    say(format_args!(
        "{program}: {}",
        line_and_list(&format!("{error:#}"))
    ));
    ExitCode::FAILURE
}

/// Joins `text` into one line. Indented lines that begin with a digit are a list for programs; they
/// are kept as separate lines after the first.
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
