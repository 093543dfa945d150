//! Runs the tester of the index without the program `bimetal-lab`: a range of seeds, or one seed
//! with its log of events.
//!
//! `cargo run --release -p bimetal-sim --example index_swarm -- 0..1000`; a second argument names
//! the fault classes, as for `bimetal-lab tester index-swarm`.

use bimetal_sim::index_tester::{self, Classes, Options};
use std::process::exit;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().unwrap_or_else(|| "0..100".to_owned());
    let classes = arguments.next().map(|names| Classes::parse(&names));
    let options = Options {
        classes: classes.map_or_else(Classes::withstood, |set| set.expect("names of classes")),
        ..Options::default()
    };
    bimetal_sim::tester::name_seed_on_panic();
    let number = |text: &str| text.parse().expect("a seed is a number");
    let Some((from, to)) = seeds.split_once("..") else {
        let verbose = true;
        let report = index_tester::run(number(&seeds), Options { verbose, ..options });
        print!("{}", report.text());
        return;
    };
    let summary = index_tester::swarm(number(from)..number(to), options, |report| {
        if report.finding.is_some() {
            println!("{}", report.summary());
        }
    });
    print!("{}", summary.text());
    exit(i32::from(!summary.failed.is_empty()));
}
