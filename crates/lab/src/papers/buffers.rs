//! Source 4: the paper on asymmetric buffer management (Jung, Kang and Cha 2011).
//!
//! The runs are those of `bimetal-lab cache`, on stand-ins for the traces or on given files.

use std::collections::BTreeMap;

use bimetal_sim::cache::{Costs, Outcome};

use super::cell::{Cell, Raw};
use super::folder::{Missing, Runs};
use super::item::Unit::{Change, MegabytesPerSecond, PerSecond, Times};
use super::item::{Drawing, Experiment, Found, Item, Kind, Reading, Source, bar, claim, diagram};
use super::scope::{Scale, Scope};
use super::traces::Name;
use super::verdict::Printed::{Above, Below, Value};

/// Single policies of the paper, and its six pairs.
const SINGLE: [&str; 7] = ["lru", "arc", "lirs", "cf-lru", "lru-wsr", "fab", "clc"];
const PAIRS: [&str; 6] = [
    "abm-lru-fab",
    "abm-lru-clc",
    "abm-arc-fab",
    "abm-arc-clc",
    "abm-lirs-fab",
    "abm-lirs-clc",
];
const CHEAPEST: &str = "abm-lru-fab";
const FASTEST: &str = "abm-lru-clc";
const OURS: &str = "bimetal";

/// Readings: the flash translation layer, which the paper does not name. Its extra writes are those
/// of log blocks, as in the first one.
const READINGS: [(&str, &str); 2] = [
    ("fast", "log blocks (FAST)"),
    ("page", "a page-mapped drive with 28 % spare"),
];

/// Buffers of the paper's figure 6. The sizes of its other figures are not given, and are taken to
/// be the same.
const BUFFERS: usize = 1500;

fn size(scope: &Scope) -> usize {
    scope.sized(100, BUFFERS)
}

/// Returns the sizes over which the largest gains are sought.
fn sizes(scope: &Scope) -> Vec<usize> {
    let size = size(scope);
    vec![size / 4, size / 2, size, size * 2]
}

fn policies() -> impl Iterator<Item = &'static str> {
    SINGLE.into_iter().chain(PAIRS).chain([OURS])
}

fn cell(scope: &Scope, of: (Name, usize), policy: &str, ftl: &str, seed: u64) -> Cell {
    let (trace, size_pages) = of;
    Cell::Cache {
        trace: scope.traces.id(trace, scope.scale == Scale::Small, seed),
        policy: policy.to_owned(),
        size_pages,
        ftl: ftl.to_owned(),
    }
}

fn cells(scope: &Scope, trace: Name, size: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for seed in seeds(scope, trace) {
        for (ftl, _) in READINGS {
            let of_policy = |policy| cell(scope, (trace, size), policy, ftl, seed);
            cells.extend(policies().map(of_policy));
        }
    }
    cells
}

/// Returns the seeds of a trace: one if it is a file, which no seed changes.
fn seeds(scope: &Scope, trace: Name) -> impl Iterator<Item = u64> + use<> {
    let count = match scope.traces.is_file(trace) {
        true => 1,
        false => usize::MAX,
    };
    scope.seeds().take(count)
}

type ByPolicy = BTreeMap<&'static str, Outcome>;
/// Function that computes a value of a policy from the outcomes of all policies.
type OfPolicy = fn(&ByPolicy, &str) -> f64;

/// Returns the outcomes of all policies for one seed.
fn outcomes(
    scope: &Scope,
    runs: &Runs,
    of: (Name, usize),
    (ftl, seed): (&str, u64),
) -> Result<ByPolicy, Missing> {
    let mut all = ByPolicy::new();
    for policy in policies() {
        let cell = cell(scope, of, policy, ftl, seed);
        let Raw::Cache(outcome) = runs.get(&cell)? else {
            return Err(Missing(cell.name()));
        };
        all.insert(policy, *outcome);
    }
    Ok(all)
}

/// Time of writes, of extra writes inside the drive, and of erases, in seconds.
fn writing(outcome: &Outcome) -> [f64; 3] {
    let costs = Costs::default();
    let extra = outcome.work.programs.saturating_sub(outcome.host_writes);
    [
        outcome.host_writes as f64 * costs.program_us / 1e6,
        extra as f64 * costs.program_us / 1e6,
        outcome.work.erases as f64 * costs.erase_us / 1e6,
    ]
}

fn writing_s(outcome: &Outcome) -> f64 {
    writing(outcome).iter().sum()
}

fn time_s(outcome: &Outcome) -> f64 {
    outcome.device_time_us / 1e6
}

fn hits(outcome: &Outcome) -> f64 {
    1.0 - outcome.miss_ratio()
}

/// Returns the geometric mean of a cost of these policies.
fn mean(all: &ByPolicy, of: &[&str], cost: fn(&Outcome) -> f64) -> f64 {
    let logs = of.iter().map(|policy| cost(&all[policy]).max(1e-9).ln());
    (logs.sum::<f64>() / of.len() as f64).exp()
}

/// Returns the least cost among the policies of the paper, without one of them.
fn least_without(all: &ByPolicy, without: &str, cost: fn(&Outcome) -> f64) -> f64 {
    let others = SINGLE
        .into_iter()
        .chain(PAIRS)
        .filter(|policy| *policy != without);
    others
        .map(|policy| cost(&all[policy]))
        .fold(f64::MAX, f64::min)
}

/// Adds the values of one seed to a reading.
fn add_values(reading: &mut Reading, all: &ByPolicy) {
    let lru = &all["lru"];
    let change = |policy: &str, cost: fn(&Outcome) -> f64, base: f64| {
        cost(&all[policy]) / base.max(1e-9) - 1.0
    };
    reading.push(
        "pairs_write",
        mean(all, &PAIRS, writing_s) / mean(all, &SINGLE, writing_s) - 1.0,
    );
    reading.push(
        "pairs_time",
        mean(all, &PAIRS, time_s) / mean(all, &SINGLE, time_s) - 1.0,
    );
    let cheapest = least_without(all, CHEAPEST, writing_s);
    reading.push("fab_cheapest", change(CHEAPEST, writing_s, cheapest));
    reading.push("fab_write", change(CHEAPEST, writing_s, writing_s(lru)));
    let fastest = least_without(all, FASTEST, time_s);
    reading.push("clc_fastest", change(FASTEST, time_s, fastest));
    reading.push("clc_time", change(FASTEST, time_s, time_s(lru)));
    let of_hits = SINGLE.into_iter().chain(PAIRS);
    let best_hits = of_hits.max_by(|a, b| hits(&all[a]).total_cmp(&hits(&all[b])));
    let time_of_best = best_hits.map_or(f64::NAN, |policy| time_s(&all[policy]));
    let least_time = least_without(all, "", time_s);
    reading.push("hits_mislead", time_of_best / least_time);
    let disks = time_s(&all["arc"]).min(time_s(&all["lirs"]));
    reading.push("disk_policies", disks / least_time);
}

fn readings(
    scope: &Scope,
    runs: &Runs,
    (trace, size): (Name, usize),
) -> Result<Vec<Reading>, Missing> {
    let mut readings = Vec::new();
    for (ftl, name) in READINGS {
        let mut reading = Reading::new(name);
        reading.is_exact = scope.traces.is_file(trace);
        for seed in seeds(scope, trace) {
            add_values(
                &mut reading,
                &outcomes(scope, runs, (trace, size), (ftl, seed))?,
            );
        }
        readings.push(reading);
    }
    Ok(readings)
}

fn conditions(scope: &Scope, traces: &[Name], sizes: &[usize]) -> String {
    let of = |trace: &Name| match scope.traces.is_file(*trace) {
        true => format!("{} is a given file", trace.title()),
        false => format!("{} is a stand-in made from its description", trace.title()),
    };
    let of: Vec<String> = traces.iter().map(of).collect();
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    format!(
        "{} buffers of 8 KB; reads of 25 us, programs of 200 us, erases of 1.5 ms; blocks of 64 \
         pages; what is dirty at the end is written. The trace of the paper is not public: {}.",
        sizes.join(", "),
        of.join(", ")
    )
}

/// Draws a value of every policy as a bar of one or several parts; each part is a mean over the
/// seeds.
fn drawing(
    scope: &Scope,
    runs: &Runs,
    (trace, title, label): (Name, String, &str),
    parts: &[(&str, OfPolicy)],
) -> Result<Drawing, Missing> {
    let mut by_seed = Vec::new();
    for seed in seeds(scope, trace) {
        by_seed.push(outcomes(
            scope,
            runs,
            (trace, size(scope)),
            (READINGS[0].0, seed),
        )?);
    }
    let row = |policy: &str| {
        let part = |of: &(&str, OfPolicy)| {
            let values: Vec<f64> = by_seed.iter().map(|all| of.1(all, policy)).collect();
            bar(&values).map_or(0.0, |(mean, ..)| mean)
        };
        (policy.to_owned(), parts.iter().map(part).collect())
    };
    Ok(Drawing::Rows {
        title,
        label: label.to_owned(),
        parts: parts.iter().map(|(name, _)| (*name).to_owned()).collect(),
        rows: policies().map(row).collect(),
    })
}

fn find_hits(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let hit_ratio: OfPolicy = |all, policy| hits(&all[policy]) / hits(&all["lru"]).max(1e-9);
    let speed: OfPolicy = |all, policy| time_s(&all["lru"]) / time_s(&all[policy]).max(1e-9);
    let mut drawings = Vec::new();
    for (name, value) in [("hit ratio", hit_ratio), ("speed", speed)] {
        let of = (
            Name::Gcc,
            format!("Ours, {name} on GCC over log blocks"),
            "relative to LRU",
        );
        drawings.push(drawing(scope, runs, of, &[(name, value)])?);
    }
    Ok(Found {
        conditions: conditions(scope, &[Name::Gcc], &[size(scope)]),
        readings: readings(scope, runs, (Name::Gcc, size(scope)))?,
        drawings,
    })
}

fn find_writing(scope: &Scope, runs: &Runs, trace: Name) -> Result<Found, Missing> {
    let title = format!("Ours, {} over log blocks", trace.title());
    let parts: [(&str, OfPolicy); 3] = [
        ("writes", |all, policy| writing(&all[policy])[0]),
        ("extra writes", |all, policy| writing(&all[policy])[1]),
        ("erases", |all, policy| writing(&all[policy])[2]),
    ];
    let of = (trace, title, "seconds of the flash");
    Ok(Found {
        conditions: conditions(scope, &[trace], &[size(scope)]),
        readings: readings(scope, runs, (trace, size(scope)))?,
        drawings: vec![drawing(scope, runs, of, &parts)?],
    })
}

fn find_time(scope: &Scope, runs: &Runs, trace: Name) -> Result<Found, Missing> {
    let title = format!("Ours, {} over log blocks", trace.title());
    let parts: [(&str, OfPolicy); 1] = [("device time", |all, policy| time_s(&all[policy]))];
    let of = (trace, title, "seconds of the flash");
    Ok(Found {
        conditions: conditions(scope, &[trace], &[size(scope)]),
        readings: readings(scope, runs, (trace, size(scope)))?,
        drawings: vec![drawing(scope, runs, of, &parts)?],
    })
}

/// Returns the best value of a key over the three traces and all sizes, seed by seed, with a table
/// of the means of all points.
fn best_of_all(scope: &Scope, runs: &Runs, key: &str) -> Result<Found, Missing> {
    let sizes = sizes(scope);
    let mut found = Found {
        conditions: conditions(scope, &Name::ALL, &sizes),
        ..Found::default()
    };
    let mut points = Vec::new();
    for trace in Name::ALL {
        for size in &sizes {
            let readings = readings(scope, runs, (trace, *size))?;
            points.push((format!("{}, {size} buffers", trace.title()), readings));
        }
    }
    for (at, (_, name)) in READINGS.iter().enumerate() {
        let mut reading = Reading::new(*name);
        reading.is_exact = points.iter().all(|(_, of)| of[at].is_exact);
        let values: Vec<&Vec<f64>> = points.iter().map(|(_, of)| &of[at].values[key]).collect();
        let seeds = values.iter().map(|of| of.len()).max().unwrap_or(0);
        for seed in 0..seeds {
            // A trace from a file has one value for all seeds.
            let of_seed = values.iter().map(|of| of[seed.min(of.len() - 1)]);
            reading.push(key, of_seed.fold(f64::MAX, f64::min));
        }
        found.readings.push(reading);
    }
    let row = |(name, of): &(String, Vec<Reading>)| {
        let mean = |reading: &Reading| bar(&reading.values[key]).map_or(0.0, |(mean, ..)| mean);
        let shown = of.iter().map(|reading| Change.show(mean(reading)));
        [name.clone()].into_iter().chain(shown).collect()
    };
    let head = READINGS.iter().map(|(_, name)| (*name).to_owned());
    found.drawings.push(Drawing::Table {
        title: "Ours, against LRU".to_owned(),
        head: ["trace and size".to_owned()]
            .into_iter()
            .chain(head)
            .collect(),
        rows: points.iter().map(row).collect(),
    });
    Ok(found)
}

const COMMAND: &str = "bimetal-lab papers --source 4";

const fn run(
    cells: fn(&Scope) -> Vec<Cell>,
    find: fn(&Scope, &Runs) -> Result<Found, Missing>,
) -> Source {
    Source::Run(Experiment {
        cells,
        find,
        command: COMMAND,
    })
}

const WRITING: &[super::item::Claim] = &[
    claim(
        "pairs_write",
        "cost to write: six ABM pairs against the single policies",
        Below,
        Change,
    ),
    claim(
        "fab_cheapest",
        "ABM-LRU-FAB against the cheapest other policy",
        Below,
        Change,
    ),
];
const TIME: &[super::item::Claim] = &[
    claim(
        "pairs_time",
        "time: six ABM pairs against the single policies",
        Below,
        Change,
    ),
    claim(
        "clc_fastest",
        "ABM-LRU-CLC against the fastest other policy",
        Below,
        Change,
    ),
];
const STAND_IN: &str = "The trace is a stand-in, so a difference can be one of the traces; \
    docs/cache-simulation.md has 27 points on recorded traces, where ABM-LRU-FAB is cheapest at 10 \
    and ABM-LRU-CLC fastest at 8.";

const fn writing_item(
    id: &'static str,
    title: &'static str,
    place: &'static str,
    source: Source,
) -> Item {
    Item {
        id,
        kind: Kind::Figure,
        title,
        place,
        form: "stacked bars",
        claims: WRITING,
        note: STAND_IN,
        source,
    }
}

const fn time_item(
    id: &'static str,
    title: &'static str,
    place: &'static str,
    source: Source,
) -> Item {
    Item {
        id,
        kind: Kind::Figure,
        title,
        place,
        form: "bars",
        claims: TIME,
        note: STAND_IN,
        source,
    }
}

fn gcc(scope: &Scope) -> Vec<Cell> {
    cells(scope, Name::Gcc, size(scope))
}

fn viewperf(scope: &Scope) -> Vec<Cell> {
    cells(scope, Name::Viewperf, size(scope))
}

fn cscope(scope: &Scope) -> Vec<Cell> {
    cells(scope, Name::Cscope, size(scope))
}

fn all(scope: &Scope) -> Vec<Cell> {
    let sizes = sizes(scope);
    let of_trace = |trace: Name| {
        sizes
            .iter()
            .flat_map(move |size| cells(scope, trace, *size))
    };
    Name::ALL.into_iter().flat_map(of_trace).collect()
}

/// The items of the paper.
pub const ITEMS: &[Item] = &[
    Item {
        id: "4.t1",
        kind: Kind::Table,
        title: "Performance of an SSD",
        place: "table 1, section 2.1",
        form: "table",
        claims: &[
            claim(
                "sequential_read",
                "sequential reads",
                Value(250.0),
                MegabytesPerSecond,
            ),
            claim(
                "sequential_write",
                "sequential writes",
                Value(170.0),
                MegabytesPerSecond,
            ),
            claim(
                "read_4k",
                "random reads of 4 KB",
                Value(35_000.0),
                PerSecond,
            ),
            claim(
                "write_4k",
                "random writes of 4 KB",
                Value(3300.0),
                PerSecond,
            ),
        ],
        note: "",
        source: Source::NotRun(
            "The table has the data sheet of a drive of which no model exists here yet.",
        ),
    },
    diagram("4.1", "A system with an SSD", "figure 1, section 2"),
    diagram("4.2", "An example of CF-LRU", "figure 2, section 2.3"),
    diagram("4.3", "An SSD with ABM", "figure 3, section 3"),
    diagram("4.4", "ABM-LRU-FAB", "figure 4, section 3"),
    diagram(
        "4.5",
        "Dynamic adaptation of the sizes",
        "figure 5, section 3",
    ),
    Item {
        id: "4.6",
        kind: Kind::Figure,
        title: "Hit ratio and performance on GCC",
        place: "figure 6, section 4.2",
        form: "bars",
        claims: &[
            claim(
                "hits_mislead",
                "time of the policy with the best hit ratio over the least time",
                Above,
                Times,
            ),
            claim(
                "disk_policies",
                "time of the better of ARC and LIRS over the least time",
                Above,
                Times,
            ),
        ],
        note: STAND_IN,
        source: run(gcc, find_hits),
    },
    writing_item(
        "4.7",
        "Cost of writes, extra writes and erases on GCC",
        "figure 7, section 4.3",
        run(gcc, |scope, runs| find_writing(scope, runs, Name::Gcc)),
    ),
    writing_item(
        "4.8",
        "Cost of writes, extra writes and erases on Viewperf",
        "figure 8, section 4.3",
        run(viewperf, |scope, runs| {
            find_writing(scope, runs, Name::Viewperf)
        }),
    ),
    writing_item(
        "4.9",
        "Cost of writes, extra writes and erases on Cscope",
        "figure 9, section 4.3",
        run(cscope, |scope, runs| {
            find_writing(scope, runs, Name::Cscope)
        }),
    ),
    time_item(
        "4.10",
        "Time on GCC",
        "figure 10, section 4.4",
        run(gcc, |scope, runs| find_time(scope, runs, Name::Gcc)),
    ),
    time_item(
        "4.11",
        "Time on Viewperf",
        "figure 11, section 4.4",
        run(viewperf, |scope, runs| {
            find_time(scope, runs, Name::Viewperf)
        }),
    ),
    time_item(
        "4.12",
        "Time on Cscope",
        "figure 12, section 4.4",
        run(cscope, |scope, runs| find_time(scope, runs, Name::Cscope)),
    ),
    Item {
        id: "4.c1",
        kind: Kind::Claim,
        title: "ABM-LRU-FAB reduces the cost to write by up to 81 % against LRU",
        place: "section 4.3",
        form: "text",
        claims: &[claim(
            "fab_write",
            "ABM-LRU-FAB against LRU, best trace and size",
            Value(-0.81),
            Change,
        )],
        note: "The sizes of the buffer behind the 81 % are not given.",
        source: run(all, |scope, runs| best_of_all(scope, runs, "fab_write")),
    },
    Item {
        id: "4.c2",
        kind: Kind::Claim,
        title: "ABM-LRU-CLC is up to 32 % better than LRU",
        place: "abstract and sections 4.4 and 5",
        form: "text",
        claims: &[claim(
            "clc_time",
            "time of ABM-LRU-CLC against LRU, best trace and size",
            Value(-0.32),
            Change,
        )],
        note: "The paper says performance; time is taken.",
        source: run(all, |scope, runs| best_of_all(scope, runs, "clc_time")),
    },
];
