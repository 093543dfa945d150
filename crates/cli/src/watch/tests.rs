//! The screen, drawn from the status of volumes in virtual time, as a person at the terminal sees
//! it and uses it.

#![expect(clippy::print_stdout, reason = "for a person who reads a failure")]

use std::time::Duration;

use bimetal_block::layers::mirror::RebuildConfig;
use bimetal_block::units::Rate;
use bimetal_block::{IoError, Op};
use ratatui_core::backend::TestBackend;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;
use serde_json::{Value, json};

use super::app::{App, Next};
use super::keys::Key;
use super::look::Look;
use crate::health::fixture::{LIGHT, MIB, MODERATE, Volume, WRITES, test};

const LOOK: Look = Look {
    colour: true,
    unicode: true,
};
/// The sizes of a small terminal, and of a usual one.
const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];

/// The screen of a person.
struct Screen {
    app: App,
    terminal: Terminal<TestBackend>,
}

impl Screen {
    fn new((width, height): (u16, u16), look: Look) -> Screen {
        let terminal = Terminal::new(TestBackend::new(width, height));
        let Ok(terminal) = terminal;
        Screen {
            app: App::new(look, false),
            terminal,
        }
    }

    fn of(size: (u16, u16), status: &Value) -> Screen {
        let mut screen = Screen::new(size, LOOK);
        screen.app.answer(Ok(status.clone()), 0);
        screen
    }

    fn press(&mut self, keys: &[Key]) {
        for key in keys {
            assert_eq!(self.app.key(*key), Next::Continue, "{key:?}");
        }
    }

    /// Returns the lines that are seen, and prints them for a person who reads the test.
    fn lines(&mut self) -> Vec<String> {
        let app = &mut self.app;
        let drawn = self.terminal.draw(|frame| {
            let area = frame.area();
            app.draw(frame.buffer_mut(), area);
        });
        assert!(drawn.is_ok());
        let buffer = self.terminal.backend().buffer();
        let rows = buffer
            .content()
            .chunks(usize::from(buffer.area().width.max(1)));
        let line = |row: &[ratatui_core::buffer::Cell]| {
            let text: String = row.iter().map(ratatui_core::buffer::Cell::symbol).collect();
            text.trim_end().to_owned()
        };
        let lines: Vec<String> = rows.map(line).collect();
        println!("{}\n", lines.join("\n"));
        lines
    }

    /// Returns the line that has these texts, which must exist.
    fn line_with(&mut self, texts: &[&str]) -> String {
        let lines = self.lines();
        let has_all = |line: &&String| texts.iter().all(|text| line.contains(text));
        let found = lines.iter().find(has_all);
        found
            .unwrap_or_else(|| panic!("no line has {texts:?}"))
            .clone()
    }
}

/// Runs a client for `seconds`, and returns a screen that has seen each of them.
async fn watch(volume: &Volume, size: (u16, u16), seconds: u64) -> Screen {
    let mut screen = Screen::new(size, LOOK);
    for _ in 0..seconds {
        volume.rt.sleep(Duration::from_secs(1)).await;
        screen.app.answer(Ok(volume.status()), 0);
    }
    screen
}

#[test]
fn a_healthy_volume_is_on_one_screen() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            for size in SIZES {
                let mut screen = watch(volume, size, 70).await;
                let lines = screen.lines();
                assert!(
                    lines[0].starts_with(" healthy  vol: both sides "),
                    "{}",
                    lines[0]
                );
                let heading = ["write/s", "median", "99 %", "max", "read/s", "lag"];
                screen.line_with(&heading);
                // The client sends 40 writes and 20 reads a second.
                let export = screen.line_with(&["export vol", "1 client"]);
                let cells: Vec<&str> = export.split_whitespace().collect();
                let writes: f64 = cells[4].parse().expect("a rate");
                assert!((38.0..=42.0).contains(&writes), "{export}");
                screen.line_with(&["fast", "healthy"]);
                screen.line_with(&["slow", "healthy"]);
                screen.line_with(&["slowest write"]);
                screen.line_with(&["on one side", "5 s"]);
                screen.line_with(&["side slow", "log "]);
                screen.line_with(&["q quit", "up 2 h 1 min"]);
                // What is zero is left out.
                for line in screen.lines() {
                    assert!(!line.contains(" 0 ") && !line.contains(" 0 B"), "{line}");
                }
            }
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_frozen_side_is_seen_at_the_top_and_in_the_tree() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(LIGHT);
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_frozen(true);
            for size in SIZES {
                let mut screen = watch(volume, size, 5).await;
                let lines = screen.lines();
                let first = " frozen  vol: side slow has not answered";
                assert!(lines[0].starts_with(first), "{}", lines[0]);
                screen.line_with(&["slow", "frozen"]);
                screen.line_with(&["fast", "healthy"]);
                screen.line_with(&["on one side", "[", "MiB, the oldest", "of 5 s"]);
            }
            volume.slow().set_frozen(false);
            drop(client);
        },
    );
}

#[test]
fn a_rebuild_shows_how_far_it_is_and_what_is_left() {
    let ceiling = Some(Rate(2 * MIB));
    let floor = Rate(0);
    test(
        |config| config.rebuild = RebuildConfig { floor, ceiling },
        async |volume| {
            volume.slow().set_error(Some(IoError::Offline));
            let client = volume.start(WRITES);
            volume.rt.sleep(Duration::from_secs(100)).await;
            let mut screen = watch(volume, SIZES[0], 2).await;
            let lines = screen.lines();
            assert!(lines[0].starts_with(" gone  vol: side slow has been absent for"));
            assert!(lines[0].contains("and one copy is") && lines[1].contains("it lacks"));
            screen.line_with(&["slow", "gone"]);
            assert_eq!(client.stop().await, 0);
            volume.slow().set_error(None);
            volume.until(&["rebuilding"], &["gone"], 5).await;
            let mut screen = watch(volume, SIZES[0], 5).await;
            screen.line_with(&["rebuild slow", "[", "%", "MiB left at", "MiB/s, "]);
            screen.line_with(&["slow", "rebuilding"]);
        },
    );
}

#[test]
fn a_side_that_is_slow_has_a_curve_that_shows_it() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(LIGHT);
            volume.stays(&["healthy"], 20).await;
            volume
                .slow()
                .set_delay(Op::Write, Duration::from_millis(400));
            let mut screen = watch(volume, SIZES[0], 30).await;
            let lines = screen.lines();
            assert!(
                lines[0].starts_with(" slow  vol: side slow"),
                "{}",
                lines[0]
            );
            screen.line_with(&["slowest write 4"]);
            drop(client);
        },
    );
}

/// Returns the status of a volume under a client.
fn some_status() -> Value {
    let mut status = Value::Null;
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 5).await;
            status = volume.status();
            drop(client);
        },
    );
    status
}

/// Returns a status with two volumes, the second of which has lost a side.
fn two_volumes() -> Value {
    let mut status = some_status();
    status["devices"]["worse"] = status["devices"]["vol"].clone();
    status["devices"]["worse"]["health"] = json!({
        "word": "gone", "of": "b", "reason": "side b has been absent for 3.0 s", "also": [],
    });
    status
}

#[test]
fn keys_open_and_close_devices() {
    let mut screen = Screen::of(SIZES[0], &some_status());
    // The rows are the export, the volume, and then its sides.
    screen.press(&[Key::Down, Key::Down, Key::Enter]);
    let lines = screen.lines();
    assert!(
        lines[0].starts_with("fast  file 256 MiB  healthy"),
        "{}",
        lines[0]
    );
    for op in ["write", "read", "flush"] {
        screen.line_with(&[op, "10 s"]);
    }
    screen.line_with(&["since start"]);
    screen.press(&[Key::Escape]);
    assert!(screen.lines()[0].starts_with(" healthy  vol:"));
    screen.press(&[Key::Char('?')]);
    screen.line_with(&["p, space", "pause"]);
    screen.press(&[Key::Char('x')]);
    assert!(screen.lines()[0].starts_with(" healthy  vol:"));
    assert_eq!(screen.app.key(Key::Char('q')), Next::Quit);
}

#[test]
fn sides_are_sorted_by_what_is_asked_for() {
    let mut screen = Screen::of(SIZES[0], &some_status());
    let mut first_is = |order: &str| {
        screen.line_with(&[&format!("s {order}")]);
        let lines = screen.lines();
        let at = |name| {
            lines
                .iter()
                .position(|line| line.contains(name))
                .expect("it is there")
        };
        let first = if at(" fast ") < at(" slow ") {
            "fast"
        } else {
            "slow"
        };
        screen.press(&[Key::Char('s')]);
        first
    };
    assert_eq!(first_is("as configured"), "fast");
    assert_eq!(first_is("slowest first"), "slow");
    first_is("busiest first");
    assert_eq!(first_is("as configured"), "fast");
}

#[test]
fn a_paused_screen_stays_as_it_is() {
    let mut screen = Screen::of(SIZES[0], &some_status());
    let before = screen.lines();
    screen.press(&[Key::Char('p')]);
    screen.app.answer(Ok(two_volumes()), 0);
    let paused = screen.lines();
    assert_eq!(paused[..23], before[..23]);
    assert!(paused[23].starts_with(" paused "), "{}", paused[23]);
    screen.press(&[Key::Char(' ')]);
    screen.app.answer(Ok(two_volumes()), 0);
    assert_ne!(screen.lines()[0], before[0]);
}

#[test]
fn of_several_volumes_the_worst_is_on_top() {
    let mut screen = Screen::of(SIZES[0], &two_volumes());
    let lines = screen.lines();
    assert!(lines[0].starts_with("volume"), "{}", lines[0]);
    assert!(
        lines[1].starts_with("worse            gone"),
        "{}",
        lines[1]
    );
    assert_eq!(lines[2], "  side b has been absent for 3.0 s");
    assert!(
        lines[3].starts_with("vol              healthy"),
        "{}",
        lines[3]
    );
    screen.press(&[Key::Enter]);
    assert!(screen.lines()[0].starts_with(" gone  worse: side b"));
    screen.press(&[Key::Escape, Key::Down, Key::Enter]);
    assert!(screen.lines()[0].starts_with(" healthy  vol:"));
}

/// The order of the list changes with the health, under the hand of a person who presses a key.
#[test]
fn what_is_selected_stays_so_when_its_place_changes() {
    let mut status = two_volumes();
    let mut screen = Screen::of(SIZES[0], &status);
    let gone = status["devices"]["worse"]["health"].take();
    status["devices"]["worse"]["health"] = status["devices"]["vol"]["health"].take();
    status["devices"]["vol"]["health"] = gone;
    screen.app.answer(Ok(status), 1);
    let lines = screen.lines();
    assert!(
        lines[1].starts_with("vol              gone"),
        "{}",
        lines[1]
    );
    screen.press(&[Key::Enter]);
    let first = screen.lines()[0].clone();
    assert!(first.starts_with(" healthy  worse:"), "{first}");
}

#[test]
fn a_server_that_does_not_answer_is_said_to_and_asked_again() {
    let mut screen = Screen::new(SIZES[0], LOOK);
    assert_eq!(screen.lines()[0], "asking the server");
    let gone = || Err("no server is running for vol.toml".to_owned());
    screen.app.answer(gone(), 1_000);
    let first = screen.lines()[0].clone();
    assert!(first.starts_with(" no answer  no server is running for vol.toml; it is asked again"));
    screen.app.answer(Ok(some_status()), 1_001);
    assert!(screen.lines()[0].starts_with(" healthy  vol:"));
    screen.app.answer(gone(), 1_002);
    screen.app.answer(gone(), 1_041);
    let lines = screen.lines();
    assert!(
        lines[0].starts_with(" no answer  no server is running"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].ends_with("its last answer, 40 s old"),
        "{}",
        lines[1]
    );
    assert!(!lines.iter().any(|line| line.contains("healthy  vol")));
    screen.line_with(&["fast", "healthy"]);
}

#[test]
fn without_colours_nothing_is_coloured_and_a_state_stands_out() {
    let plain = Look {
        colour: false,
        ..LOOK
    };
    let mut screen = Screen::new(SIZES[0], plain);
    screen.app.answer(Ok(two_volumes()), 0);
    screen.press(&[Key::Enter]);
    screen.lines();
    let buffer = screen.terminal.backend().buffer();
    for cell in buffer.content() {
        assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
    }
    // The word `gone` at the beginning of the first line.
    assert!(buffer[(2, 0)].modifier.contains(Modifier::REVERSED));
    let mut coloured = Screen::of(SIZES[0], &two_volumes());
    coloured.press(&[Key::Enter]);
    coloured.lines();
    assert_eq!(coloured.terminal.backend().buffer()[(2, 0)].fg, Color::Red);
}

#[test]
fn no_size_of_a_terminal_is_an_error() {
    let status = two_volumes();
    for width in (0..100).step_by(3) {
        for height in 0..30 {
            let mut screen = Screen::of((width, height), &status);
            for keys in [
                &[][..],
                &[Key::Enter],
                &[Key::Down, Key::Enter],
                &[Key::Char('?')],
            ] {
                screen.press(keys);
                let app = &mut screen.app;
                let drawn = screen.terminal.draw(|frame| {
                    let area = frame.area();
                    app.draw(frame.buffer_mut(), area);
                });
                assert!(drawn.is_ok(), "{width}x{height}");
            }
        }
    }
}

/// The answer of another version of the server, or of something else.
#[test]
fn no_answer_is_an_error() {
    let health = json!({ "word": 7, "also": [null, { "word": "odd" }] });
    let odd =
        json!({ "type": "mirror", "children": ["a", 5, "a"], "parts": [1], "health": health });
    for status in [
        json!(null),
        json!([1, 2]),
        json!({ "devices": 5, "exports": "x" }),
        json!({ "devices": { "a": odd, "b": null } }),
        json!({ "devices": { "a": { "health": {}, "type": "file", "children": ["a"] } } }),
    ] {
        let mut screen = Screen::of(SIZES[0], &status);
        screen.press(&[Key::Enter, Key::Down, Key::Enter]);
        assert!(!screen.lines().is_empty());
    }
}
