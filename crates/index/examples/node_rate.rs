//! Prints the cost of packed nodes: bytes per row, and the CPU time of a lookup and of each row of
//! a scan. For deltas, prints their bytes and the CPU time of a lookup and of an insertion.
//!
//! `cargo run --release -p bimetal-index --example node_rate` takes about half a minute. Images
//! have 600 rows. "cached" queries 8 images in turn; "spread" queries more images than fit into the
//! processor's caches. Half of the lookups of "miss" are for keys between two existing keys. Times
//! are CPU times of this process. Other load on the machine lengthens them only because it shares
//! the caches. Each time is the best of five runs.

use std::error::Error;
use std::hint::black_box;
use std::ops::Bound;

use bimetal_index::node::{Builder, Delta, Image, Kind, Row, Rows, View, seal, view};

const ROWS: usize = 600;
const LOOKUPS: usize = 4_000_000;
const SPREAD_BYTES: usize = 256 << 20;
const SCANS: usize = 20_000;

/// Returns the CPU time of this process in nanoseconds. The time is read from `/proc`, because only
/// the runtime is allowed to use the clock.
fn cpu_ns() -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let first = text.split(' ').next().ok_or("an empty file")?;
    Ok(first.parse()?)
}

fn best_ns(count: usize, mut run: impl FnMut()) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = cpu_ns()?;
        run();
        best = best.min((cpu_ns()? - start) as f64 / count as f64);
    }
    Ok(best)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014), a bijection, so that different numbers
/// stay different.
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

struct Case {
    name: &'static str,
    key: fn(u64) -> Vec<u8>,
    value_len: usize,
    /// Number of images over which the sorted keys are divided, so that each image has a part of
    /// the key range.
    sorted_images: u64,
    plain: bool,
}

fn dense(n: u64) -> Vec<u8> {
    (1_000_000 + n).to_be_bytes().to_vec()
}

fn random8(n: u64) -> Vec<u8> {
    mixed(n).to_be_bytes().to_vec()
}

fn random16(n: u64) -> Vec<u8> {
    [mixed(n).to_be_bytes(), n.to_be_bytes()].concat()
}

fn text(n: u64) -> Vec<u8> {
    format!("user/{}", mixed(n) >> 30).into_bytes()
}

const fn case(name: &'static str, key: fn(u64) -> Vec<u8>, value_len: usize, plain: bool) -> Case {
    Case {
        name,
        key,
        value_len,
        sorted_images: 32,
        plain,
    }
}

const CASES: &[Case] = &[
    case("8+8 dense", dense, 8, false),
    case("8+8 random", random8, 8, false),
    case("16+100 random", random16, 100, false),
    case("text+8", text, 8, false),
    case("8+8 dense, plain", dense, 8, true),
];

fn value(n: u64, len: usize) -> Vec<u8> {
    let words = (0..len as u64)
        .step_by(8)
        .flat_map(|i| mixed(n + i).to_le_bytes());
    words.take(len).collect()
}

/// Images, each with consecutive rows, and the sorted keys of all images.
type Leaves = (Vec<Image>, Vec<Vec<u8>>);

fn images(case: &Case) -> Result<Leaves, Box<dyn Error>> {
    let mut keys: Vec<_> = (0..case.sorted_images * ROWS as u64)
        .map(case.key)
        .collect();
    keys.sort_unstable();
    let mut builder = Builder::new(case.plain);
    let mut images = Vec::new();
    for part in keys.chunks(ROWS) {
        builder.clear();
        for (n, key) in (images.len() as u64 * 1_000_000..).zip(part) {
            builder.push(Row {
                key,
                seq: 0,
                kind: Kind::Put,
                value: &value(n, case.value_len),
            });
        }
        let mut bytes = builder.finish(0, 0, 0, 0);
        seal(&mut bytes, 0);
        images.push(Image::parse(&bytes, 0)?);
    }
    Ok((images, keys))
}

/// Scales a random 32-bit number to a number below `end`. Uses a multiplication and a shift, which
/// are faster than a division.
fn below(random: u64, end: usize) -> usize {
    ((random * end as u64) >> 32) as usize
}

/// Does independent lookups: as in a server, no lookup needs the result of another lookup.
fn finds(images: &[Image], keys: &[Vec<u8>], sorted: usize) -> usize {
    let mut found = 0;
    for n in 0..LOOKUPS as u64 {
        let random = mixed(n);
        let image = below(random >> 32, images.len());
        let row = below(random & 0xffff_ffff, ROWS);
        let key = &keys[image % sorted * ROWS + row];
        found += usize::from(images[image].find(black_box(key), 9).is_some());
    }
    found
}

fn print(case: &Case) -> Result<(), Box<dyn Error>> {
    let (images, keys) = images(case)?;
    let bytes: usize = images.iter().map(|image| image.len_bytes()).sum();
    let per_row = bytes as f64 / (images.len() * ROWS) as f64;

    let sorted = images.len();
    let cached = best_ns(LOOKUPS, || {
        assert_eq!(finds(&images[..8], &keys, sorted), LOOKUPS);
    })?;
    let misses: Vec<_> = keys
        .iter()
        .map(|k| [&k[..k.len() - 1], &[0]].concat())
        .collect();
    let missed = best_ns(LOOKUPS, || {
        black_box(finds(&images[..8], &misses, sorted));
    })?;
    let copies = SPREAD_BYTES / images[0].memory_bytes();
    let spread = (0..copies).map(|n| Image::parse(images[n % sorted].bytes(), 0));
    let spread = spread.collect::<Result<Vec<_>, _>>()?;
    let far = best_ns(LOOKUPS, || {
        assert_eq!(finds(&spread, &keys, sorted), LOOKUPS);
    })?;

    let mut delta = Delta::new();
    for n in 0..16 {
        delta.insert(&keys[n * 37], 5, Kind::Put, &value(1, case.value_len), 0);
    }
    let mut rows = Rows::new();
    let mut scan = |delta: Option<&Delta>, is_reverse| {
        best_ns(SCANS * ROWS, || {
            for n in 0..SCANS {
                let image = &images[if delta.is_some() { 0 } else { n % 8 }];
                view(Some(image), delta, &everything(is_reverse), &mut rows);
                let (mut count, mut sum) = (0, 0);
                while rows.advance() {
                    let (key, value) = rows.row();
                    sum += key.len() + value.len();
                    count += 1;
                }
                assert_eq!((black_box(sum) > 0, count), (true, ROWS));
            }
        })
    };
    let (up, down) = (scan(None, false)?, scan(None, true)?);
    let merged = scan(Some(&delta), false)?;
    println!(
        "{:18} {per_row:9.2} {cached:9.1} {missed:9.1} {far:9.1} {up:9.1} {down:9.1} {merged:9.1}",
        case.name
    );
    Ok(())
}

/// Returns a view of all rows.
fn everything<'a>(is_reverse: bool) -> View<'a> {
    View {
        seq: 9,
        from: Bound::Unbounded,
        to: Bound::Unbounded,
        is_reverse,
        pieces_max: usize::MAX,
        bytes_max: usize::MAX,
    }
}

/// Measures lookups in deltas, alternating hits and misses, and insertions of versions that replace
/// older ones.
fn print_delta(slots: u64) -> Result<(), Box<dyn Error>> {
    let keys: Vec<_> = (0..2 * slots).map(random8).collect();
    let mut delta = Delta::new();
    for key in keys.iter().step_by(2) {
        delta.insert(key, 1, Kind::Put, &[7; 8], 0);
    }
    let any = |n: u64| below(mixed(n) >> 32, keys.len());
    let found = best_ns(LOOKUPS, || {
        for n in 0..LOOKUPS as u64 {
            black_box(delta.find(black_box(&keys[any(n)]), 9));
        }
    })?;
    let mut seq = 1;
    let inserted = best_ns(LOOKUPS, || {
        for n in 0..LOOKUPS as u64 {
            seq += 1;
            let key = &keys[any(n) & !1];
            delta.insert(key, seq, Kind::Put, &[7; 8], seq);
        }
    })?;
    let bytes = delta.memory_bytes();
    println!(
        "delta of {slots:4} slots: find {found:.1} ns, insert {inserted:.1} ns, {bytes} bytes"
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("                   bytes/row   find ns, of {ROWS} rows         view ns/row");
    println!(
        "                                cached      miss    spread        up      down +16 delta"
    );
    CASES.iter().try_for_each(print)?;
    [16, 256].into_iter().try_for_each(print_delta)
}
