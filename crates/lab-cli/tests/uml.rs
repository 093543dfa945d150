//! Tests of experiments in User-Mode Linux: the runs, the refusals, and that no files remain. If
//! `linux.uml` or a program that creates file systems is missing, each test that boots a guest
//! prints a message and returns. If the processor has more registers than `linux.uml` can save, the
//! lab must report this. To know whether this is the case, the tests boot a guest without the lab.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use std::path::Path;
use std::process::{Command, Stdio};

use program::{Scratch, arg, assert_refused, stdout_of};
use serde_json::Value;

/// Returns true if these programs are installed.
fn has(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let missing = programs.iter().find(|program| {
        let mut folders = std::env::split_paths(&path);
        !folders.any(|folder| folder.join(program).is_file())
    });
    if let Some(program) = missing {
        println!("skipped: {program} is missing");
    }
    missing.is_none()
}

/// Returns true if this processor can run User-Mode Linux. The test boots a guest directly, without
/// the lab, and looks for an error of its first program.
fn processor_is_fit() -> bool {
    let arguments =
        "mem=64M rootfstype=hostfs rootflags=/ ro init=/bin/true con=null con0=null,fd:1";
    let boot = Command::new("linux.uml")
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&boot.stdout);
    // The first program exits, so every boot ends with this kernel panic. The panic proves that the
    // kernel has started the program.
    assert!(said.contains("Attempted to kill init"), "{said}");
    !said.contains("ptrace set fp regs failed")
}

fn plan(folder: &Path, axes: &str, load: &str) -> String {
    format!(
        "name = \"small\"\nbackend = \"uml\"\nrepeats = 1\nmemory = \"128MiB\"\n\
         [axes]\ndevice = [\"disk\"]\nworkload = [\"load\"]\n{axes}\n\
         [device.disk]\ntype = \"uml\"\nfolder = \"{}\"\nsize = \"128MiB\"\n\
         [workload.load]\n{load}\n",
        folder.display()
    )
}

/// Message of the lab on a processor that cannot run User-Mode Linux.
const NOT_HERE: &str = "User-Mode Linux cannot run on this processor";

const SMALL: &str = "type = \"postmark\"\nfiles = 50\ntransactions = 200";

fn assert_nothing_is_left(folder: &Path) {
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn file_systems_of_a_guest_are_counted() {
    if !has(&["linux.uml", "mkreiserfs", "mkfs.ext2"]) {
        return;
    }
    let scratch = Scratch::new("lab-uml");
    let folder = scratch.path("disks");
    std::fs::create_dir(&folder).unwrap();
    let axes = "file_system = [\"ext2\", \"reiserfs\"]\nread_ahead = [\"32KiB\"]\nscheduler = [\"mq-deadline\"]";
    let file = scratch.text("small.toml", &plan(&folder, axes, SMALL));
    if !processor_is_fit() {
        assert_refused(&["run", arg(&file)], 1, &[NOT_HERE]);
        assert_nothing_is_left(&folder);
        return;
    }
    let report: Value = serde_json::from_str(&stdout_of(&["run", arg(&file), "--json"])).unwrap();
    assert_nothing_is_left(&folder);
    assert_eq!(report["backend"], "uml");
    let mut mounted = Vec::new();
    for run in std::fs::read_dir(scratch.path("small.results/runs")).unwrap() {
        let text = std::fs::read_to_string(run.unwrap().path()).unwrap();
        let run: Value = serde_json::from_str(&text).unwrap();
        let machine = &run["machine"];
        // The kernel version in the report is that of the guest, not of this machine.
        assert!(machine["kernel"].as_str().unwrap().starts_with("6.1"));
        let settings = machine["settings"].as_object().unwrap();
        let of = |name: &str| {
            let found = settings.iter().find(|(path, _)| path.ends_with(name));
            found.map(|(_, value)| value.as_str().unwrap())
        };
        assert_eq!(of("ubdb/queue/scheduler"), Some("mq-deadline"));
        assert_eq!(of("ubdb/queue/read_ahead_kb"), Some("32"));
        // 50 files are created at the start. About every second one of the 200 transactions creates
        // another file.
        let made = run["measured"]["figures"]["files_created"]
            .as_f64()
            .unwrap();
        assert!((120.0..180.0).contains(&made), "{made}");
        // The run has about 150 files of 12 KiB, and most of them are written at least once.
        let writes = &run["writes"];
        let of = |name: &str| writes[name].as_u64().unwrap();
        assert!(of("bios") > 50);
        assert_eq!(of("issued") + of("back_merges"), of("bios"));
        mounted.push((
            run["choice"]["file_system"].clone(),
            machine["made_by"].clone(),
        ));
    }
    mounted.sort_by_key(|(name, _)| name.to_string());
    let words: Vec<String> = mounted
        .iter()
        .map(|(name, by)| format!("{name} {by}"))
        .collect();
    assert!(words[0].starts_with("\"ext2\" \"mkfs.ext2 "), "{words:?}");
    assert!(
        words[1].starts_with("\"reiserfs\" \"mkreiserfs "),
        "{words:?}"
    );
    let page = std::fs::read_to_string(scratch.path("small.results/report.html")).unwrap();
    assert!(page.contains("in User-Mode Linux 6.1") && !page.contains(">Result<"));
    let shown = stdout_of(&["plan", arg(&file)]);
    assert!(shown.contains("0 of 2 runs are to be made"), "{shown}");
}

#[test]
fn what_fails_in_a_guest_is_one_line_and_leaves_nothing() {
    if !has(&["linux.uml"]) {
        return;
    }
    let scratch = Scratch::new("lab-uml-bad");
    let folder = scratch.path("disks");
    std::fs::create_dir(&folder).unwrap();
    let raw = "type = \"requests\"\npattern = \"random-read\"\ncount = 10";
    let axes = "file_system = [\"none\"]\nscheduler = [\"bfq\"]";
    let file = scratch.text("scheduler.toml", &plan(&folder, axes, raw));
    let words: &[&str] = match processor_is_fit() {
        true => &["in the guest", "bfq"],
        false => &[NOT_HERE],
    };
    assert_refused(&["run", arg(&file)], 1, words);
    assert_nothing_is_left(&folder);
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_boots() {
    let scratch = Scratch::new("lab-uml-refused");
    let axes = "file_system = [\"ext2\"]";
    let nowhere = scratch.text("nowhere.toml", &plan(&scratch.path("nowhere"), axes, SMALL));
    let spaced = scratch.path("two words");
    std::fs::create_dir(&spaced).unwrap();
    let spaced = scratch.text("spaced.toml", &plan(&spaced, axes, SMALL));
    if has(&["linux.uml", "mkfs.ext2"]) {
        assert_refused(&["run", arg(&nowhere)], 1, &["nowhere", "No such file"]);
        assert_refused(&["run", arg(&spaced)], 1, &["two words", "accepts no path"]);
        assert!(!scratch.path("nowhere.results").exists());
    }
    let folder = scratch.path("");
    let file = scratch.text("jfs.toml", &plan(&folder, "file_system = [\"jfs\"]", SMALL));
    assert_refused(
        &["plan", arg(&file)],
        1,
        &["jfs.toml:8:16", "`jfs`", "reiserfs"],
    );
    let native = plan(&folder, axes, SMALL).replace("backend = \"uml\"", "backend = \"native\"");
    let file = scratch.text("native.toml", &native);
    assert_refused(
        &["plan", arg(&file)],
        1,
        &["`uml` needs `backend = \"uml\"`"],
    );
    // The first program of a guest refuses to run outside a guest.
    assert_refused(&["guest", arg(&folder)], 1, &["first program of a guest"]);
}
