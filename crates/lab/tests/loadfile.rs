//! Load files of Dbench on modelled devices.

use std::path::{Path, PathBuf};

use bimetal_lab::cell::run;
use bimetal_lab::failure::RunError;
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::Plan;

/// A client creates a file of 64 KiB, syncs it, reads it and removes it.
const SCRIPT: &str = "\
0.0 NTCreateX \"/clients/client1/a.dat\" 0x40 0x2 5 NT_STATUS_OK
0.1 WriteX 5 0 65536 65536 NT_STATUS_OK
0.2 Flush 5 NT_STATUS_OK
0.3 ReadX 5 0 65536 65536 NT_STATUS_OK
0.4 Close 5 NT_STATUS_OK
0.5 QUERY_PATH_INFORMATION \"/clients/client1/a.dat\" 1 NT_STATUS_OK
0.6 Unlink \"/clients/client1/a.dat\" 0x16 NT_STATUS_OK
";

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("bimetal-loadfile-{name}-{}.txt", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // An error is ignored, because the file is no longer needed.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn plan(keys: &str) -> Result<Plan, String> {
    let text = format!(
        "name = \"clients\"\nrepeats = 1\n[axes]\ndevice = [\"ssd\"]\nscheduler = [\"noop\"]\nworkload = [\"clients\"]\n\
         [device.ssd]\ntype = \"ssd\"\nprofile = \"nvme-tlc\"\nsize = \"256MiB\"\n\
         [workload.clients]\ntype = \"clients\"\ncounts = [1, 2]\ntime = \"1s\"\n{keys}"
    );
    Plan::parse(Path::new("x.toml"), &text).map_err(|error| error.to_string())
}

fn with(path: &Path, keys: &str) -> Result<Outcome, RunError> {
    let plan = plan(&format!("script = \"{}\"\n{keys}", path.display())).unwrap();
    run(&plan.cells[0].choice, &plan.cells[0].settings, 1)
}

/// The clients write the same number of bytes as they read. Every write reaches the device, because
/// each pass over the load file syncs the file. No read reaches the device, because the file is in
/// memory.
#[test]
fn clients_do_what_was_recorded() {
    let file = File::new("recorded", SCRIPT);
    let of = with(&file.0, "").unwrap();
    let figures = &of.measured.figures;
    let moved: f64 = [figures["with_1_mb_per_s"], figures["with_2_mb_per_s"]]
        .iter()
        .sum();
    // The load runs for a second with one client, and then for a second with two clients. Half of
    // the bytes that the clients transfer are written. At the end of its second, each of these
    // three clients can be interrupted after its write and before the sync that sends the written
    // bytes to the device.
    let written_mb = of.writes.bytes as f64 / 1e6;
    let cut_mb = 3.0 * 65_536.0 / 1e6;
    assert!(moved > 10.0, "{moved} MB");
    assert!(
        written_mb >= moved / 2.0 - cut_mb,
        "{written_mb} of {moved} MB"
    );
    assert_eq!(of.measured.unit, "MB/s");
    let again = with(&file.0, "").unwrap();
    assert_eq!(again.measured, of.measured, "by the seed");
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let file = File::new("refused", SCRIPT);
    let refused = |path: &Path, keys: &str| with(path, keys).unwrap_err().to_string();
    let why = refused(Path::new("nowhere.txt"), "");
    assert!(why.starts_with("nowhere.txt: No such file"), "{why}");
    let why = refused(&file.0, "crc32c = \"00000000\"");
    assert!(why.contains("not the expected file"), "{why}");
    let wrong = File::new("wrong", "WriteX 1 0 8\n");
    let why = refused(&wrong.0, "");
    assert!(
        why.ends_with("line 1: the size that was moved is missing"),
        "{why}"
    );
    let idle = File::new("idle", "ReadX 1 0 8 8\n");
    let why = refused(&idle.0, "");
    assert!(why.contains("nothing of what it has opened"), "{why}");
    let why = plan("crc32c = \"00000000\"").unwrap_err();
    assert!(why.contains("there is none"), "{why}");
}
