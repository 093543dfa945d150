//! Scratch: prints the table.
use bimetal_sim::experiment::hetero::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let seconds: u64 = a.get(1).map_or(100, |s| s.parse().unwrap());
    let b = a.get(2).is_none_or(|s| s == "b");
    let hov = a.get(3).cloned().unwrap_or_default();
    let devices = Devices {
        ssd: if b { "sata-2009-b" } else { "sata-2009-a" }.into(),
        hdd: if b { "hdd-7200" } else { "hdd-7200-qd1" }.into(),
        ssd_overrides: String::new(),
        hdd_overrides: hov,
    };
    let mut list = schemes();
    for extra in a.iter().skip(4) {
        list.push(Scheme::Hetero {
            name: extra.clone(),
            settings: extra.replace(';', "\n"),
        });
    }
    for scheme in list {
        println!("== {}", scheme.name());
        let mut avg = 0.0;
        for rate in (40..=320).step_by(40) {
            let load = Load {
                writes_per_s: rate,
                seconds,
                outstanding_max: 32,
                seed: 1,
            };
            let o = run(&devices, &scheme, load).unwrap();
            avg += o.done_per_s / 8.0;
            println!(
                "{rate:4} {:7.1}/s mean {:7.1} p50 {:7.1} p99 {:8.1} p999 {:8.1} peak {:6.1} MB end {:6.1} sw {:.2}",
                o.done_per_s,
                o.mean_ms,
                o.p50_ms,
                o.p99_ms,
                o.p999_ms,
                o.exposed_bytes_peak as f64 / 1e6,
                o.exposed_bytes_end as f64 / 1e6,
                o.mode_switches_per_s
            );
            if let (Some(m), true) = (&o.mirror, std::env::var("V").is_ok()) {
                println!("     held {} early {}", m.held_back, m.acknowledged_early);
                for s in &m.sides {
                    println!(
                        "     {} {} w {} MB {} waiting {:.1} inflight {:.1} lag {:.2} med {:.1}",
                        s.name,
                        s.mode,
                        s.writes,
                        s.written_bytes / 1000000,
                        s.waiting_bytes as f64 / 1e6,
                        s.in_flight_bytes as f64 / 1e6,
                        s.lag_seconds,
                        s.write_median_ns as f64 / 1e6
                    );
                }
            }
        }
        println!("avg {avg:.1}");
    }
}
