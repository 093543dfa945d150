//! The page in the browser: what it sends over HTTP, and how it looks and works in Chromium, driven
//! by chromedriver (W3C WebDriver).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bimetal_tests::deadline::eventually;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::volume::{MIB, Volume};
use serde_json::{Value, json};

/// A volume whose server listens for browsers, and the port.
fn volume(name: &str) -> (Volume, u16) {
    let volume = Volume::mirror(name, 64 * MIB);
    // The port is free again when the server asks for it.
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("it is bound").port();
    let text = std::fs::read_to_string(volume.config()).expect("the configuration");
    let server = format!("{text}\n[server]\nmetrics = \"tcp:127.0.0.1:{port}\"\n");
    volume.dir().text("vol.toml", &server);
    (volume, port)
}

/// Sends a request, and returns the head and the body of the answer.
fn http(port: u16, line: &str, fields: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a server listens");
    let patience = Some(Duration::from_secs(120));
    stream.set_read_timeout(patience).expect("a time");
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n{fields}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it is read");
    let (mut reader, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        let count = reader.read_line(&mut head).expect("a head");
        assert!(count > 0, "the answer ends in its head: {head}");
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse().expect("a length"))
    });
    let mut body = vec![
        0;
        if line.starts_with("HEAD") {
            0
        } else {
            length.unwrap_or(0)
        }
    ];
    reader.read_exact(&mut body).expect("a whole body");
    (head, String::from_utf8(body).expect("a text"))
}

fn get_json(port: u16, path: &str) -> Value {
    let (head, body) = http(port, &format!("GET {path}"), "", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: application/json\r\n"),
        "{head}"
    );
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
}

#[test]
fn the_page_and_what_it_asks_for_come_over_http() {
    let (volume, port) = volume("page");
    let server = volume.serve();
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let (head, body) = http(port, &format!("GET {path}"), "", "");
        assert!(
            head.contains(&format!("\r\nContent-Type: {kind}\r\n")),
            "{head}"
        );
        assert!(
            head.contains("\r\nX-Content-Type-Options: nosniff\r\n"),
            "{head}"
        );
        assert!(!body.is_empty());
        let (of_head, _) = http(port, &format!("HEAD {path}"), "", "");
        let length = format!("\r\nContent-Length: {}\r\n", body.len());
        assert!(of_head.contains(&length), "{of_head}");
    }
    for (line, status) in [("GET /none", "404"), ("PUT /status.json", "405")] {
        let (head, _) = http(port, line, "", "");
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }

    // The health of the volume is that of the control socket, in the same words.
    let status = get_json(port, "/status.json");
    let judged = volume.status()["devices"]["vol"]["health"].clone();
    assert_eq!(status["volume"]["findings"][0]["word"], judged["word"]);
    assert_eq!(status["volume"]["findings"][0]["reason"], judged["reason"]);
    assert_eq!(status["health"], "healthy");
    let names: BTreeSet<&str> = status["volume"]["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    assert_eq!(names, BTreeSet::from(["a", "b", "vol"]));
    let file = volume.config().display().to_string();
    assert_eq!(status["file"], file);
    let scrub = format!("bimetal scrub {file} vol --wait");
    assert!(status.to_string().contains(&scrub), "{status:#}");
    assert_eq!(
        get_json(port, "/status.json?volume=none")["volume"],
        Value::Null
    );

    let history = eventually(60, "the first sample", || {
        Some(get_json(port, "/history.json?volume=vol"))
            .filter(|all| all["number"].as_u64() > Some(0))
    });
    assert_eq!(history["words"][0], "healthy");
    assert_eq!(get_json(port, "/events.json?after=0")["events"], json!([]));
    server.stop();
}

/// A browser without a window.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: Scratch,
}

impl Browser {
    fn open(url: &str) -> Browser {
        let profile = Scratch::new("browser");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver (Debian: chromium-driver) is there");
        let said = BufReader::new(driver.stdout.take().expect("its output"));
        let port = said.lines().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let mut browser = Browser {
            driver,
            port: port.expect("chromedriver names its port"),
            session: String::new(),
            _profile: profile,
        };
        let profile = browser._profile.file("profile");
        let profile = format!("--user-data-dir={}", profile.display());
        let options = json!({ "args": [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            profile,
        ] });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
        } } });
        let session = browser.ask("POST", "/session", &wanted);
        let id = session["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{id}");
        browser.post("/url", &json!({ "url": url }));
        browser
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let fields = "Content-Type: application/json\r\n";
        let (head, answer) = http(
            self.port,
            &format!("{method} {path}"),
            fields,
            &body.to_string(),
        );
        let answer: Value = serde_json::from_str(&answer).expect("chromedriver speaks JSON");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer:#}");
        answer["value"].clone()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    /// Runs a script in the page, and returns its value.
    fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    fn command(&self, name: &str, parameters: &Value) {
        self.post(
            "/goog/cdp/execute",
            &json!({ "cmd": name, "params": parameters }),
        );
    }

    fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({selector:?}).innerText");
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    fn eventually_says(&self, selector: &str, words: &str) {
        eventually(60, words, || {
            self.text(selector).contains(words).then_some(())
        });
    }

    /// Presses a key on what has the focus.
    fn press(&self, key: &str) {
        let action = |kind: &str| json!({ "type": kind, "value": key });
        let keys =
            json!({ "type": "key", "id": "keys", "actions": [action("keyDown"), action("keyUp")] });
        self.post("/actions", &json!({ "actions": [keys] }));
    }

    /// Returns the role and the name that a screen reader gets of what has the focus.
    fn focused(&self) -> (String, String) {
        let get = |path: &str| self.ask("GET", &format!("{}{path}", self.session), &json!({}));
        let active = get("/element/active");
        let id = active
            .as_object()
            .and_then(|of| of.values().next()?.as_str());
        let id = id.expect("an element").to_owned();
        let of = |what: &str| {
            let value = get(&format!("/element/{id}/{what}"));
            value.as_str().unwrap_or_default().to_owned()
        };
        (of("computedrole"), of("computedlabel"))
    }

    /// Sets the width of the page, and whether it is dark.
    fn look(&self, width: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.command(
            "Emulation.setEmulatedMedia",
            &json!({ "features": features }),
        );
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser when the session ends, also after a test that has failed. An
        // answer means that the browser has ended; without one, the driver is dead.
        let end = format!(
            "DELETE {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\r\n",
            self.session, self.port
        );
        if !self.session.is_empty()
            && let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port))
            && stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .is_ok()
            && stream.write_all(end.as_bytes()).is_ok()
        {
            let _ = stream.read(&mut [0; 1]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns the texts whose contrast with their background is below 4.5 to 1 (WCAG 2.2, 1.4.3).
const FAINT: &str = "
const light = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const of = (rgb) => 0.2126 * light(rgb[0]) + 0.7152 * light(rgb[1]) + 0.0722 * light(rgb[2]);
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const faint = [];
for (const e of document.querySelectorAll('body *')) {
  const has = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!has || e.closest('[hidden], noscript, svg') || e.getClientRects().length === 0) continue;
  let back = e, colour = [0, 0, 0, 0];
  while (back) {
    colour = parse(getComputedStyle(back).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) break;
    back = back.parentElement;
  }
  const [a, b] = [of(parse(getComputedStyle(e).color)), of(colour)].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) faint.push(e.textContent.trim() + ' ' + ratio.toFixed(2));
}
return faint;";

#[test]
fn the_page_is_read_and_used_by_keyboard_and_follows_the_server() {
    let (volume, port) = volume("browser");
    let mut server = volume.serve();
    let browser = Browser::open(&format!("http://localhost:{port}/"));
    browser.eventually_says("#health", "healthy");
    browser.eventually_says("#health", "both sides have everything");
    let rows = browser.text("#stack-rows");
    for words in ["export of vol", "volume", "side of vol", "a", "b"] {
        assert!(rows.contains(words), "{words}: {rows}");
    }
    browser.eventually_says("#plots", "Health");

    // Sections are found by their names, and tables by their captions.
    for (selector, attribute, expected) in [
        ("html", "lang", "en"),
        ("#said", "aria-live", "polite"),
        ("#stack-rows th", "scope", "row"),
    ] {
        let script =
            format!("return document.querySelector({selector:?}).getAttribute({attribute:?})");
        assert_eq!(browser.run(&script), expected, "{selector}");
    }
    let unnamed = browser.run(
        "return [...document.querySelectorAll('button, a, svg[role=img], table')].filter((e) =>
           !(e.getAttribute('aria-label') || e.textContent.trim())).length",
    );
    assert_eq!(unnamed, 0);

    // Each command is reached by the keyboard, and copied by Enter.
    let commands = browser
        .run("return [...document.querySelectorAll('#commands code')].map((e) => e.textContent)");
    let mut left: BTreeSet<String> = commands
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|command| command.as_str().map(str::to_owned))
        .collect();
    assert!(left.len() > 10, "{left:?}");
    let replace = format!(
        "bimetal side replace {} vol b NEW",
        volume.config().display()
    );
    assert!(left.contains(&replace), "{left:?}");
    for _ in 0..100 {
        if left.is_empty() {
            break;
        }
        browser.press("\u{e004}");
        let (role, name) = browser.focused();
        let found = left
            .iter()
            .find(|command| name.ends_with(&format!(": {command}")));
        let Some(command) = found.cloned() else {
            continue;
        };
        assert_eq!(role, "button", "{name}");
        assert!(name.starts_with("Copy: "), "{name}");
        let outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid", "the focus is seen");
        browser.press("\u{e007}");
        browser.eventually_says("#copied", &command);
        left.remove(&command);
    }
    assert!(left.is_empty(), "not reached by Tab: {left:?}");

    for scheme in ["light", "dark"] {
        for width in [400, 1600] {
            browser.look(width, scheme);
            let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert!(wide.as_i64() <= Some(0), "{width}: {wide} px too wide");
            assert_eq!(browser.run(FAINT), json!([]), "{scheme}, {width} px");
        }
    }

    server.kill();
    browser.eventually_says("#word", "no answer");
    browser.eventually_says("#gone", "No answer from the server since 20");
    assert_eq!(
        browser.run("return document.getElementById('gone').getAttribute('role')"),
        "alert"
    );

    // The page goes on by itself when there is a server again, now with one side.
    std::fs::remove_file(volume.dir().file("b.img")).expect("it was formatted");
    let server =
        bimetal_tests::server::Server::start_with(volume.config(), &["--force-open", "fork"]);
    browser.eventually_says("#word", "gone");
    browser.eventually_says("#reason", "side b has been absent");
    // What a screen reader says by itself.
    browser.eventually_says("#said", "vol is gone: side b has been absent");
    assert_eq!(browser.text("#gone"), "");
    browser.eventually_says("#event-rows", "is absent");
    assert_eq!(browser.run(FAINT), json!([]));
    let title = browser.run("return document.title");
    assert_eq!(title, "gone - vol - bimetal");
    drop(browser);
    server.stop();
}
