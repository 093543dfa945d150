//! Tests of the cache simulator: of its results on small traces, which are compared with results
//! computed by hand, and of its requests to the flash.

use bimetal_policy::replacement::{Build, Granularity, Replacement, Spec};
use bimetal_rt::Rng;
use bimetal_sim::cache::{
    CacheSize, Costs, Flash, Ftl, Geometry, Grid, NoFtl, Outcome, Over, Work, jobs, run, run_all,
};
use bimetal_trace::{Accesses, Collector, Key, Op, Record, Sample, StackDistances};
use std::sync::{Arc, Mutex};

/// Builds a trace from steps, each a read (`r`), a write (`w`) or a trim (`t`) of a page.
fn trace(steps: &[(char, u64)]) -> Accesses {
    let mut collector = Collector::new(Key::Page { page_bytes: 4096 });
    for (kind, page) in steps {
        let op = match kind {
            'r' => Op::Read,
            'w' => Op::Write,
            _ => Op::Trim,
        };
        let pushed = collector.push(&Record {
            time_ns: 0,
            op,
            offset_bytes: page * 4096,
            length_bytes: 4096,
        });
        assert_eq!(pushed, Ok(()));
    }
    collector.finish()
}

fn policy(name: &str, capacity: usize) -> Box<dyn Replacement> {
    let spec: Spec = name.parse().expect("a known policy");
    spec.build(&Build {
        capacity,
        pages_per_block: 4,
        ..Build::default()
    })
}

/// Request that a device received.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Read(u32),
    Write(Vec<u32>),
    Trim(u32),
}

/// A device that records all requests. Each page written costs three programs, and each write
/// request costs one erase.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<Asked>>>);

impl Noting {
    fn note(&self, asked: Asked) {
        self.0.lock().expect("one thread").push(asked);
    }
}

impl Flash for Noting {
    fn read(&mut self, lpn: u32) -> Work {
        self.note(Asked::Read(lpn));
        NoFtl.read(lpn)
    }

    fn write(&mut self, lpns: &[u32]) -> Work {
        self.note(Asked::Write(lpns.to_vec()));
        Work {
            reads: 0,
            programs: 3 * lpns.len() as u64,
            erases: 1,
        }
    }

    fn trim(&mut self, lpn: u32) -> Work {
        self.note(Asked::Trim(lpn));
        Work::default()
    }
}

fn noted(name: &str, capacity: usize, steps: &[(char, u64)]) -> (Outcome, Vec<Asked>) {
    let accesses = trace(steps);
    let geometry = Geometry::new(accesses.pages(), 4).expect("it is small");
    let flash = Noting::default();
    let log = flash.0.clone();
    let policy = policy(name, capacity);
    let outcome = run(
        policy,
        Box::new(flash),
        &accesses,
        &geometry,
        Costs::default(),
    );
    let asked = log.lock().expect("one thread").clone();
    (outcome, asked)
}

#[test]
fn time_is_what_the_flash_did_with_the_final_flush() {
    // The cache has 2 pages. The write of page 0, the read of page 1 and the write of page 2 are
    // misses, but only the read causes a read of the device. The write of page 2 evicts the dirty
    // page 0 (LRU), and the final flush writes page 2. The 2 page writes cost 6 programs and 2
    // erases. The device time is 25 us for one read, plus 6 * 200 us for the programs, plus 2 *
    // 1500 us for the erases.
    let (outcome, asked) = noted("lru", 2, &[('w', 0), ('r', 1), ('w', 2)]);
    assert_eq!(
        asked,
        [Asked::Read(1), Asked::Write(vec![0]), Asked::Write(vec![2])]
    );
    assert_eq!((outcome.accesses, outcome.reads), (3, 1));
    assert_eq!((outcome.misses, outcome.read_misses), (3, 1));
    assert_eq!((outcome.host_reads, outcome.host_writes), (1, 2));
    assert_eq!(outcome.device_time_us, 25.0 + 1200.0 + 3000.0);
    assert_eq!(outcome.write_amplification(), 3.0);
    assert_eq!(outcome.miss_ratio(), 1.0);
}

#[test]
fn the_final_flush_goes_block_by_block_in_order() {
    let steps = [('w', 5), ('w', 1), ('w', 4), ('w', 0)];
    let (_, asked) = noted("lru", 10, &steps);
    assert_eq!(asked, [Asked::Write(vec![0, 1]), Asked::Write(vec![4, 5])]);
}

#[test]
fn a_discarded_page_is_not_written() {
    let (outcome, asked) = noted("lru", 10, &[('w', 0), ('w', 1), ('t', 0)]);
    assert_eq!(asked, [Asked::Trim(0), Asked::Write(vec![1])]);
    assert_eq!(outcome.accesses, 2, "a trim is no access");
}

#[test]
fn padding_reads_what_is_missing_and_writes_the_block() {
    // Pages 0 and 2 of block 0 are dirty when page 4 needs room. Pages 1 and 3 are read from the
    // device, and pages 0 to 3 are written.
    let (outcome, asked) = noted("bplru", 2, &[('w', 0), ('w', 2), ('r', 4)]);
    assert_eq!(asked[..3], [Asked::Read(4), Asked::Read(1), Asked::Read(3)]);
    assert_eq!(asked[3..], [Asked::Write(vec![0, 1, 2, 3])]);
    assert_eq!((outcome.host_reads, outcome.host_writes), (3, 4));
}

#[test]
fn padding_reads_nothing_that_the_cache_holds() {
    // The cache has 4 frames, 2 of them for writes. Block 2 is flushed first. This flush shows that
    // writing one page takes 2.1 ms: 3 programs and an erase. By this estimate, writing a whole
    // block and reading its missing pages takes less time than writing single pages. So page 0 is
    // written with its whole block; pages 1 and 2 of this block are in the cache.
    let steps = [('w', 8), ('w', 0), ('r', 1), ('r', 2), ('w', 12), ('w', 16)];
    let (outcome, asked) = noted("abm-lru-clc+pad-fixed50", 4, &steps);
    // The device has only the blocks that the trace touches: 0, 2, 3 and 4. So page 8 of the trace
    // is the first page of the second block of the device.
    assert_eq!(asked[..2], [Asked::Read(1), Asked::Read(2)]);
    assert_eq!(asked[2..4], [Asked::Write(vec![4]), Asked::Read(3)]);
    assert_eq!(asked[4], Asked::Write(vec![0, 1, 2, 3]));
    assert_eq!((outcome.host_reads, outcome.read_misses), (3, 2));
}

#[test]
fn a_device_is_as_large_as_the_blocks_touched() {
    // Blocks have 4 pages. Pages 1000 and 1003 are in block 250, which becomes block 1 of the
    // device; page 9 is in block 2, which becomes block 0.
    let geometry = Geometry::new(&[1000, 1003, 9], 4).expect("it is small");
    assert_eq!(geometry.blocks(), 2);
    assert_eq!([0, 1, 2].map(|page| geometry.lpn(page)), [4, 7, 1]);
}

#[test]
fn lru_misses_as_the_stack_distances_say() {
    // The number of misses is computed in two ways that share no code: by simulating a cache of
    // each size, and by a single pass that gives the misses for all sizes.
    let steps: Vec<(char, u64)> = (0..5000u64)
        .map(|n| ('r', n * n % 211 + n % 7 * 40))
        .collect();
    let accesses = trace(&steps);
    let geometry = Geometry::new(accesses.pages(), 4).expect("it is small");
    let mut distances = StackDistances::new();
    for (page, _) in accesses.iter() {
        distances.access(page);
    }
    for size in [1, 2, 10, 50, 100, 200, 400, 1000] {
        let flash = Box::new(NoFtl);
        let outcome = run(
            policy("lru", size),
            flash,
            &accesses,
            &geometry,
            Costs::default(),
        );
        assert_eq!(outcome.misses, distances.misses(size), "{size}");
    }
}

/// Returns requests over 65,536 pages. The popularity of page `n` is proportional to `1 / n`. About
/// one request in eight is a scan of eight pages.
fn skewed_requests() -> Vec<Record> {
    let mut rng = Rng::new(11);
    let mut records = Vec::new();
    while records.len() < 300_000 {
        let page = (65_536f64.powf(rng.below(1 << 20) as f64 / f64::from(1 << 20))) as u64 - 1;
        // About one request in eight covers eight pages, so that neighbouring pages are used
        // together.
        let pages = if rng.below(8) == 0 { 8 } else { 1 };
        records.push(Record {
            time_ns: 0,
            op: if rng.below(3) == 0 {
                Op::Write
            } else {
                Op::Read
            },
            // Multiply the page number, so that frequently used pages are not neighbours.
            offset_bytes: page.wrapping_mul(40_503) % 65_536 * 4096,
            length_bytes: pages * 4096,
        });
    }
    records
}

/// Returns the miss ratio of each run of a grid, over the pages of a sample or over all pages.
fn miss_ratios(records: &[Record], grid: &Grid, sample: Option<Sample>) -> Vec<f64> {
    let key = Key::Page { page_bytes: 4096 };
    let mut collector = match sample {
        Some(sample) => Collector::sampled(key, sample),
        None => Collector::new(key),
    };
    for record in records {
        assert_eq!(collector.push(record), Ok(()));
    }
    let accesses = collector.finish();
    let geometry = Geometry::new(accesses.pages(), 64).expect("it is small");
    let over = Over {
        accesses: &accesses,
        geometry: &geometry,
        costs: Costs::default(),
        as_tables: false,
        rate: sample.map_or(1.0, |sample| sample.rate()),
    };
    let outcomes = run_all(&jobs(grid, 1), &over, 2, |_| ()).expect("no device to refuse");
    outcomes.iter().map(Outcome::miss_ratio).collect()
}

fn grid_of(names: &[&str], sizes: &[usize]) -> Grid {
    Grid {
        policies: (names.iter())
            .map(|name| name.parse().expect("known"))
            .collect(),
        sizes: sizes.iter().copied().map(CacheSize::Pages).collect(),
        ftls: vec![Ftl::None],
    }
}

#[test]
fn a_sample_gives_the_miss_ratios_of_the_whole() {
    // SHARDS (FAST 2015) reports that sampled miss ratios differ from the exact ones by 0.005 to
    // 0.02 on average, with some thousand sampled pages. This test samples 6,000 pages at the rate
    // 0.1.
    let records = skewed_requests();
    let sizes = [500, 2000, 8000, 20_000, 40_000];
    let names = ["lru", "arc", "s3-fifo", "fifo"];
    let grid = grid_of(&names, &sizes);
    let whole = miss_ratios(&records, &grid, None);
    let sampled = miss_ratios(&records, &grid, Sample::new(0.1).ok());
    let errors: Vec<f64> = (whole.iter().zip(&sampled))
        .map(|(whole, sampled)| (whole - sampled).abs())
        .collect();
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean <= 0.02, "{mean} of {errors:?}");
    assert!(errors.iter().all(|error| *error <= 0.05), "{errors:?}");
    // If the caches are not reduced in proportion to the sample, the miss ratios are far off. So
    // the comparison above can detect an error.
    let wrong = miss_ratios(
        &records,
        &grid_of(&names, &sizes.map(|size| size * 10)),
        Sample::new(0.1).ok(),
    );
    let off = (whole.iter().zip(&wrong)).filter(|(whole, wrong)| (*whole - *wrong).abs() > 0.05);
    assert!(off.count() > whole.len() / 2);
}

#[test]
fn everything_but_accesses_is_divided_by_the_rate() {
    // The whole trace has 90 reads and 30 writes. A sample at the rate 0.5 has 50 of these
    // accesses, 20 of which are misses.
    let sampled = Outcome {
        accesses: 50,
        misses: 20,
        host_writes: 7,
        device_time_us: 100.0,
        ..Outcome::default()
    };
    let whole = sampled.of_whole([90, 30, 5], 0.5);
    assert_eq!((whole.accesses, whole.reads), (120, 90));
    assert_eq!((whole.misses, whole.host_writes), (40, 14));
    assert_eq!(whole.device_time_us, 200.0);
    assert_eq!(whole.miss_ratio(), 40.0 / 120.0);
}

#[test]
fn sizes_are_pages_or_a_share() {
    let pages = |text: &str| text.parse::<CacheSize>().map(|size| size.pages(2000));
    assert_eq!(pages("1000"), Ok(1000));
    assert_eq!(pages("10%"), Ok(200));
    assert_eq!(pages("0.001%"), Ok(1), "a cache has a page");
    for bad in [
        "",
        "0",
        "-1",
        "x",
        "%",
        "0%",
        "nan%",
        "99999999999",
        "2000%",
    ] {
        assert!(pages(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_grid_gives_the_same_on_any_number_of_threads() {
    let steps: Vec<(char, u64)> = (0..2000u64)
        .map(|n| (if n % 3 == 0 { 'w' } else { 'r' }, n * n % 97))
        .collect();
    let accesses = trace(&steps);
    let geometry = Geometry::new(accesses.pages(), 4).expect("it is small");
    let names = ["lru", "arc", "belady", "abm-lru-clc", "bimetal"];
    let grid = Grid {
        policies: names
            .iter()
            .map(|name| name.parse().expect("known"))
            .collect(),
        sizes: vec![CacheSize::Pages(7), CacheSize::Share(0.5)],
        ftls: vec![Ftl::None],
    };
    let over = Over {
        accesses: &accesses,
        geometry: &geometry,
        costs: Costs::default(),
        as_tables: false,
        rate: 1.0,
    };
    let jobs = jobs(&grid, accesses.pages().len());
    assert_eq!(jobs.len(), 10);
    let alone = run_all(&jobs, &over, 1, |_| {}).expect("the devices can be");
    assert_eq!(run_all(&jobs, &over, 4, |_| {}), Ok(alone.clone()));
    // The optimal policy has the fewest misses at each size.
    for five in alone.chunks(5) {
        assert!(five.iter().all(|outcome| outcome.misses >= five[2].misses));
    }
}

#[test]
fn the_default_suits_the_device_it_is_run_over() {
    let steps: Vec<(char, u64)> = (0..3000u64)
        .map(|n| (if n % 3 == 0 { 'r' } else { 'w' }, n * n % 389))
        .collect();
    let accesses = trace(&steps);
    let over = Over {
        accesses: &accesses,
        geometry: &Geometry::new(accesses.pages(), 8).expect("it is small"),
        costs: Costs::default(),
        as_tables: false,
        rate: 1.0,
    };
    for (ftl, granularity) in [
        ("none", Granularity::Page),
        ("page", Granularity::Cluster),
        ("block", Granularity::Block),
        ("bast", Granularity::Block),
        ("fast:5", Granularity::Block),
    ] {
        let ftl: Ftl = ftl.parse().expect("it is one");
        assert_eq!(ftl.granularity(), granularity);
        let names = ["bimetal", granularity.default_pair()];
        let grid = Grid {
            policies: names.map(|name| name.parse().expect("known")).to_vec(),
            sizes: vec![CacheSize::Pages(50)],
            ftls: vec![ftl],
        };
        let outcomes = run_all(&jobs(&grid, 389), &over, 1, |_| {}).expect("it can be");
        assert_eq!(outcomes[0], outcomes[1], "{ftl}");
    }
}

/// The devices are built full, so every page can be read at the cost of one page read. A block
/// written in order costs one program per page, except on a page-mapped drive, whose garbage
/// collection also copies valid pages.
#[test]
fn a_block_written_in_order_costs_what_it_holds_over_every_device() {
    for name in [
        "page", "page:7", "block", "bast", "bast:20", "fast", "fast:10", "none",
    ] {
        let ftl: Ftl = name.parse().expect("it is one");
        assert_eq!(ftl.to_string(), name);
        let mut flash = ftl.build(50, 16).expect("it is small");
        assert_eq!(flash.read(5).reads, 1, "{name}");
        let mut work = Work::default();
        for block in 10..20 {
            let lpns: Vec<u32> = (block * 16..block * 16 + 16).collect();
            work += flash.write(&lpns);
        }
        let copied = work.programs - 160;
        if name.starts_with("page") {
            // The drive is in a steady state: the blocks that its garbage collection erases contain
            // valid pages, which are copied first.
            assert!(copied > 0 && work.erases >= 10, "{name}: {work:?}");
        } else {
            assert_eq!(copied, 0, "{name}: {work:?}");
        }
    }
}

#[test]
fn names_of_devices_that_do_not_exist_are_answered_with_those_that_do() {
    for name in [
        "",
        "nand",
        "none:3",
        "page:",
        "page:-1",
        "fast:2000",
        "block:7",
    ] {
        let error = name.parse::<Ftl>().expect_err("it is none");
        assert!(error.to_string().contains("page:7"), "{error}");
    }
    let vast = Ftl::Page { spare_percent: 7 }.build(u32::MAX, 64);
    assert!(vast.is_err(), "no drive is so large");
}
