//! Tests of mistakes on the command line and in configurations: each must produce one line and the
//! right exit status, and no file may be written.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, assert_refused, stdout_of};

#[test]
fn a_wrong_command_line_has_status_2() {
    assert_refused(&["serv"], 2, &["serv", "--help"]);
    assert_refused(&["serve"], 2, &["<FILE>"]);
    assert_refused(&["check", "x.toml", "--jason"], 2, &["--jason"]);
    assert_refused(&["check", "x", "--json", "--dot"], 2, &["--json", "--dot"]);
    assert_refused(
        &["bench", "x", "--device", "a", "--bs", "4k"],
        2,
        &["4k", "64MiB"],
    );
    assert_refused(&["bench", "x", "--device", "a", "--depth", "0"], 2, &["0"]);
    assert_refused(
        &["bench", "x", "--device", "a", "--time", "1s", "--ops", "1"],
        2,
        &["--time", "--ops"],
    );
}

/// Tests a standard error that has no reader, such as the pipe of a logger that has died. Exit
/// status 101 or a signal would mean that the program has panicked.
#[test]
fn nobody_needs_to_read_what_is_said() {
    for (words, status) in [
        (&["serv"][..], 2),
        (&["check", "missing.toml"], 1),
        (&["status", "missing.toml"], 2),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = std::process::Command::new(env!("CARGO_BIN_EXE_bimetal"))
            .args(words)
            .stderr(writer)
            .status();
        assert_eq!(ended.unwrap().code(), Some(status), "{words:?}");
    }
}

/// Tests that every former verb for experiments is refused with a message that names the new
/// command.
#[test]
fn a_verb_that_has_moved_names_the_new_command() {
    for (old, new) in [
        (&["lab", "run", "plan.toml"][..], "`bimetal-lab run`"),
        (&["sim", "cache", "--trace", "t"], "`bimetal-lab cache`"),
        (
            &["sim", "swarm", "--seeds", "0..9"],
            "`bimetal-lab tester swarm`",
        ),
        (&["sim", "hetero", "--help"], "`bimetal-lab mirror`"),
        (&["trace", "record", "c.toml", "a"], "`bimetal record`"),
        (&["trace", "summary", "t"], "`bimetal-lab trace summary`"),
        (&["lab"], "`bimetal-lab --help`"),
        (&["sim", "--help"], "`bimetal-lab --help`"),
    ] {
        assert_refused(old, 2, &[new]);
    }
}

#[test]
fn help_and_version_are_no_mistakes() {
    let help = stdout_of(&["--help"]);
    for verb in ["demo", "format", "serve", "check", "status", "bench"] {
        assert!(help.contains(verb), "{help}");
    }
    assert!(stdout_of(&["--version"]).starts_with("bimetal "));
    let serve = stdout_of(&["serve", "--help"]);
    for option in ["--force-open", "read-only", "fork", "--rebuild"] {
        assert!(serve.contains(option), "{serve}");
    }
}

#[test]
fn mistakes_in_a_configuration_name_their_place() {
    let dir = Scratch::new("mistakes");
    let memory = "[device.a]\ntype = \"memory\"\nsize = \"1MiB\"\n";
    let export = "[export.v]\ndevice = \"a\"\nprotocol = \"nbd\"\nlisten = \"unix:v.sock\"\n";
    let cases = [
        (format!("{memory}sise = 3\n"), "c.toml:4:1", "sise"),
        (memory.replace("1MiB", "1Mib"), "c.toml:3:8", "1Mib"),
        (memory.replace("memory", "floppy"), "c.toml:1:9", "floppy"),
        (format!("{memory}[x]\n"), "c.toml:4:2", "[export.NAME]"),
        (
            format!("{memory}{}", export.replace("\"a\"", "\"b\"")),
            "c.toml:4:9",
            "no device `b`",
        ),
        (
            format!("{memory}{export}[server]\nmemori = \"1MiB\"\n"),
            "c.toml:9:1",
            "memori",
        ),
        ("[device.a".to_owned(), "c.toml:1:", ""),
    ];
    for (text, place, word) in cases {
        let config = dir.text("c.toml", &text);
        for verb in ["check", "serve", "format", "status"] {
            // Monitoring interprets exit status 1 of `status` as: the volumes work. So `status`
            // reports a mistake with exit status 2.
            let status = if verb == "status" { 2 } else { 1 };
            assert_refused(&[verb, arg(&config)], status, &[place, word]);
        }
    }
    assert_eq!(dir.names(), ["c.toml"], "nothing is written");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = Scratch::new("files");
    let missing = dir.path("missing.toml");
    assert_refused(&["check", arg(&missing)], 1, &["missing.toml"]);
    let export = "[export.v]\ndevice = \"a\"\nprotocol = \"nbd\"\nlisten = \"unix:v.sock\"\n";
    let file = "[device.a]\ntype = \"file\"\npath = \"a.img\"\n";
    let config = dir.text("c.toml", &format!("{file}{export}"));
    for verb in ["check", "serve"] {
        assert_refused(&[verb, arg(&config)], 1, &["device a", "a.img"]);
    }
    dir.zeroes("a.img", 4095);
    for verb in ["check", "serve"] {
        assert_refused(&[verb, arg(&config)], 1, &["device a", "a.img", "4 KiB"]);
    }
    assert_eq!(dir.names(), ["a.img", "c.toml"], "nothing is written");
}

#[test]
fn serve_wants_something_to_serve() {
    let dir = Scratch::new("nothing");
    let config = dir.text("c.toml", "[device.a]\ntype = \"null\"\nsize = \"1MiB\"\n");
    assert_refused(&["serve", arg(&config)], 1, &["[export.NAME]"]);
}

#[test]
fn status_without_a_server_has_status_2() {
    let dir = Scratch::new("alone");
    let config = dir.text("c.toml", "[device.a]\ntype = \"null\"\nsize = \"1MiB\"\n");
    assert_refused(&["status", arg(&config)], 2, &["c.ctl", "bimetal serve"]);
}
