//! Fairness of every layer and of stacks of layers: no request may wait for a request that was
//! admitted after it. The tests measure in virtual time, under loads in which wide requests overlap
//! many narrow requests.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, virtual_rt, write};
use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::layers::cache::Cache;
use bimetal_block::layers::fault::{Choice, ErrorRule, Fault, FaultPlan};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OpenOptions, SideDevice, SideToOpen};
use bimetal_block::layers::stripe::Stripe;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::units::Size;
use bimetal_block::{Device, IoError, Op, Request};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt, VirtualOptions};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Number of blocks that the loads use.
const BLOCKS: u64 = 1024;

type Stack = Rc<dyn Device>;

/// Returns a device in memory that takes `us` microseconds for each request, plus a random time of
/// up to a fifth of that.
fn medium(rt: &Rt, size_bytes: u64, us: u64) -> Stack {
    medium_with(rt, size_bytes, us, None)
}

/// Does the same as [`medium`], with a rule that makes requests fail.
fn medium_with(rt: &Rt, size_bytes: u64, us: u64, rule: Option<ErrorRule>) -> Stack {
    let plan = FaultPlan {
        jitter: Duration::from_micros(us / 5),
        rule,
        ..FaultPlan::default()
    };
    let fault = Fault::new(rt, Rc::new(MemoryDevice::new(rt, size_bytes)), plan, us);
    for op in [Op::Read, Op::Write, Op::Flush] {
        fault.control().set_delay(op, Duration::from_micros(us));
    }
    Rc::new(fault)
}

fn atomic(rt: &Rt, below: Stack) -> Stack {
    Rc::new(AtomicUnit::new(rt, below))
}

fn stripe(rt: &Rt) -> Stack {
    let columns = [200, 300].map(|us| medium(rt, 2 * MIB, us));
    Rc::new(Stripe::new(columns.to_vec(), 4 * BLOCK).expect("the columns are alike"))
}

/// Returns a cache of 1 MiB, of which at most a quarter can be dirty.
fn cache(rt: &Rt, below: Stack) -> Stack {
    let config = "below = \"disk\"\nsize = \"1MiB\"\ncluster = \"16KiB\"\n";
    let config = toml::from_str(config).expect("it is valid");
    Rc::new(Cache::new(rt, below, &config).expect("there is memory"))
}

/// Returns a mirror of two sides that have no logs and differ in speed. The bound on exposed bytes
/// is low, so that writes wait.
fn mirror(rt: &Rt) -> Stack {
    let mut config = mirror_config();
    config.exposure.bytes = Size(64 * BLOCK);
    let sides = [("fast", 200), ("slow", 700)].map(|(name, us)| SideDevice {
        name: name.to_owned(),
        device: medium(rt, BLOCKS * BLOCK, us),
        data_offset: 0,
        out_of_sync: false,
    });
    Rc::new(Mirror::new(rt, &config, sides.into(), BLOCKS * BLOCK))
}

fn mirror_config() -> MirrorConfig {
    MirrorConfig::of(vec!["fast".to_owned(), "slow".to_owned()])
}

/// Returns a mirror of two sides with logs and checksums.
async fn logged_mirror(rt: &Rt) -> Stack {
    let sides = [("fast", 200), ("slow", 700)].map(|(name, us)| Candidate {
        name: name.to_owned(),
        device: medium(rt, 64 * MIB, us),
    });
    let made = formatting::format(rt, "vol", &sides, &Formatting::with_homes()).await;
    made.expect("the sides are fit");
    let sides = sides.map(|side| SideToOpen {
        name: side.name,
        device: Ok(side.device),
    });
    let options = OpenOptions::default();
    let opened = Mirror::open(rt, &mirror_config(), sides.into(), &options).await;
    Rc::new(opened.expect("it opens"))
}

/// Returns the stacks under test, each with its name. All of them serialize overlapping requests.
async fn stacks(rt: &Rt) -> Vec<(&'static str, Stack)> {
    let plain = || medium(rt, BLOCKS * BLOCK, 300);
    vec![
        ("atomic", atomic(rt, plain())),
        ("atomic, stripe", atomic(rt, stripe(rt))),
        ("mirror", mirror(rt)),
        ("logged mirror", logged_mirror(rt).await),
        ("atomic, cache", atomic(rt, cache(rt, plain()))),
        ("atomic, cache, mirror", atomic(rt, cache(rt, mirror(rt)))),
        ("atomic, cache, stripe", atomic(rt, cache(rt, stripe(rt)))),
    ]
}

/// One request of a load. [`Load`] lists its requests in the order of admission.
#[derive(Clone)]
struct Entry {
    changes: bool,
    range: Range<u64>,
    done_ns: u64,
}

/// A load: a device, and all requests that were made to it, in the order of admission.
struct Load {
    rt: Rt,
    device: Stack,
    /// Whether changes may fail.
    writes_fail: bool,
    log: RefCell<Vec<Entry>>,
    in_flight: Cell<usize>,
    in_flight_max: Cell<usize>,
}

impl Load {
    fn over(rt: &Rt, device: &Stack) -> Rc<Load> {
        Load::failing(rt, device, false)
    }

    fn failing(rt: &Rt, device: &Stack, writes_fail: bool) -> Rc<Load> {
        Rc::new(Load {
            rt: rt.clone(),
            device: Rc::clone(device),
            writes_fail,
            log: RefCell::default(),
            in_flight: Cell::new(0),
            in_flight_max: Cell::new(0),
        })
    }

    async fn ask(&self, changes: bool, blocks: Range<u64>) {
        let range = blocks.start * BLOCK..blocks.end * BLOCK;
        let len = range.end - range.start;
        let request = match changes {
            true => write(&self.rt, range.start, len as usize, 7),
            false => Request::read(range.start, len),
        };
        let number = self.log.borrow().len();
        self.log.borrow_mut().push(Entry {
            changes,
            range,
            done_ns: u64::MAX,
        });
        self.in_flight.set(self.in_flight.get() + 1);
        let most = self.in_flight_max.get().max(self.in_flight.get());
        self.in_flight_max.set(most);
        // The first poll of the future admits the request. No other task runs between the numbering
        // of the request and that poll.
        let result = self.device.submit(request).await;
        assert!(result.is_ok() || self.writes_fail && changes, "{result:?}");
        self.in_flight.set(self.in_flight.get() - 1);
        self.log.borrow_mut()[number].done_ns = self.rt.now().as_ns();
    }

    /// Returns the number of overtaken changes. A change is overtaken if a change admitted after it
    /// has completed before it.
    fn overtaken(&self) -> usize {
        let log = self.log.borrow();
        let (mut first_ns, mut overtaken) = (u64::MAX, 0);
        for entry in log.iter().rev().filter(|entry| entry.changes) {
            overtaken += usize::from(entry.done_ns > first_ns);
            first_ns = first_ns.min(entry.done_ns);
        }
        overtaken
    }

    /// Asserts that no request has waited for requests that were admitted after it, and returns the
    /// number of requests.
    fn check(&self, name: &str) -> usize {
        let log = self.log.borrow();
        let depth = self.in_flight_max.get();
        for (number, entry) in log.iter().enumerate() {
            let faster = log[number + 1..]
                .iter()
                .filter(|later| later.changes && later.done_ns < entry.done_ns);
            let overlap = |later: &&Entry| {
                later.range.start < entry.range.end && entry.range.start < later.range.end
            };
            let overlapping = faster.clone().filter(overlap).count();
            if entry.changes {
                assert_eq!(
                    overlapping, 0,
                    "{name}: {number} was overtaken where it overlaps"
                );
            }
            // A change can wait for overlapping requests that were admitted before it, at most
            // `depth` of them, one after the other. While one of these requests is served, every
            // other task can complete one later change. A read waits only for the device, so for a
            // read only the overlapping later changes are counted.
            let others = if entry.changes {
                faster.count()
            } else {
                overlapping
            };
            assert!(
                others <= depth * depth,
                "{name}: {others} later changes were faster than {number} ({:?}), depth {depth}",
                entry.range
            );
        }
        log.len()
    }
}

/// Issues random requests in one range of 96 blocks. One request in ten is wide and covers up to 48
/// blocks. The other requests cover up to four blocks.
async fn random_load(rt: &Rt, load: &Rc<Load>, seed: u64) {
    let tasks = TaskGroup::new(rt);
    for task in 0..16 {
        let (rt, load, mut rng) = (rt.clone(), Rc::clone(load), Rng::new(seed * 100 + task));
        tasks.spawn(async move {
            for _ in 0..150 {
                let wide = rng.chance(0.1);
                let len = 1 + rng.below(if wide { 48 } else { 4 });
                let start = rng.below(96 - len);
                load.ask(rng.chance(0.85), start..start + len).await;
                rt.sleep(Duration::from_micros(rng.below(50))).await;
            }
        });
    }
    tasks.join().await;
}

/// Runs writers and a client. Each writer rewrites one block repeatedly. The writers are shifted in
/// time, so that at least one write is always in flight. The requests of the client cover the
/// blocks of all writers.
async fn staggered_load(rt: &Rt, load: &Rc<Load>, wide_changes: bool) {
    const WRITERS: u64 = 4;
    let (tasks, running) = (TaskGroup::new(rt), Rc::new(Cell::new(WRITERS)));
    for writer in 0..WRITERS {
        let (rt, load, running) = (rt.clone(), Rc::clone(load), Rc::clone(&running));
        tasks.spawn(async move {
            rt.sleep(Duration::from_micros(70 * writer)).await;
            for _ in 0..300 {
                load.ask(true, writer..writer + 1).await;
            }
            running.set(running.get() - 1);
        });
    }
    rt.sleep(Duration::from_micros(500)).await;
    while running.get() == WRITERS {
        load.ask(wide_changes, 0..WRITERS).await;
        rt.sleep(Duration::from_micros(100)).await;
    }
    tasks.join().await;
}

/// Writes single blocks at random offsets, in total more blocks than a cache can hold.
async fn scattered_load(rt: &Rt, load: &Rc<Load>, seed: u64) {
    let tasks = TaskGroup::new(rt);
    for task in 0..12 {
        let (load, mut rng) = (Rc::clone(load), Rng::new(seed * 100 + task));
        tasks.spawn(async move {
            for _ in 0..250 {
                let block = rng.below(BLOCKS);
                load.ask(true, block..block + 1).await;
            }
        });
    }
    tasks.join().await;
}

/// Runs `loads` over each of the stacks, with a few seeds.
fn each_stack(loads: impl AsyncFn(&Rt, &Rc<Load>, u64)) {
    for seed in 1..=2 {
        let rt = virtual_rt(seed);
        rt.block_on(async {
            for (name, device) in stacks(&rt).await {
                let load = Load::over(&rt, &device);
                loads(&rt, &load, seed).await;
                assert!(load.check(name) > 500, "{name}: it was a load");
                device.close().await.expect("nothing fails");
            }
        });
    }
}

#[test]
fn random_wide_and_narrow_requests_wait_only_for_earlier_ones() {
    each_stack(async |rt, load, seed| random_load(rt, load, seed).await);
}

#[test]
fn a_wide_write_waits_only_for_the_narrow_ones_before_it() {
    each_stack(async |rt, load, _| staggered_load(rt, load, true).await);
}

#[test]
fn a_read_waits_for_no_later_write() {
    each_stack(async |rt, load, _| staggered_load(rt, load, false).await);
}

/// A read retries when a write in its range has failed. Writes that fail repeatedly must not make
/// the read retry forever.
#[test]
fn a_read_waits_for_no_later_write_that_fails() {
    let rt = virtual_rt(1);
    let sides = [("fast", 200), ("slow", 700)].map(|(name, us)| {
        let rule = ErrorRule {
            error: Some(IoError::NoSpace),
            ops: vec![Op::Write],
            choice: Choice::All,
            range: None,
            after: Duration::ZERO,
            lasting: Duration::MAX,
            hang: None,
            late: false,
        };
        SideDevice {
            name: name.to_owned(),
            device: medium_with(&rt, BLOCKS * BLOCK, us, Some(rule)),
            data_offset: 0,
            out_of_sync: false,
        }
    });
    let size_bytes = BLOCKS * BLOCK;
    let mirror = Mirror::new(&rt, &mirror_config(), sides.into(), size_bytes);
    let device: Stack = Rc::new(mirror);
    rt.block_on(async {
        // The mirror retries the first write until only one side remains.
        let first = device.submit(write(&rt, 0, BLOCK as usize, 7)).await;
        first.expect_err("no side takes it");
        let load = Load::failing(&rt, &device, true);
        staggered_load(&rt, &load, false).await;
        assert!(load.check("mirror") > 500, "it was a load");
    });
}

#[test]
fn scattered_writes_wait_only_for_earlier_ones() {
    each_stack(async |rt, load, seed| scattered_load(rt, load, seed).await);
}

/// Writes of one page each wait for the same amount of memory in a full cache, and for no other
/// resource, so they must complete in the order of admission.
#[test]
fn a_full_cache_gives_room_in_the_order_of_arrival() {
    for (seed, us) in [(1, 50), (2, 300), (3, 3_000)] {
        let rt = virtual_rt(seed);
        rt.block_on(async {
            let device = cache(&rt, medium(&rt, BLOCKS * BLOCK, us));
            let load = Load::over(&rt, &device);
            scattered_load(&rt, &load, seed).await;
            assert_eq!(load.overtaken(), 0, "seed {seed}");
            let waited = load
                .log
                .borrow()
                .windows(2)
                .filter(|w| w[0].done_ns < w[1].done_ns)
                .count();
            assert!(waited > 100, "the cache was full");
            device.close().await.expect("nothing fails");
        });
    }
}

/// Fairness must not serialize disjoint requests: at queue depth 32 they are allowed to take at
/// most 3 % longer through a stack than on the device alone.
#[test]
fn disjoint_requests_go_side_by_side() {
    const DEPTH: u64 = 32;
    const EACH: u64 = 200;
    let elapsed_ns = |stack: fn(&Rt, Stack) -> Stack| {
        let rt = virtual_rt(1);
        let device = stack(&rt, medium(&rt, BLOCKS * BLOCK, 300));
        rt.block_on(async {
            let tasks = TaskGroup::new(&rt);
            for task in 0..DEPTH {
                let (rt, device) = (rt.clone(), Rc::clone(&device));
                tasks.spawn(async move {
                    for _ in 0..EACH {
                        let request = write(&rt, task * 8 * BLOCK, 8 * BLOCK as usize, 7);
                        device.submit(request).await.expect("memory works");
                    }
                });
            }
            tasks.join().await;
        });
        rt.now().as_ns()
    };
    let alone_ns = elapsed_ns(|_, medium| medium);
    let locked_ns = elapsed_ns(atomic);
    let mirrored_ns = elapsed_ns(|rt, medium| {
        let sides =
            [("fast", Rc::clone(&medium)), ("slow", medium)].map(|(name, device)| SideDevice {
                name: name.to_owned(),
                device,
                data_offset: 0,
                out_of_sync: false,
            });
        let size_bytes = BLOCKS * BLOCK;
        Rc::new(Mirror::new(rt, &mirror_config(), sides.into(), size_bytes))
    });
    for (name, ns) in [("atomic", locked_ns), ("mirror", mirrored_ns)] {
        assert!(
            ns * 100 <= alone_ns * 103,
            "{name}: {ns} ns, alone {alone_ns} ns"
        );
    }
}

/// Returns the median and the maximum latency of random writes into a full cache.
fn full_cache(medium: &str, depth: u64) -> (u64, u64) {
    // Poll tasks in the order in which they are woken, as the runtime in real time does.
    let rt = Rt::virtual_time(VirtualOptions {
        seed: depth,
        shuffle: false,
    });
    let text = format!(
        "[device.memory]\ntype = \"memory\"\nsize = \"1GiB\"\n\
         [device.disk]\nbelow = \"memory\"\n{medium}\n\
         [device.top]\ntype = \"cache\"\nbelow = \"disk\"\nsize = \"8MiB\"\n"
    );
    let latencies = Rc::new(RefCell::new(Vec::new()));
    rt.block_on(async {
        let (stack, top) = open(&rt, &text).await;
        let tasks = TaskGroup::new(&rt);
        let written = Rc::new(Cell::new(0));
        for task in 0..depth {
            let (rt, top, latencies) = (rt.clone(), Rc::clone(&top), Rc::clone(&latencies));
            let (written, mut rng) = (Rc::clone(&written), Rng::new(task));
            tasks.spawn(async move {
                while written.get() < 12_000 {
                    let request = write(&rt, rng.below((1 << 30) / BLOCK) * BLOCK, 4096, 7);
                    let began = rt.now();
                    top.submit(request).await.expect("memory works");
                    written.set(written.get() + 1);
                    // Only count writes after the content of the cache has been replaced twice.
                    if written.get() > 4_096 {
                        latencies.borrow_mut().push(rt.now().ns_since(began));
                    }
                }
            });
        }
        tasks.join().await;
        stack.close().await.expect("nothing fails");
    });
    let mut latencies = latencies.take();
    latencies.sort_unstable();
    (
        latencies[latencies.len() / 2],
        *latencies.last().expect("there are some"),
    )
}

#[test]
fn the_longest_write_into_a_full_cache_is_at_most_twenty_medians() {
    let media = [
        (
            "ssd",
            "type = \"delay\"\nwrite = \"200us\"\nread = \"100us\"\njitter = \"50us\"",
        ),
        ("disk", "type = \"hdd\"\nprofile = \"hdd-7200\""),
    ];
    for (name, medium) in media {
        for depth in [8, 16, 32] {
            let (median_ns, longest_ns) = full_cache(medium, depth);
            let times = longest_ns as f64 / median_ns as f64;
            let ms = |ns: u64| ns as f64 / 1e6;
            let (median_ms, longest_ms) = (ms(median_ns), ms(longest_ns));
            println!(
                "{name} {depth}: median {median_ms:.2} ms, longest {longest_ms:.2} ms, {times:.1}"
            );
            assert!(
                longest_ns <= 20 * median_ns,
                "{name} depth {depth}: median {median_ns} ns, longest {longest_ns} ns"
            );
        }
    }
}
