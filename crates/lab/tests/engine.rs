//! Tests from an experiment file to stored results: parsing, errors, runs, resumption and counters.

use std::path::{Path, PathBuf};

use bimetal_lab::cell::run;
use bimetal_lab::plan::Plan;
use bimetal_lab::report::{CellSummary, csv, summary};
use bimetal_lab::results::{Job, Results, jobs};
use bimetal_lab::statistics::estimate;

const PLAN: &str = r#"
name = "small"
repeats = 2
scale = 0.01
memory = "4GiB"
baseline = { scheduler = "noop" }

[axes]
device = ["disk"]
scheduler = ["noop", "quick"]
file_system = ["ext2", "ext3", "reiserfs"]
workload = ["mail"]

[[skip]]
scheduler = "quick"
file_system = ["ext2", "reiserfs"]

[device.disk]
type = "hdd"
profile = "hdd-5400"
size = "1GiB"
depth = 4

[scheduler.quick]
name = "deadline"
parameters = { read_expire = "100ms" }

[workload.mail]
type = "postmark"
load = "SS"
"#;

fn plan(text: &str) -> Result<Plan, String> {
    Plan::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("bimetal-lab-{name}-{}", std::process::id()));
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // An error is ignored, because the folder may not have been created.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn skipped_combinations_are_left_out() {
    let plan = plan(PLAN).unwrap();
    let names: Vec<String> = plan
        .cells
        .iter()
        .map(|cell| bimetal_lab::results::name_of(&cell.choice))
        .collect();
    assert_eq!(
        names,
        [
            "disk noop 128KiB back ext2 mail",
            "disk noop 128KiB back ext3 mail",
            "disk noop 128KiB back reiserfs mail",
            "disk quick 128KiB back ext3 mail",
        ]
    );
    assert_eq!(jobs(&plan, &[]).len(), 8);
}

#[test]
fn a_mistake_has_its_place_and_what_was_expected() {
    let wrong = |old: &str, new: &str| plan(&PLAN.replace(old, new)).unwrap_err();
    for (old, new, expected) in [
        (
            "\"ext2\", \"ext3\"",
            "\"ext2\", \"ext5\"",
            "x.toml:11:24: no file_system `ext5`, expected one of ext2, ext3, reiserfs",
        ),
        (
            "\"noop\", \"quick\"]",
            "\"noop\", \"quack\"]",
            "x.toml:10:22: no scheduler `quack`",
        ),
        (
            "baseline = { scheduler = \"noop\" }",
            "baseline = { scheduler = \"cfq\" }",
            "x.toml:6:26: `cfq` is not on the axis `scheduler`, which has noop, quick",
        ),
        (
            "repeats = 2",
            "repeats = 0",
            "x.toml:3:11: `repeats` must be 1 to 1000",
        ),
        (
            "file_system = [\"ext2\", \"ext3\", \"reiserfs\"]\nwork",
            "read_ahead = [\"1000B\"]\nfile_system = [\"ext2\", \"ext3\", \"reiserfs\"]\nwork",
            "x.toml:11:15: read-ahead of 1000B, expected a multiple of 4KiB up to 32MiB",
        ),
        (
            "load = \"SS\"",
            "files = 18_000_000_000",
            "`files` and `transactions` must be 1 to 1,000,000,000",
        ),
        (
            "load = \"SS\"",
            "sync = \"never\"",
            "unknown variant `never`, expected `transactions` or `removal`",
        ),
        (
            "load = \"SS\"",
            "load = \"XS\"",
            "no load `XS`, expected one of SS, SL, LS, LL",
        ),
        ("depth = 4", "dept = 4", "unknown field `dept`"),
        (
            "repeats = 2",
            "repeats = 2\nrepeats_max = 1",
            "`repeats_max` must be `repeats` to 1000",
        ),
        (
            "repeats = 2",
            "repeats = 2\nwithin = 0.0",
            "`within` must be above 0 and at most 1",
        ),
        (
            "type = \"hdd\"\nprofile = \"hdd-5400\"\nsize = \"1GiB\"",
            "type = \"flash\"\nsize = \"257GiB\"",
            "`size` of a flash device must be at most 256 GiB",
        ),
        (
            "profile = \"hdd-5400\"",
            "profile = \"hdd\"",
            "unknown profile \"hdd\"",
        ),
        (
            "read_expire = \"100ms\"",
            "read_expires = \"100ms\"",
            "read_expires",
        ),
    ] {
        let line = wrong(old, new);
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        assert!(line.starts_with("x.toml:"), "{line}");
    }
}

const NATIVE: &str = r#"
name = "small"
backend = "native"
repeats = 2

[axes]
device = ["ram", "sd"]
scheduler = ["none", "quick"]
file_system = ["ext4", "btrfs"]
workload = ["mail"]

[device.ram]
type = "loop"
folder = "/dev/shm"
size = "1GiB"
depth = 4

[device.sd]
type = "block"
path = "/dev/sdx"
overwrite = true

[scheduler.quick]
name = "mq-deadline"
parameters = { read_expire = 100 }

[workload.mail]
type = "postmark"
load = "SS"
"#;

/// Parsing a file never queries the machine, so these errors are the same on every machine.
#[test]
fn a_mistake_about_a_machine_has_its_place() {
    let wrong = |old: &str, new: &str| plan(&NATIVE.replacen(old, new, 1)).unwrap_err();
    for (old, new, expected) in [
        (
            "overwrite = true\n",
            "",
            "x.toml:18:1: every run overwrites all of /dev/sdx; set `overwrite = true` to allow that",
        ),
        (
            "folder = \"/dev/shm\"\nsize = \"1GiB\"",
            "file = \"/tmp/x\"",
            "x.toml:12:1: every run overwrites all of /tmp/x; set `overwrite = true` to allow that",
        ),
        (
            "folder = \"/dev/shm\"\n",
            "",
            "x.toml:12:1: a loop device needs a `folder` and a `size`, or a `file`",
        ),
        (
            "depth = 4",
            "depth = 3",
            "x.toml:12:1: `depth` of a loop device must be 4 to 128",
        ),
        (
            "path = \"/dev/sdx\"",
            "path = \"/dev/sdx\"\nsize = \"1GiB\"",
            "x.toml:18:1: a device of type `block` has no `size`, expected one of path, overwrite",
        ),
        (
            "backend = \"native\"",
            "memory = \"4GiB\"",
            "x.toml:8:14: no scheduler `none`",
        ),
        (
            "\"ext4\", \"btrfs\"",
            "\"ext4\", \"reiserfs\"",
            "x.toml:9:24: no file_system `reiserfs`, expected one of ext2, ext3, ext4, xfs, btrfs, none",
        ),
        (
            "\"none\", \"quick\"",
            "\"none\", \"../x\"",
            "x.toml:8:22: `../x` cannot be the name of a scheduler or of a parameter",
        ),
        (
            "\"ext4\", \"btrfs\"",
            "\"ext4\", \"none\"",
            "x.toml:27:1: the load needs files: `file_system` must not be `none` for it (`[[skip]]` excludes that)",
        ),
        (
            "type = \"postmark\"\nload = \"SS\"",
            "type = \"sweep\"",
            "x.toml:27:1: the load is on the device itself: `file_system` must be `none` for it (`[[skip]]` excludes others)",
        ),
        (
            "repeats = 2",
            "memory = \"16MiB\"",
            "x.toml:4:10: `memory` times `scale` must be 8192 pages of 4 KiB to 256 GiB",
        ),
        (
            "type = \"loop\"\nfolder = \"/dev/shm\"",
            "type = \"hdd\"",
            "x.toml:12:1: a device of type `hdd` needs `backend = \"virtual\"`, but this is `native`",
        ),
    ] {
        let line = wrong(old, new);
        assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
    }
    let modelled = PLAN.replace("type = \"hdd\"\nprofile = \"hdd-5400\"", "type = \"block\"");
    let line = plan(&modelled).unwrap_err();
    assert!(
        line.ends_with(
            "a device of type `block` needs `backend = \"native\"`, but this is `virtual`"
        ),
        "{line}"
    );
}

/// The identity of a plan includes the backend, the device and its queue depth. The stored settings
/// of a run parse to equal settings.
#[test]
fn an_identity_is_of_the_device_of_a_machine_too() {
    let of = |old: &str, new: &str| plan(&NATIVE.replacen(old, new, 1)).unwrap();
    let own = of("", "");
    assert_ne!(own.id(), of("depth = 4", "depth = 5").id());
    assert_ne!(own.id(), of("/dev/sdx", "/dev/sdy").id());
    for cell in &own.cells {
        let text = serde_json::to_string(&cell.settings).unwrap();
        let again: bimetal_lab::settings::Settings = serde_json::from_str(&text).unwrap();
        assert_eq!(again, cell.settings);
    }
    assert_eq!(own.cells.len(), 2 * 2 * 2);
}

/// Comments and names do not change the identity of a plan, but a parameter does.
#[test]
fn an_identity_is_of_what_a_plan_means() {
    let id = |text: &str| plan(text).unwrap().id();
    let commented = PLAN.replace("depth = 4", "# four\ndepth = 4");
    let renamed = PLAN.replace("mail", "post").replace("small", "tiny");
    assert_eq!(id(PLAN), id(&commented));
    assert_eq!(id(PLAN), id(&renamed));
    assert_ne!(id(PLAN), id(&PLAN.replace("depth = 4", "depth = 5")));
    assert_ne!(id(PLAN), id(&PLAN.replace("100ms", "101ms")));
}

#[test]
fn a_plan_is_interrupted_and_goes_on_and_gives_the_same() {
    let folder = Folder::new("resume");
    let plan = plan(PLAN).unwrap();
    let results = Results::create(&folder.0, &plan).unwrap();
    let all = jobs(&plan, &[]);
    for job in &all[..3] {
        assert_eq!(results.find(job).unwrap(), None);
        results.make(job).unwrap();
    }
    let (again, read) = Results::open(&folder.0).unwrap();
    assert_eq!(read.id(), plan.id());
    let found: Vec<bool> = all
        .iter()
        .map(|job| again.find(job).unwrap().is_some())
        .collect();
    assert_eq!(found.iter().filter(|found| **found).count(), 3);
    for job in &all {
        let made = again.make(job).unwrap();
        assert_eq!(again.find(job).unwrap(), Some(made));
    }
    let outcomes = again.outcomes(&plan).unwrap();
    assert_eq!(outcomes.len(), 8);
    let summary = summary(&plan, &outcomes);
    assert_eq!((summary.cells.len(), summary.runs), (4, (8, 8)));
    let compared: Vec<bool> = summary
        .cells
        .iter()
        .map(|cell| cell.ratio.is_some())
        .collect();
    assert_eq!(compared, [false, false, false, true]);
    let table = csv(&outcomes);
    let columns: Vec<usize> = table.lines().map(|line| line.split(',').count()).collect();
    // The columns are six axes, four columns of the run, eight counters and four latencies for each
    // direction, three counters of the device, three columns for freezes and CPU time, and two
    // columns for the delay of emulated devices.
    assert_eq!(columns, vec![6 + 4 + 2 * (8 + 4) + 3 + 3 + 2; 9]);
}

/// All data fits into memory, and ext2 has no journal. If the files are removed before the first
/// sync, only directory entries and inodes are written.
#[test]
fn what_is_removed_before_the_sync_is_never_written() {
    let folder = Folder::new("sync");
    let roomy = PLAN.replace("4GiB", "400GiB");
    let later = roomy.replace("load = \"SS\"", "load = \"SS\"\nsync = \"removal\"");
    let written = [&roomy, &later].map(|text| {
        let plan = plan(text).unwrap();
        let results = Results::create(&folder.0.join(plan.id()), &plan).unwrap();
        let all = jobs(&plan, &[]);
        let is_ext2 = |job: &&Job<'_>| job.cell.settings.file_system == "ext2";
        let outcome = results.make(all.iter().find(is_ext2).unwrap()).unwrap();
        (
            outcome.writes.bytes,
            outcome.measured.figures["files_created"],
        )
    });
    let [(at_once, created), (later, _)] = written;
    let shortest_bytes = 9 << 10;
    assert!(
        created >= 100.0 && at_once > 100 * shortest_bytes,
        "{at_once}"
    );
    assert!(later < at_once / 10, "{later} and not {at_once}");
}

/// Makes missing runs until no run is missing, or until `most` runs have been made.
fn go_on(results: &Results, plan: &Plan, most: usize) {
    let mut left = most;
    loop {
        let all = jobs(plan, &results.made(plan).unwrap());
        let mut missing = all
            .iter()
            .filter(|job| results.find(job).unwrap().is_none());
        let missing: Vec<_> = missing.by_ref().take(left).collect();
        if missing.is_empty() {
            return;
        }
        left -= missing.len();
        for job in missing {
            results.make(job).unwrap();
        }
    }
}

/// Cells with wide intervals are run again, together with their baseline cells; other cells are
/// not. An interruption does not change which runs are made.
#[test]
fn cells_are_repeated_until_their_intervals_are_narrow() {
    let text = PLAN.replace("repeats = 2", "repeats = 3\nrepeats_max = 6\nwithin = 0.2");
    let plan = plan(&text).unwrap();
    let (whole, cut) = (Folder::new("narrow"), Folder::new("narrow-cut"));
    let results = Results::create(&whole.0, &plan).unwrap();
    go_on(&results, &plan, usize::MAX);
    let outcomes = results.outcomes(&plan).unwrap();
    let all = summary(&plan, &outcomes);
    assert_eq!(all.runs, (outcomes.len(), outcomes.len()));
    for cell in &all.cells {
        let base = plan.baseline_of(&cell.choice).unwrap();
        let is_asked_for = |other: &&CellSummary| {
            let of = plan.baseline_of(&other.choice).unwrap();
            other.choice == cell.choice || (of == cell.choice && other.choice != base)
        };
        // After its third run, a cell gets one more run at a time, as long as an interval is too
        // wide: the interval of the cell itself, or of a cell that is compared with it.
        let mut asking = all.cells.iter().filter(is_asked_for);
        let wide_until = (3..6).take_while(|n| {
            asking.clone().any(|other| {
                let values = other.values.iter().take(*n as usize).copied();
                let of = estimate(&values.collect::<Vec<f64>>()).unwrap();
                !of.is_within(0.2)
            })
        });
        assert_eq!(cell.runs, 3 + wide_until.count(), "{:?}", cell.choice);
        assert_eq!(cell.is_narrow, cell.value.is_within(0.2));
        assert!(asking.next().is_some());
    }
    let runs: Vec<usize> = all.cells.iter().map(|cell| cell.runs).collect();
    assert!(runs.iter().any(|n| *n > 3), "some are repeated: {runs:?}");
    assert!(runs.iter().any(|n| *n < 6), "and some are not: {runs:?}");
    let again = Results::create(&cut.0, &plan).unwrap();
    go_on(&again, &plan, 13);
    go_on(&again, &plan, usize::MAX);
    assert_eq!(again.outcomes(&plan).unwrap(), outcomes);
}

/// A stored run whose settings do not match the name of its file is refused.
#[test]
fn a_strange_file_among_the_results_is_refused() {
    let folder = Folder::new("strange");
    let plan = plan(PLAN).unwrap();
    let results = Results::create(&folder.0, &plan).unwrap();
    let all = jobs(&plan, &[]);
    results.make(&all[0]).unwrap();
    let runs = folder.0.join("runs");
    let path = std::fs::read_dir(&runs)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"depth\": 4", "\"depth\": 8")).unwrap();
    assert!(results.find(&all[0]).is_err());
    std::fs::write(&path, "{").unwrap();
    assert!(results.find(&all[0]).is_err());
}

/// A load by an external program must name another load of the plan, and needs a real kernel.
#[test]
fn a_program_needs_a_load_of_ours_and_a_kernel() {
    let with = |of: &str| {
        let text = PLAN.replace("[\"mail\"]", "[\"program\"]");
        plan(&format!(
            "{text}sync = \"removal\"\n[workload.program]\ntype = \"tool\"\nof = \"{of}\"\n"
        ))
    };
    for (of, why) in [
        ("mail", "backend = \"native\""),
        ("male", "there is no [workload.male]"),
        ("program", "a built-in load"),
    ] {
        let error = with(of).unwrap_err();
        // The error gives a position in the file: the position of the section that declares the
        // external program.
        assert!(error.contains(why) && error.contains("x.toml:"), "{error}");
    }
}

/// The shipped files, and the example in `docs/lab.md`, are valid plans.
#[test]
fn shipped_files_and_the_example_are_plans() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = 0;
    for folder in ["contrib/lab", "contrib/lab/ssd-on-linux"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let plan = Plan::parse(&path, &text).unwrap();
                assert_eq!(plan.repeats, 5, "{}", path.display());
                found += 1;
            }
        }
    }
    assert_eq!(found, 12);
    let page = std::fs::read_to_string(root.join("docs/lab.md")).unwrap();
    let example = page.split("```toml").nth(1).unwrap();
    let plan = plan(example.split("```").next().unwrap()).unwrap();
    // The disk has 18 cells: three schedulers times two read-ahead windows times three file
    // systems. The flash device has only one read-ahead window, and so nine cells.
    assert_eq!(plan.cells.len(), 3 * 2 * 3 + 3 * 3);
}

/// With 4 MiB of memory, a program that removes a file waits for memory, and another one has to
/// write dirty pages meanwhile. The pages of the removed file have no place on the device any more.
#[test]
fn programs_with_little_memory_write_no_pages_of_a_removed_file() {
    let shipped = include_str!("../../../contrib/lab/ssd-on-linux/clients.toml");
    let text = shipped
        .replace("memory = \"1GiB\"", "memory = \"4MiB\"")
        .replace("time = \"20s\"", "time = \"2s\"");
    let plan = Plan::parse(Path::new("clients.toml"), &text).unwrap();
    for cell in &plan.cells {
        let of = run(&cell.choice, &cell.settings, 1).unwrap();
        assert!(of.measured.figures["with_60_mb_per_s"] > 0.0, "{cell:?}");
    }
}
