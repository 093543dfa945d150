//! A config in a directory of its own, and the verbs run on it.

use crate::client::{Client, Outcome};
use crate::scratch::Scratch;
use crate::server::{Server, binary, uri};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// 1 MiB.
pub const MIB: u64 = 1 << 20;

/// A config file with the files it names, all in one scratch directory.
#[derive(Debug)]
pub struct Volume {
    dir: Scratch,
    config: PathBuf,
}

impl Volume {
    /// A volume from the text of a config; the config is `vol.toml`.
    pub fn from_toml(name: &str, text: &str) -> Self {
        let dir = Scratch::new(name);
        let config = dir.text("vol.toml", text);
        Self { dir, config }
    }

    /// A memory device behind the export `vol`.
    pub fn memory(name: &str, size_bytes: u64) -> Self {
        let device = format!(
            "[device.vol]\ntype = \"memory\"\nsize = \"{}MiB\"\n",
            size_bytes / MIB
        );
        Self::from_toml(name, &(device + EXPORT_VOL))
    }

    /// A mirror of the files `a.img` and `b.img`, sparse and of `side_bytes` each, formatted.
    pub fn mirror(name: &str, side_bytes: u64) -> Self {
        let volume = Self::from_toml(name, &mirror_toml());
        volume.dir.sparse("a.img", side_bytes);
        volume.dir.sparse("b.img", side_bytes);
        volume.verb("format").ok();
        volume
    }

    /// The directory of the config.
    pub fn dir(&self) -> &Scratch {
        &self.dir
    }

    /// The config file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// `bimetal VERB CONFIG`, not yet run.
    pub fn verb(&self, verb: &str) -> Client {
        Client::new(binary())
            .arg(verb)
            .arg(&self.config)
            .within_s(60)
    }

    /// Serves the volume.
    pub fn serve(&self) -> Server {
        Server::start(&self.config)
    }

    /// The socket of every config made here.
    pub fn socket(&self) -> PathBuf {
        self.dir.file("vol.sock")
    }

    /// The URI of the export `vol`.
    pub fn uri(&self) -> String {
        uri(&self.socket(), "vol")
    }

    /// What `status --json` says of the server. A degraded volume is an answer as well (status 1).
    pub fn status(&self) -> Value {
        let outcome = self.verb("status").arg("--json").run();
        assert!(matches!(outcome.status, Some(0 | 1)), "{outcome}");
        let status: Value = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|e| panic!("status --json is not JSON: {e}\n{outcome}"));
        let is_healthy = outcome.status == Some(0);
        assert_eq!(status["health"] == "healthy", is_healthy, "{outcome}");
        status
    }

    /// A live figure of the mirror `vol`, as a number.
    pub fn figure(&self, name: &str) -> f64 {
        let status = self.status();
        let figure = status["devices"]["vol"]["figures"][name].as_f64();
        figure.unwrap_or_else(|| panic!("no figure {name} in {status:#}"))
    }

    /// The word `health` that the mirror `vol` says of one of its sides.
    pub fn health(&self, side: &str) -> String {
        let status = self.status();
        let word = status["devices"]["vol"]["parts"][side]["health"].as_str();
        word.unwrap_or_else(|| panic!("no health of {side} in {status:#}"))
            .to_owned()
    }

    /// Runs a verb with `--json` and returns what it printed.
    pub fn json(&self, verb: &str) -> Value {
        let outcome = self.verb(verb).arg("--json").ok();
        serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|e| panic!("{verb} --json is not JSON: {e}\n{outcome}"))
    }

    /// Size of the volume in bytes, as `check --json` reports it.
    pub fn size_bytes(&self) -> u64 {
        let report = self.json("check");
        report["devices"]["vol"]["size_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("no devices.vol.size_bytes in {report:#}"))
    }

    /// Where the volume's first byte lies inside the side `device`, in bytes, as `check --json`
    /// reports it. From there on a side holds the volume's bytes in order, so that a person with
    /// nothing but one disk and losetup(8) gets at the data.
    pub fn side_data_offset(&self, device: &str) -> u64 {
        let report = self.json("check");
        report["devices"][device]["data_offset_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("no devices.{device}.data_offset_bytes in {report:#}"))
    }
}

/// The export `vol` of the device `vol` on the UNIX socket `vol.sock`.
pub const EXPORT_VOL: &str =
    "[export.vol]\ndevice = \"vol\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n";

/// A mirror `vol` of the file devices `a` and `b`, exported.
pub fn mirror_toml() -> String {
    let side = |name: &str| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n\n");
    let mirror = "[device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\n";
    side("a") + &side("b") + mirror + EXPORT_VOL
}

/// Panics unless `outcome` is a refusal fit for a person: a status that is neither 0 nor a
/// crash's, nothing on standard output, one line on standard error with `words` in it, and behind
/// it nothing but a list of ranges.
pub fn assert_refused(outcome: &Outcome, words: &[&str]) {
    let status = outcome
        .status
        .unwrap_or_else(|| panic!("ended by a signal: {outcome}"));
    // 101 is a Rust panic, 124 a deadline, 134 and above a signal seen through a shell.
    assert!((1..=100).contains(&status), "not a refusal: {outcome}");
    assert!(
        outcome.stdout.is_empty(),
        "a refusal says nothing on stdout: {outcome}"
    );
    let mut lines = outcome.stderr.lines();
    assert!(lines.next().is_some(), "a refusal says why: {outcome}");
    let is_item = |line: &str| line.starts_with("  ") && line.contains('+');
    assert!(lines.all(is_item), "a refusal is one line: {outcome}");
    for word in words {
        assert!(
            outcome.stderr.contains(word),
            "the line must say {word:?}: {outcome}"
        );
    }
}
