//! Runs the simulation tester without the program `bimetal-lab`: `swarm A..B [WORD...]` runs a
//! range of seeds, and `swarm N [WORD...]` runs one seed with its log of events. The words: `once`,
//! `heavy`, `small`, `plant=NAME`, `classes=NAMES`, `cuts=N,N`, `every=NAME`, `sample=N`. The
//! planted bugs of logged sides need `--profile sim` in the place of `--release`.

use std::process::exit;

use bimetal_sim::tester::every::{Every, every, scenario_of};
use bimetal_sim::tester::{self, Classes, Extent, Options, Plant};

/// Fault to inject at every I/O boundary (arrival or completion of a request), and the number of
/// boundaries in a random sample.
#[derive(Default)]
struct Boundaries {
    every: Option<Every>,
    sample: Option<u64>,
}

fn options_of(words: impl Iterator<Item = String>) -> (Options, Boundaries) {
    let mut options = Options::default();
    let mut boundaries = Boundaries::default();
    for word in words {
        match word.split_once('=') {
            None if word == "once" => options.once = true,
            None if word == "heavy" => options.extent = Extent::HeavyTailed,
            None if word == "small" => options.extent = Extent::Small,
            Some(("plant", name)) => {
                let plant = Plant::all().find(|plant| plant.name() == name);
                let plant = plant.expect("a plant of the list in plant/mod.rs");
                options.plant = Some(plant);
                options.classes = plant.classes();
            }
            Some(("classes", names)) => {
                options.classes = Classes::parse(names).expect("names of classes");
            }
            Some(("cuts", numbers)) => {
                let numbers = numbers.split(',').map(|n| n.parse().expect("a number"));
                for (cut, number) in options.interference.cuts.iter_mut().zip(numbers) {
                    *cut = number;
                }
            }
            Some(("every", name)) => {
                let found = Every::ALL.into_iter().find(|every| every.name() == name);
                boundaries.every = Some(found.expect("a name of the list in every.rs"));
            }
            Some(("sample", count)) => {
                boundaries.sample = Some(count.parse().expect("a number"));
            }
            _ => panic!("`{word}` is not understood"),
        }
    }
    (options, boundaries)
}

fn run_every(seeds: std::ops::Range<u64>, what: Every, sample: Option<u64>, options: Options) -> ! {
    let (mut runs, mut found) = (0u64, 0u64);
    for seed in seeds {
        let count = every(seed, what, sample, options, |number, report| {
            runs += 1;
            if report.finding.is_some() {
                found += 1;
                println!("at {number}: {}", report.summary());
            }
        });
        println!("seed {seed}: {count} times");
    }
    println!("{runs} runs, {found} with findings");
    exit(i32::from(found > 0))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().unwrap_or_else(|| "0..100".to_owned());
    let (options, boundaries) = options_of(arguments);
    tester::name_seed_on_panic();
    let number = |text: &str| text.parse().expect("a seed is a number");
    let Some((from, to)) = seeds.split_once("..") else {
        let options = Options {
            verbose: true,
            ..options
        };
        let seed = number(&seeds);
        let report = match boundaries.every {
            Some(_) => tester::run_scenario(&scenario_of(seed, options), options),
            None => tester::run(seed, options),
        };
        print!("{}", report.text());
        return;
    };
    if let Some(what) = boundaries.every {
        run_every(number(from)..number(to), what, boundaries.sample, options);
    }
    let summary = tester::swarm(number(from)..number(to), options, |report| {
        if report.finding.is_some() {
            println!("{}", report.summary());
        }
    });
    print!("{}", summary.text());
    exit(i32::from(!summary.failed.is_empty()));
}
