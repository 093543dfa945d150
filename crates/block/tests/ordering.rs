//! Idle time of logged disks, in virtual time: what was written at random is put in the order of
//! the volume, clients are served meanwhile, and a disk that is in order is left alone.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OpenOptions, OrderAfter};
use bimetal_block::units::Time;
use bimetal_block::{Device, Request, Statistic};
use bimetal_rt::{Rng, Rt};
use futures_util::stream::{self, StreamExt};

use crate::common::modelled::Kind;
use crate::common::{Counted, ending_rt, sides, write};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);

/// Logged sides, the first of which is a disk.
struct Sides {
    rt: Rt,
    sides: Vec<Candidate>,
    config: MirrorConfig,
    /// Number of requests to the first side so far.
    requests: Rc<Cell<u64>>,
}

impl Sides {
    async fn formatted(rt: &Rt, kinds: [Kind; 2], size_bytes: u64) -> Sides {
        let requests = Rc::new(Cell::new(0));
        let [one, other] = kinds.map(|kind| kind.device(rt, size_bytes));
        let one = Counted {
            below: one,
            requests: Rc::clone(&requests),
        };
        let sides = [("first", Rc::new(one) as Rc<dyn Device>), ("second", other)];
        let sides = sides.map(|(name, device)| Candidate {
            name: name.to_owned(),
            device,
        });
        let made = formatting::format(rt, "vol", &sides, &Formatting::default()).await;
        made.expect("the sides are fit");
        Sides {
            rt: rt.clone(),
            config: MirrorConfig::of(Vec::new()),
            sides: sides.to_vec(),
            requests,
        }
    }

    /// Opens the volume without the sides whose numbers are `missing`.
    async fn open(&self, missing: &[usize]) -> Mirror {
        let all: Vec<&Candidate> = self.sides.iter().collect();
        let options = OpenOptions::default();
        let opened = sides::open_with(&self.rt, &self.config, &all, missing, &options).await;
        opened.expect("it opens")
    }

    async fn put(&self, mirror: &Mirror, at: u64, byte: u8) {
        let stored = mirror.submit(write(&self.rt, at, BLOCK as usize, byte));
        stored.await.expect("a side takes it");
    }

    /// Writes each of the first `blocks` blocks once, in a random order.
    async fn write_at_random(&self, mirror: &Mirror, blocks: u64) {
        let mut rng = Rng::new(5);
        let mut blocks: Vec<u64> = (0..blocks).collect();
        for last in (1..blocks.len()).rev() {
            blocks.swap(last, rng.below(last as u64 + 1) as usize);
        }
        let puts = blocks
            .iter()
            .map(|block| self.put(mirror, block * BLOCK, byte_of(*block)));
        stream::iter(puts).buffer_unordered(64).count().await;
        let flushed = mirror.submit(Request::flush()).await;
        flushed.expect("flushed");
    }

    /// Waits until all that was written is in order on all disks.
    async fn until_in_order(&self, mirror: &Mirror) {
        let began = self.rt.now();
        while gauge(mirror, "unjudged_bytes") > 0.0 {
            self.rt.sleep(Duration::from_secs(1)).await;
            let state = || {
                let names = [
                    "unjudged_bytes",
                    "ordered_bytes",
                    "moved_bytes",
                    "segments_free",
                ];
                names.map(|name| (name, gauge(mirror, name)))
            };
            let waited = self.rt.now().since(began);
            assert!(waited < HOUR, "it does not end: {:?}", state());
        }
        // What is in order is committed.
        self.rt.sleep(Duration::from_secs(10)).await;
    }

    /// Reads the first `blocks` blocks in sequence from one side alone. Returns the rate in bytes a
    /// second. `is_possible` says whether a block may be filled with a byte.
    async fn rate_alone(
        &self,
        side: usize,
        blocks: u64,
        is_possible: &dyn Fn(u64, u8) -> bool,
    ) -> f64 {
        let mirror = self.open(&[1 - side]).await;
        let began = self.rt.now();
        let pieces = (0..blocks * BLOCK).step_by(MIB as usize);
        let reads = pieces.map(|at| mirror.submit(Request::read(at, MIB)));
        let mut reads = stream::iter(reads).buffered(2).enumerate();
        while let Some((piece, read)) = reads.next().await {
            let data = read.expect("it is read").into_data().to_vec();
            for (block, content) in (piece as u64 * MIB / BLOCK..).zip(data.chunks(4096)) {
                let is_of_one = content.iter().all(|byte| *byte == content[0]);
                assert!(is_of_one && is_possible(block, content[0]), "block {block}");
            }
        }
        let ns = self.rt.now().ns_since(began);
        drop(reads);
        mirror.close().await.expect("it closes");
        (blocks * BLOCK) as f64 / (ns as f64 / 1e9)
    }

    /// Returns the rate at which the disk is read in sequence without a mirror.
    async fn sequential(&self) -> f64 {
        let began = self.rt.now();
        let reads = (0..128).map(|at| self.sides[0].device.submit(Request::read(at * MIB, MIB)));
        let reads: Vec<_> = stream::iter(reads).buffered(2).collect().await;
        assert!(reads.iter().all(Result::is_ok));
        (128 * MIB) as f64 / (self.rt.now().ns_since(began) as f64 / 1e9)
    }

    /// Waits for an hour of idle time, and returns the number of requests to the first side.
    async fn requests_in_an_idle_hour(&self) -> u64 {
        let before = self.requests.get();
        self.rt.sleep(HOUR).await;
        self.requests.get() - before
    }
}

/// Returns the byte with which a block is filled that is written once.
fn byte_of(block: u64) -> u8 {
    (block % 251 + 1) as u8
}

/// Returns the sum of a statistic over both sides.
fn gauge(mirror: &Mirror, name: &str) -> f64 {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    mirror.statistics(&mut statistics);
    let of_sides = statistics.iter().filter(|(_, n, _)| n == name);
    let values = of_sides.map(|(_, _, value)| match value {
        Statistic::Counter(value) => *value as f64,
        Statistic::Gauge(value) => *value,
        other => panic!("{name} is {other:?}"),
    });
    values.sum()
}

/// A disk that was written at random is read in sequence at 1 MB/s before its idle time was used,
/// and at a good part of its rate after it. Then the disk can sleep.
#[test]
fn idle_time_puts_a_disk_in_the_order_of_the_volume() {
    const BYTES: u64 = 128 * MIB;
    let blocks = BYTES / BLOCK;
    for second in [Kind::Ssd, Kind::Disk] {
        let rt = ending_rt(3);
        rt.block_on(async {
            let sides = Sides::formatted(&rt, [Kind::Disk, second], 512 * MIB).await;
            let mirror = sides.open(&[]).await;
            sides.write_at_random(&mirror, blocks).await;
            let began = rt.now();
            sides.until_in_order(&mirror).await;
            let took_s = rt.now().since(began).as_secs_f64();
            let ordered = gauge(&mirror, "ordered_bytes") / BYTES as f64;
            let disks = 1.0 + f64::from(u8::from(second == Kind::Disk));
            assert!((disks * 0.99..=disks).contains(&ordered), "{ordered} times");
            assert_eq!(sides.requests_in_an_idle_hour().await, 0, "it sleeps");
            mirror.close().await.expect("it closes");
            let is_right = |block, byte| byte == byte_of(block);
            let rate = sides.rate_alone(0, blocks, &is_right).await;
            let sequential = sides.sequential().await;
            println!(
                "beside {second:?}: in order after {took_s:.0} s, {:.1} MB/s of {:.1}",
                rate / 1e6,
                sequential / 1e6
            );
            assert!(rate >= 0.3 * sequential, "{rate} of {sequential} bytes/s");
        });
    }
}

/// Without the use of idle time, the disk reads what was written at random at the rate of seeks.
#[test]
fn idle_time_is_not_used_where_that_is_switched_off() {
    let rt = ending_rt(3);
    rt.block_on(async {
        let mut sides = Sides::formatted(&rt, [Kind::Disk, Kind::Ssd], 256 * MIB).await;
        sides.config.order_after = OrderAfter::Never;
        let mirror = sides.open(&[]).await;
        let blocks = 16 * MIB / BLOCK;
        sides.write_at_random(&mirror, blocks).await;
        rt.sleep(HOUR).await;
        assert_eq!(gauge(&mirror, "ordered_bytes"), 0.0);
        mirror.close().await.expect("it closes");
        let is_right = |block, byte| byte == byte_of(block);
        let rate = sides.rate_alone(0, blocks, &is_right).await;
        println!("{:.1} MB/s", rate / 1e6);
        assert!(rate < 0.1 * sides.sequential().await, "{rate} bytes/s");
    });
}

/// Clients that come back while a disk is being put in order are served, and what they write counts
/// on each side.
#[test]
fn what_clients_write_meanwhile_is_kept_and_they_do_not_wait() {
    for second in [Kind::Ssd, Kind::Disk] {
        let rt = ending_rt(3);
        rt.block_on(async {
            let mut sides = Sides::formatted(&rt, [Kind::Disk, second], 512 * MIB).await;
            sides.config.order_after = OrderAfter::Idle(Time(Duration::from_millis(10)));
            let mirror = sides.open(&[]).await;
            let blocks = 64 * MIB / BLOCK;
            sides.write_at_random(&mirror, blocks).await;
            let mut changed = BTreeMap::new();
            let mut rng = Rng::new(9);
            let (mut longest, mut operations) = (Duration::ZERO, 0);
            while gauge(&mirror, "ordered_bytes") < (48 * MIB) as f64 {
                // Some pauses are shorter than the idle time. In the longest ones the log is
                // folded, so that blocks of a window have other places.
                let longest_ms = match rng.chance(0.05) {
                    true => 1500,
                    false => 50,
                };
                let pause = Duration::from_millis(rng.between(1, longest_ms));
                rt.sleep(pause).await;
                let began = rt.now();
                let block = rng.below(blocks);
                if rng.chance(0.7) {
                    sides.put(&mirror, block * BLOCK, 255).await;
                    changed.insert(block, ());
                } else {
                    let read = mirror.submit(Request::read(block * BLOCK, BLOCK)).await;
                    let byte = read.expect("it is read").into_data().to_vec()[0];
                    let expected = match changed.contains_key(&block) {
                        true => 255,
                        false => byte_of(block),
                    };
                    assert_eq!(byte, expected, "block {block}");
                }
                longest = longest.max(rt.now().since(began));
                operations += 1;
                assert!(operations < 100_000, "nothing is put in order");
            }
            println!("beside {second:?}: {operations} operations, longest {longest:?}");
            assert!(longest < Duration::from_millis(200), "a client waits");
            sides.until_in_order(&mirror).await;
            mirror.close().await.expect("it closes");
            let is_right = |block, byte| match changed.contains_key(&block) {
                true => byte == 255,
                false => byte == byte_of(block),
            };
            for side in [0, 1] {
                sides.rate_alone(side, blocks, &is_right).await;
            }
        });
    }
}

/// On a side that is as full as it can be, putting it in order and cleaning take turns. That ends,
/// and leaves the log its space.
#[test]
fn a_full_disk_is_put_in_order_too() {
    let rt = ending_rt(3);
    rt.block_on(async {
        let sides = Sides::formatted(&rt, [Kind::Disk, Kind::Ssd], 128 * MIB).await;
        let mirror = sides.open(&[]).await;
        let blocks = mirror.geometry().size_bytes / MIB * MIB / BLOCK;
        sides.write_at_random(&mirror, blocks).await;
        sides.until_in_order(&mirror).await;
        let bytes = (blocks * BLOCK) as f64;
        let [ordered, moved] = ["ordered_bytes", "moved_bytes"].map(|name| gauge(&mirror, name));
        println!(
            "{:.2} times put in order, {:.2} times moved, {} free segments",
            ordered / bytes,
            moved / bytes,
            gauge(&mirror, "segments_free")
        );
        // Windows whose blocks cleaning has moved meanwhile are judged again.
        assert!((0.95..=1.6).contains(&(ordered / bytes)), "{ordered}");
        assert_eq!(sides.requests_in_an_idle_hour().await, 0, "it sleeps");
        mirror.close().await.expect("it closes");
        let is_right = |block, byte| byte == byte_of(block);
        let rate = sides.rate_alone(0, blocks, &is_right).await;
        let sequential = sides.sequential().await;
        println!("{:.1} MB/s of {:.1}", rate / 1e6, sequential / 1e6);
        assert!(rate >= 0.3 * sequential, "{rate} of {sequential} bytes/s");
    });
}

#[test]
fn the_time_after_which_idle_time_is_used_is_configured() {
    for (line, expected) in [
        ("", Some(OrderAfter::Idle(Time(Duration::from_secs(3))))),
        (
            "order_after = \"2min\"",
            Some(OrderAfter::Idle(Time(Duration::from_secs(120)))),
        ),
        ("order_after = \"never\"", Some(OrderAfter::Never)),
        ("order_after = \"0s\"", None),
        ("order_after = \"soon\"", None),
    ] {
        let text = format!("sides = [\"a\", \"b\"]\n{line}");
        let config: Result<MirrorConfig, _> = toml::from_str(&text);
        let accepted = config.ok().filter(|config| config.check().is_ok());
        assert_eq!(
            accepted.map(|config| config.order_after),
            expected,
            "{line}"
        );
    }
}
