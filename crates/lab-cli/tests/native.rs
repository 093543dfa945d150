//! Tests of experiments on this machine: the runs, the refusals, and the restoring of settings. The
//! tests need root and loop devices; without these, each test prints a message and returns.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use program::{Scratch, arg, assert_refused, bimetal, command, stdout_of};
use serde_json::Value;

const JOURNAL: &str = "/run/bimetal-lab/journal.json";
/// Lock that lets only one test at a time change the machine.
static MACHINE: Mutex<()> = Mutex::new(());

/// Locks the machine for one test. Returns `None` if this user is not permitted to change the
/// machine, or if the machine has no loop devices.
fn machine() -> Option<MutexGuard<'static, ()>> {
    let guard = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let id = Command::new("id").arg("-u").output().unwrap();
    if id.stdout.trim_ascii() != b"0" || !Path::new("/dev/loop-control").exists() {
        println!("skipped: needs root and loop devices");
        return None;
    }
    Some(guard)
}

fn plan(folder: &Path, load: &str) -> String {
    format!(
        "name = \"small\"\nbackend = \"native\"\nrepeats = 1\nmemory = \"64MiB\"\n\
         [axes]\ndevice = [\"ram\"]\nscheduler = [\"none\", \"mq-deadline\"]\nread_ahead = [\"32KiB\"]\n\
         file_system = [\"ext4\"]\nworkload = [\"load\"]\n\
         [device.ram]\ntype = \"loop\"\nfolder = \"{}\"\nsize = \"64MiB\"\ndepth = 4\n\
         [workload.load]\n{load}\n",
        folder.display()
    )
}

const SMALL: &str = "type = \"postmark\"\nfiles = 50\ntransactions = 200";
/// A load that would take far longer than the test.
const ENDLESS: &str = "type = \"postmark\"\nfiles = 1000\ntransactions = 900_000_000";

/// Returns the names of the loop devices over files in `folder`.
fn devices_over(folder: &Path) -> Vec<String> {
    let inside = |name: &str| {
        let path = format!("/sys/block/{name}/loop/backing_file");
        std::fs::read_to_string(path).is_ok_and(|file| Path::new(file.trim()).starts_with(folder))
    };
    let all = std::fs::read_dir("/sys/block").unwrap();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| inside(name)).collect()
}

fn assert_nothing_is_left(folder: &Path) {
    assert!(!Path::new(JOURNAL).exists());
    assert_eq!(devices_over(folder), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("bimetal-lab"), "{mounts}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "another program is waited for, which has the real clock"
)]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_plan_is_run_and_says_what_was_set() {
    let Some(_machine) = machine() else { return };
    let scratch = Scratch::new("lab-native");
    let folder = scratch.path("backing");
    std::fs::create_dir(&folder).unwrap();
    let file = scratch.text("small.toml", &plan(&folder, SMALL));
    let shown = stdout_of(&["plan", arg(&file)]);
    assert!(
        shown.contains("2 of 2 runs are to be made") && shown.contains("of this machine"),
        "{shown}"
    );
    let report: Value = serde_json::from_str(&stdout_of(&["run", arg(&file), "--json"])).unwrap();
    assert_nothing_is_left(&folder);
    assert_eq!(report["backend"], "native");
    assert_eq!(report["cells"].as_array().unwrap().len(), 2);
    let runs = std::fs::read_dir(scratch.path("small.results/runs")).unwrap();
    for run in runs {
        let text = std::fs::read_to_string(run.unwrap().path()).unwrap();
        let run: Value = serde_json::from_str(&text).unwrap();
        // 50 files are created at the start. About every second one of the 200 transactions creates
        // another file.
        let made = run["measured"]["figures"]["files_created"]
            .as_f64()
            .unwrap();
        assert!((120.0..180.0).contains(&made), "{made}");
        let settings = run["machine"]["settings"].as_object().unwrap();
        let find = |name: &str| {
            let found = settings.iter().find(|(path, _)| path.ends_with(name));
            found.map(|(_, value)| value.as_str().unwrap())
        };
        assert_eq!(find("queue/scheduler"), run["choice"]["scheduler"].as_str());
        assert_eq!(find("queue/read_ahead_kb"), Some("32"));
        assert_eq!(find("queue/write_cache"), Some("write through"));
        assert_eq!(find("depth of the device"), Some("4"));
        // Most of the about 150 files of 12 KiB are written at least once.
        assert!(run["writes"]["bios"].as_u64().unwrap() > 50);
        assert_eq!(run["flushes"], 0);
    }
    let page = std::fs::read_to_string(scratch.path("small.results/report.html")).unwrap();
    assert!(page.contains("on this machine (Linux ") && !page.contains("in virtual time"));
    let shown = stdout_of(&["plan", arg(&file)]);
    assert!(shown.contains("0 of 2 runs are to be made"), "{shown}");
}

/// Tests that every kind of load runs to its end on a machine: loads on files, loads of many
/// programs, and loads on the device itself.
#[test]
fn every_load_runs_on_a_machine() {
    let Some(_machine) = machine() else { return };
    let scratch = Scratch::new("lab-native-loads");
    let folder = scratch.path("backing");
    std::fs::create_dir(&folder).unwrap();
    for (name, file_system, unit, load) in [
        (
            "stream",
            "ext2",
            "MB/s",
            "type = \"stream\"\nsize = \"4MiB\"\nseeks = 20",
        ),
        (
            "clients",
            "ext4",
            "MB/s",
            "type = \"clients\"\ncounts = [1, 3]\ntime = \"1s\"",
        ),
        (
            "sweep",
            "none",
            "MB/s",
            "type = \"sweep\"\npoints = 2\naccesses = 5\nbytes = \"1MiB\"",
        ),
        (
            "requests",
            "none",
            "requests/s",
            "type = \"requests\"\npattern = \"random-write\"\ndepth = 8\ncount = 300",
        ),
    ] {
        let text = plan(&folder, load).replace("\"ext4\"", &format!("\"{file_system}\""));
        let file = scratch.text(&format!("{name}.toml"), &text);
        let report: Value =
            serde_json::from_str(&stdout_of(&["run", arg(&file), "--json"])).unwrap();
        for cell in report["cells"].as_array().unwrap() {
            assert_eq!(cell["unit"], unit);
            assert!(cell["value"]["median"].as_f64().unwrap() > 0.0, "{name}");
        }
        if name == "requests" {
            // Each request bypasses the page cache and goes to the device. There can be more bios
            // than requests: with 8 requests in flight at a queue depth of 4, the kernel rejects
            // some bios, which are then submitted again.
            for cell in report["cells"].as_array().unwrap() {
                assert_eq!(cell["writes"]["bytes"], 300 * 4096);
                assert!(cell["writes"]["bios"].as_u64().unwrap() >= 300);
                assert_eq!(cell["writes"]["issued"], cell["writes"]["completed"]);
            }
        }
        assert_nothing_is_left(&folder);
    }
}

/// Tests recovery from a killed run, which has left its device, its mount and its file behind. The
/// next run must restore the machine and then continue the experiment.
#[test]
fn what_a_killed_run_has_left_is_put_back() {
    let Some(_machine) = machine() else { return };
    let scratch = Scratch::new("lab-native-kill");
    let folder = scratch.path("backing");
    std::fs::create_dir(&folder).unwrap();
    let endless = scratch.text("endless.toml", &plan(&folder, ENDLESS));
    for signal in ["KILL", "INT", "TERM"] {
        let mut child = command(&["run", arg(&endless)]);
        let mut child = child
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The mount is in a private namespace, so the test can see writes to the file system only
        // in the statistics of the device.
        eventually("a run is under way", || {
            let writes = |name: &String| {
                let text =
                    std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap_or_default();
                let count = text
                    .split_whitespace()
                    .nth(4)
                    .and_then(|n| n.parse::<u64>().ok());
                count.unwrap_or(0) > 500
            };
            devices_over(&folder).iter().any(writes)
        });
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        let status = child.wait().unwrap();
        if signal == "KILL" {
            assert!(Path::new(JOURNAL).exists());
            let said = stdout_of(&["restore"]);
            assert!(
                said.contains("/dev/loop") && said.contains("backing"),
                "{said}"
            );
            assert_eq!(stdout_of(&["restore"]), "nothing is left to restore\n");
        } else {
            assert_eq!(status.code(), Some(1));
        }
        assert_nothing_is_left(&folder);
    }
    let mut child = command(&["run", arg(&endless)]);
    let mut child = child
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("a device", || !devices_over(&folder).is_empty());
    let small = scratch.text("small.toml", &plan(&folder, SMALL));
    assert_refused(
        &["run", arg(&small)],
        1,
        &["another `bimetal-lab` is changing this machine"],
    );
    // A verb that changes nothing does not wait for the run.
    assert!(stdout_of(&["plan", arg(&small)]).contains("2 of 2 runs are to be made"));
    child.kill().unwrap();
    child.wait().unwrap();
    let output = bimetal(&["run", arg(&small)]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && said.contains("restored after a killed run: "),
        "{said}"
    );
    assert_nothing_is_left(&folder);
    assert!(stdout_of(&["plan", arg(&small)]).contains("0 of 2 runs are to be made"));
}

/// A loop device that belongs to the test. The program treats it like any other block device.
struct Given(PathBuf);

impl Given {
    fn over(file: &Path) -> Given {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .unwrap();
        let path = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "losetup");
        let given = Given(PathBuf::from(path.trim()));
        // A loop device keeps the limits of the run that used its number before, so reset the
        // limits first.
        std::fs::write(given.queue("../bdi/min_ratio_fine"), "0").unwrap();
        std::fs::write(given.queue("../bdi/max_ratio_fine"), "1000000").unwrap();
        given
    }

    fn queue(&self, name: &str) -> PathBuf {
        Path::new("/sys/block")
            .join(self.0.file_name().unwrap())
            .join("queue")
            .join(name)
    }

    /// Sets the I/O scheduler. A loop device keeps its scheduler when its file is detached, so
    /// dropping this value sets the scheduler `none`.
    fn schedule(&self, name: &str) {
        std::fs::write(self.queue("scheduler"), name).unwrap();
    }

    fn settings(&self) -> Vec<String> {
        let names = [
            "scheduler",
            "read_ahead_kb",
            "write_cache",
            "wbt_lat_usec",
            "nr_requests",
            "../bdi/max_ratio_fine",
            "../bdi/min_ratio_fine",
            "../bdi/strict_limit",
        ];
        names
            .iter()
            .map(|name| std::fs::read_to_string(self.queue(name)).unwrap())
            .collect()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.schedule("none");
        let _ = std::fs::write(self.queue("../bdi/min_ratio_fine"), "0");
        // If this fails, a loop device over a deleted file remains.
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

/// Tests that the settings of a given block device are restored after runs, and after a killed run.
#[test]
fn settings_of_a_given_device_are_put_back() {
    let Some(_machine) = machine() else { return };
    let scratch = Scratch::new("lab-native-block");
    let given = Given::over(&scratch.zeroes("disk.img", 64 << 20));
    given.schedule("bfq");
    std::fs::write(given.queue("iosched/slice_idle"), "3").unwrap();
    std::fs::write(given.queue("read_ahead_kb"), "764").unwrap();
    // The minimum ratio in this test is higher than the maximum ratio that a run sets. The kernel
    // rejects a maximum below the minimum, so the run must lower the minimum first.
    std::fs::write(given.queue("../bdi/min_ratio_fine"), "200000").unwrap();
    let before = given.settings();
    let of = |load: &str| {
        let text = plan(Path::new("/"), load);
        let (front, back) = text.split_once("type = \"loop\"").unwrap();
        let (_, back) = back.split_once("depth = 4").unwrap();
        format!(
            "{front}type = \"block\"\npath = \"{}\"\noverwrite = true{back}",
            given.0.display()
        )
    };
    let small = scratch.text("small.toml", &of(SMALL));
    stdout_of(&["run", arg(&small)]);
    assert_eq!(given.settings(), before);

    let endless = scratch.text("endless.toml", &of(ENDLESS));
    let mut child = command(&["run", arg(&endless)]);
    let mut child = child
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let window = given.queue("read_ahead_kb");
    eventually("settings are changed", || {
        std::fs::read_to_string(&window).unwrap() == "32\n"
    });
    child.kill().unwrap();
    child.wait().unwrap();
    stdout_of(&["restore"]);
    assert_eq!(given.settings(), before);
    assert_eq!(
        std::fs::read_to_string(given.queue("iosched/slice_idle")).unwrap(),
        "3\n"
    );

    // A mounted device is refused.
    let place = scratch.path("mounted");
    std::fs::create_dir(&place).unwrap();
    let run = |program: &str, args: &[&str]| {
        assert!(
            Command::new(program).args(args).status().unwrap().success(),
            "{program}"
        );
    };
    // The file system is created again, because the killed run may have overwritten it.
    run("mkfs.ext4", &["-q", "-F", arg(&given.0)]);
    run("mount", &[arg(&given.0), arg(&place)]);
    let refusal = format!("it is mounted at {}; a run would overwrite it", arg(&place));
    let again = scratch.text("again.toml", &of("type = \"postmark\"\nfiles = 51"));
    assert_refused(&["run", arg(&again)], 1, &[arg(&given.0), &refusal]);
    run("umount", &[arg(&place)]);
    assert!(!scratch.path("again.results").exists());
    assert_eq!(given.settings(), before);
}

#[test]
fn what_cannot_be_run_is_one_line_and_changes_nothing() {
    let Some(_machine) = machine() else { return };
    let scratch = Scratch::new("lab-native-bad");
    let folder = scratch.path("backing");
    std::fs::create_dir(&folder).unwrap();
    let good = plan(&folder, SMALL);
    for (old, new, expected) in [
        (
            "\"none\"",
            "\"cfq\"",
            "this kernel has no scheduler `cfq`, expected one of none",
        ),
        (
            "\"64MiB\"\ndepth",
            "\"8TiB\"\ndepth",
            "bytes are free, but the file needs 8796093022208 bytes",
        ),
        (
            "type = \"loop\"",
            "type = \"block\"\npath = \"/dev/null\"\noverwrite = true",
            "/dev/null: it is not a block device",
        ),
    ] {
        let mut text = good.replacen(old, new, 1);
        if new.contains("block") {
            let (front, back) = text.split_once("folder = ").unwrap();
            let (_, back) = back.split_once("depth = 4").unwrap();
            text = format!("{front}{back}");
        }
        let file = scratch.text("bad.toml", &text);
        assert_refused(&["run", arg(&file)], 1, &[expected]);
        assert_nothing_is_left(&folder);
    }
    let file = scratch.text("good.toml", &good);
    assert_refused(
        &["run", arg(&file), "--jobs", "2"],
        1,
        &["`--jobs` must be 1"],
    );
    // The program needs root. If an unprivileged user runs it, it must refuse before it creates a
    // folder.
    let program = env!("CARGO_BIN_EXE_bimetal-lab");
    let mut nobody = Command::new("setpriv");
    nobody.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        program,
        "run",
    ]);
    let output = nobody
        .arg(&file)
        .args(["--out", "/tmp/bimetal-lab-of-nobody"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "bimetal-lab: `backend = \"native\"` mounts file systems and changes settings of devices, which needs root\n"
    );
    assert!(!Path::new("/tmp/bimetal-lab-of-nobody").exists());
    assert_eq!(scratch.names(), ["backing", "bad.toml", "good.toml"]);
}
