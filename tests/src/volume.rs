//! A configuration in a separate directory, and runs of the program's verbs on it.

use crate::client::{Client, Outcome};
use crate::scratch::Scratch;
use crate::server::{Server, binary, uri};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Bytes in 1 MiB.
pub const MIB: u64 = 1 << 20;

/// A configuration file together with the files that it names, all in one scratch directory.
#[derive(Debug)]
pub struct Volume {
    dir: Scratch,
    config: PathBuf,
}

impl Volume {
    /// Creates a volume from the text of its configuration, which is written to `vol.toml`.
    pub fn from_toml(name: &str, text: &str) -> Self {
        let dir = Scratch::new(name);
        let config = dir.text("vol.toml", text);
        Self { dir, config }
    }

    /// Creates a volume with a memory device behind the export `vol`.
    pub fn memory(name: &str, size_bytes: u64) -> Self {
        let device = format!(
            "[device.vol]\ntype = \"memory\"\nsize = \"{}MiB\"\n",
            size_bytes / MIB
        );
        Self::from_toml(name, &(device + EXPORT_VOL))
    }

    /// Creates and formats a mirror of the sparse files `a.img` and `b.img`, of `side_bytes` each.
    pub fn mirror(name: &str, side_bytes: u64) -> Self {
        let volume = Self::from_toml(name, &mirror_toml());
        volume.dir.sparse("a.img", side_bytes);
        volume.dir.sparse("b.img", side_bytes);
        volume.verb("format").ok();
        volume
    }

    /// Does the same as [`Volume::mirror`] for sides with homes. The configuration does not say so
    /// afterwards: how a side that exists stores blocks, its superblock says.
    pub fn with_homes(name: &str, side_bytes: u64) -> Self {
        let volume = Self::from_toml(name, &mirror_toml());
        volume.dir.sparse("a.img", side_bytes);
        volume.dir.sparse("b.img", side_bytes);
        volume.format_homes();
        volume
    }

    /// Formats the sides of the mirror `vol` with homes, whatever the configuration says, which
    /// stays as it is.
    pub fn format_homes(&self) {
        let text = std::fs::read_to_string(&self.config).expect("the configuration");
        let with_homes = text.replace("[device.vol]\n", "[device.vol]\nlayout = \"home\"\n");
        assert_ne!(text, with_homes, "the configuration has the mirror `vol`");
        self.dir.text("vol.toml", &with_homes);
        self.verb("format").ok();
        self.dir.text("vol.toml", &text);
    }

    /// Returns the directory of the configuration.
    pub fn dir(&self) -> &Scratch {
        &self.dir
    }

    /// Returns the path of the configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Returns the command `bimetal VERB CONFIG`; the caller runs it.
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

    /// Returns the path of the socket `vol.sock`, on which the export of every configuration of
    /// this module listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.file("vol.sock")
    }

    /// Returns the URI of the export `vol`.
    pub fn uri(&self) -> String {
        uri(&self.socket(), "vol")
    }

    /// Returns the server's answer to `status --json`. Exit status 1, which means a degraded
    /// volume, is accepted.
    pub fn status(&self) -> Value {
        let outcome = self.verb("status").arg("--json").run();
        assert!(matches!(outcome.status, Some(0 | 1)), "{outcome}");
        let status: Value = serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|e| panic!("status --json is not JSON: {e}\n{outcome}"));
        let is_healthy = outcome.status == Some(0);
        assert_eq!(status["health"] == "healthy", is_healthy, "{outcome}");
        status
    }

    /// Returns the present value of a statistic of the mirror `vol`.
    pub fn statistic(&self, name: &str) -> f64 {
        let status = self.status();
        let statistic = status["devices"]["vol"]["statistics"][name].as_f64();
        statistic.unwrap_or_else(|| panic!("no figure {name} in {status:#}"))
    }

    /// Returns the health that the mirror `vol` reports for one of its sides.
    pub fn health(&self, side: &str) -> String {
        let status = self.status();
        let word = status["devices"]["vol"]["parts"][side]["health"].as_str();
        word.unwrap_or_else(|| panic!("no health of {side} in {status:#}"))
            .to_owned()
    }

    /// Runs a verb with `--json` and returns the parsed output.
    pub fn json(&self, verb: &str) -> Value {
        let outcome = self.verb(verb).arg("--json").ok();
        serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|e| panic!("{verb} --json is not JSON: {e}\n{outcome}"))
    }

    /// Returns the size of the volume in bytes, as `check --json` reports it.
    pub fn size_bytes(&self) -> u64 {
        let report = self.json("check");
        report["devices"]["vol"]["size_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("no devices.vol.size_bytes in {report:#}"))
    }

    /// Returns the offset of the volume's first byte inside the side `device`, which has a home, in
    /// bytes, as `check --json` reports it. From this offset on, the side holds the volume's bytes
    /// in order, so the data can be read from one disk with losetup(8) alone.
    pub fn side_data_offset(&self, device: &str) -> u64 {
        let report = self.json("check");
        report["devices"][device]["data_offset_bytes"]
            .as_u64()
            .unwrap_or_else(|| panic!("no devices.{device}.data_offset_bytes in {report:#}"))
    }
}

/// Configuration that exports the device `vol` as `vol` on the UNIX socket `vol.sock`.
pub const EXPORT_VOL: &str =
    "[export.vol]\ndevice = \"vol\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n";

/// Returns the configuration of a mirror `vol`, whose sides are the file devices `a` and `b`, and
/// of an export `vol` of this mirror.
pub fn mirror_toml() -> String {
    let side = |name: &str| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n\n");
    let mirror = "[device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\n";
    side("a") + &side("b") + mirror + EXPORT_VOL
}

/// Asserts that `outcome` is a refusal that a user can read. The exit status is neither 0 nor the
/// status of a crash, and standard output is empty. Standard error has one line, after which only a
/// list of ranges is allowed. Standard error must contain each of `words`.
pub fn assert_refused(outcome: &Outcome, words: &[&str]) {
    let status = outcome
        .status
        .unwrap_or_else(|| panic!("ended by a signal: {outcome}"));
    // Status 101 means a Rust panic, 124 a missed deadline, and 134 and above a signal, as a shell
    // reports it.
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
