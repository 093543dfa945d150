//! Puts the write load of the hetero-mirroring paper on one modelled device, in virtual time, and
//! prints throughput and response times. The load has Poisson arrivals at 40..320 writes/s, of
//! 10..500 kB in steps of 10 kB, at random offsets. At most 32 writes are outstanding (further
//! arrivals wait).
//!
//! Usage: device_load [PROFILE [SECONDS [OVERRIDES]]], where OVERRIDES is a line of TOML. With the
//! arguments `speed PROFILE COUNT`, the program only executes COUNT random 4 KiB writes at depth
//! 32, so that its run time can be measured from outside.

use std::error::Error;

use bimetal_block::media::model::{
    Command, CommandKind, ModelCounters, Parameters, TimingModel, profiles,
};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const S: u64 = 1_000_000_000;
const CAPACITY: u64 = 32_000_000_000;
const OUTSTANDING: usize = 32;

type Model = Box<dyn TimingModel + Send>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    if argument(0) == Some("speed") {
        let count = argument(2).unwrap_or("10000000").parse()?;
        return push(make(argument(1).unwrap_or("sata-2009"), "", 1)?, count);
    }
    let name = argument(0).unwrap_or("sata-2009");
    let seconds: u64 = argument(1).unwrap_or("300").parse()?;
    let overrides = argument(2).unwrap_or("");
    println!("{name}: {seconds} s for each of 3 seeds");
    println!("load/s    done/s   mean ms   p50 ms    p99 ms  p99.9 ms  frozen");
    for rate in (40..=320).step_by(40) {
        let mut responses_ns = Vec::new();
        let mut frozen_ns = 0;
        for seed in 1..=3 {
            let model = make(name, overrides, seed)?;
            frozen_ns += run(model, rate as f64, seconds * S, seed, &mut responses_ns).frozen_ns;
        }
        responses_ns.sort_unstable();
        let at = |share: f64| {
            let index = (responses_ns.len() as f64 * share) as usize;
            responses_ns[index.min(responses_ns.len() - 1)] as f64 / 1e6
        };
        let mean_ms = responses_ns.iter().sum::<u64>() as f64 / responses_ns.len() as f64 / 1e6;
        println!(
            "{rate:6} {:9.1} {mean_ms:9.1} {:8.1} {:9.1} {:9.1} {:6.1}%",
            responses_ns.len() as f64 / (3 * seconds) as f64,
            at(0.5),
            at(0.99),
            at(0.999),
            frozen_ns as f64 / (3 * seconds * S) as f64 * 100.0,
        );
    }
    Ok(())
}

fn make(name: &str, overrides: &str, seed: u64) -> Result<Model, Box<dyn Error>> {
    let Some(profile) = profiles().iter().find(|profile| profile.name == name) else {
        let known: Vec<&str> = profiles().iter().map(|profile| profile.name).collect();
        return Err(format!("unknown profile; there are {}", known.join(", ")).into());
    };
    let parameters = Parameters::from_profile(profile.of, name, overrides.parse()?)?;
    Ok(parameters.build(CAPACITY, seed)?)
}

/// Runs the load for `until_ns`, and appends the response time of every write that completed in
/// this time.
fn run(
    mut model: Model,
    rate_per_s: f64,
    until_ns: u64,
    seed: u64,
    responses_ns: &mut Vec<u64>,
) -> ModelCounters {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed + 1_000);
    let mut unit = move || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut sent_ns: Vec<u64> = Vec::new();
    let mut done = Vec::new();
    let (mut now_ns, mut arrival_ns, mut outstanding) = (0, 0, 0);
    while now_ns < until_ns {
        let event_ns = model.next_event_ns().unwrap_or(u64::MAX);
        if outstanding < OUTSTANDING && arrival_ns <= event_ns {
            now_ns = now_ns.max(arrival_ns);
            let len = 10_000 * (1 + (unit() * 50.0) as u64);
            let offset = (unit() * ((CAPACITY - len) / 4096) as f64) as u64 * 4096;
            let id = sent_ns.len() as u64;
            sent_ns.push(now_ns);
            let kind = CommandKind::Write;
            model.submit(
                now_ns,
                Command {
                    id,
                    kind,
                    offset,
                    len,
                    fua: false,
                },
            );
            outstanding += 1;
            arrival_ns = now_ns + (-(1.0 - unit()).ln() / rate_per_s * 1e9) as u64;
        } else {
            now_ns = now_ns.max(event_ns);
            model.advance_timed(now_ns, &mut done);
            outstanding -= done.len();
            responses_ns.extend(done.drain(..).map(|(id, ns)| ns - sent_ns[id as usize]));
        }
    }
    model.counters()
}

fn push(mut model: Model, count: u64) -> Result<(), Box<dyn Error>> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut done = Vec::new();
    let (mut sent, mut finished, mut now_ns) = (0, 0, 0);
    while finished < count {
        while sent < count && sent - finished < OUTSTANDING as u64 {
            let offset = rng.next_u64() % (CAPACITY / 4096) * 4096;
            let kind = CommandKind::Write;
            model.submit(
                now_ns,
                Command {
                    id: sent,
                    kind,
                    offset,
                    len: 4096,
                    fua: false,
                },
            );
            sent += 1;
        }
        now_ns = model.next_event_ns().ok_or("commands are pending")?;
        model.advance(now_ns, &mut done);
        finished += done.drain(..).count() as u64;
    }
    println!(
        "{count} writes in {:.3} modelled seconds",
        now_ns as f64 / 1e9
    );
    Ok(())
}
