//! Volumes whose devices fail in each of the ways for which there is a word. What is judged is the
//! status as the control socket shows it, once a second.

use std::time::Duration;

use bimetal_block::latency::{Longest, OpLatency, WindowLatency};
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::layers::mirror::{Layouts, OnDegraded, RebuildConfig};
use bimetal_block::units::{Rate, Size};
use bimetal_block::{BLOCK_BYTES, IoError, Op, Statistic};

use super::fixture::{LIGHT, Load, MIB, MODERATE, WRITES, test};
use super::*;

/// Asserts that the reason of the worst finding has these parts.
fn assert_reason(health: &Health, parts: &[&str]) {
    let reason = &health.worst().reason;
    let has_all = parts.iter().all(|part| reason.contains(part));
    assert!(has_all, "{reason:?} lacks one of {parts:?}");
}

#[test]
fn a_healthy_volume_is_healthy_in_every_second() {
    for kind in [SideKind::Home, SideKind::Log] {
        test(
            |config| config.layout = Layouts::All(kind),
            async |volume| {
                volume.stays(&["healthy"], 5).await;
                let client = volume.start(MODERATE);
                volume.stays(&["healthy"], 240).await;
                assert_eq!(client.stop().await, 0);
                volume.stays(&["healthy"], 60).await;
                assert_reason(&volume.health(), &["both sides have everything"]);
            },
        );
    }
}

#[test]
fn a_side_that_answers_nothing_is_frozen() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(LIGHT);
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_frozen(true);
            volume.until(&["frozen"], &["healthy"], 3).await;
            volume.stays(&["frozen"], 15).await;
            assert_reason(
                &volume.health(),
                &[
                    "side slow has not answered",
                    "requests for 1",
                    "writes wait for it",
                ],
            );
            volume.slow().set_frozen(false);
            // The request that took so long is named for ten seconds.
            let after = volume.until(&["slow"], &["frozen", "slow"], 3).await;
            assert_reason(&after, &["side slow took", "within the last 10 s"]);
            volume.until(&["healthy"], &["slow"], 15).await;
            volume.stays(&["healthy"], 30).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_side_that_answers_late_is_slow() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(LIGHT);
            volume.stays(&["healthy"], 20).await;
            volume
                .slow()
                .set_delay(Op::Write, Duration::from_millis(400));
            volume.until(&["slow"], &["healthy"], 15).await;
            volume.stays(&["slow"], 30).await;
            assert_reason(&volume.health(), &["side slow", "usually"]);
            volume.slow().set_delay(Op::Write, Duration::ZERO);
            volume.until(&["healthy"], &["slow"], 20).await;
            volume.stays(&["healthy"], 30).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_side_that_clients_wait_for_is_slow() {
    test(
        |config| config.layout = Layouts::All(SideKind::Log),
        async |volume| {
            let client = volume.start(Load {
                writes: 400,
                write_bytes: MIB,
                reads: 0,
                flushes: 0,
            });
            volume.until(&["slow"], &["healthy"], 15).await;
            volume.stays(&["slow"], 5).await;
            assert_reason(
                &volume.health(),
                &["writes waited for side slow", "of the last 10 s"],
            );
            assert_eq!(client.stop().await, 0);
            volume.until(&["healthy"], &["slow"], 20).await;
        },
    );
}

#[test]
fn a_side_that_is_absent_is_gone() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_error(Some(IoError::Offline));
            volume
                .until(&["gone"], &["healthy", "failing flush"], 4)
                .await;
            volume.stays(&["gone"], 60).await;
            let reason = [
                "side slow has been absent for ",
                "it lacks",
                "one copy is left",
            ];
            assert_reason(&volume.health(), &reason);
            volume.slow().set_error(None);
            volume
                .until(&["healthy"], &["gone", "rebuilding"], 30)
                .await;
            volume.stays(&["healthy"], 30).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

#[test]
fn a_side_to_which_data_is_copied_is_rebuilding() {
    test(
        |config| {
            config.rebuild = RebuildConfig {
                floor: Rate(0),
                ceiling: Some(Rate(2 * MIB)),
            };
        },
        async |volume| {
            volume.slow().set_error(Some(IoError::Offline));
            let client = volume.start(WRITES);
            volume
                .until(&["gone"], &["healthy", "failing flush"], 5)
                .await;
            volume.stays(&["gone"], 120).await;
            assert_eq!(client.stop().await, 0);
            volume.slow().set_error(None);
            volume.until(&["rebuilding"], &["gone"], 5).await;
            volume.stays(&["rebuilding"], 12).await;
            let reason = [
                "side slow is being rebuilt",
                "% done",
                "MiB to copy",
                "left",
            ];
            assert_reason(&volume.health(), &reason);
            volume.until(&["healthy"], &["rebuilding"], 120).await;
            volume.stays(&["healthy"], 30).await;
        },
    );
}

/// The SSD fails every read, so nothing can be copied from it to the disk.
#[test]
fn a_side_that_lacks_data_which_is_not_copied_is_out_of_sync() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(Load { reads: 0, ..LIGHT });
            volume.stays(&["healthy"], 20).await;
            volume.slow().set_error(Some(IoError::Offline));
            volume
                .until(&["gone"], &["healthy", "failing flush"], 5)
                .await;
            volume.stays(&["gone"], 30).await;
            for _ in 0..1_000_000 {
                volume.faults[0].fail_next(Op::Read, IoError::Medium);
            }
            volume.slow().set_error(None);
            volume
                .until(&["out of sync"], &["gone", "rebuilding"], 30)
                .await;
            volume.stays(&["out of sync"], 30).await;
            assert_reason(
                &volume.health(),
                &["side slow lacks", "nothing has been copied"],
            );
            drop(client);
        },
    );
}

#[test]
fn a_volume_that_refuses_writes_is_read_only() {
    test(
        |config| config.on_degraded = OnDegraded::ReadOnly,
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 10).await;
            volume.slow().set_error(Some(IoError::Offline));
            volume
                .until(&["read-only", "gone"], &["healthy", "failing flush"], 5)
                .await;
            volume.stays(&["read-only", "gone"], 30).await;
            assert_reason(
                &volume.health(),
                &["it refuses writes until", "`on_degraded`"],
            );
            volume.slow().set_error(None);
            let before = ["read-only", "gone", "rebuilding"];
            volume.until(&["healthy"], &before, 30).await;
            assert!(client.stop().await > 100, "writes were refused");
        },
    );
}

/// More small writes at random than a disk with homes can destage.
#[test]
fn a_log_for_whose_space_changes_wait_is_full() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(Load {
                writes: 2_000,
                write_bytes: BLOCK_BYTES,
                reads: 0,
                flushes: 0,
            });
            volume.until(&["full log"], &["healthy", "slow"], 60).await;
            volume.stays(&["full log"], 20).await;
            let reason = ["in the log of side slow", "of the last 10 s"];
            assert_reason(&volume.health(), &reason);
            assert_eq!(client.stop().await, 0);
            volume.until(&["healthy"], &["full log", "slow"], 60).await;
            volume.stays(&["healthy"], 30).await;
        },
    );
}

/// Each failed flush is mended at once, so that the side stays in use.
#[test]
fn a_side_whose_flush_has_failed_has_a_failing_flush() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 10).await;
            for _ in 0..5 {
                volume.slow().fail_next(Op::Flush, IoError::Medium);
                volume.until(&["failing flush"], &["healthy"], 4).await;
                volume.stays(&["failing flush"], 4).await;
            }
            let reason = ["a flush of side slow has failed", "was written again"];
            assert_reason(&volume.health(), &reason);
            volume.until(&["healthy"], &["failing flush"], 15).await;
            volume.stays(&["healthy"], 60).await;
            assert_eq!(client.stop().await, 0);
        },
    );
}

/// No side takes a flush any more. One of them is ejected, and the other stays, because it is the
/// last.
#[test]
fn the_last_side_can_have_a_failing_flush_for_long() {
    test(
        |_| {},
        async |volume| {
            let client = volume.start(MODERATE);
            volume.stays(&["healthy"], 10).await;
            for _ in 0..1_000 {
                for faults in &volume.faults {
                    faults.fail_next(Op::Flush, IoError::Medium);
                }
            }
            let both = ["failing flush", "gone"];
            volume.until(&both, &["healthy", "failing flush"], 5).await;
            volume.stays(&both, 30).await;
            assert_reason(
                &volume.health(),
                &["flushes of side", "have failed for", "kept"],
            );
            drop(client);
        },
    );
}

/// A device that takes its time itself, over one that answers at once, such as a model of a disk.
#[test]
fn a_device_without_a_mirror_is_frozen_where_its_requests_wait() {
    let latency = |waiting_ns: u64, answered_ns: u64| {
        let writes = OpLatency {
            in_flight: 3,
            waiting_ns,
            answered_ns: Some(answered_ns),
            longest: Longest::default(),
            windows: [WindowLatency::default(); Window::ALL.len()],
            buckets: Vec::new(),
        };
        let of_writes = Statistic::Latency(Box::new(writes));
        vec![(String::new(), "write".to_owned(), of_writes)]
    };
    let long = latency(2_500_000_000, 2_500_000_000);
    let found = |top: &Vec<_>, below: &Vec<_>| {
        let device = |name: &str, kind, children: &[&str], statistics: &Vec<_>| Seen {
            name: name.to_owned(),
            kind,
            children: children.iter().map(|&child| child.to_owned()).collect(),
            size_bytes: MIB,
            statistics: statistics.clone(),
        };
        let volumes = judge(&[
            device("file", "file", &[], below),
            device("disk", "hdd", &["file"], top),
        ]);
        assert_eq!(volumes.len(), 1);
        let worst = volumes[0].1.worst().clone();
        assert_eq!(volumes[0].1.to_json()["also"], json!([]));
        (worst.state, worst.of)
    };
    let none = Vec::new();
    assert_eq!(found(&long, &none), (State::Frozen, "disk".to_owned()));
    assert_eq!(found(&long, &long), (State::Frozen, "file".to_owned()));
    // Others are answered meanwhile.
    let busy = latency(2_500_000_000, 10_000_000);
    assert_eq!(found(&busy, &none), (State::Healthy, "disk".to_owned()));
}

/// All that the sides have room for is written. A discard makes room.
#[test]
fn a_volume_that_is_larger_than_its_sides_has_no_room() {
    test(
        |config| {
            config.layout = Layouts::All(SideKind::Log);
            config.size = Some(Size(8 << 30));
        },
        async |volume| {
            volume.stays(&["healthy"], 5).await;
            let mut at = 0;
            let refused = loop {
                match volume.write_at(at, MIB).await {
                    Ok(()) => at += MIB,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused, IoError::NoSpace);
            volume.seconds(30).await;
            volume.stays(&["no room"], 10).await;
            assert_reason(
                &volume.health(),
                &["for content are used", "ENOSPC", "fstrim"],
            );
            volume.discard(0..16 * MIB).await;
            volume.seconds(15).await;
            volume.stays(&["healthy"], 10).await;
        },
    );
}
