//! Source 1: the hetero-mirroring paper (Byun).
//!
//! The runs are those of `bimetal-lab mirror`, and the plan `contrib/lab/hetero-mirroring`.

mod items;

use std::collections::BTreeMap;

use bimetal_sim::experiment::comparison::{
    Comparison, Extent, OUTSTANDING_MAX, Row, Summary, WRITES_PER_S,
};
use bimetal_sim::experiment::hetero::{
    BOUNDED, Devices, Load, Outcome, PAPER, PAPER_WAIT_LIMIT, PAPERS_BYTES, Scheme, schemes,
};

use super::cell::{Cell, Raw};
use super::folder::{Missing, Runs};
use super::item::{BarValue, Drawing, Found, Line, Reading, bar, mean_curve};
use super::pairs::Pairs;
use super::plans::{self, PlanText};
use super::scope::Scope;

pub use items::ITEMS;

/// The readings of the paper: the fit of its devices, and the scheme. The first one is that of the
/// numbered steps of its algorithm, which acknowledge a write at the first completion.
const READINGS: [(&str, &str, &str); 5] = [
    ("b", PAPER, "fit B, acknowledged at the first completion"),
    (
        "b",
        PAPER_WAIT_LIMIT,
        "fit B, acknowledged at the wait limit",
    ),
    ("a", PAPER, "fit A, acknowledged at the first completion"),
    (
        "a",
        PAPER_WAIT_LIMIT,
        "fit A, acknowledged at the wait limit",
    ),
    (
        "b",
        BOUNDED,
        "not the paper: our mirror, exposure bounded at 64 MiB, fit B",
    ),
];

/// Load from which the paper's curves flatten, in writes per second.
const KNEE_PER_S: u64 = 160;

fn devices(fit: &str) -> Devices {
    match fit {
        "a" => Devices::fit_a(),
        _ => Devices::fit_b(),
    }
}

fn seconds(scope: &Scope) -> u64 {
    scope.sized(10, 300)
}

fn load(scope: &Scope, writes_per_s: u64, seed: u64) -> Load {
    Load {
        writes_per_s,
        seconds: seconds(scope),
        warm_up_s: 0,
        span_bytes: PAPERS_BYTES,
        outstanding_max: OUTSTANDING_MAX,
        seed,
    }
}

fn mirror_cell(scope: &Scope, fit: &str, scheme: Scheme, writes_per_s: u64, seed: u64) -> Cell {
    Cell::Mirror {
        devices: devices(fit),
        scheme,
        load: load(scope, writes_per_s, seed),
    }
}

fn comparison_cells(scope: &Scope) -> Vec<Cell> {
    let mut cells = Vec::new();
    for seed in scope.seeds() {
        for fit in ["b", "a"] {
            for scheme in schemes() {
                let of_load = |rate| mirror_cell(scope, fit, scheme.clone(), rate, seed);
                cells.extend(WRITES_PER_S.map(of_load));
            }
        }
    }
    cells
}

/// Returns the comparison of all schemes on the devices of a fit, for one seed.
fn comparison(scope: &Scope, runs: &Runs, fit: &str, seed: u64) -> Result<Comparison, Missing> {
    let mut rows = Vec::new();
    for scheme in schemes() {
        for writes_per_s in WRITES_PER_S {
            let cell = mirror_cell(scope, fit, scheme.clone(), writes_per_s, seed);
            let Raw::Mirror(outcome) = runs.get(&cell)? else {
                return Err(Missing(cell.name()));
            };
            rows.push(Row {
                scheme: scheme.name().to_owned(),
                writes_per_s,
                outcome: Outcome::clone(outcome),
            });
        }
    }
    Ok(Comparison {
        devices: devices(fit),
        extent: Extent {
            writes_per_s: WRITES_PER_S.to_vec(),
            seconds: seconds(scope),
            warm_up_s: 0,
            span_bytes: PAPERS_BYTES,
            seeds: 1,
        },
        rows,
    })
}

fn of_scheme<'c>(comparison: &'c Comparison, scheme: &str) -> Vec<(u64, &'c Outcome)> {
    let rows = comparison.rows.iter().filter(|row| row.scheme == scheme);
    rows.map(|row| (row.writes_per_s, &row.outcome)).collect()
}

fn summary_of(comparison: &Comparison, scheme: &str) -> Summary {
    let mut all = comparison.summaries().into_iter();
    let found = all.find(|summary| summary.scheme == scheme);
    found.expect("every scheme has a summary")
}

/// Adds the values of a scheme in one comparison to its reading.
fn add_values(reading: &mut Reading, comparison: &Comparison, scheme: &str) {
    let summary = summary_of(comparison, scheme);
    let of = |name: &str| of_scheme(comparison, name);
    let (ours, single, mirror) = (of(scheme), of("single SSD"), of("SSD mirror"));
    let peak = |of: &[(u64, &Outcome)]| of.iter().map(|(_, o)| o.done_per_s).fold(0.0, f64::max);
    let done = |of: &[(u64, &Outcome)]| of.iter().map(|(_, o)| o.done_per_s).sum::<f64>();
    let least_from_knee = |base: &[(u64, &Outcome)]| {
        let pairs = ours
            .iter()
            .zip(base)
            .filter(|((rate, _), _)| *rate >= KNEE_PER_S);
        let gains = pairs.map(|((_, o), (_, b))| o.done_per_s / b.done_per_s - 1.0);
        gains.fold(f64::MAX, f64::min)
    };
    let response = |of: &[(u64, &Outcome)], base: &[(u64, &Outcome)]| {
        let changes = of
            .iter()
            .zip(base)
            .map(|((_, o), (_, b))| o.mean_ms / b.mean_ms - 1.0);
        changes.sum::<f64>() / of.len() as f64
    };
    let last = ours.last().map_or(0.0, |(_, o)| o.done_per_s);
    reading.push("average_gain", summary.average_gain);
    reading.push("peak", peak(&ours));
    reading.push("mirror_peak", peak(&mirror));
    reading.push("peak_gain", summary.peak_gain_over_ssd_mirror);
    reading.push("least_over_single", least_from_knee(&single));
    reading.push("least_over_mirror", least_from_knee(&mirror));
    reading.push("sinking", last / peak(&ours) - 1.0);
    reading.push("response", summary.response_change);
    reading.push("mirror_response", response(&mirror, &single));
    reading.push("response_over_mirror", response(&ours, &mirror));
    reading.push("gain_over_mirror", done(&ours) / done(&mirror) - 1.0);
}

fn readings(scope: &Scope, runs: &Runs) -> Result<Vec<Reading>, Missing> {
    let mut readings = Vec::new();
    for (fit, scheme, name) in READINGS {
        let mut reading = Reading::new(name);
        for seed in scope.seeds() {
            add_values(&mut reading, &comparison(scope, runs, fit, seed)?, scheme);
        }
        readings.push(reading);
    }
    Ok(readings)
}

/// Draws a value of all schemes over the load, on the devices of fit B.
fn curves(
    scope: &Scope,
    runs: &Runs,
    y: &str,
    value: fn(&Outcome) -> f64,
) -> Result<Drawing, Missing> {
    let mut by_scheme: BTreeMap<usize, Vec<Vec<(f64, f64)>>> = BTreeMap::new();
    for seed in scope.seeds() {
        let comparison = comparison(scope, runs, "b", seed)?;
        for (style, scheme) in schemes().iter().enumerate() {
            let rows = of_scheme(&comparison, scheme.name()).into_iter();
            let curve = rows.map(|(rate, outcome)| (rate as f64, value(outcome)));
            by_scheme.entry(style).or_default().push(curve.collect());
        }
    }
    let names = [
        "SSD-1",
        "SSD-Mr",
        "Hete-Mr, first",
        "Hete-Mr, limit",
        "ours, bounded",
    ];
    let lines = by_scheme.into_iter().zip(names);
    Ok(Drawing::Lines {
        title: "Ours, on fit B of the devices".to_owned(),
        x: "writes per second that arrive".to_owned(),
        y: y.to_owned(),
        lines: lines
            .map(|((style, curves), name)| Line {
                name: name.to_owned(),
                style,
                points: mean_curve(&curves),
            })
            .collect(),
    })
}

fn mirror_conditions(scope: &Scope) -> String {
    format!(
        "Writes of 10 to 500 KB at random offsets, {} s of virtual time at each of eight loads; at \
         most 32 are outstanding. No CPU time is charged.",
        seconds(scope)
    )
}

fn find_throughput(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let mut drawing = curves(scope, runs, "completed writes per second", |o| o.done_per_s)?;
    if let Drawing::Lines { lines, .. } = &mut drawing {
        let ends = [WRITES_PER_S[0], WRITES_PER_S[WRITES_PER_S.len() - 1]];
        for (name, peak) in [("paper: 147", 147.0), ("paper: 114", 114.0)] {
            lines.push(Line {
                name: name.to_owned(),
                style: 22,
                points: ends.map(|rate| (rate as f64, peak)).to_vec(),
            });
        }
    }
    Ok(Found {
        conditions: mirror_conditions(scope),
        readings: readings(scope, runs)?,
        drawings: vec![drawing],
    })
}

fn find_response(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    Ok(Found {
        conditions: mirror_conditions(scope),
        readings: readings(scope, runs)?,
        drawings: vec![curves(scope, runs, "mean response time in ms", |o| {
            o.mean_ms
        })?],
    })
}

fn find_conclusion(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    Ok(Found {
        conditions: mirror_conditions(scope),
        readings: readings(scope, runs)?,
        drawings: Vec::new(),
    })
}

/// Devices on which writes are compared one by one: both fits, and fit B with a disk that has a
/// volatile cache, although the paper says that disk caches are off.
fn pair_devices() -> [(Devices, &'static str); 3] {
    let mut cached = Devices::fit_b();
    cached.hdd_overrides += "\nwrite_cache_bytes = 16000000";
    [
        (Devices::fit_b(), "fit B, disk cache off as in the paper"),
        (Devices::fit_a(), "fit A, disk cache off as in the paper"),
        (cached, "fit B, disk with a volatile cache of 16 MB"),
    ]
}

fn pair_cells(scope: &Scope, writes_per_s: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for seed in scope.seeds() {
        let of_devices = |(devices, _)| Cell::Pairs {
            devices,
            load: load(scope, writes_per_s, seed),
        };
        cells.extend(pair_devices().map(of_devices));
    }
    cells
}

fn find_pairs(scope: &Scope, runs: &Runs, writes_per_s: u64) -> Result<Found, Missing> {
    let (mut readings, mut drawings) = (Vec::new(), Vec::new());
    for (devices, name) in pair_devices() {
        let mut reading = Reading::new(name);
        for seed in scope.seeds() {
            let cell = Cell::Pairs {
                devices: devices.clone(),
                load: load(scope, writes_per_s, seed),
            };
            let Raw::Pairs(pairs) = runs.get(&cell)? else {
                return Err(Missing(cell.name()));
            };
            add_pairs(&mut reading, pairs);
            if drawings.is_empty() {
                drawings.push(Drawing::Spikes {
                    title: format!("Ours, {name}, the first writes of the first seed"),
                    x: "number of the write".to_owned(),
                    y: "times as long: above on the SSD, below on the disk".to_owned(),
                    values: pairs.ratios.clone(),
                });
            }
        }
        readings.push(reading);
    }
    Ok(Found {
        conditions: format!(
            "{writes_per_s} writes per second for {} s; the SSD and the disk each get the same \
             writes at the same times, and are compared write by write. The largest ratio grows with \
             the number of writes, which the paper does not give.",
            seconds(scope)
        ),
        readings,
        drawings,
    })
}

fn add_pairs(reading: &mut Reading, pairs: &Pairs) {
    let (ssd, disk) = (pairs.ssd_spikes as f64, pairs.disk_spikes as f64);
    reading.push("ssd_slower", pairs.ssd_slower_most);
    reading.push("disk_slower", pairs.disk_slower_most);
    let balance = if ssd + disk > 0.0 {
        (ssd - disk) / (ssd + disk)
    } else {
        0.0
    };
    reading.push("balance", balance);
    let writes = pairs.writes.max(1) as f64;
    reading.push("within_limit", pairs.within_limit as f64 / writes);
    reading.push("both_held_up", pairs.both_held_up as f64);
    reading.push("longest_s", pairs.ssd_longest_ms / 1e3);
}

/// The plan of the rates of the devices.
const MARK: PlanText = PlanText {
    name: "disk-mark",
    text: include_str!("../../../../../contrib/lab/hetero-mirroring/disk-mark.toml"),
    small: &[
        ("count = 1000\n", "count = 100\n"),
        ("count = 20000", "count = 500"),
    ],
};

fn mark_cells(scope: &Scope) -> Vec<Cell> {
    plans::cells(scope, &MARK, |_| true)
}

fn find_mark(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let loads = [
        ("read", "in sequence", "sequential_read"),
        ("read-512k", "512 KiB", "read_512k"),
        ("read-4k", "4 KiB", "read_4k"),
        ("write", "in sequence", "sequential_write"),
        ("write-512k", "512 KiB", "write_512k"),
        ("write-4k", "4 KiB", "write_4k"),
    ];
    let rate = |device: &str, workload: &str| {
        let choice = [("device", device), ("workload", workload)];
        plans::figures(
            scope,
            runs,
            &MARK,
            &choice,
            |o| o.measured.figures["mb_per_s"],
        )
    };
    let (mut readings, mut rows) = (Vec::new(), Vec::new());
    let fits = [("ssd", "hdd", "fit B"), ("ssd-a", "hdd-a", "fit A")];
    for (ssd, hdd, name) in fits {
        let mut reading = Reading::new(name);
        for (load, title, key) in loads {
            let (of_ssd, of_hdd) = (rate(ssd, load)?, rate(hdd, load)?);
            for (s, h) in of_ssd.iter().zip(&of_hdd) {
                reading.push(&format!("ssd_{key}"), *s);
                reading.push(&format!("hdd_{key}"), *h);
                reading.push(&format!("ratio_{key}"), s / h);
                reading.push(&format!("change_{key}"), s / h - 1.0);
            }
            if readings.is_empty() {
                rows.push((title, bar(&of_hdd), bar(&of_ssd)));
            }
        }
        readings.push(reading);
    }
    Ok(Found {
        conditions: "One request at a time, in sequence with 1 MiB and at random offsets of 32 GB."
            .to_owned(),
        readings,
        drawings: rows
            .chunks(3)
            .zip(["reads", "writes"])
            .map(mark_bars)
            .collect(),
    })
}

/// Rates of one kind of request: its name, and the rates of the disk and of the SSD.
type Rates = (&'static str, Option<BarValue>, Option<BarValue>);

fn mark_bars((rows, title): (&[Rates], &str)) -> Drawing {
    Drawing::Bars {
        title: format!("Ours, {title}, fit B of the devices"),
        y: "MB/s".to_owned(),
        groups: rows.iter().map(|(title, ..)| (*title).to_owned()).collect(),
        names: vec!["disk".to_owned(), "SSD".to_owned()],
        values: rows.iter().map(|(_, hdd, ssd)| vec![*hdd, *ssd]).collect(),
    }
}

/// Bytes that each of the write streams of figure 4 writes, and their number.
const STREAM_BYTES: u64 = 200_000_000;
const STREAMS: u64 = 50;

/// Returns the plan of the write streams: one load for each length of a write.
fn streams(scope: &Scope) -> String {
    let step = scope.sized(10, 1);
    let lengths = (1..=STREAMS).filter(|stream| stream % step == 0);
    let (mut names, mut loads) = (Vec::new(), String::new());
    for stream in lengths {
        let bytes = (stream * 10_000).next_multiple_of(4096);
        let count = scope.sized(20_000_000, STREAM_BYTES) / bytes;
        names.push(format!("\"s{stream:02}\""));
        loads += &format!(
            "[workload.s{stream:02}]\ntype = \"requests\"\npattern = \"random-write\"\n\
             request = \"{bytes}B\"\ndepth = 4\ncount = {count}\n"
        );
    }
    format!(
        "name = \"Write streams (figure 4)\"\nmemory = \"1GiB\"\n[axes]\ndevice = [\"ssd\"]\n\
         scheduler = [\"noop\"]\nworkload = [{}]\n[device.ssd]\ntype = \"ssd\"\n\
         profile = \"sata-2009-b\"\nsize = \"32GB\"\ndepth = 4\n{loads}",
        names.join(", ")
    )
}

fn stream_cells(scope: &Scope) -> Vec<Cell> {
    plans::unscaled_cells(scope, "streams", &streams(scope))
}

fn find_streams(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let mut lines: [Vec<(f64, f64)>; 2] = Default::default();
    for cell in stream_cells(scope) {
        let Raw::Lab(outcome) = runs.get(&cell)? else {
            return Err(Missing(cell.name()));
        };
        if outcome.seed != scope.first_seed {
            continue;
        }
        let stream: f64 = outcome.choice["workload"]
            .trim_start_matches('s')
            .parse()
            .unwrap_or(0.0);
        let figures = &outcome.measured.figures;
        lines[0].push((stream * 10.0, figures["latency_mean_ms"]));
        lines[1].push((stream * 10.0, figures["latency_max_ms"]));
    }
    let names = ["mean", "longest"];
    Ok(Found {
        conditions:
            "Fifty streams of writes of 10 to 500 KB to one SSD of fit B, 200 MB each (20 MB \
                     at the small scale), four at a time."
                .to_owned(),
        readings: Vec::new(),
        drawings: vec![Drawing::Lines {
            title: "Ours, the first seed".to_owned(),
            x: "length of a write in KB".to_owned(),
            y: "response time in ms".to_owned(),
            lines: names
                .into_iter()
                .zip(lines)
                .enumerate()
                .map(|(style, (name, points))| Line {
                    name: name.to_owned(),
                    style,
                    points,
                })
                .collect(),
        }],
    })
}
