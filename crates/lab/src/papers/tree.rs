//! Source 2: the CHC-Tree paper (Byun and Hu 2011).
//!
//! The runs are those of `bimetal-lab index`.

use bimetal_sim::experiment::index::{
    Area, Comparison, Cost, Extent, Gain, Kind as Load, PerOperation, Row, Scheme, Served, Setting,
};

use super::cell::{Cell, Life, Raw};
use super::folder::{Missing, Runs};
use super::item::Unit::{Change, PerSecond, Share, Times};
use super::item::{
    Drawing, Experiment, Found, Item, Kind, Line, Reading, Source, bar, claim, mean_curve,
};
use super::scope::Scope;
use super::verdict::Printed::{Above, Below, Between, Value};

/// The readings: how much flash each scheme has. The first one is the only one under which the
/// dense tree is the worst scheme for updates, as in the paper.
const READINGS: [(Area, &str); 2] = [
    (
        Area::Own,
        "each scheme has the flash that its own nodes fill to 85 %",
    ),
    (
        Area::Same,
        "all schemes have the flash that BTR_N fills to 85 %",
    ),
];

/// Share of the requested operations below which a scheme counts as saturated.
const SATURATED: f64 = 0.9;
/// Highest load without a difference between the schemes in the paper, in operations per second.
const EQUAL_PER_S: u64 = 900;

/// Function that selects a value of the average operation.
type OfOperation = fn(&PerOperation) -> f64;

fn setting(scope: &Scope) -> Setting {
    let usual = Setting::default();
    Setting {
        keys: scope.sized(100_000, usual.keys),
        warm_up: scope.sized(2_000, usual.warm_up),
        operations: scope.sized(1_000, usual.operations),
        ..usual
    }
}

fn cell(scope: &Scope, area: Area, scheme: Scheme, seed: u64) -> Cell {
    // The rule for the flash does not affect our own index, which is run once.
    let area = if scheme == Scheme::Ours {
        Area::Same
    } else {
        area
    };
    Cell::Index {
        setting: setting(scope),
        area,
        scheme,
        seed,
    }
}

fn cells(scope: &Scope) -> Vec<Cell> {
    let mut cells = Vec::new();
    for seed in scope.seeds() {
        for (area, _) in READINGS {
            cells.extend(Scheme::ALL.map(|scheme| cell(scope, area, scheme, seed)));
        }
    }
    cells
}

/// Returns the comparison of all schemes for one seed, as `bimetal-lab index` makes it.
fn comparison(scope: &Scope, runs: &Runs, area: Area, seed: u64) -> Result<Comparison, Missing> {
    let mut comparison = Comparison {
        setting: setting(scope),
        extent: Extent {
            schemes: Scheme::ALL.to_vec(),
            areas: vec![area],
            first_seed: seed,
            seeds: 1,
        },
        rows: Vec::new(),
        costs: Vec::new(),
    };
    for scheme in Scheme::ALL {
        let cell = cell(scope, area, scheme, seed);
        let Raw::Index(Life { rows, costs }) = runs.get(&cell)? else {
            return Err(Missing(cell.name()));
        };
        comparison.rows.extend(rows.iter().map(|row| Row {
            area,
            ..row.clone()
        }));
        comparison.costs.extend(costs.iter().map(|cost| Cost {
            area,
            ..cost.clone()
        }));
    }
    Ok(comparison)
}

fn gain_over(comparison: &Comparison, area: Area, over: Scheme) -> Option<Gain> {
    let mut gains = comparison.gains().into_iter();
    gains.find(|gain| gain.area == area && gain.over == over)
}

/// Adds the values of one seed to a reading.
fn add_values(reading: &mut Reading, comparison: &Comparison, area: Area) {
    let served = |kind, scheme| comparison.served(area, kind, scheme);
    let value = |kind, scheme, load, of: fn(&Served) -> f64| {
        let served = served(kind, scheme);
        let found = served.iter().find(|(rate, _)| *rate == load);
        found.map_or(f64::NAN, |(_, served)| of(served))
    };
    if let Some(gain) = gain_over(comparison, area, Scheme::BtrN) {
        reading.push("mix", gain.mix);
        reading.push("updates", gain.update_past);
        reading.push("mix_response", gain.mix_response);
        reading.push("update_response", gain.update_response);
    }
    if let Some(gain) = gain_over(comparison, area, Scheme::BtrF) {
        reading.push("mix_over_dense", gain.mix);
        reading.push("updates_over_dense", gain.update_past);
        reading.push("searches", gain.search);
        reading.push("search_response", gain.search_response);
    }
    let done = |served: &Served| served.done_per_s;
    let response = |served: &Served| served.mean_ms;
    let equal = |scheme| value(Load::Mix, scheme, EQUAL_PER_S, done);
    let papers = [Scheme::Chctr, Scheme::BtrN, Scheme::BtrF];
    let most = papers.map(equal).into_iter().fold(f64::MIN, f64::max);
    let least = papers.map(equal).into_iter().fold(f64::MAX, f64::min);
    reading.push("equal", most / least);
    let flat = |scheme| {
        value(Load::Mix, scheme, EQUAL_PER_S, response) / value(Load::Mix, scheme, 300, response)
    };
    reading.push("flat", flat(Scheme::BtrN));
    reading.push("flat_chctr", flat(Scheme::Chctr));
    let bend = served(Load::Mix, Scheme::BtrN);
    let bend = bend
        .iter()
        .find(|(rate, of)| of.done_per_s < *rate as f64 * SATURATED);
    // A curve that never bends has no value, and the item has no verdict on it.
    if let Some((rate, _)) = bend {
        reading.push("bend", *rate as f64);
    }
    let cost = |scheme, of: fn(&PerOperation) -> f64| {
        comparison
            .cost(area, Load::Update, scheme)
            .map_or(f64::NAN, of)
    };
    let change =
        |of: fn(&PerOperation) -> f64| cost(Scheme::Chctr, of) / cost(Scheme::BtrN, of) - 1.0;
    reading.push("erases", change(|of| of.erases));
    reading.push("programs", change(|of| of.programs));
    reading.push("height", change_of_reads(comparison, area));
}

/// Returns how many more pages a search of the CHC-Tree reads than one of the dense tree.
fn change_of_reads(comparison: &Comparison, area: Area) -> f64 {
    let reads = |scheme| {
        let cost = comparison.cost(area, Load::Search, scheme);
        cost.map_or(f64::NAN, |of| of.reads)
    };
    reads(Scheme::Chctr) / reads(Scheme::BtrF) - 1.0
}

fn readings(scope: &Scope, runs: &Runs) -> Result<Vec<Reading>, Missing> {
    let mut readings = Vec::new();
    for (area, name) in READINGS {
        let mut reading = Reading::new(name);
        for seed in scope.seeds() {
            add_values(&mut reading, &comparison(scope, runs, area, seed)?, area);
        }
        readings.push(reading);
    }
    Ok(readings)
}

fn curves(
    scope: &Scope,
    runs: &Runs,
    kind: Load,
    y: &str,
    value: fn(&Served) -> f64,
) -> Result<Vec<Drawing>, Missing> {
    let mut drawings = Vec::new();
    for (area, name) in READINGS {
        let mut lines = Vec::new();
        for (style, scheme) in Scheme::ALL.into_iter().enumerate() {
            let mut by_seed = Vec::new();
            for seed in scope.seeds() {
                let comparison = comparison(scope, runs, area, seed)?;
                let served = comparison.served(area, kind, scheme).into_iter();
                by_seed.push(served.map(|(rate, of)| (rate as f64, value(&of))).collect());
            }
            lines.push(Line {
                name: scheme.name().to_owned(),
                style,
                points: mean_curve(&by_seed),
            });
        }
        drawings.push(Drawing::Lines {
            title: format!("Ours: {name}"),
            x: format!("{} operations per second that are asked for", kind.name()),
            y: y.to_owned(),
            lines,
        });
    }
    Ok(drawings)
}

fn conditions(scope: &Scope) -> String {
    let setting = setting(scope);
    format!(
        "{} keys, {} updates before, {} operations of each kind; reads of 16 us, programs of 250 us, \
         erases of 2 ms; 32 clients. \"ours\" is the index of this project, which has memory that \
         the others lack and charges a log that they do not. No CPU time is charged.",
        setting.keys, setting.warm_up, setting.operations
    )
}

fn found(scope: &Scope, runs: &Runs, drawings: Vec<Drawing>) -> Result<Found, Missing> {
    Ok(Found {
        conditions: conditions(scope),
        readings: readings(scope, runs)?,
        drawings,
    })
}

fn find_throughput(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let y = "completed operations per second";
    let drawings = curves(scope, runs, Load::Mix, y, |of| of.done_per_s)?;
    found(scope, runs, drawings)
}

fn find_response(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let y = "mean response time in ms";
    let drawings = curves(scope, runs, Load::Mix, y, |of| of.mean_ms)?;
    found(scope, runs, drawings)
}

fn find_searches(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let y = "mean response time in ms";
    let drawings = curves(scope, runs, Load::Search, y, |of| of.mean_ms)?;
    found(scope, runs, drawings)
}

fn find_updates(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let y = "completed operations per second";
    let drawings = curves(scope, runs, Load::Update, y, |of| of.done_per_s)?;
    found(scope, runs, drawings)
}

fn find_flash(scope: &Scope, runs: &Runs) -> Result<Found, Missing> {
    let area = READINGS[0].0;
    let kinds: [(&str, OfOperation); 2] = [
        ("programs", |of| of.programs),
        ("erases x 32", |of| of.erases * 32.0),
    ];
    let mut values = Vec::new();
    for (_, of) in kinds {
        let mut bars = Vec::new();
        for scheme in Scheme::ALL {
            let mut by_seed = Vec::new();
            for seed in scope.seeds() {
                let comparison = comparison(scope, runs, area, seed)?;
                by_seed.extend(comparison.cost(area, Load::Update, scheme).map(of));
            }
            bars.push(bar(&by_seed));
        }
        values.push(bars);
    }
    let drawing = Drawing::Bars {
        title: format!("Ours: {}", READINGS[0].1),
        y: "flash operations for each update (a segment has 32 pages)".to_owned(),
        groups: kinds.map(|(name, _)| name.to_owned()).to_vec(),
        names: Scheme::ALL.map(|scheme| scheme.name().to_owned()).to_vec(),
        values,
    };
    found(scope, runs, vec![drawing])
}

const fn index(find: fn(&Scope, &Runs) -> Result<Found, Missing>) -> Source {
    Source::Run(Experiment {
        cells,
        find,
        command: "bimetal-lab index",
    })
}

/// The items of the paper.
pub const ITEMS: &[Item] = &[
    Item {
        id: "2.t1",
        kind: Kind::Table,
        title: "Parameters of the simulation",
        place: "section 3",
        form: "table",
        claims: &[],
        note: "",
        source: Source::Nothing(
            "The paper announces a table of parameters, but its text does not include the table.",
        ),
    },
    Item {
        id: "2.1",
        kind: Kind::Figure,
        title: "Throughput of the mix against load",
        place: "figure 1, section 3",
        form: "lines",
        claims: &[
            claim("mix", "CHCTR over BTR_N at 2,400/s", Value(0.23), Change),
            claim(
                "equal",
                "best over worst of the three trees at 900/s",
                Value(1.0),
                Times,
            ),
            claim(
                "bend",
                "first load of which BTR_N completes less than 90 %",
                Between(1200.0, 1500.0),
                PerSecond,
            ),
        ],
        note: "The paper does not name the existing scheme; BTR_N is its basis. What counts as \
               saturated, less than 90 % of the load, is our definition.",
        source: index(find_throughput),
    },
    Item {
        id: "2.2",
        kind: Kind::Figure,
        title: "Response time of the mix against load",
        place: "figure 2, section 3",
        form: "lines",
        claims: &[
            claim(
                "flat",
                "BTR_N: response at 900/s over that at 300/s",
                Value(1.0),
                Times,
            ),
            claim(
                "flat_chctr",
                "CHCTR: response at 900/s over that at 300/s",
                Value(1.0),
                Times,
            ),
            claim(
                "mix_response",
                "CHCTR against BTR_N, at the best load",
                Value(-0.38),
                Change,
            ),
        ],
        note: "No queue of one server is flat up to 900/s if it saturates between 1,200 and 1,500/s: \
               at 60 % of its capacity, a request waits more than half of the time.",
        source: index(find_response),
    },
    Item {
        id: "2.c1",
        kind: Kind::Claim,
        title: "Searches alone: the dense tree is best",
        place: "section 3",
        form: "text",
        claims: &[claim(
            "searches",
            "throughput of CHCTR against BTR_F at 5,000/s",
            Value(-0.06),
            Change,
        )],
        note: "The paper explains its 6 % by a shorter tree. With a million keys all trees have \
               three levels, and the device is busy for a quarter of the time.",
        source: index(find_searches),
    },
    Item {
        id: "2.c2",
        kind: Kind::Claim,
        title: "Updates alone: CHCTR is best past 900/s",
        place: "section 3",
        form: "text",
        claims: &[claim(
            "updates",
            "CHCTR over BTR_N, mean past 900/s",
            Value(0.26),
            Change,
        )],
        note: "",
        source: index(find_updates),
    },
    Item {
        id: "2.c3",
        kind: Kind::Claim,
        title: "Response of updates up to 38 % better",
        place: "section 3, end of the paragraph on updates",
        form: "text",
        claims: &[claim(
            "update_response",
            "CHCTR against BTR_N, at the best load",
            Value(-0.38),
            Change,
        )],
        note: "The place of the sentence suggests updates, its subject the whole experiment; 2.2 has \
               the mix.",
        source: index(find_updates),
    },
    Item {
        id: "2.c4",
        kind: Kind::Claim,
        title: "Fewer erases and writes, so a longer life of the flash",
        place: "sections 2 and 3",
        form: "text",
        claims: &[
            claim(
                "erases",
                "erases for each update, CHCTR against BTR_N",
                Below,
                Change,
            ),
            claim(
                "programs",
                "programs for each update, CHCTR against BTR_N",
                Below,
                Change,
            ),
        ],
        note: "The paper prints no number.",
        source: index(find_flash),
    },
    Item {
        id: "2.c5",
        kind: Kind::Claim,
        title: "A B+-tree is most efficient at a fill of 69 %",
        place: "section 2, citing a textbook",
        form: "text",
        claims: &[claim(
            "best_fill",
            "fill of the best tree",
            Value(0.69),
            Share,
        )],
        note: "",
        source: Source::NotRun(
            "The fill is a constant of each scheme, and a sweep over it does not exist yet.",
        ),
    },
    Item {
        id: "2.c6",
        kind: Kind::Claim,
        title: "CHCTR is better than both trees for the mix and for updates",
        place: "section 3",
        form: "text",
        claims: &[
            claim(
                "mix_over_dense",
                "mix: CHCTR over BTR_F at 2,400/s",
                Above,
                Change,
            ),
            claim(
                "updates_over_dense",
                "updates: CHCTR over BTR_F, mean past 900/s",
                Above,
                Change,
            ),
        ],
        note: "With the same flash for all, the dense tree has more room to clean and wins; the \
               order of the paper needs flash that is equally full.",
        source: index(find_updates),
    },
];
