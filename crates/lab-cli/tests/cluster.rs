//! Tests of the examples in `contrib/cluster`, which make the parts of a report on many machines.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use program::{Scratch, arg, stdout_of};

/// Python of Debian, whose packages have Dask.
const PYTHON: &str = "/usr/bin/python3";
const LAB: &str = env!("CARGO_BIN_EXE_bimetal-lab");
/// Items with some dozen runs.
const OPTIONS: [&str; 4] = ["--scale", "small", "--only", "1.7,1.9,2.1,4.6"];

fn example(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("contrib/cluster").join(name)
}

/// Makes the report with one run of the program, and returns its values.
fn values_of_one_run(scratch: &Scratch) -> String {
    let folder = scratch.path("one");
    stdout_of(&[&["papers", "--out", arg(&folder)], &OPTIONS[..]].concat());
    values_in(&folder)
}

fn values_in(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("values.json")).unwrap()
}

/// One of the two workers is killed when the first part is there. Dask starts another one, and
/// gives it the part that was lost.
#[test]
fn dask_makes_the_report_although_a_worker_is_killed() {
    let scratch = Scratch::new("cluster-dask");
    let folder = scratch.path("dask");
    let mut driver = Command::new(PYTHON)
        .arg(example("papers_dask.py"))
        .args(["--out", arg(&folder), "--program", LAB])
        .args(["--workers", "2", "--parts", "6", "--"])
        .args(OPTIONS)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let mut workers = Vec::new();
    let mut killed = None;
    while let Some(line) = lines.next().transpose().unwrap() {
        if let Some((_, process)) = line.split_once(" is process ") {
            workers.push(process.to_owned());
        }
        if line == "1 of 6 parts are made" {
            let kill = Command::new("kill").args(["-9", &workers[0]]).status();
            killed = Some(kill.unwrap().success());
        }
    }
    let ended = driver.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    assert_eq!((workers.len(), killed), (2, Some(true)), "{errors}");
    assert_eq!(values_in(&folder), values_of_one_run(&scratch));
}

#[test]
fn a_part_that_fails_ends_the_report_with_its_message() {
    let scratch = Scratch::new("cluster-fails");
    let ended = Command::new(PYTHON)
        .arg(example("papers_dask.py"))
        .args(["--out", arg(&scratch.path("dask")), "--program", LAB])
        .args(["--workers", "1", "--parts", "1", "--", "--only", "7.7"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    assert!(
        errors.contains("part 1 of 1: bimetal-lab: no item `7.7`"),
        "{errors}"
    );
}

/// The tasks of an array are run one after the other, with what Slurm tells them.
#[test]
fn the_tasks_of_a_slurm_array_make_the_parts() {
    let scratch = Scratch::new("cluster-slurm");
    let folder = scratch.path("slurm");
    let programs = Path::new(LAB).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut parts = Vec::new();
    for task in ["1", "2", "3"] {
        let ended = Command::new("sh")
            .arg(example("papers.slurm"))
            .arg(&folder)
            .args(OPTIONS)
            .env("PATH", &path)
            .env("SLURM_ARRAY_TASK_ID", task)
            .env("SLURM_ARRAY_TASK_COUNT", "3")
            .output()
            .unwrap();
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        parts.push(folder.join("parts").join(task));
    }
    let parts: Vec<&str> = parts.iter().map(|part| arg(part)).collect();
    stdout_of(&[&["papers", "--merge"], &parts[..], &["--out", arg(&folder)]].concat());
    assert_eq!(values_in(&folder), values_of_one_run(&scratch));
}
