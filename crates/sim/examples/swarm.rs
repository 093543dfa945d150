//! Runs the simulation tester over seeds: `swarm A..B` (or one seed, with its log).

use bimetal_sim::tester::{self, Options, Plant};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().unwrap_or_else(|| "0..100".to_owned());
    let plant = arguments.next();
    let plant = plant.and_then(|name| Plant::ALL.into_iter().find(|p| p.name() == name));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(seed) = tester::current_seed() {
            eprintln!("seed {seed}:");
        }
        hook(info);
    }));
    let options = Options {
        plant,
        ..Options::default()
    };
    let Some((from, to)) = seeds.split_once("..") else {
        let seed = seeds.parse().expect("a seed is a number");
        let verbose = Options {
            verbose: true,
            ..options
        };
        print!("{}", tester::run(seed, verbose).text());
        return;
    };
    let number = |text: &str| text.parse().expect("a seed is a number");
    let summary = tester::swarm(number(from)..number(to), options, |report| {
        if report.finding.is_some() {
            println!("{}", report.summary());
        }
    });
    print!("{}", summary.text());
}
