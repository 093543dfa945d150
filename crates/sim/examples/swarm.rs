//! Runs the simulation tester without the program: `swarm A..B [WORD...]` over seeds, `swarm N
//! [WORD...]` one seed with its log. The words: `once`, `heavy`, `small`, `plant=NAME`,
//! `classes=NAMES`.

use bimetal_sim::tester::{self, Classes, Extent, Options, Plant};

fn options_of(words: impl Iterator<Item = String>) -> Options {
    let mut options = Options::default();
    for word in words {
        match word.split_once('=') {
            None if word == "once" => options.once = true,
            None if word == "heavy" => options.extent = Extent::HeavyTailed,
            None if word == "small" => options.extent = Extent::Small,
            Some(("plant", name)) => {
                let plant = Plant::ALL.into_iter().find(|plant| plant.name() == name);
                options.plant = Some(plant.expect("a plant of the list in plant.rs"));
            }
            Some(("classes", names)) => {
                options.classes = Classes::parse(names).expect("names of classes");
            }
            _ => panic!("`{word}` is not understood"),
        }
    }
    options
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().unwrap_or_else(|| "0..100".to_owned());
    let options = options_of(arguments);
    tester::name_seed_on_panic();
    let number = |text: &str| text.parse().expect("a seed is a number");
    let Some((from, to)) = seeds.split_once("..") else {
        let options = Options {
            verbose: true,
            ..options
        };
        print!("{}", tester::run(number(&seeds), options).text());
        return;
    };
    let summary = tester::swarm(number(from)..number(to), options, |report| {
        if report.finding.is_some() {
            println!("{}", report.summary());
        }
    });
    print!("{}", summary.text());
    std::process::exit(i32::from(!summary.failed.is_empty()));
}
