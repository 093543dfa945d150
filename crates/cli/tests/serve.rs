//! Tests of `bimetal serve` from its line `ready` to a clean end, and of `bimetal status` while the
//! server runs.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use common::{Client, READ, Scratch, Served, arg, assert_refused, bimetal, stdout_of};
use serde_json::Value;

const CONFIG: &str = "[device.a]\ntype = \"memory\"\nsize = \"4MiB\"\n\
    [device.top]\ntype = \"passthrough\"\nbelow = \"a\"\n\
    [export.vol]\ndevice = \"top\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n\
    [server]\nlock_memory = false\nmemory = \"8MiB\"\n";

#[test]
fn signals_end_it_cleanly() {
    let dir = Scratch::new("signals");
    let config = dir.text("c.toml", CONFIG);
    for signal in ["TERM", "INT"] {
        let served = Served::start(&config);
        assert_eq!(dir.names(), ["c.ctl", "c.toml", "vol.sock"]);
        assert_eq!(served.end(signal), (Some(0), String::new()));
        assert_eq!(dir.names(), ["c.toml"], "sockets are removed");
    }
}

#[test]
fn status_is_for_the_owner_and_for_machines() {
    let dir = Scratch::new("status");
    let config = dir.text("c.toml", CONFIG);
    let served = Served::start(&config);
    let mode = std::fs::metadata(dir.path("c.ctl"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let status: Value =
        serde_json::from_str(&stdout_of(&["status", arg(&config), "--json"])).unwrap();
    assert_eq!(status["version"], 1);
    assert_eq!(status["health"], "healthy");
    assert_eq!(status["devices"]["top"]["size_bytes"], 4 << 20);
    assert_eq!(status["exports"]["vol"]["device"], "top");
    assert!(status["exports"]["vol"]["statistics"]["reads"].is_u64());
    assert!(stdout_of(&["status", arg(&config)]).starts_with("healthy"));
    assert_eq!(served.end("TERM").0, Some(0));
    assert_eq!(bimetal(&["status", arg(&config)]).status.code(), Some(2));
}

#[test]
fn the_control_socket_survives_nonsense() {
    let dir = Scratch::new("control");
    let config = dir.text("c.toml", CONFIG);
    let served = Served::start(&config);
    let talk = |request: &[u8]| -> Value {
        let mut stream = UnixStream::connect(dir.path("c.ctl")).unwrap();
        // The server can close the connection before a line that is too long has been sent
        // completely.
        let _ = stream.write_all(request);
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    for request in [
        &b"{}\n"[..],
        b"status\n",
        b"\n",
        b"{\"verb\":\"stop\"}\n",
        b"\xff\xfe\n",
    ] {
        assert!(talk(request)["error"].is_string(), "{request:?}");
    }
    assert!(
        talk(&[b'x'; 70_000])["error"]
            .as_str()
            .unwrap()
            .contains("65536")
    );
    // Two requests in one packet get two answers over the same connection.
    let mut stream = UnixStream::connect(dir.path("c.ctl")).unwrap();
    stream
        .write_all(b"{\"verb\":\"status\"}\n{\"verb\":\"status\"}\n")
        .unwrap();
    let mut lines = BufReader::new(stream).lines();
    for _ in 0..2 {
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["health"], "healthy");
    }
    assert_eq!(served.end("TERM").0, Some(0));
}

#[test]
fn a_second_server_is_refused_and_a_dead_one_replaced() {
    let dir = Scratch::new("second");
    let config = dir.text("c.toml", CONFIG);
    let served = Served::start(&config);
    assert_refused(&["serve", arg(&config)], 1, &["vol.sock"]);
    let other = dir.text("other.toml", &CONFIG.replace("vol.sock", "other.sock"));
    let text = std::fs::read_to_string(&other).unwrap();
    std::fs::write(&other, format!("{text}control = \"unix:c.ctl\"\n")).unwrap();
    assert_refused(&["serve", arg(&other)], 1, &["c.ctl", "another server"]);
    // The sockets of a killed server remain, and the next server replaces them.
    let (status, _) = served.end("KILL");
    assert_eq!(status, None);
    assert!(dir.path("c.ctl").exists());
    assert_eq!(Served::start(&config).end("TERM").0, Some(0));
}

#[test]
fn a_stop_that_cannot_end_names_the_device() {
    let dir = Scratch::new("stuck");
    let config = dir.text(
        "c.toml",
        "[device.m]\ntype = \"memory\"\nsize = \"4MiB\"\n\
         [device.slow]\ntype = \"delay\"\nbelow = \"m\"\nread = \"1h\"\n\
         [export.vol]\ndevice = \"slow\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n\
         [server]\nlock_memory = false\nstop_deadline = \"100ms\"\n",
    );
    let served = Served::start(&config);
    let mut client = Client::connect(&dir.path("vol.sock"));
    client.ask(READ, 0, 4096, &[]);
    let reads = || -> u64 {
        let said = stdout_of(&["status", arg(&config), "--json"]);
        let status: Value = serde_json::from_str(&said).unwrap();
        status["exports"]["vol"]["statistics"]["reads"]
            .as_u64()
            .unwrap()
    };
    assert!((0..10_000).any(|_| reads() == 1), "the read has arrived");
    let (status, said) = served.end("TERM");
    assert_eq!(status, Some(1));
    assert!(
        said.contains("device slow") && said.lines().count() == 1,
        "{said}"
    );
    drop(client);
}
