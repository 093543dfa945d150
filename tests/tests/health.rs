//! The health of volumes and the screen of `status --watch`, of the real program. Faults that can
//! be injected in virtual time are tested there: `cargo test -p bimetal-cli health::`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::Wire;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::{binary, send_signal};
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume};
use serde_json::Value;

/// Returns the health of the volume `vol`.
fn health(volume: &Volume) -> Value {
    volume.status()["devices"]["vol"]["health"].clone()
}

/// Waits until the volume has the health `word`. Until then, only words of `before` may hold.
fn eventually_is(volume: &Volume, word: &str, before: &[&str]) -> Value {
    eventually(60, word, || {
        let health = health(volume);
        let is = health["word"].as_str().expect("a word");
        assert!(is == word || before.contains(&is), "{health:#}");
        (is == word).then_some(health)
    })
}

/// The machine of a server that holds a side stops, as if its cable was pulled: connections stay,
/// and nothing is answered.
#[test]
fn a_side_whose_server_answers_nothing_is_behind_a_silent_network() {
    let far = Volume::memory("silent-far", 64 * MIB);
    let far_server = far.serve();
    let text = format!(
        "[device.a]\ntype = \"file\"\npath = \"a.img\"\n\
         [device.b]\ntype = \"remote\"\naddress = \"unix:{}\"\nexport = \"vol\"\n\
         [device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\nabsent_after = \"300s\"\n\
         exposure = {{ silence = \"300s\" }}\n{EXPORT_VOL}",
        far.socket().display()
    );
    let volume = Volume::from_toml("silent-near", &text);
    volume.dir().sparse("a.img", 64 * MIB);
    volume.verb("format").ok();
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &[7; 4096]);
    assert_eq!(health(&volume)["word"], "healthy");

    send_signal(far_server.pid(), "STOP");
    wire.write(4096, &[8; 4096]);
    let found = eventually_is(&volume, "silent network", &["healthy"]);
    assert_eq!(found["of"], "b", "{found:#}");
    let reason = found["reason"].as_str().expect("a sentence");
    assert!(
        reason.starts_with("side b has had no answer over the network for"),
        "{reason}"
    );
    // People and monitoring are told the same.
    let shown = volume.verb("status").run();
    assert_eq!(shown.status, Some(1), "{shown}");
    assert!(
        shown.stdout.starts_with("silent network  vol: side b"),
        "{shown}"
    );

    // So is a person who comes later.
    let words = "vol: was healthy, is silent network: side b has had no answer over the network";
    eventually(60, "the event", || {
        let shown = volume.verb("events").ok().stdout;
        shown.contains(words).then_some(())
    });

    send_signal(far_server.pid(), "CONT");
    eventually_is(&volume, "healthy", &["silent network", "slow"]);
    // The end is told when the volume has been healthy for a minute.
    eventually(180, "the event of the end", || {
        let shown = volume.verb("events").ok().stdout;
        shown.contains("is healthy: both sides").then_some(())
    });
    drop(wire);
    server.stop();
    far_server.stop();
}

#[test]
fn a_volume_that_was_opened_for_inspection_is_read_only() {
    let volume = Volume::mirror("inspected", 64 * MIB);
    let mut server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &[7; 4096]);
    server.kill();
    std::fs::remove_file(volume.dir().file("b.img")).expect("it was formatted");
    let server =
        bimetal_tests::server::Server::start_with(volume.config(), &["--force-open", "read-only"]);
    let found = health(&volume);
    assert_eq!(found["word"], "read-only", "{found:#}");
    let reason = found["reason"].as_str().expect("a sentence");
    assert!(reason.contains("--force-open read-only"), "{reason}");
    assert_eq!(found["also"][0]["word"], "gone", "{found:#}");
    server.stop();
}

/// `status --watch` on a terminal of its own, which script(1) makes and records.
struct Screen {
    script: Child,
    dir: Scratch,
}

impl Screen {
    fn open(config: &Path) -> Screen {
        let dir = Scratch::new("screen");
        let command = format!(
            "echo $$ > '{}'; exec '{}' status --watch '{}'",
            dir.file("pid").display(),
            binary().display(),
            config.display()
        );
        let script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &command])
            .arg(dir.file("seen"))
            .env("TERM", "xterm")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("script(1) is there");
        Screen { script, dir }
    }

    fn seen(&self) -> String {
        let bytes = std::fs::read(self.dir.file("seen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn eventually_shows(&self, text: &str) {
        let wanted = letters(text);
        eventually(60, text, || {
            letters(&self.seen()).contains(&wanted).then_some(())
        });
    }

    fn pid(&self) -> u32 {
        let path: PathBuf = self.dir.file("pid");
        let pid = std::fs::read_to_string(path).expect("it has begun");
        pid.trim().parse().expect("a number")
    }

    /// Waits until the program has ended, and returns its exit status.
    fn ended(mut self) -> (Option<i32>, String) {
        let script = &mut self.script;
        let status = eventually(60, "the end", || script.try_wait().expect("a child"));
        (status.code(), self.seen())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A test that has failed leaves no process behind: script(1) ends with its terminal.
        let _ = self.script.kill();
    }
}

/// Returns what is seen without blanks and sequences of the terminal: a screen draws what has
/// changed, and moves over the rest.
fn letters(seen: &str) -> String {
    let mut parts = seen.split('\u{1b}');
    let mut letters = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        letters += end.map_or("", |end| &part[end + 1..]);
    }
    letters.retain(|c| !c.is_whitespace());
    letters
}

/// Switches to the other screen and hides the cursor; the reverse of both.
const TAKEN_OVER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const GIVEN_BACK: &str = "\u{1b}[?25h\u{1b}[?1049l";

#[test]
fn the_screen_follows_the_server_and_gives_the_terminal_back() {
    let volume = Volume::mirror("watched", 64 * MIB);
    for signal in ["TERM", "INT", "HUP"] {
        let server = volume.serve();
        let screen = Screen::open(volume.config());
        eventually(60, "it has begun", || {
            screen.seen().contains(TAKEN_OVER).then_some(())
        });
        screen.eventually_shows("both sides have everything");
        screen.eventually_shows("export vol");
        assert!(!letters(&screen.seen()).contains("noserverisrunning"));
        server.stop();
        screen.eventually_shows("no server is running");
        let pid = screen.pid();
        send_signal(pid, signal);
        let (status, seen) = screen.ended();
        assert_eq!(status, Some(0), "{signal}");
        let end = seen
            .rfind(GIVEN_BACK)
            .unwrap_or_else(|| panic!("{signal}: {seen:?}"));
        // Nothing is drawn after that.
        let after = letters(&seen[end..]);
        assert!(!after.contains("vol"), "{signal}: {after:?}");
    }
}
