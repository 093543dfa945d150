//! The hetero-mirror on two or three sides in memory whose faults the tests control.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::graph::OpenError;
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::superblock::{self, Candidate, Formatting};
use bimetal_block::layers::mirror::{
    Force, Mirror, MirrorConfig, OnDegraded, OpenOptions, SideDevice, SideToOpen,
};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::units::{Size, Time};
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::{Rt, VirtualOptions};
use common::{virtual_rt, write};

const BLOCK: u64 = 4096;
const VOLUME: u64 = 16 << 20;
/// Write times of the sides: an SSD and a disk, roughly.
const FAST_MS: u64 = 1;
const SLOW_MS: u64 = 10;

/// Notes the changes that reach a side: offset and length of each, in order.
struct Recorder {
    below: Rc<dyn Device>,
    changes: Rc<RefCell<Vec<(u64, u64)>>>,
}

impl Device for Recorder {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }
    fn submit(&self, request: Request) -> IoFuture<'_> {
        if request.op.changes_content() {
            self.changes
                .borrow_mut()
                .push((request.offset, request.len));
        }
        self.below.submit(request)
    }
}

/// One side: what is stored, what can be done to it, what has reached it.
struct TestSide {
    memory: Rc<dyn Device>,
    faults: Rc<FaultControl>,
    changes: Rc<RefCell<Vec<(u64, u64)>>>,
    top: Rc<dyn Device>,
}

impl TestSide {
    fn new(rt: &Rt, write_ms: u64) -> TestSide {
        let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, VOLUME));
        let fault = Fault::new(rt, Rc::clone(&memory), FaultPlan::default(), 1);
        let faults = fault.control();
        faults.set_delay(Op::Write, Duration::from_millis(write_ms));
        let changes = Rc::new(RefCell::new(Vec::new()));
        let recorder = Recorder {
            below: Rc::new(fault),
            changes: Rc::clone(&changes),
        };
        TestSide {
            memory,
            faults,
            changes,
            top: Rc::new(recorder),
        }
    }

    /// The byte that fills the block at `offset`.
    async fn byte_at(&self, offset: u64) -> u8 {
        byte_of(&self.memory, offset).await
    }
}

async fn byte_of(device: &Rc<dyn Device>, offset: u64) -> u8 {
    let data = device
        .submit(Request::read(offset, BLOCK))
        .await
        .expect("memory can be read");
    let bytes = data.into_data().to_vec();
    assert!(
        bytes.iter().all(|byte| *byte == bytes[0]),
        "a block is of one write"
    );
    bytes[0]
}

struct Pair {
    rt: Rt,
    fast: TestSide,
    slow: TestSide,
    mirror: Mirror,
}

impl Pair {
    fn new(change: impl FnOnce(&mut MirrorConfig)) -> Pair {
        Pair::with_rt(virtual_rt(5), change)
    }

    fn with_rt(rt: Rt, change: impl FnOnce(&mut MirrorConfig)) -> Pair {
        let (fast, slow) = (TestSide::new(&rt, FAST_MS), TestSide::new(&rt, SLOW_MS));
        let mut config = MirrorConfig::of(vec!["fast".to_owned(), "slow".to_owned()]);
        change(&mut config);
        config.check().expect("the settings make a mirror");
        let side = |name: &str, side: &TestSide| SideDevice {
            name: name.to_owned(),
            device: Rc::clone(&side.top),
            data_offset: 0,
            stale: false,
        };
        let sides = vec![side("fast", &fast), side("slow", &slow)];
        let mirror = Mirror::new(&rt, &config, sides, VOLUME);
        Pair {
            rt,
            fast,
            slow,
            mirror,
        }
    }

    /// Writes one block and says how long that took, in milliseconds.
    async fn write(&self, block: u64, byte: u8) -> u64 {
        let before = self.rt.now();
        let request = write(&self.rt, block * BLOCK, BLOCK as usize, byte);
        self.mirror
            .submit(request)
            .await
            .expect("a side takes the write");
        self.rt.now().ns_since(before) / 1_000_000
    }

    async fn read(&self, block: u64) -> u8 {
        byte_of(
            &(Rc::new(self.mirror.clone()) as Rc<dyn Device>),
            block * BLOCK,
        )
        .await
    }

    /// Enough writes for the mirror to know both sides, drained.
    async fn learn(&self) {
        for block in 0..40 {
            self.write(1000 + block, 1).await;
            self.flush().await;
        }
        self.fast.changes.borrow_mut().clear();
        self.slow.changes.borrow_mut().clear();
    }

    async fn flush(&self) {
        self.mirror
            .submit(Request::flush())
            .await
            .expect("both sides flush");
    }

    async fn wait(&self, ms: u64) {
        self.rt.sleep(Duration::from_millis(ms)).await;
    }
}

#[test]
fn a_write_takes_the_time_of_the_first_side_and_is_exposed_until_the_second_has_it() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        assert_eq!(pair.write(0, 7).await, FAST_MS);
        assert_eq!(pair.mirror.status().exposed_bytes, BLOCK);
        pair.wait(SLOW_MS).await;
        assert_eq!(pair.mirror.status().exposed_bytes, 0);
        assert_eq!(
            (pair.fast.byte_at(0).await, pair.slow.byte_at(0).await),
            (7, 7)
        );
    });
}

#[test]
fn a_frozen_side_costs_its_limit_and_the_time_of_the_other() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.fast.faults.set_frozen(true);
        // Both sides have been given the write: the slow one has it after its own time.
        assert_eq!(pair.write(0, 2).await, SLOW_MS);
        assert!(pair.mirror.status().sides[0].stuck);
        assert_eq!(pair.write(1, 3).await, SLOW_MS);
        assert_eq!((pair.read(0).await, pair.read(1).await), (2, 3));
        pair.fast.faults.set_frozen(false);
        pair.flush().await;
        assert_eq!(
            (pair.fast.byte_at(0).await, pair.fast.byte_at(BLOCK).await),
            (2, 3)
        );
        assert_eq!(pair.mirror.status().exposed_bytes, 0);
    });
}

#[test]
fn reads_never_give_what_only_the_lagging_side_believes() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.write(5, 10).await;
        pair.flush().await;
        pair.slow.faults.set_frozen(true);
        pair.write(5, 11).await;
        // The side that has the new content cannot be read: the queue of the other one has it too.
        pair.fast.faults.fail_next(Op::Read, IoError::Medium);
        let read = pair.mirror.submit(Request::read(5 * BLOCK, BLOCK)).await;
        match read {
            Ok(reply) => assert_eq!(reply.into_data().to_vec()[0], 11, "stale data"),
            Err(error) => assert_eq!(error, IoError::Medium),
        }
        assert_eq!(pair.read(5).await, 11);
    });
}

#[test]
fn a_read_error_is_answered_by_the_other_side() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.write(3, 9).await;
        pair.flush().await;
        pair.fast.faults.fail_next(Op::Read, IoError::Medium);
        assert_eq!(pair.read(3).await, 9);
        assert_eq!(pair.mirror.status().sides[0].errors, 1);
    });
}

/// Enough reads for the fast side's speed to be known, and for one hedge.
async fn learn_reads(pair: &Pair) {
    for _ in 0..40 {
        assert_eq!(pair.read(3).await, 9);
    }
}

#[test]
fn a_late_read_is_answered_by_the_other_side() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.write(3, 9).await;
        pair.flush().await;
        learn_reads(&pair).await;
        pair.fast.faults.set_frozen(true);
        let before = pair.rt.now();
        assert_eq!(pair.read(3).await, 9);
        // Memory answers at once, so half a millisecond, the least there is, counts as late.
        assert_eq!(pair.rt.now().ns_since(before), 500_000);
        assert_eq!(pair.mirror.status().hedged_reads, 1);
    });
}

#[test]
fn a_late_read_is_not_asked_of_a_side_that_lacks_the_newest_content() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.write(3, 9).await;
        pair.flush().await;
        learn_reads(&pair).await;
        pair.slow.faults.set_frozen(true);
        pair.write(3, 10).await;
        pair.fast
            .faults
            .set_delay(Op::Read, Duration::from_millis(300));
        assert_eq!(pair.read(3).await, 10);
        assert_eq!(pair.mirror.status().hedged_reads, 0);
    });
}

#[test]
fn at_most_one_read_in_twenty_is_hedged() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.write(3, 9).await;
        pair.flush().await;
        learn_reads(&pair).await;
        // Slow at once for all reads: the quantile follows only after a window of samples.
        pair.fast
            .faults
            .set_delay(Op::Read, Duration::from_millis(20));
        for read in 1..=200u64 {
            assert_eq!(pair.read(3).await, 9);
            let hedged = pair.mirror.status().hedged_reads;
            assert!(hedged * 20 <= 40 + read, "{hedged} of {}", 40 + read);
        }
        assert!(pair.mirror.status().hedged_reads > 0);
    });
}

#[test]
fn past_the_bound_in_bytes_writes_wait_for_all_sides() {
    let pair = Pair::new(|config| config.exposure.bytes = Size(4 * BLOCK));
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        for block in 0..4 {
            assert!(pair.write(block, 1).await < SLOW_MS);
        }
        assert_eq!(pair.mirror.status().exposed_bytes, 4 * BLOCK);
        let held = pair
            .rt
            .timeout(Duration::from_secs(5), pair.write(4, 1))
            .await;
        assert!(
            held.is_err(),
            "there is no room, and the slow side is frozen"
        );
        assert_eq!(pair.mirror.status().exposed_bytes, 4 * BLOCK);
        pair.slow.faults.set_frozen(false);
        pair.flush().await;
        assert_eq!(pair.mirror.status().exposed_bytes, 0);
        assert_eq!(
            pair.slow.byte_at(4 * BLOCK).await,
            1,
            "the held write goes on"
        );
    });
}

#[test]
fn past_the_bound_in_time_writes_wait_for_all_sides() {
    let age = Time(Duration::from_millis(500));
    let pair = Pair::new(|config| config.exposure.age = age);
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        assert!(pair.write(0, 1).await < SLOW_MS);
        pair.wait(501).await;
        let held = pair
            .rt
            .timeout(Duration::from_secs(5), pair.write(1, 1))
            .await;
        assert!(held.is_err(), "the oldest exposed write is too old");
    });
}

#[test]
fn no_exposure_allowed_means_every_write_waits_for_both() {
    let pair = Pair::new(|config| config.exposure.bytes = Size(0));
    pair.rt.block_on(async {
        assert_eq!(pair.write(0, 7).await, SLOW_MS);
        assert_eq!(pair.mirror.status().exposed_bytes_peak, 0);
    });
}

#[test]
fn fua_and_flush_wait_for_both_sides() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        let before = pair.rt.now();
        let mut request = write(&pair.rt, 0, BLOCK as usize, 4);
        request.flags = Flags::FUA;
        pair.mirror
            .submit(request)
            .await
            .expect("both sides take it");
        assert_eq!(pair.rt.now().ns_since(before) / 1_000_000, SLOW_MS);
        pair.write(1, 5).await;
        pair.flush().await;
        assert_eq!(pair.slow.byte_at(BLOCK).await, 5);
    });
}

#[test]
fn a_newer_write_replaces_what_waits_and_is_written_once() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        for byte in 1..=20 {
            pair.write(7, byte).await;
        }
        pair.slow.faults.set_frozen(false);
        pair.flush().await;
        assert_eq!(
            (
                pair.fast.byte_at(7 * BLOCK).await,
                pair.slow.byte_at(7 * BLOCK).await
            ),
            (20, 20)
        );
        // The first was in flight when the side froze; of the others only the last is left.
        assert_eq!(pair.slow.changes.borrow().len(), 2);
        assert_eq!(pair.fast.changes.borrow().len(), 20);
    });
}

#[test]
fn a_delayed_side_catches_up_in_order_of_place_with_neighbours_merged() {
    // Not shuffled: batches reach the device in the order in which they are issued.
    let pair = Pair::with_rt(Rt::virtual_time(VirtualOptions::default()), |_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        // Eight writes fill what the side is given at once; the mirror decides over the others.
        for filler in 0..8 {
            pair.write(2000 + filler * 10, 1).await;
        }
        pair.wait(100).await;
        for block in [50, 12, 90, 11, 13, 51, 30] {
            pair.write(block, 2).await;
        }
        pair.slow.changes.borrow_mut().clear();
        pair.slow.faults.set_frozen(false);
        pair.flush().await;
        let drained: Vec<(u64, u64)> = pair
            .slow
            .changes
            .borrow()
            .iter()
            .map(|(offset, len)| (offset / BLOCK, len / BLOCK))
            .filter(|(block, _)| *block < 1000)
            .collect();
        assert_eq!(drained, [(11, 3), (30, 1), (50, 2), (90, 1)]);
    });
}

#[test]
fn a_silent_side_becomes_absent_and_is_made_whole_when_it_answers() {
    let pair = Pair::new(|config| config.absent_after = Some(Time(Duration::from_secs(2))));
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        pair.write(0, 1).await;
        pair.wait(2_500).await;
        assert_eq!(pair.mirror.status().sides[1].health, "absent");
        assert_eq!(
            pair.mirror.status().exposed_bytes,
            0,
            "degraded, not exposed"
        );
        pair.write(1, 2).await;
        pair.flush().await;
        assert!(pair.mirror.status().sides[1].stale_bytes >= 2 * BLOCK);
        pair.slow.faults.set_frozen(false);
        pair.wait(5_000).await;
        let status = pair.mirror.status();
        assert_eq!(
            (status.sides[1].health, status.degraded),
            ("healthy", false)
        );
        assert_eq!(
            (pair.slow.byte_at(0).await, pair.slow.byte_at(BLOCK).await),
            (1, 2)
        );
    });
}

#[test]
fn on_degraded_decides_what_a_volume_with_an_absent_side_takes() {
    for (policy, write_error, read_error) in [
        (OnDegraded::ReadOnly, IoError::ReadOnly, None),
        (OnDegraded::Stop, IoError::Offline, Some(IoError::Offline)),
    ] {
        let pair = Pair::new(|config| {
            config.absent_after = Some(Time(Duration::from_secs(2)));
            config.on_degraded = policy;
        });
        pair.rt.block_on(async {
            pair.learn().await;
            pair.slow.faults.set_frozen(true);
            pair.write(0, 1).await;
            pair.wait(2_500).await;
            let request = write(&pair.rt, 0, BLOCK as usize, 2);
            assert_eq!(pair.mirror.submit(request).await.err(), Some(write_error));
            let read = pair.mirror.submit(Request::read(0, BLOCK)).await;
            assert_eq!(read.err(), read_error);
        });
    }
}

#[test]
fn a_side_that_fails_writes_is_tried_again_and_then_given_up() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.fail_next(Op::Write, IoError::Medium);
        pair.write(0, 1).await;
        pair.flush().await;
        assert_eq!(pair.slow.byte_at(0).await, 1, "the second try succeeded");
        assert_eq!(pair.mirror.status().sides[1].health, "healthy");
        pair.slow.faults.set_error(Some(IoError::Medium));
        pair.write(1, 2).await;
        pair.wait(10_000).await;
        assert_eq!(pair.mirror.status().sides[1].health, "absent");
        assert_eq!(pair.read(1).await, 2);
    });
}

#[test]
fn the_last_side_is_never_given_up_and_the_client_is_told() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_error(Some(IoError::Medium));
        pair.write(0, 1).await;
        pair.wait(10_000).await;
        pair.fast.faults.fail_next(Op::Write, IoError::Medium);
        let request = write(&pair.rt, BLOCK, BLOCK as usize, 2);
        assert_eq!(
            pair.mirror.submit(request).await.err(),
            Some(IoError::Medium)
        );
        assert_eq!(pair.mirror.status().sides[0].health, "healthy");
        assert_eq!(pair.write(1, 3).await, FAST_MS);
        assert_eq!(pair.read(1).await, 3);
    });
}

#[test]
fn discards_and_zeroes_agree_on_both_sides() {
    let pair = Pair::new(|_| {});
    pair.rt.block_on(async {
        for block in 0..4 {
            pair.write(block, 9).await;
        }
        for (op, block) in [(Op::Discard, 1), (Op::WriteZeroes, 2)] {
            let request = Request::without_data(op, block * BLOCK, BLOCK, Flags::NONE);
            pair.mirror
                .submit(request)
                .await
                .expect("both sides take it");
        }
        pair.flush().await;
        for side in [&pair.fast, &pair.slow] {
            let mut bytes = Vec::new();
            for block in 0..4 {
                bytes.push(side.byte_at(block * BLOCK).await);
            }
            assert_eq!(bytes, [9, 0, 0, 9]);
        }
    });
}

/// Sides large enough for superblocks.
fn candidates(rt: &Rt, count: usize) -> Vec<Candidate> {
    (0..count)
        .map(|index| Candidate {
            name: format!("side{index}"),
            device: Rc::new(MemoryDevice::new(rt, 64 << 20)),
        })
        .collect()
}

fn config_of(sides: &[Candidate]) -> MirrorConfig {
    MirrorConfig::of(sides.iter().map(|side| side.name.clone()).collect())
}

async fn open(rt: &Rt, sides: &[Candidate]) -> Result<Mirror, String> {
    open_as(rt, sides, &OpenOptions::default()).await
}

async fn open_as(rt: &Rt, sides: &[Candidate], options: &OpenOptions) -> Result<Mirror, String> {
    let there = sides.iter().map(|side| SideToOpen {
        name: side.name.clone(),
        device: Ok(Rc::clone(&side.device)),
    });
    let opened = Mirror::open(rt, &config_of(sides), there.collect(), options).await;
    opened.map_err(|error| error.to_string())
}

#[test]
fn a_volume_survives_a_clean_stop_whatever_the_order_of_its_sides() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let sides = candidates(&rt, 3);
        superblock::format(&rt, "vol", &sides, &Formatting::default())
            .await
            .expect("the sides are fit");
        let mirror = open(&rt, &sides).await.expect("a fresh volume opens");
        mirror
            .submit(write(&rt, 0, 8192, 0x55))
            .await
            .expect("written");
        mirror.close().await.expect("closed");
        let turned: Vec<Candidate> = sides.iter().rev().cloned().collect();
        let again = open(&rt, &turned).await.expect("sides are known by UUID");
        let device: Rc<dyn Device> = Rc::new(again.clone());
        assert_eq!(byte_of(&device, 4096).await, 0x55);
        again.close().await.expect("closed");
    });
}

#[test]
fn unfit_foreign_and_doubled_sides_are_refused_and_nothing_is_written() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let (ours, others) = (candidates(&rt, 2), candidates(&rt, 2));
        let blank = open(&rt, &ours).await.err().expect("not formatted");
        assert!(blank.contains("bimetal format"), "{blank}");
        superblock::format(&rt, "ours", &ours, &Formatting::default())
            .await
            .expect("fit");
        superblock::format(&rt, "others", &others, &Formatting::default())
            .await
            .expect("fit");
        let taken = superblock::format(&rt, "again", &ours, &Formatting::default())
            .await
            .expect_err("in use");
        assert!(taken.to_string().contains("--force"), "{taken}");
        let mixed = [ours[0].clone(), others[1].clone()];
        let foreign = open(&rt, &mixed).await.err().expect("foreign");
        assert!(
            foreign.contains("foreign") && foreign.contains("\"others\""),
            "{foreign}"
        );
        let doubled = [ours[0].clone(), ours[0].clone()];
        let twice = open(&rt, &doubled).await.err().expect("one side twice");
        assert!(twice.contains("same side"), "{twice}");
        let mirror = open(&rt, &ours).await.expect("refusals changed nothing");
        mirror.close().await.expect("closed");
    });
}

/// Opens the sides of `names` only; the others cannot be found.
async fn open_some(
    rt: &Rt,
    sides: &[Candidate],
    there: &[usize],
    options: &OpenOptions,
) -> Result<Mirror, String> {
    let side = |(index, side): (usize, &Candidate)| SideToOpen {
        name: side.name.clone(),
        device: match there.contains(&index) {
            true => Ok(Rc::clone(&side.device)),
            false => Err(OpenError::new("unplugged")),
        },
    };
    let all = sides.iter().enumerate().map(side).collect();
    let opened = Mirror::open(rt, &config_of(sides), all, options).await;
    opened.map_err(|error| error.to_string())
}

async fn formatted(rt: &Rt, count: usize) -> Vec<Candidate> {
    let sides = candidates(rt, count);
    let made = superblock::format(rt, "vol", &sides, &Formatting::default()).await;
    made.expect("the sides are fit");
    sides
}

#[test]
fn a_volume_that_was_not_closed_opens_again_with_all_that_was_written() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let crashed = open(&rt, &sides).await.expect("fresh");
        let stored = crashed.submit(write(&rt, 0, 4096, 0x66)).await;
        stored.expect("written");
        crashed.submit(Request::flush()).await.expect("flushed");
        // The process is gone: nothing is closed, the sides say that they are in use.
        let mirror = open(&rt, &sides).await.expect("it recovers");
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        assert_eq!(byte_of(&device, 0).await, 0x66, "what was flushed is there");
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        mirror.close().await.expect("closed");
        let clean = open(&rt, &sides).await.expect("cleanly stopped");
        clean.close().await.expect("closed");
    });
}

#[test]
fn a_side_alone_is_refused_while_the_other_may_be_ahead_and_opens_once_nobody_is() {
    let rt = virtual_rt(7);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let crashed = open(&rt, &sides).await.expect("fresh");
        crashed
            .submit(write(&rt, 0, 4096, 1))
            .await
            .expect("written");
        crashed.submit(Request::flush()).await.expect("flushed");
        for alone in 0..2 {
            let refused = open_some(&rt, &sides, &[alone], &OpenOptions::default()).await;
            let refused = refused.err().expect("its peer may be ahead");
            let other = format!("side{}", 1 - alone);
            let says = refused.contains(&other) && refused.contains("nothing is known after");
            assert!(says && refused.contains("  0+"), "{refused}");
        }
        // In use and idle for a while, every side says that nobody is ahead.
        let mirror = open(&rt, &sides).await.expect("both are there");
        rt.sleep(Duration::from_secs(20)).await;
        drop(mirror);
        let alone = open_some(&rt, &sides, &[1], &OpenOptions::default()).await;
        let alone = alone.expect("nobody is ahead");
        assert!(alone.status().degraded);
        let device: Rc<dyn Device> = Rc::new(alone.clone());
        assert_eq!(byte_of(&device, 0).await, 1);
        alone.close().await.expect("closed");
    });
}

/// What is written while a side is missing, and nothing else, is copied to it when it returns.
#[test]
fn a_side_that_was_missing_gets_what_it_lacks() {
    let rt = virtual_rt(8);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let mirror = open(&rt, &sides).await.expect("fresh");
        for block in 0..64 {
            let write = write(&rt, block << 20, 4096, 7);
            mirror.submit(write).await.expect("written");
            if block == 40 {
                break;
            }
        }
        mirror.close().await.expect("closed");
        let alone = open_some(&rt, &sides, &[0], &OpenOptions::default()).await;
        let alone = alone.expect("it was closed cleanly");
        alone
            .submit(write(&rt, 5 << 20, 8192, 9))
            .await
            .expect("written");
        alone.close().await.expect("closed");
        let both = open(&rt, &sides).await.expect("one is behind");
        let lacks = &both.status().sides[1];
        assert_eq!((lacks.health, lacks.stale_bytes), ("resyncing", 1 << 20));
        rt.sleep(Duration::from_secs(10)).await;
        let status = both.status();
        assert!(!status.degraded, "{status:?}");
        assert_eq!(
            status.sides[1].resynced_bytes, 8192,
            "one region, without its holes"
        );
        both.close().await.expect("closed");
        for side in &sides {
            let superblock = side.superblock().await.expect("readable").expect("there");
            let at = superblock.layout.data.0 + (5 << 20);
            assert_eq!(byte_of(&side.device, at + 4096).await, 9, "{}", side.name);
        }
    });
}

#[test]
fn sides_that_each_ran_alone_are_split_until_one_is_given_up() {
    let rt = virtual_rt(9);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        for alone in 0..2 {
            let mirror = open_some(&rt, &sides, &[alone], &OpenOptions::default()).await;
            let mirror = mirror.expect("it was closed cleanly");
            let at = (1 + alone as u64) << 20;
            mirror
                .submit(write(&rt, at, 4096, 1 + alone as u8))
                .await
                .expect("written");
            mirror.close().await.expect("closed");
        }
        let split = open(&rt, &sides).await.err().expect("they are split");
        assert!(split.contains("split: side0 and side1"), "{split}");
        assert!(split.contains("  1048576+2097152"), "both regions: {split}");
        let options = OpenOptions {
            rebuild: vec!["side1".to_owned()],
            ..OpenOptions::default()
        };
        let mirror = open_as(&rt, &sides, &options)
            .await
            .expect("one was given up");
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        assert_eq!(byte_of(&device, 1 << 20).await, 1);
        assert_eq!(
            byte_of(&device, 2 << 20).await,
            0,
            "what side1 did alone is gone"
        );
        rt.sleep(Duration::from_secs(60)).await;
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        mirror.close().await.expect("closed");
        open(&rt, &sides)
            .await
            .expect("they agree")
            .close()
            .await
            .expect("closed");
    });
}

#[test]
fn a_forced_opening_shows_the_last_moment_that_is_known_or_goes_on_from_it() {
    let rt = virtual_rt(10);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let crashed = open(&rt, &sides).await.expect("fresh");
        crashed
            .submit(write(&rt, 0, 4096, 1))
            .await
            .expect("written");
        crashed.submit(Request::flush()).await.expect("flushed");
        let forced = |force| OpenOptions {
            force: Some(force),
            ..OpenOptions::default()
        };
        let look = open_some(&rt, &sides, &[1], &forced(Force::ReadOnly)).await;
        let look = look.expect("forced");
        let refused = look.submit(write(&rt, 0, 4096, 2)).await;
        assert_eq!(refused.err(), Some(IoError::ReadOnly));
        look.close().await.expect("closed");
        let fork = open_some(&rt, &sides, &[1], &forced(Force::Fork))
            .await
            .expect("forced");
        fork.submit(write(&rt, 8192, 4096, 3))
            .await
            .expect("written");
        fork.close().await.expect("closed");
        // The old side comes back: it is made equal to the fork.
        let both = open(&rt, &sides)
            .await
            .expect("one descends from the other");
        rt.sleep(Duration::from_secs(60)).await;
        assert!(!both.status().degraded, "{:?}", both.status());
        let device: Rc<dyn Device> = Rc::new(both.clone());
        assert_eq!(byte_of(&device, 8192).await, 3);
        both.close().await.expect("closed");
    });
}

/// A block that goes bad on one side is found when it is read, and repaired from the other one.
#[test]
fn a_rotten_block_is_found_and_repaired() {
    let rt = virtual_rt(11);
    rt.block_on(async {
        let sides = formatted(&rt, 2).await;
        let mirror = open(&rt, &sides).await.expect("fresh");
        mirror
            .submit(write(&rt, 0, 8192, 5))
            .await
            .expect("written");
        mirror
            .close()
            .await
            .expect("closed, and everything is at home");
        let superblock = sides[0]
            .superblock()
            .await
            .expect("readable")
            .expect("there");
        let home = superblock.layout.data.0 + 4096;
        sides[0]
            .device
            .submit(write(&rt, home, 4096, 6))
            .await
            .expect("it rots");
        let mirror = open(&rt, &sides).await.expect("it was closed cleanly");
        let device: Rc<dyn Device> = Rc::new(mirror.clone());
        assert_eq!(byte_of(&device, 4096).await, 5);
        rt.sleep(Duration::from_secs(5)).await;
        mirror.close().await.expect("closed");
        assert_eq!(byte_of(&sides[0].device, home).await, 5, "it was repaired");
    });
}
