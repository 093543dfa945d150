//! Compares miss ratios with the published tables of an independent simulator, cell by cell, and
//! compares counts of the traces with the published counts.
//!
//! The traces and the web page with the tables are not part of this repository, because of their
//! licences. The tests look for these files in the folder `BIMETAL_TRACES`, or else in a folder
//! `shared/traces` beside or above the repository. A missing file is reported, and its test is
//! skipped.

use bimetal_policy::replacement::Spec;
use bimetal_sim::cache::{CacheSize, Costs, Ftl, Geometry, Grid, Outcome, Over, jobs, run_all};
use bimetal_trace::{Accesses, Key, Options, Reader, Summary};
use std::path::{Path, PathBuf};

fn folder() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("BIMETAL_TRACES") {
        return Some(PathBuf::from(given));
    }
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above
        .map(|folder| folder.join("shared/traces"))
        .find(|path| path.is_dir())
}

/// Returns the path of a shared file, if it exists.
fn shared(file: &str) -> Option<PathBuf> {
    let path = folder()?.join(file);
    if path.is_file() {
        return Some(path);
    }
    println!("skipped: {file} is not there");
    None
}

/// Name of each trace on the web page, and the file of the trace.
const FILES: &[(&str, &str)] = &[
    ("w92", "cloudPhysicsIO-w92.vscsi.zst"),
    ("OLTP", "arc-OLTP.lis.zst"),
    ("P3", "arc-P3.lis.zst"),
    ("2_pools", "lirs-2_pools.trace.gz"),
    ("sprite", "lirs-sprite.trace.gz"),
    ("gli", "lirs-gli.trace.gz"),
    ("ps", "lirs-ps.trace.gz"),
    ("cpp", "lirs-cpp.trace.gz"),
    ("multi1", "lirs-multi1.trace.gz"),
    ("multi3", "lirs-multi3.trace.gz"),
];

/// Policies in the columns of the published table.
const COLUMNS: [&str; 8] = ["fifo", "lru", "clock", "sieve", "arc", "2q", "slru", "lirs"];
/// Tolerance for ratios of the table: one unit of the fourth and last decimal.
const EXACT: f64 = 0.000_101;
/// Tolerance for S3-FIFO and W-TinyLFU. It cannot be much smaller: for these two policies, even the
/// last two versions of the independent simulator differ by more than this value, and the result of
/// W-TinyLFU depends on its hash function.
const LOOSE: f64 = 0.01;

/// Miss ratios that the web page lists below its table: trace, cache size, ratio of S3-FIFO, and
/// ratio of W-TinyLFU.
const LOOSE_CELLS: &[(&str, usize, f64, f64)] = &[
    ("w92", 1000, 0.8255, 0.8335),
    ("w92", 5000, 0.7525, 0.7738),
    ("w92", 10000, 0.6636, 0.6787),
    ("w92", 20000, 0.5209, 0.5234),
    ("OLTP", 1000, 0.5914, 0.6814),
    ("OLTP", 2000, 0.5297, 0.6239),
    ("OLTP", 5000, 0.4425, 0.5252),
    ("OLTP", 10000, 0.3731, 0.4402),
    ("OLTP", 15000, 0.3402, 0.4023),
];

struct Cell {
    trace: String,
    size: usize,
    policy: &'static str,
    expected: f64,
    tolerance: f64,
}

/// Returns the cells of a table. Rows that do not have a ratio in each of the eight columns are
/// left out.
fn table(page: &str) -> Vec<Cell> {
    let mut cells = Vec::new();
    for line in page.lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        if fields.len() != 12 {
            continue;
        }
        let ratios: Vec<f64> = fields[3..11]
            .iter()
            .filter_map(|f| f.parse().ok())
            .collect();
        let (Ok(size), 8) = (fields[2].parse(), ratios.len()) else {
            continue;
        };
        let trace = fields[1].split(' ').next().unwrap_or_default();
        cells.extend(
            COLUMNS
                .into_iter()
                .zip(ratios)
                .map(|(policy, expected)| Cell {
                    trace: trace.to_owned(),
                    size,
                    policy,
                    expected,
                    tolerance: EXACT,
                }),
        );
    }
    cells
}

fn all_cells(page: &str) -> Vec<Cell> {
    let mut cells = table(page);
    for (trace, size, s3_fifo, w_tinylfu) in LOOSE_CELLS {
        for (policy, expected) in [("s3-fifo", *s3_fifo), ("w-tinylfu", *w_tinylfu)] {
            cells.push(Cell {
                trace: (*trace).to_owned(),
                size: *size,
                policy,
                expected,
                tolerance: LOOSE,
            });
        }
    }
    cells
}

fn decoded(path: &Path) -> Accesses {
    let options = Options {
        unit_bytes: 1,
        ..Options::default()
    };
    let mut reader = Reader::open(path, &options).expect("the trace opens");
    Accesses::collect(&mut reader, Key::Record).expect("the trace is well formed")
}

/// Runs every policy of the tables on a trace, at each of the given sizes.
fn outcomes(accesses: &Accesses, sizes: &[usize]) -> Vec<(String, usize, Outcome)> {
    let names = COLUMNS.iter().chain(&["s3-fifo", "w-tinylfu"]);
    let grid = Grid {
        policies: names
            .map(|name| name.parse::<Spec>().expect("known"))
            .collect(),
        sizes: sizes.iter().map(|size| CacheSize::Pages(*size)).collect(),
        ftls: vec![Ftl::None],
    };
    let over = Over {
        accesses,
        geometry: &Geometry::new(accesses.pages(), 1).expect("it is small"),
        costs: Costs::default(),
        as_tables: true,
        rate: 1.0,
    };
    let jobs = jobs(&grid, accesses.pages().len());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes = run_all(&jobs, &over, threads, |_| {}).expect("no device is in the way");
    let named = jobs
        .iter()
        .map(|job| (job.policy.name().to_owned(), job.size_pages));
    named
        .zip(outcomes)
        .map(|((name, size), outcome)| (name, size, outcome))
        .collect()
}

#[test]
fn miss_ratios_are_those_of_the_published_tables() {
    let Some(page) = shared("README.md") else {
        return;
    };
    let page = std::fs::read_to_string(page).expect("the page is text");
    let cells = all_cells(&page);
    assert!(
        cells.len() >= 33 * 8,
        "the table was not found: {} cells",
        cells.len()
    );
    let mut wrong = String::new();
    for (trace, file) in FILES {
        let Some(path) = shared(file) else { continue };
        let wanted: Vec<&Cell> = cells.iter().filter(|cell| cell.trace == *trace).collect();
        let mut sizes: Vec<usize> = wanted.iter().map(|cell| cell.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let outcomes = outcomes(&decoded(&path), &sizes);
        for cell in wanted {
            let found = outcomes
                .iter()
                .find(|(name, size, _)| name == cell.policy && *size == cell.size);
            let ratio = found.map_or(f64::NAN, |(_, _, outcome)| outcome.miss_ratio());
            // A missing ratio is NaN, which is treated as a mismatch.
            let error = (ratio - cell.expected).abs();
            if error.is_nan() || error > cell.tolerance {
                let Cell {
                    size,
                    policy,
                    expected,
                    ..
                } = cell;
                wrong += &format!("{trace} {size} {policy}: {ratio:.5}, expected {expected}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Counts of a trace: the numbers of requests (reads, writes), the numbers of page accesses (reads,
/// writes), the number of distinct pages, and the number of distinct pages that are written.
type TraceCounts = ([u64; 2], [u64; 2], u64, u64);

/// Counts that the web page gives for the traces that distinguish reads and writes.
const TYPED: &[(&str, TraceCounts)] = &[
    (
        "cloudPhysicsIO-w92.vscsi.zst",
        ([46_974, 66_898], [485_700, 656_169], 269_210, 208_696),
    ),
    (
        "own-pgbench.msr.csv.zst",
        ([187_677, 155_353], [425_173, 527_029], 159_523, 124_836),
    ),
    (
        "own-varmail.msr.csv.zst",
        ([37_201, 207_728], [92_682, 312_841], 148_229, 148_229),
    ),
    (
        "own-gcc-fs.pages.csv.zst",
        ([536_838, 19_454], [1_174_653, 20_234], 21_792, 11_386),
    ),
    (
        "ssdsim-DTRS100M.trace.zst",
        ([113_123, 13_920], [1_573_391, 185_789], 1_272_267, 184_051),
    ),
    (
        "disksim-postmark.trace.zst",
        (
            [51_780, 10_477],
            [1_278_390, 2_181_870],
            1_533_388,
            1_532_457,
        ),
    ),
    (
        "disksim-iozone-100K.trace.zst",
        ([0, 100_000], [0, 8_997_978], 271_320, 271_320),
    ),
    (
        "mqsim-tpcc-small.trace.zst",
        ([4_381, 2_618], [12_674, 7_995], 20_470, 7_879),
    ),
    (
        "mqsim-wsrch-small.trace.zst",
        ([24_779, 4], [93_304, 8], 93_029, 4),
    ),
];

#[test]
fn traces_consist_of_what_their_page_says() {
    for (file, expected) in TYPED {
        let Some(path) = shared(file) else { continue };
        let mut reader = Reader::open(&path, &Options::default()).expect("the trace opens");
        let mut summary = Summary::new(4096);
        while let Some(record) = reader.next_record().expect("the trace is well formed") {
            summary.add(&record);
        }
        let [reads, writes, trims] = summary.requests;
        let [read_pages, written_pages, _] = summary.page_accesses;
        let counted: TraceCounts = (
            [reads, writes],
            [read_pages, written_pages],
            summary.footprint_pages(),
            summary.written_pages,
        );
        assert_eq!((counted, trims), (*expected, 0), "{file}");
    }
}
