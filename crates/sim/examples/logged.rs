//! One cell of the experiment on formatted sides: `logged RATE SECONDS LOG_GIB SPAN_GIB [SETTINGS]`.

use bimetal_sim::experiment::hetero::{Devices, Load, Scheme, run};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> f64 { words[at].parse().expect("a number") };
    let gib = |at: usize| (number(at) * (1u64 << 30) as f64) as u64 / 65536 * 65536;
    let load = Load { writes_per_s: number(0) as u64, seconds: number(1) as u64, outstanding_max: 32, seed: 1 };
    let settings = words.get(4).cloned().unwrap_or_default();
    let schemes = [
        Scheme::SingleSsd,
        Scheme::hetero("bare", ""),
        Scheme::Logged { name: "logged".to_owned(), settings, log_bytes: gib(2), span_bytes: gib(3) },
    ];
    let only = words.get(5).is_some();
    for scheme in schemes.iter().skip(if only { 2 } else { 0 }) {
        let o = run(&Devices::fit_b(), scheme, load).expect("it runs");
        println!("{:10} {:6.1}/s mean {:8.2} p50 {:7.2} p99 {:8.2} p99.9 {:8.2} exposed {:5.1} MiB", scheme.name(), o.done_per_s, o.mean_ms, o.p50_ms, o.p99_ms, o.p999_ms, o.exposed_bytes_peak as f64 / 1048576.0);
        if let Some(m) = o.mirror { for s in m.sides { println!("   {s:?}"); } }
    }
}
