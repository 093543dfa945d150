//! `bimetal record` on a volume in use: the trace must contain the client's requests.

use bimetal_tests::client::Client;
use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::Wire;
use bimetal_tests::server::{binary, lab_binary, send_signal};
use bimetal_tests::volume::{MIB, Volume, assert_refused};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running `bimetal record`, which is killed on drop. Until then, the pipe from its standard
/// error is kept open.
struct Recorder {
    child: Child,
    _stderr: BufReader<ChildStderr>,
}

impl Recorder {
    /// Starts a recorder, and returns once it has reported that it records.
    fn start(config: &Path, device: &str, out: &Path) -> Self {
        let mut child = Command::new(binary())
            .args(["record", "--json"])
            .arg(config)
            .arg(device)
            .arg("--out")
            .arg(out)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the recorder");
        let mut stderr = BufReader::new(child.stderr.take().expect("its stderr"));
        let mut line = String::new();
        let read = stderr.read_line(&mut line);
        assert!(
            read.is_ok() && line.starts_with("recording device"),
            "the recorder said {line:?}"
        );
        Self {
            child,
            _stderr: stderr,
        }
    }

    /// Ends the recorder with SIGINT, as Ctrl-C does, and returns its output.
    fn stop(mut self) -> Value {
        send_signal(self.child.id(), "INT");
        let status = eventually(30, "the recorder's end", || {
            self.child.try_wait().expect("wait for the recorder")
        });
        assert_eq!(status.code(), Some(0));
        let stdout = self.child.stdout.take().expect("its stdout");
        serde_json::from_reader(stdout).expect("one object")
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The recorder may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_recording_is_the_sequence_that_was_sent() {
    let volume = Volume::memory("record", 16 * MIB);
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &[1; 4096]);
    let out = volume.dir().file("t.csv");
    let recorder = Recorder::start(volume.config(), "vol", &out);
    // One answer of the server has no room for the records of all these requests, so the recorder
    // has to fetch them in parts.
    let mut sent = Vec::new();
    for number in 0..6000u64 {
        let offset = number * 7 % 4096 * 4096;
        if number % 3 == 0 {
            wire.write(offset, &[2; 4096]);
            sent.push(format!("Write,{offset},4096"));
        } else {
            let length = 4096 + number % 2 * 4096;
            let offset = offset.min(4094 * 4096);
            wire.read(offset, length as u32);
            sent.push(format!("Read,{offset},{length}"));
        }
    }
    let shown = recorder.stop();
    wire.write(0, &[3; 4096]);
    assert_eq!(shown["requests"]["write"], 2000, "{shown}");
    assert_eq!(shown["requests"]["read"], 4000, "{shown}");
    assert_eq!(shown["dropped"], 0, "{shown}");

    let text = std::fs::read_to_string(&out).expect("the trace");
    let mut times = Vec::new();
    let mut found = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(',').collect();
        times.push(fields[0].parse::<u64>().expect("a time"));
        found.push(fields[3..6].join(","));
    }
    assert!(
        found == sent,
        "the first lines: {:?}",
        &found[..10.min(found.len())]
    );
    assert!(times.is_sorted());
    drop(wire);
    server.stop();
}

#[test]
fn a_compact_recording_is_a_trace_for_the_other_verbs() {
    let volume = Volume::memory("record-compact", 16 * MIB);
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    let out = volume.dir().file("t.trace");
    let recorder = Recorder::start(volume.config(), "vol", &out);
    for block in 0..10 {
        wire.write(block * 4096, &[1; 8192]);
    }
    recorder.stop();
    let summary = Client::new(lab_binary())
        .args(["trace", "summary", "--json"])
        .arg(&out)
        .within_s(30)
        .ok();
    let summary: Value = serde_json::from_str(&summary.stdout).expect("JSON");
    assert_eq!(summary["format"], "compact", "{summary}");
    assert_eq!(summary["requests"]["write"], 10, "{summary}");
    // The writes cover the blocks 0 to 10.
    assert_eq!(summary["footprint_pages"], 11, "{summary}");
    server.stop();
}

#[test]
fn a_server_that_ends_leaves_a_whole_trace() {
    let volume = Volume::memory("record-end", 16 * MIB);
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    let out = volume.dir().file("t.trace");
    let mut recorder = Recorder::start(volume.config(), "vol", &out);
    wire.write(0, &[1; 4096]);
    drop(wire);
    server.stop();
    let status = eventually(30, "the recorder's end", || {
        recorder.child.try_wait().expect("wait for the recorder")
    });
    assert_eq!(status.code(), Some(1), "the server is gone");
    let summary = Client::new(lab_binary())
        .args(["trace", "summary"])
        .arg(&out);
    summary.within_s(30).ok();
}

#[test]
fn what_cannot_be_recorded_is_refused_and_leaves_no_file() {
    let volume = Volume::memory("record-refused", 16 * MIB);
    let out = volume.dir().file("t.trace");
    let record = |device: &str| {
        Client::new(binary())
            .args(["record"])
            .arg(volume.config())
            .arg(device)
            .arg("--out")
            .arg(&out)
            .within_s(30)
            .run()
    };
    assert_refused(&record("vol"), &["control socket"]);
    let server = volume.serve();
    assert_refused(&record("other"), &["other", "not open"]);
    assert!(!out.exists());
    let recorder = Recorder::start(volume.config(), "vol", &out);
    assert_refused(&record("vol"), &["t.trace", "exists"]);
    recorder.stop();
    server.stop();
}
