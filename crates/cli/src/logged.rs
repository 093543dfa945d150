//! The form of the lines that a server writes to standard error: text, or an object of JSON for
//! each line, with the priority that the journal of systemd reads where it is the journal.

use bimetal_console::stderr::{Form, is_journal, say_as_is, say_in_form};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kinds::{self, Priority};

/// Form of the log, as the key `log` of `[server]` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Log {
    #[default]
    Text,
    Json,
    /// Events are kept and not written: something else is shown on the terminal.
    #[serde(skip)]
    Nothing,
}

/// Start of the lines of this program, and of its warnings.
const PROGRAM: &str = "bimetal: ";
const WARNING: &str = "warning: ";

/// An event as the log shows it.
pub(crate) struct Logged<'e> {
    pub(crate) kind: &'e str,
    pub(crate) volume: &'e str,
    pub(crate) side: &'e str,
    pub(crate) cause: &'e str,
}

/// Sets the form of the lines of this process.
pub(crate) fn start(log: Log) {
    let form: Form = match (log, is_journal()) {
        (Log::Text, false) | (Log::Nothing, _) => return,
        (Log::Text, true) => |line| with_priority(priority(line), line),
        (Log::Json, false) => |line| message(line).to_string(),
        (Log::Json, true) => |line| with_priority(priority(line), &message(line).to_string()),
    };
    say_in_form(form);
}

/// Writes an event to the log. `line` is the event in words.
pub(crate) fn say_event(log: Log, event: &Logged<'_>, line: &str) {
    let kind = kinds::of(event.kind);
    let line = match log {
        Log::Nothing => return,
        Log::Text => format!("{PROGRAM}{line}"),
        Log::Json => json!({
            "unix_s": now_s(),
            "event": event.kind,
            "priority": kind.priority as u8,
            "volume": event.volume,
            "side": event.side,
            "cause": event.cause,
            "advice": kind.advice,
        })
        .to_string(),
    };
    match is_journal() {
        true => say_as_is(with_priority(kind.priority, &line)),
        false => say_as_is(line),
    }
}

fn with_priority(priority: Priority, line: &str) -> String {
    format!("<{}>{line}", priority as u8)
}

fn priority(line: &str) -> Priority {
    kinds::of(name(line)).priority
}

/// Returns the name under which a line that is not an event is logged.
fn name(line: &str) -> &'static str {
    let line = line.strip_prefix(PROGRAM).unwrap_or(line);
    match line.starts_with(WARNING) {
        true => "warning",
        false => "message",
    }
}

/// Returns a line that is not an event as an object.
fn message(line: &str) -> Value {
    let text = line.strip_prefix(PROGRAM).unwrap_or(line);
    json!({
        "unix_s": now_s(),
        "event": name(line),
        "priority": priority(line) as u8,
        "volume": "",
        "side": "",
        "cause": text.strip_prefix(WARNING).unwrap_or(text),
        "advice": "",
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time of a line of the log, which is also written by threads without a runtime"
)]
fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_an_object_with_its_priority() {
        let warning = message("bimetal: warning: device vol: degraded");
        assert_eq!(warning["event"], "warning");
        assert_eq!(warning["cause"], "device vol: degraded");
        // The numbers are those of syslog(3).
        assert_eq!(warning["priority"], 4);
        let said = message("bimetal: device vol: \"so\"\n  1+2");
        assert_eq!(
            (&said["event"], &said["priority"]),
            (&"message".into(), &6.into())
        );
        assert!(!said.to_string().contains('\n'), "one line");
        let line = with_priority(Priority::Error, "bimetal: vol: is stopped");
        assert_eq!(line, "<3>bimetal: vol: is stopped");
    }
}
