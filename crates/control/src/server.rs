//! The server end of the control socket.
//!
//! The control socket is served by the same runtime as the volumes. It costs nothing while no
//! client sends requests, and it answers as long as the volumes are served. It must never wait for
//! a device.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::net::{Address, Listener, Stream};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rt, Task};
use serde_json::{Value, json};

use crate::client::{AskError, ask};

/// Maximum length of a request line in bytes, including its newline.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of simultaneous connections. Further connections wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// Time after which a connection without requests is closed.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Function that answers a request.
pub type Answer = Rc<dyn Fn(&Value) -> Value>;

/// Error: the control socket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("control socket {}: {reason}", path.display())]
pub struct StartError {
    path: PathBuf,
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("the path exists and is not a socket; set `control` in [server] to another path")]
    NotASocket,
    #[error("another server answers at this socket; stop it first")]
    Answers,
    #[error("another server has this socket and does not answer; kill it first")]
    Hangs,
    #[error("{0}")]
    Socket(io::Error),
}

/// A listening control socket.
pub struct Control {
    path: PathBuf,
    accepting: Task<()>,
    connections: Rc<TaskGroup>,
}

impl Control {
    /// Creates the control socket at `path`, accessible only to the owner of the process, and
    /// answers each request with `answer`. If the socket of a dead server exists at `path`, it is
    /// replaced.
    ///
    /// # Errors
    /// If another server answers at `path`, if a file of another kind exists there, or if the
    /// socket cannot be created.
    pub fn start(rt: &Rt, path: &Path, answer: Answer) -> Result<Control, StartError> {
        let fail = |reason| StartError {
            path: path.to_owned(),
            reason,
        };
        refuse_used(path).map_err(fail)?;
        let listener = bind_private(rt, path).map_err(|error| fail(Reason::Socket(error)))?;
        let connections = Rc::new(TaskGroup::new(rt));
        let accepting = rt.spawn(accept(
            rt.clone(),
            listener,
            Rc::clone(&connections),
            answer,
        ));
        Ok(Control {
            path: path.to_owned(),
            accepting,
            connections,
        })
    }

    /// Closes every connection and removes the socket.
    pub async fn stop(self) {
        self.accepting.cancel().await;
        self.connections.cancel().await;
        // It is not an error if the file has already been removed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns an error if `path` is in use: if a server answers there, or the file is not a socket.
fn refuse_used(path: &Path) -> Result<(), Reason> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(Reason::NotASocket);
    }
    // A connection to a socket can succeed although its server is dead, because the socket of a
    // killed server disappears a little later than the process. The check therefore sends a request
    // and waits for the answer.
    match ask(path, &json!({ "verb": "status" })) {
        Ok(_) => Err(Reason::Answers),
        Err(AskError::TimedOut { .. }) => Err(Reason::Hangs),
        Err(_) => Ok(()),
    }
}

/// Creates the socket and replaces the socket that a dead server has left. Only the owner can ever
/// access the new socket, because its mode is set before it has a name.
fn bind_private(rt: &Rt, path: &Path) -> io::Result<Listener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Listener::bind(rt, &Address::Unix(path.to_owned())),
    }
}

async fn accept(rt: Rt, listener: Listener, connections: Rc<TaskGroup>, answer: Answer) {
    loop {
        connections.at_most(CONNECTIONS_MAX - 1).await;
        match listener.accept().await {
            Ok(stream) => connections.spawn(converse(rt.clone(), stream, Rc::clone(&answer))),
            // The client has already disconnected, or no descriptors are free. A later accept can
            // succeed.
            Err(_) => rt.sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Answers the requests of one connection until the client closes it, violates the protocol, or
/// sends no request for [`IDLE_MAX`].
async fn converse(rt: Rt, stream: Stream, answer: Answer) {
    let pending = RefCell::new(Vec::new());
    // A timeout, the end of the stream or an error ends the connection.
    while let Ok(Some(line)) = rt
        .timeout(IDLE_MAX, next_line(&rt, &stream, &pending))
        .await
    {
        let (reply, go_on) = match line {
            Ok(line) => (answer_line(&line, &answer), true),
            Err(LineTooLong) => (
                json!({ "error": format!("a request has at most {LINE_BYTES_MAX} bytes") }),
                false,
            ),
        };
        let text = format!("{reply}\n");
        let sent = rt
            .timeout(
                IDLE_MAX,
                stream.send(rt.pool().copy_of(text.as_bytes()).into()),
            )
            .await;
        if !go_on || !matches!(sent, Ok(Ok(()))) {
            break;
        }
    }
    stream.shutdown();
}

#[derive(Debug, PartialEq)]
struct LineTooLong;

/// Receives the next line, and returns it without its newline; `None` at the end of the stream.
async fn next_line(
    rt: &Rt,
    stream: &Stream,
    pending: &RefCell<Vec<u8>>,
) -> Option<Result<Vec<u8>, LineTooLong>> {
    loop {
        if let Some(line) = take_line(&mut pending.borrow_mut()) {
            return Some(line);
        }
        let (received, buf) = stream.recv(rt.pool().alloc_now(4096), 0).await;
        match received {
            Ok(count) if count > 0 => pending.borrow_mut().extend_from_slice(&buf[..count]),
            _ => return None,
        }
    }
}

/// Removes the first line from `pending` and returns it without its newline; `None` if the line is
/// not complete. A line that is too long is reported even before its newline has arrived.
fn take_line(pending: &mut Vec<u8>) -> Option<Result<Vec<u8>, LineTooLong>> {
    let end = pending.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(pending.len()) >= LINE_BYTES_MAX {
        return Some(Err(LineTooLong));
    }
    let rest = pending.split_off(end? + 1);
    let mut line = std::mem::replace(pending, rest);
    line.pop();
    Some(Ok(line))
}

fn answer_line(line: &[u8], answer: &Answer) -> Value {
    match serde_json::from_slice::<Value>(line) {
        Ok(request) => answer(&request),
        Err(error) => json!({ "error": format!("the request is not JSON: {error}") }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use bimetal_rt::UringOptions;

    use super::*;

    #[test]
    fn lines_are_taken_one_by_one() {
        let mut pending = b"one\ntwo\nthr".to_vec();
        assert_eq!(take_line(&mut pending), Some(Ok(b"one".to_vec())));
        assert_eq!(take_line(&mut pending), Some(Ok(b"two".to_vec())));
        assert_eq!(take_line(&mut pending), None);
        assert_eq!(pending, b"thr");
    }

    #[test]
    fn a_path_may_be_as_long_as_that_of_any_socket() {
        let rt = Rt::real_time(UringOptions::default()).unwrap();
        let folder = std::env::temp_dir().join(format!("bimetal-control-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let room = 107 - folder.as_os_str().len() - 1;
        let path = folder.join("c".repeat(room));
        assert_eq!(path.as_os_str().len(), 107);
        // A socket whose server no longer runs is replaced.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let control = Control::start(&rt, &path, Rc::new(|_| json!({})));
        let mode = fs::symlink_metadata(&path).map(|found| found.permissions().mode() & 0o777);
        let stopped = control.map(|control| rt.block_on(control.stop()));
        fs::remove_dir_all(&folder).unwrap();
        stopped.unwrap();
        assert_eq!(mode.unwrap(), 0o600);
    }

    #[test]
    fn a_line_is_held_to_its_limit_however_it_comes() {
        let longest = vec![b'x'; LINE_BYTES_MAX - 1];
        let ended = |line: &[u8]| [line, b"\n"].concat();
        assert_eq!(take_line(&mut ended(&longest)), Some(Ok(longest.clone())));
        assert_eq!(take_line(&mut longest.clone()), None);
        let longer = [&longest[..], b"x"].concat();
        assert_eq!(take_line(&mut ended(&longer)), Some(Err(LineTooLong)));
        assert_eq!(take_line(&mut longer.clone()), Some(Err(LineTooLong)));
        // The limit applies to each line, not to the bytes received after its end.
        let mut two = ended(&longest);
        two.extend_from_slice(&longest);
        assert_eq!(take_line(&mut two), Some(Ok(longest)));
    }

    #[test]
    fn a_request_that_is_not_json_is_told_so() {
        let answer: Answer = Rc::new(|_| json!({}));
        assert!(answer_line(b"status", &answer)["error"].is_string());
        assert_eq!(answer_line(b"{}", &answer), json!({}));
    }
}
