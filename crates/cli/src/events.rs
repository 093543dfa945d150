//! `bimetal events`: shows what has happened to the volumes of a running server. The server keeps
//! the last events, so that a person who comes later can read them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use bimetal_block::units::show_unix_time;
use serde_json::{Value, json};

use crate::config::Config;

/// Number of events that a server keeps.
const KEPT: usize = 1000;
/// Maximum length of the message of an event that is kept, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Interval at which `--follow` asks the server.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// An event that a server keeps.
#[derive(Clone, Debug)]
struct Kept {
    number: u64,
    unix_s: u64,
    kind: &'static str,
    volume: String,
    side: String,
    message: String,
}

impl Kept {
    fn to_json(&self) -> Value {
        json!({
            "number": self.number,
            "unix_s": self.unix_s,
            "event": self.kind,
            "volume": self.volume,
            "side": self.side,
            "message": self.message,
        })
    }
}

/// The last events of a server, oldest first.
#[derive(Default)]
pub(crate) struct Events(RefCell<VecDeque<Kept>>);

impl Events {
    /// Adds an event. When there are too many, the oldest one is forgotten.
    pub(crate) fn push(
        &self,
        unix_s: u64,
        kind: &'static str,
        (volume, side): (&str, &str),
        message: &str,
    ) {
        let mut events = self.0.borrow_mut();
        let number = events.back().map_or(1, |last| last.number + 1);
        if events.len() == KEPT {
            events.pop_front();
        }
        let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
        events.push_back(Kept {
            number,
            unix_s,
            kind,
            volume: volume.to_owned(),
            side: side.to_owned(),
            message: message[..end].to_owned(),
        });
    }

    /// Answers the verb `events` of the control socket: the events with a number above `after`.
    pub(crate) fn answer(&self, request: &Value) -> Value {
        let after = request["after"].as_u64().unwrap_or(0);
        let events = self.0.borrow();
        let newer = events.iter().filter(|event| event.number > after);
        let newer: Vec<Value> = newer.map(Kept::to_json).collect();
        json!({ "events": newer })
    }
}

/// Arguments of the verb `events`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one line of JSON for each event
    #[arg(long)]
    json: bool,
    /// Go on with new events until interrupted, or until the server is gone
    #[arg(long)]
    follow: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let mut after = 0;
    loop {
        let request = json!({ "verb": "events", "after": after });
        let answer = config.ask(&request)?;
        let events = answer["events"].as_array().cloned().unwrap_or_default();
        let mut out = std::io::stdout().lock();
        for event in &events {
            after = event["number"].as_u64().unwrap_or(after).max(after);
            match args.json {
                true => writeln!(out, "{event}")?,
                false => writeln!(out, "{}", line(event))?,
            }
        }
        out.flush()?;
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a client without a runtime: nothing else waits on this thread"
)]
fn pause() {
    std::thread::sleep(FOLLOW_EVERY);
}

/// Returns an event as a line for people.
fn line(event: &Value) -> String {
    let word = |name: &str| event[name].as_str().unwrap_or("");
    let time = show_unix_time(event["unix_s"].as_u64().unwrap_or(0));
    let (volume, message) = (word("volume"), word("message"));
    match word("side") {
        "" => format!("{time}  {volume}: {message}"),
        side => format!("{time}  {volume}: side {side}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(answer: &Value) -> Vec<u64> {
        let events = answer["events"].as_array().expect("a list");
        let number = |event: &Value| event["number"].as_u64().expect("a number");
        events.iter().map(number).collect()
    }

    #[test]
    fn a_reader_gets_each_event_once_and_the_oldest_are_forgotten() {
        let events = Events::default();
        let push = |message: &str| events.push(7, "side-absent", ("vol", "a"), message);
        assert_eq!(numbers(&events.answer(&json!({}))), [0; 0]);
        push("is absent");
        push("is absent again");
        assert_eq!(numbers(&events.answer(&json!({}))), [1, 2]);
        assert_eq!(numbers(&events.answer(&json!({ "after": 1 }))), [2]);
        for _ in 0..KEPT {
            push("is absent");
        }
        let all = numbers(&events.answer(&json!({})));
        assert_eq!(
            (all.len(), all[0], all[KEPT - 1]),
            (KEPT, 3, KEPT as u64 + 2)
        );
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let events = Events::default();
        events.push(0, "x", ("vol", ""), &"\u{e4}".repeat(MESSAGE_BYTES_MAX));
        let answer = events.answer(&json!({}));
        let message = answer["events"][0]["message"].as_str().expect("a text");
        assert_eq!(message.len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn an_event_is_one_line() {
        let event = json!({
            "unix_s": 0, "volume": "vol", "side": "slow", "message": "is absent",
        });
        let shown = line(&event);
        assert!(shown.ends_with("  vol: side slow: is absent"), "{shown}");
    }
}
