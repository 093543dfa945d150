//! Replays of traces on modelled devices.

use std::path::{Path, PathBuf};

use bimetal_lab::cell::run;
use bimetal_lab::failure::RunError;
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::Plan;

/// Six requests within a second, in the format of the Cambridge traces: the time in units of 100
/// ns, the host, the disk, the type, the offset, the number of bytes, and a response time that is
/// ignored.
const TRACE: &str = "\
128166372000000000,host,0,Read,0,4096,0
128166372001000000,host,0,Write,8192,8192,0
128166372002000000,host,0,Read,4096,512,0
128166372002000000,host,0,Write,1048576,65536,0
128166372005000000,host,0,Read,40960,4096,0
128166372010000000,host,0,Read,81920,4096,0
";

struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let name = format!("bimetal-replay-{name}-{}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, TRACE).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // An error is ignored, because the file is no longer needed.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn plan(path: &Path, keys: &str) -> Result<Plan, String> {
    let text = format!(
        "name = \"replay\"\nrepeats = 1\n[axes]\ndevice = [\"ssd\"]\nscheduler = [\"noop\"]\nworkload = [\"trace\"]\n\
         [device.ssd]\ntype = \"ssd\"\nprofile = \"nvme-tlc\"\nsize = \"16MiB\"\n\
         [workload.trace]\ntype = \"replay\"\ntrace = \"{}\"\n{keys}",
        path.display()
    );
    Plan::parse(Path::new("x.toml"), &text).map_err(|error| error.to_string())
}

fn replay(path: &Path, keys: &str) -> Result<Outcome, RunError> {
    let plan = plan(path, keys).unwrap();
    run(&plan.cells[0].choice, &plan.cells[0].settings, 1)
}

/// The trace has six requests. The last one is due a second after the first, and takes less than 10
/// ms including plugging. Requests are extended to whole blocks: the four reads read one block
/// each, and the two writes write 2 and 16 blocks.
#[test]
fn requests_come_when_they_were_recorded() {
    let file = File::new("recorded");
    let of = replay(&file.0, "").unwrap();
    assert!(
        (1_000_000_000..1_010_000_000).contains(&of.elapsed_ns),
        "{}",
        of.elapsed_ns
    );
    assert_eq!((of.reads.bytes, of.writes.bytes), (4 * 4096, 18 * 4096));
    assert_eq!(of.measured.unit, "ms");
    assert_eq!(
        (
            of.measured.figures["requests"],
            of.measured.figures["made_late"]
        ),
        (6.0, 0.0)
    );
    let fast = replay(&file.0, "speed = 10.0").unwrap();
    assert!(
        (100_000_000..110_000_000).contains(&fast.elapsed_ns),
        "{}",
        fast.elapsed_ns
    );
    let first = replay(&file.0, "count = 2").unwrap();
    assert!(
        (100_000_000..110_000_000).contains(&first.elapsed_ns),
        "{}",
        first.elapsed_ns
    );
    assert_eq!(first.reads.bytes, 4096);
}

#[test]
fn requests_come_as_soon_as_there_is_room() {
    let file = File::new("closed");
    let of = replay(&file.0, "arrivals = \"closed\"\ndepth = 1").unwrap();
    assert!(of.elapsed_ns < 10_000_000, "{}", of.elapsed_ns);
    assert_eq!(of.measured.unit, "requests/s");
    assert_eq!(of.reads.bytes + of.writes.bytes, 22 * 4096);
}

#[test]
fn another_trace_and_none_are_refused() {
    let file = File::new("refused");
    let sum = format!("{:08x}", crc32c::crc32c(TRACE.as_bytes()));
    assert!(replay(&file.0, &format!("crc32c = \"{sum}\"")).is_ok());
    let error = replay(&file.0, "crc32c = \"00000001\"")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("not the expected file") && error.contains(&sum),
        "{error}"
    );
    let error = replay(Path::new("/nowhere/x.csv"), "")
        .unwrap_err()
        .to_string();
    assert!(error.contains("/nowhere/x.csv"), "{error}");
    for (keys, expected) in [
        (
            "format = \"cuneiform\"",
            "no format `cuneiform`, expected one of",
        ),
        ("count = 0", "`count` must be 1"),
        ("speed = 0.0", "`speed` must be above 0"),
        (
            "crc32c = \"xyz\"",
            "`crc32c` must be eight hexadecimal digits",
        ),
        ("arrivals = \"later\"", "unknown variant `later`"),
    ] {
        let error = plan(&file.0, keys).unwrap_err();
        assert!(
            error.starts_with("x.toml:") && error.contains(expected),
            "{error}"
        );
    }
}
