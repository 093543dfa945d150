//! The part of HTTP/1.1 that the metrics listener speaks: requests without a body, answers with a
//! length, one of each on a connection (RFC 9110, RFC 9112).
//!
//! Every answer forbids that a browser keeps it, guesses its type, or shows it inside another page.
//! A page from elsewhere must not read the answers either. The browser refuses that by itself,
//! unless the name of the other page leads to this machine now (DNS rebinding). Such a request
//! names that host, so over TCP only requests for this machine itself are answered.

use std::borrow::Cow;

use bimetal_block::units::civil_date;

/// Maximum length of the head of a request in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum number of header fields of a request.
const FIELDS_MAX: usize = 64;
/// Type of a text for people.
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
/// What a page may load: only what this listener has.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path, without the query.
    pub(super) path: String,
    pub(super) query: Query,
    /// Whether the answer may be in the format of OpenMetrics.
    pub(super) accepts_open_metrics: bool,
}

/// The parameters of a request, as they were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(String);

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Media type.
    pub(crate) format: &'static str,
    pub(crate) body: Cow<'static, str>,
}

/// What has been received of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// More must arrive.
    Part,
    Whole(Request),
    /// A request that is not answered, with the status and a line for people.
    Refused(&'static str, &'static str),
}

impl Query {
    /// Returns the value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let mut pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then(|| decoded(value)))
    }

    /// Returns the value of a parameter that is a number; 0 if there is none.
    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.get(name);
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

/// Decodes `%xx` and `+` of a parameter.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%');
        let hex = hex.and_then(|hex| str::from_utf8(hex).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        (rest, bytes) = match byte {
            Some(byte) => (&after[2..], pushed(bytes, byte)),
            None if first == b'+' => (after, pushed(bytes, b' ')),
            None => (after, pushed(bytes, first)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn pushed(mut bytes: Vec<u8>, byte: u8) -> Vec<u8> {
    bytes.push(byte);
    bytes
}

/// Reads a request, of which `head` has arrived. `is_tcp` if it came over TCP.
pub(super) fn read(head: &[u8], is_tcp: bool) -> Received {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => return Received::Part,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Received::Refused("400 Bad Request", "the request is not HTTP/1.1\n");
        }
    }
    let of = |name: &'static str| {
        let named = request.headers.iter();
        let named = named.filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| String::from_utf8_lossy(field.value).trim().to_owned())
    };
    let hosts: Vec<String> = of("host").collect();
    let is_old = request.version == Some(0);
    if hosts.len() > 1 || hosts.is_empty() && !is_old {
        return Received::Refused("400 Bad Request", "expected one field Host\n");
    }
    let target = request.path.unwrap_or_default();
    // The form with the whole address counts before the field.
    let absolute = target.strip_prefix("http://");
    let (host, target) =
        match absolute.map(|rest| rest.split_at(rest.find('/').unwrap_or(rest.len()))) {
            Some((host, "")) => (Some(host), "/"),
            Some((host, path)) => (Some(host), path),
            None => (hosts.first().map(String::as_str), target),
        };
    if is_tcp && host.is_some_and(|host| !is_here(host)) {
        return Received::Refused(
            "421 Misdirected Request",
            "only requests for localhost, 127.0.0.1 and [::1] are answered here\n",
        );
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Received::Whole(Request {
        method: request.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: Query(query.to_owned()),
        accepts_open_metrics: of("accept")
            .any(|value| value.contains("application/openmetrics-text")),
    })
}

/// Returns true if a host, with or without a port, is this machine by a name or an address that no
/// other one can have.
fn is_here(host: &str) -> bool {
    let is_port = |port: &str| port.chars().all(|c| c.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]"
}

/// Returns an answer as it is sent. `has_body` is false for the answer to `HEAD`, which has the
/// length of the body that `GET` gets.
pub(super) fn answer(status: &str, unix_s: u64, content: &Content, has_body: bool) -> String {
    let allowed = match status.starts_with("405") {
        true => "Allow: GET, HEAD\r\n",
        false => "",
    };
    let Content { format, body } = content;
    let (date, length) = (date(unix_s), body.len());
    let body = if has_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nDate: {date}\r\nContent-Type: {format}\r\nContent-Length: {length}\r\n\
         {allowed}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: {POLICY}\r\nReferrer-Policy: no-referrer\r\n\
         Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n{body}"
    )
}

/// Returns a time as HTTP writes it (RFC 9110, section 5.6.7).
fn date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil_date(days);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[(month - 1) as usize],
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first is the example of RFC 9110; the others are from date(1).
    #[test]
    fn dates_are_those_of_http() {
        for (unix_s, expected) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(date(unix_s), expected);
        }
    }

    fn status(request: &str, is_tcp: bool) -> &'static str {
        match read(request.as_bytes(), is_tcp) {
            Received::Part => "part",
            Received::Whole(_) => "whole",
            Received::Refused(status, _) => &status[..3],
        }
    }

    #[test]
    fn only_requests_for_this_machine_are_answered_over_tcp() {
        for (host, expected) in [
            ("localhost", "whole"),
            ("LocalHost:9751", "whole"),
            ("127.0.0.1:9751", "whole"),
            ("[::1]", "whole"),
            ("[::1]:9751", "whole"),
            ("evil.example", "421"),
            ("evil.example:9751", "421"),
            ("localhost.evil.example", "421"),
            ("127.0.0.1.evil.example", "421"),
            ("evil.example:localhost", "421"),
            ("user@localhost", "421"),
            ("::1", "421"),
            ("", "421"),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(status(&request, true), expected, "{host}");
            // Over a UNIX socket comes no browser, but a proxy.
            assert_eq!(status(&request, false), "whole", "{host}");
            let absolute = format!("GET http://{host}/ HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_eq!(status(&absolute, true), expected, "{host}");
        }
    }

    /// RFC 9112, section 3.2.
    #[test]
    fn a_request_names_one_host() {
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n", false), "400");
        let two = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n";
        assert_eq!(status(two, true), "400");
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n", true), "whole");
    }

    #[test]
    fn parameters_are_decoded() {
        let query = Query("volume=a%20b+c%C3%A4&after=7&odd=%zz%4&after=9".to_owned());
        assert_eq!(query.get("volume").as_deref(), Some("a b c\u{e4}"));
        assert_eq!(query.number("after"), 7);
        assert_eq!(query.get("odd").as_deref(), Some("%zz%4"));
        assert_eq!((query.number("odd"), query.number("none")), (0, 0));
        assert_eq!(
            Query("volume=%e4".to_owned()).get("volume").as_deref(),
            Some("\u{fffd}")
        );
    }

    #[test]
    fn the_address_of_a_request_can_be_whole() {
        let request = b"GET http://localhost:9751/history.json?after=3 HTTP/1.1\r\nHost: x\r\n\r\n";
        let Received::Whole(request) = read(request, true) else {
            panic!("it is a request");
        };
        assert_eq!(request.path, "/history.json");
        assert_eq!(request.query.number("after"), 3);
        let bare = b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let Received::Whole(request) = read(bare, true) else {
            panic!("it is a request");
        };
        assert_eq!(request.path, "/");
    }

    #[test]
    fn the_answer_to_head_has_the_length_and_no_body() {
        let content = Content {
            format: PLAIN,
            body: Cow::Borrowed("four"),
        };
        let get = answer("200 OK", 0, &content, true);
        let head = answer("200 OK", 0, &content, false);
        assert_eq!(format!("{head}four"), get);
        assert!(head.contains("\r\nContent-Length: 4\r\n") && head.ends_with("\r\n\r\n"));
        for field in [
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Content-Security-Policy: default-src 'none';",
            "frame-ancestors 'none'",
        ] {
            assert!(get.contains(field), "{field}: {get}");
        }
        assert!(!get.contains("Allow") && !get.contains("Access-Control"));
        assert!(
            answer("405 Method Not Allowed", 0, &content, true).contains("Allow: GET, HEAD\r\n")
        );
    }
}
