//! Source 1: the hetero-mirroring paper (Byun).
//!
//! The runs are those of `bimetal-lab mirror`, and the plan `contrib/lab/hetero-mirroring`.

use std::collections::BTreeMap;

use bimetal_sim::experiment::comparison::{
    Comparison, Extent, OUTSTANDING_MAX, Row, Summary, WRITES_PER_S,
};
use bimetal_sim::experiment::hetero::{
    BOUNDED, Devices, Load, Outcome, PAPER, PAPER_WAIT_LIMIT, PAPERS_BYTES, Scheme, schemes,
};

use super::cell::{Cell, Raw};
use super::folder::{Missing, Runs};
use super::item::Unit::{Change, Count, MegabytesPerSecond, PerSecond, Seconds, Share, Times};
use super::item::{
    BarValue, Drawing, Experiment, Found, Item, Kind, Line, Reading, Source, bar, claim, mean_curve,
};
use super::pairs::Pairs;
use super::plans::{self, PlanText};
use super::scope::Scope;
use super::verdict::Printed::{Above, AtLeast, AtMost, Below, Between, Value};

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
    text: include_str!("../../../../contrib/lab/hetero-mirroring/disk-mark.toml"),
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

const COMPARISON: &str = "bimetal-lab mirror --seconds 300";
const FITTED: &str = "The rates and freezes of both device models were fitted to figures of this \
    paper (docs/models.md), so agreement here is not independent evidence.";

/// The items of the paper.
pub const ITEMS: &[Item] = &[
    Item {
        id: "1.t1",
        kind: Kind::Table,
        title: "Unstable I/O characteristics of an SSD",
        place: "table 1, section 3.2",
        form: "table of words",
        claims: &[],
        note: "",
        source: Source::Nothing("The table names asymmetry, degradation and freezes, in words."),
    },
    Item {
        id: "1.t2",
        kind: Kind::Table,
        title: "Aims of the operation manager",
        place: "table 2, section 3.3",
        form: "table of words",
        claims: &[],
        note: "",
        source: Source::Nothing("The table lists aims, in words."),
    },
    Item {
        id: "1.t3",
        kind: Kind::Table,
        title: "Rates of the devices",
        place: "table 3, section 4.1",
        form: "table",
        claims: &[
            claim(
                "ssd_sequential_read",
                "SSD, sequential reads",
                Value(150.0),
                MegabytesPerSecond,
            ),
            claim(
                "ssd_sequential_write",
                "SSD, sequential writes",
                Value(100.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_sequential_read",
                "disk, sequential reads",
                Value(100.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_sequential_write",
                "disk, sequential writes",
                Value(100.0),
                MegabytesPerSecond,
            ),
        ],
        note: "The paper prints data-sheet rates. With 100 MB/s the SSD could not show the paper's \
               own saturation near 114 writes of 255 KB per second, so both fits write more slowly.",
        source: Source::Run(Experiment {
            cells: mark_cells,
            find: find_mark,
            command: "bimetal-lab run contrib/lab/hetero-mirroring/disk-mark.toml",
        }),
    },
    Item {
        id: "1.t4",
        kind: Kind::Table,
        title: "Metrics",
        place: "table 4, section 4.1",
        form: "table of words",
        claims: &[],
        note: "",
        source: Source::Nothing("The table defines throughput and response time."),
    },
    Item {
        id: "1.1",
        kind: Kind::Figure,
        title: "An SSD with 32 GB of flash",
        place: "figure 1, section 2",
        form: "photograph",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a photograph of a drive."),
    },
    Item {
        id: "1.2",
        kind: Kind::Figure,
        title: "Boot of Windows and opening of a document on both devices",
        place: "figure 2, section 3.2",
        form: "bars",
        claims: &[
            claim("boot_disk", "boot from the disk", Value(63.0), Seconds),
            claim("boot_ssd", "boot from the SSD", Value(36.0), Seconds),
            claim(
                "document",
                "opening a document, disk over SSD",
                Value(3.0),
                Times,
            ),
        ],
        note: "",
        source: Source::NotRun(
            "The figure is a vendor's measurement of Windows on another drive, and no trace of such \
             a boot is available here.",
        ),
    },
    Item {
        id: "1.3",
        kind: Kind::Figure,
        title: "CrystalDiskMark on the disk and on the SSD",
        place: "figure 3, section 3.2",
        form: "table of rates",
        claims: &[
            claim(
                "ratio_sequential_read",
                "sequential reads, SSD over disk",
                Value(2.0),
                Times,
            ),
            claim(
                "ratio_read_512k",
                "random reads of 512 KiB, SSD over disk",
                AtLeast(4.0),
                Times,
            ),
            claim(
                "ratio_read_4k",
                "random reads of 4 KiB, SSD over disk",
                AtLeast(4.0),
                Times,
            ),
            claim(
                "ssd_write_512k",
                "random writes of 512 KiB, SSD",
                Value(31.0),
                MegabytesPerSecond,
            ),
            claim(
                "hdd_write_512k",
                "random writes of 512 KiB, disk",
                Value(35.0),
                MegabytesPerSecond,
            ),
            claim(
                "change_write_512k",
                "random writes of 512 KiB, SSD against disk",
                Value(-0.13),
                Change,
            ),
        ],
        note: FITTED,
        source: Source::Run(Experiment {
            cells: mark_cells,
            find: find_mark,
            command: "bimetal-lab run contrib/lab/hetero-mirroring/disk-mark.toml",
        }),
    },
    Item {
        id: "1.4",
        kind: Kind::Figure,
        title: "Response times of 50 write streams to one SSD",
        place: "figure 4, section 3.2",
        form: "lines",
        claims: &[],
        note: "The paper shows many peaks, and freezes that follow each other; it prints no number.",
        source: Source::Run(Experiment {
            cells: stream_cells,
            find: find_streams,
            command: "bimetal-lab papers --only 1.4",
        }),
    },
    Item {
        id: "1.5",
        kind: Kind::Figure,
        title: "Hybrid storage on a hetero-RAID",
        place: "figure 5, section 3.3",
        form: "diagram",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a diagram of the system."),
    },
    Item {
        id: "1.6",
        kind: Kind::Figure,
        title: "Flow of the hetero-mirroring operations",
        place: "figure 6, section 3.3",
        form: "diagram",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a flow chart of the algorithm."),
    },
    Item {
        id: "1.7",
        kind: Kind::Figure,
        title: "Throughput against load",
        place: "figure 7, section 4.2",
        form: "lines",
        claims: &[
            claim(
                "average_gain",
                "Hete-Mr over one SSD, mean of all loads",
                Value(0.178),
                Change,
            ),
            claim("peak", "peak of Hete-Mr", Value(147.0), PerSecond),
            claim(
                "mirror_peak",
                "peak of the SSD mirror",
                Value(114.0),
                PerSecond,
            ),
            claim(
                "peak_gain",
                "peak of Hete-Mr over that of the SSD mirror",
                Value(0.289),
                Change,
            ),
            claim(
                "least_over_single",
                "Hete-Mr over one SSD, least from 160/s on",
                Above,
                Change,
            ),
            claim(
                "least_over_mirror",
                "Hete-Mr over the SSD mirror, least from 160/s on",
                Above,
                Change,
            ),
            claim(
                "sinking",
                "Hete-Mr at 320/s against its own peak",
                Below,
                Change,
            ),
        ],
        note: "The paper does not name the scheme of its +17.8 %; one SSD is taken. To the letter, \
               the scheme has no bound on what only one side has, so in our runs its gain grows with \
               what it owes to the other side.",
        source: Source::Run(Experiment {
            cells: comparison_cells,
            find: find_throughput,
            command: COMPARISON,
        }),
    },
    Item {
        id: "1.8",
        kind: Kind::Figure,
        title: "Response time against load",
        place: "figure 8, section 4.2",
        form: "lines",
        claims: &[
            claim(
                "response",
                "Hete-Mr against one SSD, mean of all loads",
                Value(-0.38),
                Change,
            ),
            claim(
                "mirror_response",
                "SSD mirror against one SSD, mean of all loads",
                Value(0.05),
                Change,
            ),
        ],
        note: "In our model, freezes of two SSDs are independent, so a mirror that waits for both \
               meets nearly twice as many; a small difference needs freezes that coincide.",
        source: Source::Run(Experiment {
            cells: comparison_cells,
            find: find_response,
            command: COMPARISON,
        }),
    },
    Item {
        id: "1.9",
        kind: Kind::Figure,
        title: "Ratio of the response times of both devices for each write, at 100 writes/s",
        place: "figure 9, section 4.2",
        form: "spikes above and below a line",
        claims: &[
            claim(
                "ssd_slower",
                "highest spike on the side of the SSD",
                Between(30.0, 40.0),
                Times,
            ),
            claim(
                "disk_slower",
                "highest spike on the side of the disk",
                Between(30.0, 40.0),
                Times,
            ),
        ],
        note: "",
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 100),
            find: |scope, runs| find_pairs(scope, runs, 100),
            command: "bimetal-lab papers --only 1.9",
        }),
    },
    Item {
        id: "1.10",
        kind: Kind::Figure,
        title: "Ratio of the response times of both devices for each write, at 200 writes/s",
        place: "figure 10, section 4.2",
        form: "spikes above and below a line",
        claims: &[
            claim(
                "ssd_slower",
                "highest spike on the side of the SSD",
                Value(200.0),
                Times,
            ),
            claim(
                "balance",
                "spikes of the SSD less those of the disk, share of both",
                Above,
                Change,
            ),
        ],
        note: "A spike is a write that took at least 30 times as long on one device.",
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 200),
            find: |scope, runs| find_pairs(scope, runs, 200),
            command: "bimetal-lab papers --only 1.10",
        }),
    },
    Item {
        id: "1.c1",
        kind: Kind::Claim,
        title: "Overhead of garbage collection by the fill of the drive",
        place: "section 3.2, citing another paper",
        form: "text",
        claims: &[
            claim(
                "at_60",
                "overhead of an SSD that is 60 % full",
                Value(0.10),
                Change,
            ),
            claim(
                "at_90",
                "overhead of an SSD that is 90 % full",
                Value(0.50),
                Change,
            ),
        ],
        note: "",
        source: Source::NotRun(
            "The device models of this experiment are timing models without flash blocks; a sweep of \
             the `flash` device over its fill is not part of this report yet.",
        ),
    },
    Item {
        id: "1.c2",
        kind: Kind::Claim,
        title: "Share of the writes within the wait limit",
        place: "section 3.3, HM_WRITE step 3",
        form: "text",
        claims: &[claim(
            "within_limit",
            "writes within 1.3 times the first side's time",
            AtLeast(0.8),
            Share,
        )],
        note: "The share is counted on devices that each get all writes, at 100 writes/s.",
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 100),
            find: |scope, runs| find_pairs(scope, runs, 100),
            command: "bimetal-lab papers --only 1.c2",
        }),
    },
    Item {
        id: "1.c3",
        kind: Kind::Claim,
        title: "Gains over the SSD mirror in the conclusion",
        place: "abstract and section 5",
        form: "text",
        claims: &[
            claim(
                "gain_over_mirror",
                "throughput over the SSD mirror, mean of all loads",
                Value(0.18),
                Change,
            ),
            claim(
                "response_over_mirror",
                "response against the SSD mirror, mean of all loads",
                Value(-0.38),
                Change,
            ),
        ],
        note: "The body of the paper gives the same two figures against one SSD.",
        source: Source::Run(Experiment {
            cells: comparison_cells,
            find: find_conclusion,
            command: COMPARISON,
        }),
    },
    Item {
        id: "1.c4",
        kind: Kind::Claim,
        title: "Delayed writes lengthen the life of the SSD",
        place: "sections 3.3 and 4.2",
        form: "text",
        claims: &[claim(
            "erases",
            "erases of the SSD for each byte stored",
            Below,
            Change,
        )],
        note: "",
        source: Source::NotRun(
            "The device models of this experiment have no flash blocks, so they count no erases.",
        ),
    },
    Item {
        id: "1.c5",
        kind: Kind::Claim,
        title: "Lengths of files in use",
        place: "section 4.1",
        form: "text",
        claims: &[claim(
            "small_files",
            "files in use below 500 KB",
            AtLeast(0.96),
            Share,
        )],
        note: "",
        source: Source::NotRun(
            "The share describes the files of the author's computer; it is the reason for the load, \
             not a result.",
        ),
    },
    Item {
        id: "1.c6",
        kind: Kind::Claim,
        title: "The SSD reads over three times as fast as the disk",
        place: "section 3.3, HM_READ step 1",
        form: "text",
        claims: &[claim(
            "ratio_read_512k",
            "random reads of 512 KiB, SSD over disk",
            AtLeast(3.0),
            Times,
        )],
        note: "The paper does not say which reads; those of its benchmark at random offsets are taken.",
        source: Source::Run(Experiment {
            cells: mark_cells,
            find: find_mark,
            command: "bimetal-lab run contrib/lab/hetero-mirroring/disk-mark.toml",
        }),
    },
    Item {
        id: "1.c7",
        kind: Kind::Claim,
        title: "Both devices are never held up by the same write",
        place: "section 3.3",
        form: "text",
        claims: &[claim(
            "both_held_up",
            "writes that took over a second on both devices",
            AtMost(0.0),
            Count,
        )],
        note: "At 100 writes/s.",
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 100),
            find: |scope, runs| find_pairs(scope, runs, 100),
            command: "bimetal-lab papers --only 1.c7",
        }),
    },
    Item {
        id: "1.c8",
        kind: Kind::Claim,
        title: "Freezes of an SSD under a load of writes last several seconds",
        place: "section 3.2 and table 1",
        form: "text",
        claims: &[claim(
            "longest_s",
            "longest response on the SSD at 200 writes/s",
            AtLeast(2.0),
            Seconds,
        )],
        note: FITTED,
        source: Source::Run(Experiment {
            cells: |scope| pair_cells(scope, 200),
            find: |scope, runs| find_pairs(scope, runs, 200),
            command: "bimetal-lab papers --only 1.c8",
        }),
    },
];
