//! Rounds of requests on a modelled SSD, repeated until their rates are steady.

use std::path::Path;

use bimetal_lab::cell::run;
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::Plan;

fn requests(keys: &str) -> Outcome {
    let text = format!(
        "name = \"steady\"\nrepeats = 1\n[axes]\ndevice = [\"ssd\"]\nscheduler = [\"noop\"]\nworkload = [\"writes\"]\n\
         [device.ssd]\ntype = \"ssd\"\nprofile = \"nvme-tlc\"\nsize = \"16MiB\"\n\
         [workload.writes]\ntype = \"requests\"\npattern = \"random-write\"\ndepth = 4\ncount = 500\n{keys}"
    );
    let plan = Plan::parse(Path::new("x.toml"), &text).unwrap();
    run(&plan.cells[0].choice, &plan.cells[0].settings, 1).unwrap()
}

/// The device is written twice, and then each round writes 500 pages. The main metric is the mean
/// rate of the last five rounds.
#[test]
fn rounds_are_made_on_a_written_device_until_they_are_alike() {
    let of = requests("steady = true");
    let figures = &of.measured.figures;
    let rounds = &of.measured.curves["requests/s against rounds"];
    assert_eq!(rounds.len() as f64, figures["rounds"]);
    assert!((5..=25).contains(&rounds.len()), "{rounds:?}");
    assert_eq!(
        of.writes.bytes,
        (2 << 24) + rounds.len() as u64 * 500 * 4096
    );
    let window: Vec<f64> = rounds[rounds.len() - 5..]
        .iter()
        .map(|point| point.1)
        .collect();
    let mean = window.iter().sum::<f64>() / 5.0;
    assert!((of.measured.value - mean).abs() < mean * 1e-9, "{window:?}");
    let apart = window.iter().all(|rate| (rate - mean).abs() <= mean * 0.2);
    assert!(figures["is_steady"] == 0.0 || apart, "{window:?}");
}

#[test]
fn without_rounds_nothing_is_written_before() {
    let of = requests("");
    assert_eq!(of.writes.bytes, 500 * 4096);
    assert!(!of.measured.figures.contains_key("rounds"));
}
