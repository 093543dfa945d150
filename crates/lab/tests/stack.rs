//! Runs on devices of this project's stack, in real time.

use std::future::{pending, ready};
use std::path::Path;

use bimetal_block::IoError;
use bimetal_lab::failure::RunError;
use bimetal_lab::layer::LoadError;
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::Plan;
use bimetal_lab::stack;
use bimetal_rt::{Rt, UringOptions};

const PLAN: &str = r#"
name = "ours"
backend = "stack"
repeats = 1
scale = 0.002
memory = "16GiB"

[axes]
device = ["vol"]
scheduler = ["deadline"]
file_system = ["ext3"]
workload = ["mail"]

[device.vol]
type = "stack"
top = "top"
depth = 4
overwrite = true

[device.vol.device.data]
type = "memory"
size = "64MiB"

[device.vol.device.top]
type = "passthrough"
below = "data"

[workload.mail]
type = "postmark"
load = "SS"
"#;

fn plan(text: &str) -> Result<Plan, String> {
    Plan::parse(Path::new("x.toml"), text).map_err(|error| error.to_string())
}

fn run(text: &str, stop: impl Future<Output = ()>) -> Result<Outcome, RunError> {
    let plan = plan(text).unwrap();
    let cell = &plan.cells[0];
    let rt = Rt::real_time(UringOptions {
        pool_bytes: 16 << 20,
        register: false,
        ..UringOptions::default()
    })
    .unwrap();
    let outcome = rt.block_on(stack::run(&rt, &cell.choice, &cell.settings, 1, stop));
    rt.end();
    outcome
}

/// All random choices of the load come from the seed, so the load makes the same calls in real and
/// in virtual time. The number of requests at the device depends on the clock, but the counters are
/// always consistent.
#[test]
fn a_load_asks_the_same_of_a_stack_as_of_a_model() {
    let ours = run(PLAN, pending()).unwrap();
    let (device, load) = PLAN.split_once("[device.vol]").unwrap();
    let load = load.split_once("[workload.mail]").unwrap().1;
    let modelled = format!(
        "{}[device.vol]\ntype = \"ssd\"\nsize = \"64MiB\"\n[workload.mail]{load}",
        device.replace("backend = \"stack\"", "")
    );
    let modelled = plan(&modelled).unwrap();
    let cell = &modelled.cells[0];
    let modelled = bimetal_lab::cell::run(&cell.choice, &cell.settings, 1).unwrap();
    for figure in [
        "files_created",
        "program_read_bytes",
        "program_written_bytes",
    ] {
        assert_eq!(
            ours.measured.figures[figure], modelled.measured.figures[figure],
            "{figure}"
        );
    }
    let merges = ours.writes.back_merges + ours.writes.front_merges + ours.writes.request_merges;
    assert_eq!(
        ours.writes.issued + merges,
        ours.writes.bios + ours.writes.splits
    );
    assert!(
        ours.writes.bytes > 0 && ours.writes.issued > 0,
        "{:?}",
        ours.writes
    );
    let machine = ours.machine.unwrap();
    assert_eq!(machine.device, "top (passthrough), data (memory)");
}

#[test]
fn what_a_device_refuses_ends_a_run() {
    let failing = PLAN.replace(
        "type = \"passthrough\"",
        "type = \"error\"\ncode = \"medium\"\nops = [\"write\"]",
    );
    match run(&failing, pending()) {
        Err(RunError::Device(IoError::Medium)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_that_is_stopped_closes_what_it_has_opened() {
    let outcome = run(PLAN, ready(()));
    assert!(
        matches!(outcome, Err(RunError::Load(LoadError::Interrupted))),
        "{outcome:?}"
    );
}

#[test]
fn a_mistake_about_a_stack_has_its_place() {
    let wrong = |old: &str, new: &str| plan(&PLAN.replacen(old, new, 1)).unwrap_err();
    for (old, new, expected) in [
        ("top = \"top\"\n", "", "missing field `top`"),
        (
            "top = \"top\"",
            "top = \"tip\"",
            "`top` names no known device: `tip`, expected one of data, top",
        ),
        (
            "overwrite = true",
            "overwrite = false",
            "set `overwrite = true` to allow that",
        ),
        ("below = \"data\"", "below = \"date\"", "date"),
        (
            "size = \"64MiB\"",
            "size = \"64\"\nsise = 1",
            "unknown field `sise`",
        ),
        ("depth = 4", "depth = 0", "`depth` must be 1 to 1024"),
        (
            "type = \"stack\"",
            "type = \"stack\"\nprofile = \"x\"",
            "a device of type `stack` has no `profile`",
        ),
        (
            "backend = \"stack\"",
            "",
            "a device of type `stack` needs `backend = \"stack\"`, but this is `virtual`",
        ),
        (
            "\"ext3\"",
            "\"xfs\"",
            "no file_system `xfs`, expected one of ext2, ext3, reiserfs",
        ),
        ("\"deadline\"", "\"none\"", "no scheduler `none`"),
    ] {
        let line = wrong(old, new);
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
        assert!(line.starts_with("x.toml:"), "{line}");
    }
}

/// A device whose latencies come from a model reports its delay relative to the model. Another
/// device reports no delay.
#[test]
fn an_emulated_device_says_how_late_it_was() {
    let real = run(PLAN, pending()).unwrap();
    assert_eq!(real.machine.unwrap().lateness, None);
    let emulated = PLAN.replace("\"passthrough\"", "\"ssd\"");
    let lateness = run(&emulated, pending()).unwrap().machine.unwrap().lateness;
    let lateness = lateness.expect("the device is a model");
    assert!(lateness.events > 0 && lateness.max_ns >= lateness.mean_ns);
}
