//! The client end of the control socket, for a program without a runtime: each call blocks its
//! thread.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// Time for which a client waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum length of an answer in bytes. The length of an answer depends on the number of devices.
/// The bound only guards against a faulty server.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Interval at which a client polls whether an operation has ended.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Error of a request over the control socket.
///
/// The message of each variant contains the error of the operating system. The error is not
/// available as a source. Otherwise, a program could mistake a broken pipe of the control socket
/// for a broken pipe of its own output, which is not a failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No connection could be made: no server is running, or access is denied.
    #[error("{0}")]
    NotConnected(io::Error),
    /// The request could not be sent.
    #[error("the server no longer listens: {0}")]
    NotSent(io::Error),
    /// The server has not answered in time.
    #[error("no answer within {within_s} s")]
    TimedOut {
        /// Time for which the client has waited, in seconds.
        within_s: u64,
    },
    /// The connection failed before the answer was complete.
    #[error("{0}")]
    NotReceived(io::Error),
    /// The server has closed the connection instead of answering.
    #[error("the server has closed the connection")]
    Closed,
    /// The answer is not what the protocol prescribes.
    #[error("{0}")]
    BadAnswer(String),
    /// The server has answered that it refuses the request.
    #[error("the server refused the request: {0}")]
    Refused(String),
    /// The requested operation was started, but has failed.
    #[error("could not {description}: {reason}")]
    OperationFailed {
        /// What the operation was to do, as a verb with its objects.
        description: String,
        /// Why the operation failed.
        reason: String,
    },
}

/// Sends a request over the control socket at `path`, and returns the server's answer.
///
/// # Errors
/// If the server cannot be reached, does not answer in time, or refuses the request.
pub fn ask(path: &Path, request: &Value) -> Result<Value, AskError> {
    Client::connect(path)?.ask(request)
}

/// A connection to a control socket, for several requests one after another.
pub struct Client {
    answers: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub fn connect(path: &Path) -> Result<Client, AskError> {
        let connect = || -> io::Result<UnixStream> {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            stream.set_write_timeout(Some(ANSWER_WITHIN))?;
            Ok(stream)
        };
        Ok(Client {
            answers: BufReader::new(connect().map_err(AskError::NotConnected)?),
        })
    }

    /// Sends a request and returns the answer of the server.
    ///
    /// # Errors
    /// If the server does not answer in time, or refuses the request.
    pub fn ask(&mut self, request: &Value) -> Result<Value, AskError> {
        let question = format!("{request}\n");
        let sent = self.answers.get_mut().write_all(question.as_bytes());
        sent.map_err(AskError::NotSent)?;
        let mut line = String::new();
        let mut answers = (&mut self.answers).take(ANSWER_BYTES_MAX);
        answers.read_line(&mut line).map_err(not_received)?;
        if line.is_empty() {
            return Err(AskError::Closed);
        }
        let answer: Value = serde_json::from_str(&line)
            .map_err(|error| AskError::BadAnswer(format!("the answer is not JSON: {error}")))?;
        match answer["error"].as_str() {
            Some(error) => Err(AskError::Refused(error.to_owned())),
            None => Ok(answer),
        }
    }
}

fn not_received(error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::WouldBlock => AskError::TimedOut {
            within_s: ANSWER_WITHIN.as_secs(),
        },
        _ => AskError::NotReceived(error),
    }
}

/// Starts an operation through the control socket at `path`, and waits until the operation has
/// ended. Returns the server's description of the outcome.
///
/// # Errors
/// If the server cannot be reached or refuses the request, or if the operation fails.
pub fn carry_out(path: &Path, request: &Value) -> Result<Value, AskError> {
    let asked = |request: &Value| Ok(ask(path, request)?["operation"].take());
    let mut operation = asked(request)?;
    while operation["state"] == "running" {
        pause(ASK_EVERY);
        operation = asked(&json!({ "verb": "operation" }))?;
    }
    if operation["state"] != "done" {
        let word = |key: &str| operation[key].as_str().unwrap_or_default().to_owned();
        return Err(AskError::OperationFailed {
            description: word("description"),
            reason: word("reason"),
        });
    }
    Ok(operation)
}

/// Blocks the thread for `time`, before a client polls the server again.
#[expect(
    clippy::disallowed_methods,
    reason = "a client without a runtime: nothing else waits on this thread"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Sends a request to a server that writes `reply` and closes the connection.
    fn asked_of(reply: &'static [u8]) -> Result<Value, AskError> {
        let name = format!(
            "bimetal-client-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            stream.write_all(reply).unwrap();
            line
        });
        let answer = ask(&path, &json!({ "verb": "status" }));
        assert_eq!(server.join().unwrap(), "{\"verb\":\"status\"}\n");
        std::fs::remove_file(&path).unwrap();
        answer
    }

    #[test]
    fn each_way_in_which_an_answer_can_be_missing_is_told_apart() {
        assert_eq!(asked_of(b"{\"a\":1}\n").unwrap(), json!({ "a": 1 }));
        assert!(matches!(asked_of(b""), Err(AskError::Closed)));
        for broken in [&b"{\"a\":"[..], b"no\n"] {
            let asked = asked_of(broken);
            assert!(matches!(asked, Err(AskError::BadAnswer(_))), "{asked:?}");
        }
        let refused = asked_of(b"{\"error\":\"why\"}\n");
        assert!(matches!(refused, Err(AskError::Refused(why)) if why == "why"));
        let nobody = ask(Path::new("/nonexistent/bimetal.ctl"), &json!({}));
        assert!(matches!(nobody, Err(AskError::NotConnected(_))));
    }
}
