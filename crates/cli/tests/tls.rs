//! Tests of TLS from the command line. The commands of `docs/tls.md` are executed unchanged. A
//! server, its clients and a client of another project use the certificates that these commands
//! create.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use std::net::TcpListener;
use std::process::Command;

use common::{Client, Scratch, Served, WRITE, arg, assert_refused, stdout_of};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/tls.md");

/// Returns the block of commands in `docs/tls.md`.
fn commands() -> &'static str {
    let (_, rest) = PAGE.split_once("```sh\n").expect("a block of commands");
    rest.split_once("```").expect("its end").0
}

fn certificates(dir: &Scratch) {
    let root = dir.path("");
    let mut shell = Command::new("sh");
    let output = shell.args(["-ec", commands()]).current_dir(root).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Returns a TCP port that was free when it was checked.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn config(brp: u16, nbd: u16, connection_threads: usize) -> String {
    let export = |name: &str, protocol: &str, port: u16| {
        format!(
            "[export.{name}]\ndevice = \"m\"\nprotocol = \"{protocol}\"\nlisten = \"tcp:127.0.0.1:{port}\"\n\
             tls = \"required\"\nclients = [{{ name = \"box.example\", rights = \"read-write\" }}]\n"
        )
    };
    [
        "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n".to_owned(),
        export("vol", "brp", brp),
        export("disk", "nbd", nbd),
        "[tls]\nca = \"ca.pem\"\ncert = \"server.pem\"\nkey = \"server.key\"\n".to_owned(),
        "[server]\nlock_memory = false\nmemory = \"8MiB\"\n".to_owned(),
        format!("connection_threads = {connection_threads}\n"),
    ]
    .concat()
}

#[test]
fn the_commands_of_the_page_make_what_both_ends_need() {
    let dir = Scratch::new("tls");
    certificates(&dir);
    for connection_threads in [0, 2] {
        serve_with(&dir, connection_threads);
    }
}

/// Serves with the certificates that the commands of `docs/tls.md` have created, and connects every
/// kind of client.
fn serve_with(dir: &Scratch, connection_threads: usize) {
    let (brp, nbd) = (free_port(), free_port());
    let config = config(brp, nbd, connection_threads);
    let served = Served::start(&dir.text("c.toml", &config));
    let threads = served.threads();
    let of_connections = threads
        .iter()
        .filter(|name| name.starts_with("connections "));
    assert_eq!(of_connections.count(), connection_threads, "{threads:?}");
    let path = |name: &str| arg(&dir.path(name)).to_owned();
    let (ca, cert, key) = (path("ca.pem"), path("box.pem"), path("box.key"));
    let own = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let target = format!("tcp:127.0.0.1:{brp}");

    let shown = stdout_of(&[&["exports", &target, "--json"], &own[..]].concat());
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["exports"][0]["name"], "vol");

    let listen = format!("unix:{}", path("vol.sock"));
    let to = ["proxy", &target, "--export", "vol", "--listen", &listen];
    let named = [&to[..], &own, &["--tls-name", "vault.example"]].concat();
    let proxy = Served::run(&named);
    let mut client = Client::connect(&dir.path("vol.sock"));
    client.write(8192, 7).unwrap();
    assert_eq!(client.read(8192).unwrap(), [7; 4096]);
    drop(client);
    assert_eq!(proxy.end("TERM"), (Some(0), String::new()));

    // A second server uses the export as a remote medium.
    let far = format!(
        "[device.far]\ntype = \"brp\"\naddress = \"{target}\"\n\
         tls = {{ ca = \"ca.pem\", cert = \"box.pem\", key = \"box.key\" }}\n\
         [export.vol]\ndevice = \"far\"\nprotocol = \"nbd\"\nlisten = \"unix:far.sock\"\n\
         [server]\nlock_memory = false\nmemory = \"8MiB\"\n"
    );
    let second = Served::start(&dir.text("far.toml", &far));
    let mut client = Client::connect(&dir.path("far.sock"));
    assert_eq!(client.read(8192).unwrap(), [7; 4096]);
    client.ask(WRITE, 0, 4096, &[1; 4096]);
    assert_eq!(client.answer(0), Ok(Vec::new()));
    drop(client);
    assert_eq!(second.end("TERM").0, Some(0));

    assert_refused(&["exports", &target], 1, &[&target]);
    let wrong = ["--tls-name", "other.example"];
    let wrong = [&["exports", &target], &own[..], &wrong].concat();
    assert_refused(&wrong, 1, &["other.example"]);
    let missing = own.map(|word| if word == key { "none.key" } else { word });
    assert_refused(
        &[&["exports", &target], &missing[..]].concat(),
        1,
        &["none.key", "No such file"],
    );
    libnbd(dir, nbd);
    // The operator gets reports about the refused clients, and no other reports.
    let (status, said) = served.end("TERM");
    assert_eq!(status, Some(0), "{said}");
    let is_acknowledged = |line: &str| line.contains("a client was refused: TLS");
    assert!(
        !said.is_empty() && said.lines().all(is_acknowledged),
        "{said}"
    );
}

/// Connects the NBD client of another project, libnbd, for which the certificate files must have
/// other names.
fn libnbd(dir: &Scratch, port: u16) {
    for (theirs, ours) in [
        ("ca-cert.pem", "ca.pem"),
        ("client-cert.pem", "box.pem"),
        ("client-key.pem", "box.key"),
    ] {
        std::fs::copy(dir.path(ours), dir.path(theirs)).unwrap();
    }
    let root = dir.path("");
    let root = arg(&root).trim_end_matches('/');
    let ask = |uri: String| {
        let mut nbdinfo = Command::new("nbdinfo");
        let output = nbdinfo.args(["--json", &uri]).output();
        let output = output.expect("nbdinfo is among the test dependencies");
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text)
    };
    let at = format!("127.0.0.1:{port}/disk");
    let (good, text) = ask(format!("nbds://{at}?tls-certificates={root}"));
    assert!(good, "{text}");
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["TLS"], true);
    assert_eq!(shown["exports"][0]["export-size"], 1 << 20);
    let (plain, text) = ask(format!("nbd://{at}"));
    assert!(!plain, "{text}");
}

#[test]
fn what_is_wrong_is_said_before_anything_listens() {
    let dir = Scratch::new("tls-wrong");
    let text = config(free_port(), free_port(), 0);
    let config = dir.text("c.toml", &text);
    assert_refused(&["serve", arg(&config)], 1, &["ca.pem", "No such file"]);
    let open = "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n\
        [export.vol]\ndevice = \"m\"\nprotocol = \"nbd\"\nlisten = \"tcp:0.0.0.0:0\"\n";
    let open = dir.text("open.toml", open);
    for verb in ["serve", "check"] {
        assert_refused(
            &[verb, arg(&open)],
            1,
            &["export.vol", "requires TLS", "required"],
        );
    }
}
