//! Runs the simulation tester: `swarm A..B [PLANT]` over seeds, `swarm N [PLANT]` one seed with its
//! log.

use bimetal_sim::tester::{self, Options, Plant};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().unwrap_or_else(|| "0..100".to_owned());
    let plant = arguments.next().map(|name| {
        let mut plants = Plant::ALL.into_iter();
        plants
            .find(|plant| plant.name() == name)
            .expect("a plant of the list in plant.rs")
    });
    tester::name_seed_on_panic();
    let number = |text: &str| text.parse().expect("a seed is a number");
    let Some((from, to)) = seeds.split_once("..") else {
        let options = Options {
            verbose: true,
            once: false,
            plant,
        };
        print!("{}", tester::run(number(&seeds), options).text());
        return;
    };
    let options = Options {
        plant,
        ..Options::default()
    };
    let summary = tester::swarm(number(from)..number(to), options, |report| {
        if report.finding.is_some() {
            println!("{}", report.summary());
        }
    });
    print!("{}", summary.text());
    std::process::exit(i32::from(!summary.failed.is_empty()));
}
