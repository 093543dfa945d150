//! No request of a mirror may wait forever, and none may need a later request before it can
//! complete. The tests use changes of every length, both rules of acknowledgement, logs with and
//! without room, and sides that freeze. Waits are measured in virtual time.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{virtual_rt, write};
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{Acknowledge, Mirror, MirrorConfig, OpenOptions, SideToOpen};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, Op, Request};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Rng, Rt};
use futures_util::future::{Either, select};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Length of the log of each side in bytes, which is the minimum.
const LOG_BYTES: u64 = 4 * MIB;
/// Size of the range at the start of the volume to which the load writes, in bytes.
const SPAN_BYTES: u64 = 40 * MIB;
/// Maximum latency of a request. A mirror ejects a healthy side only after the side has not
/// answered for 30 s, so a request that is acknowledged sooner has not waited for an ejection.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
struct Case {
    acknowledge: Acknowledge,
    sides: usize,
    logs_are_full: bool,
    request_bytes: u64,
    /// Number of requests in flight.
    clients: u64,
    /// Total number of requests.
    requests: u64,
}

/// Returns a device in memory that takes `us` microseconds for each request.
fn medium(rt: &Rt, us: u64) -> (Rc<dyn Device>, Rc<FaultControl>) {
    let memory = Rc::new(MemoryDevice::new(rt, 64 * MIB));
    let fault = Fault::new(rt, memory, FaultPlan::default(), us);
    for op in [Op::Read, Op::Write, Op::Flush] {
        fault.control().set_delay(op, Duration::from_micros(us));
    }
    let control = fault.control();
    (Rc::new(fault), control)
}

/// Returns a volume with logs of the minimum size. The list `us` holds, for each side, the fixed
/// time in microseconds that the side takes for a request.
async fn volume(rt: &Rt, acknowledge: Acknowledge, us: &[u64]) -> (Mirror, Vec<Rc<FaultControl>>) {
    let names: Vec<String> = (0..us.len()).map(|side| format!("side-{side}")).collect();
    let media: Vec<_> = us.iter().map(|us| medium(rt, *us)).collect();
    let sides = || {
        let named = names.iter().zip(&media);
        named.map(|(name, (device, _))| (name.clone(), Rc::clone(device)))
    };
    let formatting = Formatting {
        log_bytes: Some(LOG_BYTES),
        ..Formatting::with_homes()
    };
    let candidate = |(name, device)| Candidate { name, device };
    let candidates: Vec<Candidate> = sides().map(candidate).collect();
    let made = formatting::format(rt, "vol", &candidates, &formatting).await;
    made.expect("the sides are fit");
    let mut config = MirrorConfig::of(names.clone());
    config.acknowledge = acknowledge;
    let to_open = sides().map(|(name, device)| SideToOpen {
        name,
        device: Ok(device),
    });
    let options = OpenOptions::default();
    let opened = Mirror::open(rt, &config, to_open.collect(), &options).await;
    let controls = media.into_iter().map(|(_, control)| control).collect();
    (opened.expect("it opens"), controls)
}

/// Writes at random offsets, half of the requests at one of only eight offsets, and returns the
/// longest latency.
async fn load(rt: &Rt, mirror: &Mirror, case: Case) -> Duration {
    let tasks = TaskGroup::new(rt);
    let left = Rc::new(Cell::new(case.requests));
    let longest_ns = Rc::new(Cell::new(0));
    for client in 0..case.clients {
        let (rt, mirror, left) = (rt.clone(), mirror.clone(), Rc::clone(&left));
        let (longest_ns, mut rng) = (Rc::clone(&longest_ns), Rng::new(client));
        tasks.spawn(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                let all = (SPAN_BYTES - case.request_bytes) / (4 * KIB) + 1;
                let places = if rng.chance(0.5) { all } else { all.min(8) };
                let offset = rng.below(places) * 4 * KIB;
                let request = write(&rt, offset, case.request_bytes as usize, 7);
                let began = rt.now();
                mirror.submit(request).await.expect("every side is well");
                longest_ns.set(longest_ns.get().max(rt.now().ns_since(began)));
            }
        });
    }
    tasks.join().await;
    Duration::from_nanos(longest_ns.get())
}

/// Freezes one side after another for a while, forever.
async fn freeze_in_turn(rt: &Rt, controls: &[Rc<FaultControl>]) {
    for control in controls.iter().cycle().skip(1) {
        rt.sleep(Duration::from_millis(40)).await;
        control.set_frozen(true);
        rt.sleep(Duration::from_millis(150)).await;
        control.set_frozen(false);
    }
}

fn run(case: Case) {
    let rt = virtual_rt(case.request_bytes);
    rt.block_on(async {
        let us = &[200, 900, 2_000][..case.sides];
        let (mirror, controls) = volume(&rt, case.acknowledge, us).await;
        if case.logs_are_full {
            let filling = Case {
                request_bytes: 64 * KIB,
                clients: 4,
                requests: 3 * LOG_BYTES / (64 * KIB),
                ..case
            };
            load(&rt, &mirror, filling).await;
        }
        let loaded = pin!(load(&rt, &mirror, case));
        let freezing = pin!(freeze_in_turn(&rt, &controls));
        let Either::Left((longest, _)) = select(loaded, freezing).await else {
            unreachable!("it freezes sides for ever");
        };
        let status = mirror.status();
        assert!(
            !status.degraded,
            "{case:?}: a side was given up: {status:?}"
        );
        assert!(longest < WAIT_MAX, "{case:?}: a write took {longest:?}");
        controls
            .iter()
            .for_each(|control| control.set_frozen(false));
        let closed = rt.timeout(WAIT_MAX, mirror.close()).await;
        assert_eq!(closed, Ok(Ok(())), "{case:?}: it closes");
    });
}

fn run_all(acknowledge: Acknowledge) {
    let loads = [
        (4 * KIB, 256, 2_000),
        (256 * KIB, 160, 400),
        // Each of these writes is longer than the log.
        (6 * MIB, 8, 24),
    ];
    for sides in [2, 3] {
        for logs_are_full in [false, true] {
            for (request_bytes, clients, requests) in loads {
                run(Case {
                    acknowledge,
                    sides,
                    logs_are_full,
                    request_bytes,
                    clients,
                    requests,
                });
            }
        }
    }
}

#[test]
fn no_change_that_the_first_side_acknowledges_waits_for_ever() {
    run_all(Acknowledge::First);
}

#[test]
fn no_change_that_all_sides_acknowledge_waits_for_ever() {
    run_all(Acknowledge::All);
}

/// While a side is flushing, a client flushes; after that, other clients write and flush. The first
/// client's flush must not wait for these later writes.
#[test]
fn a_flush_waits_for_no_later_change() {
    const WRITES: u64 = 400;
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (mirror, controls) = volume(&rt, Acknowledge::All, &[100, 5_000]).await;
        controls[1].set_delay(Op::Flush, Duration::from_millis(50));
        let (tasks, ended) = (TaskGroup::new(&rt), Rc::new(RefCell::new(Vec::new())));
        let spawn = |name: &'static str, request: Request| {
            let (mirror, ended) = (mirror.clone(), Rc::clone(&ended));
            tasks.spawn(async move {
                mirror.submit(request).await.expect("every side is well");
                ended.borrow_mut().push(name);
            });
        };
        let put = |place: u64| write(&rt, place * 64 * KIB, 64 << 10, 7);
        spawn("write", put(0));
        rt.sleep(Duration::from_millis(20)).await;
        spawn("flush before", Request::flush());
        // The slow side is flushing, and receives a write at the same time.
        rt.sleep(Duration::from_millis(5)).await;
        spawn("write", put(1));
        rt.sleep(Duration::from_millis(10)).await;
        spawn("flush", Request::flush());
        rt.sleep(Duration::from_millis(1)).await;
        for place in 0..WRITES {
            spawn("later write", put(2 + place));
        }
        rt.sleep(Duration::from_millis(1)).await;
        spawn("later flush", Request::flush());
        tasks.join().await;
        mirror.close().await.expect("it closes");

        let ended = ended.take();
        let at = |name| ended.iter().position(|other| *other == name);
        assert!(at("flush before") < at("flush"), "in order: {ended:?}");
        let flushed = at("flush").expect("it ends");
        let later = ended[flushed..]
            .iter()
            .filter(|name| **name == "later write");
        assert!(
            later.count() as u64 > WRITES / 2,
            "the flush waited for later writes: {ended:?}"
        );
    });
}

/// After a crash a side can lack all changes that were queued for it. These changes must fit into
/// the log of the side, however many writes clients have in flight. Otherwise the side could not
/// get them through its log when the volume is opened again.
#[test]
fn no_more_waits_for_a_side_than_its_log_takes() {
    const LEN: u64 = 256 * KIB;
    for acknowledge in [Acknowledge::First, Acknowledge::All] {
        let rt = virtual_rt(3);
        rt.block_on(async {
            let (mirror, controls) = volume(&rt, acknowledge, &[100, 100]).await;
            controls[1].set_frozen(true);
            let tasks = TaskGroup::new(&rt);
            for client in 0..SPAN_BYTES / LEN {
                let (rt, mirror) = (rt.clone(), mirror.clone());
                tasks.spawn(async move {
                    let request = write(&rt, client * LEN, LEN as usize, 7);
                    mirror.submit(request).await.expect("every side is well");
                });
            }
            rt.sleep(Duration::from_secs(1)).await;
            let side = &mirror.status().sides[1];
            let waits = side.waiting_bytes + side.in_flight_bytes;
            assert!(waits > 0, "{acknowledge:?}: nothing waits");
            assert!(
                waits <= LOG_BYTES / 2,
                "{acknowledge:?}: {waits} bytes wait for a side with a log of {LOG_BYTES}"
            );
            controls[1].set_frozen(false);
            tasks.join().await;
            mirror.close().await.expect("it closes");
        });
    }
}
