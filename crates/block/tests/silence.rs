//! Sides that stop answering while writes wait because the exposure is full: when they are ejected,
//! when they are not, and how they return.

use std::rc::Rc;
use std::time::Duration;

use crate::common::sides::until_complete;
use crate::common::virtual_rt;
use crate::common::volume::{OpenVolume, Volume};
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::layers::mirror::{AbsentReason, Layouts, MirrorConfig, OnDegraded, Silence};
use bimetal_block::units::{Size, Time};
use bimetal_block::{Device, Op};
use bimetal_rt::Instant;

const BLOCK: u64 = 4096;
/// Bound on the exposure in the tests, in blocks.
const BLOCKS_EXPOSED: u64 = 16;

/// A volume whose sides can be frozen.
struct Freezing {
    volume: Volume,
    faults: Vec<Rc<FaultControl>>,
}

impl Freezing {
    /// Runs a test of a volume with an SSD and a disk, or `count - 1` of them, whose exposure has
    /// room for 16 blocks.
    fn test(seed: u64, count: usize, test: impl AsyncFnOnce(Freezing)) {
        Volume::test(seed, count, async |volume| {
            test(Freezing::over(volume)).await
        });
    }

    fn over(mut volume: Volume) -> Freezing {
        volume.config.exposure.bytes = Size(BLOCKS_EXPOSED * BLOCK);
        volume.config.exposure.silence = Silence::For(Time(Duration::from_secs(1)));
        let rt = volume.rt.clone();
        let faults = (0..volume.sides.len()).map(|side| {
            let fault = volume.put_over(side, |below| {
                Fault::new(&rt, below, FaultPlan::default(), 1)
            });
            let faults = fault.control();
            let write_ms = if side == 0 { 1 } else { 10 };
            faults.set_delay(Op::Write, Duration::from_millis(write_ms));
            faults
        });
        let faults = faults.collect();
        Freezing { volume, faults }
    }

    fn freeze(&self, side: usize) {
        self.faults[side].set_frozen(true);
    }

    fn thaw(&self, side: usize) {
        self.faults[side].set_frozen(false);
    }

    fn now(&self) -> Instant {
        self.volume.rt.now()
    }

    async fn wait(&self, ms: u64) {
        self.volume.rt.sleep(Duration::from_millis(ms)).await;
    }

    async fn until_complete(&self, mirror: &OpenVolume) {
        until_complete(&self.volume.rt, mirror, self.faults.len()).await;
    }

    /// Writes `count` blocks from the block `first` on, one each 20 ms or as soon as the write
    /// before it is acknowledged. Returns the longest latency in milliseconds.
    async fn write(&self, mirror: &OpenVolume, first: u64, count: u64) -> u64 {
        let mut longest_ms = 0;
        for block in first..first + count {
            let before = self.now();
            mirror.put(block * BLOCK, byte_of_block(block)).await;
            longest_ms = longest_ms.max(self.now().ns_since(before) / 1_000_000);
            self.wait(20).await;
        }
        longest_ms
    }

    /// Closes the volume, and checks on each side alone that the first `count` blocks are as
    /// written.
    async fn close_and_compare(&self, mirror: OpenVolume, count: u64) {
        mirror.close().await;
        for side in 0..self.faults.len() {
            check(&self.volume.open_alone(side).await, count).await;
        }
    }
}

fn byte_of_block(block: u64) -> u8 {
    (block % 251) as u8 + 1
}

/// Checks that the first `count` blocks are as written.
async fn check(mirror: &OpenVolume, count: u64) {
    for block in 0..count {
        let found = mirror.byte_at(block * BLOCK).await;
        assert_eq!(found, Ok(byte_of_block(block)), "block {block}");
    }
}

/// Returns how often each side was ejected for silence.
fn silences(mirror: &OpenVolume) -> Vec<u64> {
    let sides = mirror.status().sides;
    sides.iter().map(|side| side.silences).collect()
}

/// Returns the health of each side.
fn healths(mirror: &OpenVolume) -> Vec<&'static str> {
    let sides = mirror.status().sides;
    sides.iter().map(|side| side.health).collect()
}

/// The disk is silent for 20 s. A write waits at most for the first patience of 1 s, and a bit for
/// the interval at which the mirror looks and for the superblock that excludes the disk. After the
/// silence, the disk holds everything again without an operator.
#[test]
fn a_silent_side_is_ejected_and_comes_back() {
    Freezing::test(1, 2, async |pair| {
        let mirror = pair.volume.open().await;
        assert!(pair.write(&mirror, 0, 50).await < 20);
        assert_eq!(mirror.status().saved_from_freezes, 0);
        let frozen_at = pair.now();
        pair.freeze(1);
        let longest_ms = pair.write(&mirror, 50, 500).await;
        // One block is written each 20 ms. The first ten that are not on the disk are not late yet,
        // and the exposure has room for 16.
        let saved = mirror.status().saved_from_freezes;
        assert!((4..=7).contains(&saved), "{saved} writes");
        assert!((1_000..=1_250).contains(&longest_ms), "{longest_ms} ms");
        let status = mirror.status();
        let reason = status.sides[1].absent_reason.expect("it is out");
        assert!(matches!(reason, AbsentReason::Silent(_)), "{reason}");
        let shown = reason.to_string();
        let expected = "silent for 1.0 s while writes waited for it; it is opened again once";
        assert!(shown.starts_with(expected), "{shown}");
        assert_eq!(status.exposed_bytes, 0, "degraded, not exposed");
        // Once the side is out, no write waits for it.
        assert!(pair.write(&mirror, 550, 50).await < 20);
        pair.volume
            .rt
            .sleep_until(frozen_at + Duration::from_secs(20))
            .await;
        pair.thaw(1);
        assert!(pair.write(&mirror, 600, 100).await < 500);
        pair.until_complete(&mirror).await;
        assert_eq!(silences(&mirror), [0, 1]);
        assert!(pair.write(&mirror, 700, 50).await < 20);
        check(&mirror, 750).await;
        pair.close_and_compare(mirror, 750).await;
    });
}

/// A crash while the side is out: what was acknowledged without it is found on the other side, and
/// the side is recognised as being behind.
#[test]
fn what_was_acknowledged_without_a_silent_side_outlives_a_crash() {
    Freezing::test(2, 2, async |pair| {
        let mirror = pair.volume.open().await;
        pair.write(&mirror, 0, 50).await;
        pair.freeze(1);
        pair.write(&mirror, 50, 100).await;
        assert_eq!(healths(&mirror), ["healthy", "absent"]);
        mirror.flush().await;
        drop(mirror);
        pair.thaw(1);
        pair.wait(1_000).await;
        let why = pair.volume.refusal_alone(1).await;
        assert!(
            why.contains("side0 is missing, and may have newer"),
            "{why}"
        );
        let mirror = pair.volume.open().await;
        pair.until_complete(&mirror).await;
        check(&mirror, 150).await;
        pair.close_and_compare(mirror, 150).await;
    });
}

/// With `silence = "wait"`, writes wait as long as the side is silent, and no side is ejected. The
/// same holds where the volume would refuse writes without the side, and where nothing may be
/// exposed.
#[test]
fn writes_wait_where_that_is_configured() {
    for case in 0..3 {
        Freezing::test(3, 2, async |mut pair| {
            match case {
                0 => pair.volume.config.exposure.silence = Silence::Wait,
                1 => pair.volume.config.on_degraded = OnDegraded::Stop,
                _ => pair.volume.config.exposure.bytes = Size(0),
            }
            let mirror = pair.volume.open().await;
            assert_eq!(mirror.status().sides[1].patience_seconds, None);
            pair.write(&mirror, 0, 20).await;
            pair.freeze(1);
            let written = pair.write(&mirror, 20, 30);
            let thawed = async {
                pair.wait(20_000).await;
                assert_eq!(healths(&mirror), ["healthy"; 2]);
                pair.thaw(1);
            };
            let (longest_ms, ()) = futures_util::future::join(written, thawed).await;
            assert!((18_000..=20_100).contains(&longest_ms), "{longest_ms} ms");
            assert_eq!(
                (silences(&mirror), healths(&mirror)),
                (vec![0, 0], vec!["healthy"; 2])
            );
            pair.close_and_compare(mirror, 50).await;
        });
    }
}

/// A side that completes a write each 900 ms is slow, but not silent: writes wait for it, and it is
/// never ejected.
#[test]
fn a_slow_side_is_not_silent() {
    Freezing::test(4, 2, async |pair| {
        let mirror = pair.volume.open().await;
        pair.faults[1].set_delay(Op::Write, Duration::from_millis(900));
        let longest_ms = pair.write(&mirror, 0, 200).await;
        assert!(longest_ms > 500, "{longest_ms} ms");
        assert!(mirror.status().backpressured_writes > 0);
        pair.wait(10_000).await;
        assert_eq!(
            (silences(&mirror), healths(&mirror)),
            (vec![0, 0], vec!["healthy"; 2])
        );
        pair.close_and_compare(mirror, 200).await;
    });
}

/// Each ejection doubles the patience, and each hour without one halves it.
#[test]
fn the_next_silence_is_waited_for_twice_as_long() {
    Freezing::test(5, 2, async |pair| {
        let mirror = pair.volume.open().await;
        let mut first = 0;
        for (patience_ms, hours_later) in [(1_000, 0), (2_000, 0), (4_000, 1), (4_000, 0)] {
            let patience_s = mirror.status().sides[1].patience_seconds;
            assert_eq!(patience_s, Some(patience_ms as f64 / 1e3));
            pair.freeze(1);
            let longest_ms = pair.write(&mirror, first, 100).await;
            let expected = patience_ms..=patience_ms + 250;
            assert!(expected.contains(&longest_ms), "{longest_ms} ms");
            first += 100;
            pair.thaw(1);
            pair.until_complete(&mirror).await;
            pair.wait(hours_later * 3_600_000).await;
        }
        assert_eq!(silences(&mirror), [0, 4]);
        pair.close_and_compare(mirror, first).await;
    });
}

/// The last healthy side is never ejected, and neither is a side while the only side without it is
/// silent, too: writes would wait all the same.
#[test]
fn the_last_side_that_could_answer_is_never_ejected() {
    Freezing::test(6, 2, async |pair| {
        let mirror = pair.volume.open().await;
        pair.write(&mirror, 0, 20).await;
        let freeze_both_for = async |ms| {
            pair.freeze(0);
            pair.freeze(1);
            pair.wait(ms).await;
            let found = (healths(&mirror), silences(&mirror));
            pair.thaw(0);
            pair.thaw(1);
            found
        };
        let written = pair.write(&mirror, 20, 80);
        let (_, found) = futures_util::future::join(written, freeze_both_for(5_000)).await;
        assert_eq!(found, (vec!["healthy"; 2], vec![0, 0]));
        pair.freeze(1);
        pair.write(&mirror, 100, 50).await;
        assert_eq!(healths(&mirror), ["healthy", "absent"]);
        let written = pair.write(&mirror, 150, 50);
        let (_, found) = futures_util::future::join(written, freeze_both_for(60_000)).await;
        assert_eq!(found, (vec!["healthy", "absent"], vec![0, 1]));
        pair.until_complete(&mirror).await;
        pair.close_and_compare(mirror, 200).await;
    });
}

/// Of three sides, only the silent one is ejected. The slow one counts on.
#[test]
fn of_three_sides_the_silent_one_is_ejected() {
    Freezing::test(7, 3, async |sides| {
        let mirror = sides.volume.open().await;
        sides.write(&mirror, 0, 20).await;
        sides.faults[1].set_delay(Op::Write, Duration::from_millis(300));
        sides.freeze(2);
        sides.write(&mirror, 20, 200).await;
        assert_eq!(healths(&mirror), ["healthy", "healthy", "absent"]);
        sides.thaw(2);
        sides.until_complete(&mirror).await;
        assert_eq!(silences(&mirror), [0, 0, 1]);
        sides.close_and_compare(mirror, 220).await;
    });
}

/// The disk is silent again while it is being rebuilt. Changes of ranges that it has wait for it
/// when more than its log may take waits for it. They go on when it is ejected again.
#[test]
fn a_side_that_is_silent_in_its_rebuild_is_ejected_again() {
    const MIB: u64 = 1 << 20;
    Freezing::test(9, 2, async |pair| {
        let mirror = pair.volume.open().await;
        for mib in 0..16 {
            mirror.fill(mib * MIB..(mib + 1) * MIB, 1).await;
        }
        pair.freeze(1);
        for mib in 0..8 {
            mirror.fill(mib * MIB..(mib + 1) * MIB, 2).await;
        }
        assert_eq!(healths(&mirror), ["healthy", "absent"]);
        pair.thaw(1);
        while healths(&mirror)[1] == "absent" {
            pair.wait(1).await;
        }
        pair.freeze(1);
        let mut longest_ms = 0;
        for part in 0..64 {
            let before = pair.now();
            let start = 8 * MIB + part * (MIB / 16);
            mirror.fill(start..start + MIB / 16, 3).await;
            longest_ms = longest_ms.max(pair.now().ns_since(before) / 1_000_000);
        }
        assert!((1_800..=2_250).contains(&longest_ms), "{longest_ms} ms");
        assert_eq!(
            (silences(&mirror), healths(&mirror)),
            (vec![0, 2], vec!["healthy", "absent"])
        );
        pair.thaw(1);
        pair.until_complete(&mirror).await;
        mirror.close().await;
        for side in 0..2 {
            let alone = pair.volume.open_alone(side).await;
            for block in 0..16 * MIB / BLOCK {
                let expected = [2, 2, 3, 1][(block * BLOCK / (4 * MIB)) as usize];
                assert_eq!(alone.byte_at(block * BLOCK).await, Ok(expected), "{block}");
            }
        }
    });
}

/// All of a logged volume is written, and again while the disk is absent, so that all of its
/// content is outdated when it returns. It is ejected again before it has gained space, several
/// times: each return takes some of the segments that are kept free.
#[test]
fn a_full_logged_side_returns_however_often_it_was_ejected() {
    const MIB: u64 = 1 << 20;
    let rt = virtual_rt(12);
    rt.block_on(async {
        let mut volume = Volume::unformatted(&rt, 2);
        volume.config.layout = Layouts::All(SideKind::Log);
        volume.try_format("full").await.expect("the sides are fit");
        let pair = Freezing::over(volume);
        let mirror = pair.volume.open().await;
        let mibs = mirror.geometry().size_bytes / MIB;
        let mut written = 0;
        for _ in 0..12 {
            pair.freeze(1);
            written += 1;
            for mib in 0..mibs {
                mirror.fill(mib * MIB..(mib + 1) * MIB, written).await;
            }
            while healths(&mirror)[1] != "absent" {
                pair.wait(100).await;
            }
            pair.thaw(1);
            while healths(&mirror)[1] == "absent" {
                pair.wait(1).await;
            }
        }
        let whole = rt.timeout(Duration::from_secs(600), pair.until_complete(&mirror));
        whole.await.expect("it is rebuilt");
        mirror.close().await;
        let alone = pair.volume.open_alone(1).await;
        for mib in 0..mibs {
            assert_eq!(alone.byte_at(mib * MIB).await, Ok(written), "{mib} MiB");
        }
    });
}

/// The server is killed at several moments of the return of a side: the next one finds everything.
#[test]
fn a_side_returns_whenever_the_server_is_killed() {
    const STEP: u64 = 128 << 10;
    for killed_after_ms in [0, 2, 5, 10, 20, 40, 80, 160, 320, 640, 10_000] {
        Freezing::test(11, 2, async |pair| {
            let mirror = pair.volume.open().await;
            let put_all = async |byte| {
                for block in 0..200 {
                    mirror.put(block * STEP, byte + block as u8 % 5).await;
                }
            };
            put_all(1).await;
            pair.freeze(1);
            put_all(11).await;
            mirror.flush().await;
            pair.thaw(1);
            while healths(&mirror)[1] == "absent" {
                pair.wait(1).await;
            }
            pair.wait(killed_after_ms).await;
            drop(mirror);
            pair.wait(1_000).await;
            let mirror = pair.volume.open().await;
            pair.until_complete(&mirror).await;
            mirror.close().await;
            for side in 0..2 {
                let alone = pair.volume.open_alone(side).await;
                for block in 0..200 {
                    let expected = 11 + block as u8 % 5;
                    assert_eq!(alone.byte_at(block * STEP).await, Ok(expected), "{block}");
                }
            }
        });
    }
}

/// The time for which the whole server stood still is not taken for silence, even while writes wait
/// for the side.
#[test]
fn a_server_that_stood_still_ejects_no_side() {
    Freezing::test(10, 2, async |pair| {
        let mirror = pair.volume.open().await;
        pair.faults[1].set_delay(Op::Write, Duration::from_millis(400));
        let stand_still = async {
            for _ in 0..20 {
                pair.wait(333).await;
                pair.volume.rt.stall(Duration::from_secs(30));
            }
        };
        futures_util::future::join(pair.write(&mirror, 0, 100), stand_still).await;
        assert!(mirror.status().backpressured_writes > 0);
        assert_eq!(
            (silences(&mirror), healths(&mirror)),
            (vec![0, 0], vec!["healthy"; 2])
        );
        pair.close_and_compare(mirror, 100).await;
    });
}

/// `silence` is a time or the word `wait`.
#[test]
fn the_key_is_a_time_or_wait() {
    let silence = |text: &str| {
        let config = format!("sides = [\"a\", \"b\"]\nexposure = {{ silence = \"{text}\" }}");
        let config: Result<MirrorConfig, _> = toml::from_str(&config);
        let config = config.map_err(|error| error.to_string())?;
        config.check().map(|()| config.exposure.silence)
    };
    let seconds = |s| Silence::For(Time(Duration::from_secs(s)));
    assert_eq!(silence("3s"), Ok(seconds(3)));
    assert_eq!(silence("wait"), Ok(Silence::Wait));
    let default: Result<MirrorConfig, _> = toml::from_str("sides = [\"a\", \"b\"]");
    let default = default.map(|config| config.exposure.silence);
    assert_eq!(default, Ok(Silence::BySides));
    assert!(silence("never").unwrap_err().contains("or \"wait\""));
    assert!(silence("0s").unwrap_err().contains("`exposure.silence`"));
}
