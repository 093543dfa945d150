//! The mirror of sides of different speed, on two or three sides in memory whose faults the tests
//! control.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{byte_of, virtual_rt, write};
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::{Mirror, MirrorConfig, OnDegraded, SideDevice, Silence};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::units::{Size, Time};
use bimetal_block::{Device, Flags, Geometry, IoError, IoFuture, Op, Request};
use bimetal_rt::{Rt, VirtualOptions};
use futures_util::future::join;

const BLOCK: u64 = 4096;
const VOLUME: u64 = 16 << 20;
/// Write latencies of the sides in milliseconds, roughly those of an SSD and of a disk.
const FAST_MS: u64 = 1;
const SLOW_MS: u64 = 10;

/// A device that records the changes that reach a side: the offset and length of each, in order. It
/// asserts that no two changes in flight overlap, because their final order would be unknown.
struct Recorder {
    below: Rc<dyn Device>,
    changes: Rc<RefCell<Vec<(u64, u64)>>>,
    in_flight: RefCell<Vec<Range<u64>>>,
}

impl Device for Recorder {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }
    fn submit(&self, request: Request) -> IoFuture<'_> {
        if !request.op.changes_content() {
            return self.below.submit(request);
        }
        self.changes
            .borrow_mut()
            .push((request.offset, request.len));
        let range = request.offset..request.end();
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let beside = self
            .in_flight
            .borrow()
            .iter()
            .find(|o| overlaps(o))
            .cloned();
        assert_eq!(beside, None, "in flight beside {range:?}");
        self.in_flight.borrow_mut().push(range.clone());
        IoFuture::new(async move {
            let answer = self.below.submit(request).await;
            self.in_flight.borrow_mut().retain(|other| *other != range);
            answer
        })
    }
}

/// One side: its memory, the control of its faults, and the changes that have reached it.
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
            in_flight: RefCell::default(),
        };
        TestSide {
            memory,
            faults,
            changes,
            top: Rc::new(recorder),
        }
    }

    /// Returns the byte that fills the side's block at `offset`.
    async fn byte_at(&self, offset: u64) -> u8 {
        byte_of(&self.memory, offset).await
    }
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
            out_of_sync: false,
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

    /// Writes one block, and returns the latency of the write in milliseconds.
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

    /// Issues enough writes for the mirror to learn the latencies of both sides. Each write is
    /// followed by a flush.
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
        // The fast side is frozen. Both sides have received the write, which is acknowledged once
        // the slow side has stored it.
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
        // The side that holds the new content cannot be read. The queue of changes for the other
        // side holds the new content too, so old content must not be returned.
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

/// Issues enough reads for the mirror to measure the latency of the fast side, and to be allowed
/// one hedged read.
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
        // Reads of memory take no time, so a read is late after the minimum of half a millisecond.
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
        // From now on all reads are slow. The measured latency quantile adapts only after a window
        // of samples.
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
    let pair = Pair::new(|config| {
        config.exposure.bytes = Size(4 * BLOCK);
        config.exposure.silence = Silence::Wait;
    });
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
    let pair = Pair::new(|config| {
        config.exposure.age = age;
        config.exposure.silence = Silence::Wait;
    });
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
        // The slow side receives two changes: the first write, which was in flight when the side
        // froze, and the last of the later writes, which replaced the others in the queue.
        assert_eq!(pair.slow.changes.borrow().len(), 2);
        assert_eq!(pair.fast.changes.borrow().len(), 20);
    });
}

#[test]
fn a_delayed_side_catches_up_in_order_of_place_with_neighbours_merged() {
    // Tasks are not shuffled, so batches reach the device in the order in which the mirror issues
    // them.
    let pair = Pair::with_rt(Rt::virtual_time(VirtualOptions::default()), |_| {});
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        // Eight writes fill the in-flight window of the side. Later writes wait in its queue, where
        // the mirror orders them.
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
        assert!(pair.mirror.status().sides[1].out_of_sync_bytes >= 2 * BLOCK);
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

/// If the whole process was stopped for a time, the mirror must not blame a side for not answering
/// during that time: the mirror sees completions from that time only after it. A side that still
/// does not answer afterwards must be ejected.
#[test]
fn a_server_that_stood_still_blames_no_side() {
    for slow_ms in [SLOW_MS, 1_500] {
        let pair = Pair::new(|config| config.absent_after = Some(Time(Duration::from_secs(2))));
        let write_delay = Duration::from_millis(slow_ms);
        pair.slow.faults.set_delay(Op::Write, write_delay);
        pair.slow.faults.set_delay(Op::Read, write_delay);
        pair.rt.block_on(async {
            for round in 0..20 {
                let writes = (0..16).map(|block| pair.write(100 * round + block, 1));
                let writes = futures_util::future::join_all(writes);
                let stand_still = async {
                    pair.wait(round).await;
                    pair.rt.stall(Duration::from_secs(60));
                };
                join(writes, stand_still).await;
                pair.wait(1_900).await;
                let status = pair.mirror.status();
                let healths = [status.sides[0].health, status.sides[1].health];
                assert_eq!(
                    (healths, status.degraded),
                    (["healthy"; 2], false),
                    "{round}"
                );
            }
            pair.slow.faults.set_frozen(true);
            pair.write(0, 2).await;
            pair.rt.stall(Duration::from_secs(60));
            pair.wait(1_900).await;
            assert_eq!(pair.mirror.status().sides[1].health, "healthy");
            pair.wait(200).await;
            assert_eq!(pair.mirror.status().sides[1].health, "absent");
            pair.slow.faults.set_frozen(false);
            pair.wait(10_000).await;
            assert_eq!(pair.mirror.status().sides[1].health, "healthy");
        });
    }
}

/// The timeout of a read must count only time during which the process runs.
#[test]
fn a_read_blames_no_side_for_the_time_in_which_the_server_stood_still() {
    let pair = Pair::new(|config| config.absent_after = Some(Time(Duration::from_secs(2))));
    let set_frozen = |frozen| {
        pair.fast.faults.set_frozen(frozen);
        pair.slow.faults.set_frozen(frozen);
    };
    pair.rt.block_on(async {
        pair.write(0, 7).await;
        pair.flush().await;
        set_frozen(true);
        let stand_still = async {
            pair.wait(700).await;
            pair.rt.stall(Duration::from_secs(60));
            pair.wait(700).await;
            set_frozen(false);
        };
        let (byte, ()) = join(pair.read(0), stand_still).await;
        assert_eq!(byte, 7);
        assert!(!pair.mirror.status().degraded);
    });
}

/// After a failed flush of a side, it is unknown which earlier writes the side still holds, so all
/// content is copied to it again. The copy must not start before the side's writes in flight have
/// ended. One of these writes was submitted before the mirror learned of the failure.
#[test]
fn a_side_that_fails_a_flush_while_it_joins_is_copied_again_once_it_is_idle() {
    let pair = Pair::new(|config| config.absent_after = Some(Time(Duration::from_secs(2))));
    pair.rt.block_on(async {
        pair.learn().await;
        pair.slow.faults.set_frozen(true);
        pair.write(0, 1).await;
        pair.wait(2_500).await;
        assert_eq!(pair.mirror.status().sides[1].health, "absent");
        for (side, flush_ms) in [(&pair.fast, 200), (&pair.slow, 300)] {
            side.faults
                .set_delay(Op::Flush, Duration::from_millis(flush_ms));
        }
        pair.slow.faults.set_frozen(false);
        let joins = || {
            let side = &pair.mirror.status().sides[1];
            let idle = (side.in_flight_bytes, side.out_of_sync_bytes) == (0, 0);
            side.health == "resyncing" && idle && pair.slow.faults.inside() == 1
        };
        while !joins() {
            pair.wait(1).await;
        }
        // A client's flush fails on the joining side. The mirror learns of the failure only when
        // the other side has completed the flush. Before that, the test submits a write. This write
        // is slow: it is still in flight when the flush that the mirror issued for the join has
        // ended.
        let copied_before = pair.mirror.status().sides[1].resynced_bytes;
        pair.slow.faults.fail_next(Op::Flush, IoError::Medium);
        pair.slow
            .faults
            .set_delay(Op::Write, Duration::from_millis(900));
        let written = async {
            pair.wait(50).await;
            pair.write(1, 2).await;
        };
        let (flushed, ()) = join(pair.mirror.submit(Request::flush()), written).await;
        flushed.expect("one side has flushed");
        assert_eq!(pair.mirror.status().sides[1].health, "absent");
        pair.slow
            .faults
            .set_delay(Op::Write, Duration::from_millis(SLOW_MS));
        pair.wait(10_000).await;
        let side = &pair.mirror.status().sides[1];
        assert_eq!(
            (side.health, side.resynced_bytes - copied_before),
            ("healthy", VOLUME)
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
