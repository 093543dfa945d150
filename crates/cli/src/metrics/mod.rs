//! The metrics listener: answers `GET /metrics` by HTTP with the statistics of the server, and
//! gives people what its source has for them.
//!
//! It is served by the runtime that serves the volumes, so it must never wait for a device, and
//! the number and the size of requests are bounded. It changes nothing.

mod families;
mod http;

use std::borrow::Cow;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::Statistic;
use bimetal_rt::net::{Address, Listener, Stream};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rt, Task};

use self::families::Families;
use self::http::Received;
pub(crate) use self::http::{Content, Query};
use crate::health::State;

/// Maximum number of simultaneous connections. Further connections wait to be accepted.
const CONNECTIONS_MAX: usize = 8;
/// Maximum time for a request and its answer.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Pause after a connection that could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Path of the metrics.
const METRICS: &str = "/metrics";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Statistics of something that is measured: an export, an attached device or a device.
pub(crate) struct Measured {
    /// `export`, `attached`, or the type of the device.
    pub(crate) kind: &'static str,
    /// Name of the label, `export`, `attached` or `device`, and its value.
    pub(crate) label: (&'static str, String),
    /// Size of a device in bytes.
    pub(crate) size_bytes: Option<u64>,
    /// Statistics, each with its part and name.
    pub(crate) statistics: Vec<(String, String, Statistic)>,
}

/// The state of a server when it is asked.
pub(crate) struct Snapshot {
    /// `healthy`, `degraded` or `stopped`.
    pub(crate) health: &'static str,
    /// State of each volume, by name.
    pub(crate) volumes: Vec<(String, State)>,
    pub(crate) uptime_seconds: f64,
    /// Longest time in which the thread served no completion, in seconds.
    pub(crate) longest_turn_seconds: f64,
    pub(crate) measured: Vec<Measured>,
}

/// What the listener answers from.
pub(crate) trait Source {
    /// Returns the present state of the server.
    fn snapshot(&self) -> Snapshot;

    /// Returns true if there is something for people at a path.
    fn has(&self, path: &str) -> bool;

    /// Returns what there is at a path for which [`has`](Source::has) returns true.
    fn content(&self, path: &str, query: &Query) -> Content;
}

/// A listener for metrics.
pub(crate) struct Metrics {
    accepting: Task<()>,
    connections: Rc<TaskGroup>,
}

impl Metrics {
    /// Listens at an address.
    ///
    /// # Errors
    /// The errors of `bind(2)`; `AddrInUse` also if there is a file that is not a socket without a
    /// server.
    pub(crate) async fn start(
        rt: &Rt,
        address: &Address,
        source: Rc<dyn Source>,
    ) -> io::Result<Metrics> {
        if let Address::Unix(path) = address {
            clear(rt, address, path).await?;
        }
        let listener = Listener::bind(rt, address)?;
        let connections = Rc::new(TaskGroup::new(rt));
        let is_tcp = matches!(address, Address::Tcp(_));
        let of_group = Rc::clone(&connections);
        let accept = accept(rt.clone(), listener, of_group, source, is_tcp);
        Ok(Metrics {
            accepting: rt.spawn(accept),
            connections,
        })
    }

    /// Ends the listener and its connections.
    pub(crate) async fn stop(self) {
        self.accepting.cancel().await;
        self.connections.cancel().await;
    }
}

/// Removes the socket that a killed server has left at a path.
async fn clear(rt: &Rt, address: &Address, path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        // The call of `bind(2)` reports the fault of the path.
        return Ok(());
    };
    let is_dead = match found.file_type().is_socket() {
        true => match Stream::connect(rt, address).await {
            Ok(stream) => {
                stream.shutdown();
                false
            }
            Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        },
        false => false,
    };
    match is_dead {
        true => std::fs::remove_file(path),
        false => Err(io::ErrorKind::AddrInUse.into()),
    }
}

async fn accept(
    rt: Rt,
    listener: Listener,
    connections: Rc<TaskGroup>,
    source: Rc<dyn Source>,
    is_tcp: bool,
) {
    loop {
        connections.at_most(CONNECTIONS_MAX - 1).await;
        match listener.accept().await {
            Ok(stream) => {
                let (rt, source) = (rt.clone(), Rc::clone(&source));
                connections.spawn(async move {
                    let conversation = converse(&rt, &stream, &source, is_tcp);
                    // A client that is too slow gets no answer.
                    let _ = rt.timeout(REQUEST_MAX, conversation).await;
                    stream.shutdown();
                });
            }
            // The client has already disconnected, or no descriptors are free. A later accept can
            // succeed.
            Err(_) => rt.sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Answers one request.
async fn converse(rt: &Rt, stream: &Stream, source: &Rc<dyn Source>, is_tcp: bool) {
    let mut head = Vec::new();
    let answer = loop {
        if let Some(answer) = answer(&head, &**source, is_tcp, rt.unix_seconds()) {
            break answer;
        }
        let (received, buf) = stream.recv(rt.pool().alloc_now(4096), 0).await;
        match received {
            Ok(count) if count > 0 => head.extend_from_slice(&buf[..count]),
            _ => return,
        }
    };
    for part in answer.as_bytes().chunks(64 << 10) {
        let sent = stream.send(rt.pool().copy_of(part).into()).await;
        if sent.is_err() {
            return;
        }
    }
}

/// Returns the answer to a request, of which `head` has arrived; `None` when more must arrive.
fn answer(head: &[u8], source: &dyn Source, is_tcp: bool, unix_s: u64) -> Option<String> {
    let line = |line: &'static str| Content {
        format: http::PLAIN,
        body: Cow::Borrowed(line),
    };
    let request = match http::read(head, is_tcp) {
        Received::Part => return None,
        Received::Whole(request) => request,
        Received::Refused(status, why) => {
            return Some(http::answer(status, unix_s, &line(why), true));
        }
    };
    let (is_metrics, path) = (request.path == METRICS, request.path.as_str());
    let (status, content) = match request.method.as_str() {
        _ if !is_metrics && !source.has(path) => (
            "404 Not Found",
            line("nothing is here; the page for people is at /, the metrics are at /metrics\n"),
        ),
        "GET" | "HEAD" if is_metrics => {
            let format = match request.accepts_open_metrics {
                true => OPEN_METRICS,
                false => PLAIN,
            };
            let metrics = families(&source.snapshot());
            match metrics.text(request.accepts_open_metrics) {
                Ok(text) => (
                    "200 OK",
                    Content {
                        format,
                        body: text.into(),
                    },
                ),
                Err(_) => ("500 Internal Server Error", line("")),
            }
        }
        "GET" | "HEAD" => ("200 OK", source.content(path, &request.query)),
        _ => (
            "405 Method Not Allowed",
            line("only GET and HEAD are answered\n"),
        ),
    };
    let has_body = request.method != "HEAD";
    Some(http::answer(status, unix_s, &content, has_body))
}

/// Returns the metrics of a server.
fn families(snapshot: &Snapshot) -> Families {
    let mut families = Families::default();
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    families.gauge("bimetal_build_info", "Version of the program", version, 1.0);
    for health in ["healthy", "degraded", "stopped"] {
        let is = f64::from(u8::from(health == snapshot.health));
        let help = "Health of the server: 1 for its present health, 0 for the others";
        families.gauge("bimetal_health", help, vec![("is", health.to_owned())], is);
    }
    for (volume, state) in &snapshot.volumes {
        let help = "Health of the volume: 1 for its present health";
        let labels = vec![("device", volume.clone()), ("is", state.word().to_owned())];
        families.gauge("bimetal_volume_health", help, labels, 1.0);
    }
    for (name, help, value) in [
        (
            "bimetal_uptime_seconds",
            "Time since the server became ready",
            snapshot.uptime_seconds,
        ),
        (
            "bimetal_longest_turn_seconds",
            "Longest time in which the serving thread handled no completion",
            snapshot.longest_turn_seconds,
        ),
    ] {
        families.gauge(name, help, Vec::new(), value);
    }
    for measured in &snapshot.measured {
        let labels = || vec![measured.label.clone()];
        if let Some(size_bytes) = measured.size_bytes {
            let help = "Size of the device";
            families.gauge(
                "bimetal_device_size_bytes",
                help,
                labels(),
                size_bytes as f64,
            );
        }
        for (part, name, statistic) in &measured.statistics {
            // The latencies of all devices are in one family, whatever their types are.
            let kind = match (statistic, measured.size_bytes) {
                (Statistic::Latency(_), Some(_)) => "device",
                _ => measured.kind,
            };
            families.statistic(kind, labels(), (part, name), statistic);
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Server;

    impl Source for Server {
        fn snapshot(&self) -> Snapshot {
            Snapshot {
                health: "degraded",
                volumes: vec![("vol".to_owned(), State::FullLog)],
                uptime_seconds: 1.5,
                longest_turn_seconds: 0.001,
                measured: Vec::new(),
            }
        }

        fn has(&self, path: &str) -> bool {
            path == "/"
        }

        fn content(&self, path: &str, query: &Query) -> Content {
            Content {
                format: "text/html",
                body: format!("{path} {}", query.number("after")).into(),
            }
        }
    }

    fn ask(request: &str) -> Option<String> {
        answer(request.as_bytes(), &Server, true, 0)
    }

    fn first_line(request: &str) -> Option<String> {
        ask(request)?.lines().next().map(str::to_owned)
    }

    #[test]
    fn a_request_is_answered_once_its_head_is_whole() {
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        for end in 0..request.len() {
            assert_eq!(first_line(&request[..end]), None, "{end} bytes");
        }
        assert_eq!(first_line(request).as_deref(), Some("HTTP/1.1 200 OK"));
    }

    #[test]
    fn each_request_has_the_status_that_http_knows_for_it() {
        for (line, status) in [
            ("GET /metrics", "200 OK"),
            ("HEAD /metrics", "200 OK"),
            ("GET /metrics?x=1", "200 OK"),
            ("GET /?after=7", "200 OK"),
            ("HEAD /", "200 OK"),
            ("GET /other", "404 Not Found"),
            ("POST /other", "404 Not Found"),
            ("GET /../metrics", "404 Not Found"),
            ("POST /metrics", "405 Method Not Allowed"),
            ("DELETE /", "405 Method Not Allowed"),
            ("\u{1}\u{2}", "400 Bad Request"),
        ] {
            let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let expected = format!("HTTP/1.1 {status}");
            assert_eq!(first_line(&request), Some(expected), "{request:?}");
        }
        let page = ask("GET /?after=7 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(page.expect("an answer").ends_with("\r\n\r\n/ 7"));
        let head = ask("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(head.expect("an answer").ends_with("\r\n\r\n"));
        let endless = format!(
            "GET /metrics HTTP/1.1\r\nX: {}",
            "x".repeat(http::HEAD_BYTES_MAX)
        );
        assert_eq!(
            first_line(&endless).as_deref(),
            Some("HTTP/1.1 400 Bad Request")
        );
    }

    #[test]
    fn the_format_is_the_one_that_is_accepted() {
        let with = |accept: &str| {
            let fields = format!("Host: localhost\r\nAccept: {accept}\r\n");
            let request = format!("GET /metrics HTTP/1.1\r\n{fields}\r\n");
            ask(&request).expect("the head is whole")
        };
        let open = with("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
        assert!(
            open.contains(OPEN_METRICS) && open.ends_with("# EOF\n"),
            "{open}"
        );
        let plain = with("text/plain");
        assert!(plain.contains(PLAIN) && !plain.contains("EOF"), "{plain}");
        assert!(
            plain.contains("bimetal_health{is=\"degraded\"} 1"),
            "{plain}"
        );
        assert!(
            plain.contains("bimetal_volume_health{device=\"vol\",is=\"full log\"} 1"),
            "{plain}"
        );
        assert!(
            plain.contains("bimetal_health{is=\"healthy\"} 0"),
            "{plain}"
        );
        let length = plain.split("\r\n\r\n").nth(1).map(str::len);
        let expected = format!("Content-Length: {}\r\n", length.expect("there is a body"));
        assert!(plain.contains(&expected), "{plain}");
    }
}
