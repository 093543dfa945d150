//! `type = "stats"`: counts, bytes and latencies.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{virtual_rt, write};
use bimetal_block::layers::fault::{Fault, FaultControl, FaultPlan};
use bimetal_block::layers::stats::{OpSummary, Stats};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, IoError, Op, Request, Statistic};
use bimetal_rt::Rt;

fn rig(rt: &Rt) -> (Stats, Rc<FaultControl>) {
    let memory = Rc::new(MemoryDevice::new(rt, 1 << 20));
    let fault = Fault::new(rt, memory, FaultPlan::default(), 1);
    let control = fault.control();
    (Stats::new(rt, Rc::new(fault)), control)
}

/// Returns whether two times differ by at most one percent, which is the precision of the
/// histogram.
fn near(got_ns: u64, expected_ns: u64) -> bool {
    got_ns.abs_diff(expected_ns) * 100 <= expected_ns
}

/// For latencies of 1 to 1000 ms the median, p99 and p99.9 are 500, 990 and 999 ms.
#[test]
fn percentiles_are_those_of_the_requests() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stats, control) = rig(&rt);
        for ms in 1..=1_000 {
            control.set_delay(Op::Read, Duration::from_millis(ms));
            stats.submit(Request::read(0, 8192)).await.unwrap();
        }
        let summary = stats.summary(Op::Read);
        assert_eq!((summary.requests, summary.bytes), (1_000, 8_192_000));
        for (got, ms) in [
            (summary.p50_ns, 500),
            (summary.p99_ns, 990),
            (summary.p999_ns, 999),
            (summary.max_ns, 1_000),
        ] {
            assert!(near(got, ms * 1_000_000), "{got} for {ms} ms");
        }
        assert_eq!(stats.summary(Op::Write), OpSummary::default());
        stats.reset();
        assert_eq!(stats.summary(Op::Read), OpSummary::default());
    });
}

#[test]
fn failures_count_and_move_no_bytes() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stats, control) = rig(&rt);
        control.fail_next(Op::Write, IoError::Medium);
        assert!(stats.submit(write(&rt, 0, 4096, 7)).await.is_err());
        stats.submit(write(&rt, 0, 4096, 7)).await.unwrap();
        let summary = stats.summary(Op::Write);
        assert_eq!(
            (summary.requests, summary.errors, summary.bytes),
            (2, 1, 4096)
        );
    });
}

/// The latency of a request starts at its first poll: time before that is spent by the caller, not
/// by the device.
#[test]
fn time_starts_with_the_first_poll() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stats, control) = rig(&rt);
        control.set_delay(Op::Flush, Duration::from_millis(1));
        let flush = stats.submit(Request::flush());
        rt.sleep(Duration::from_secs(1)).await;
        flush.await.unwrap();
        assert!(near(stats.summary(Op::Flush).max_ns, 1_000_000));
    });
}

/// The device below completes each request at its first poll, so no request is ever pending. The
/// requests must be counted nevertheless, separately for each operation.
#[test]
fn immediate_answers_are_counted_and_shown_by_operation() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let stats = Stats::new(&rt, Rc::new(MemoryDevice::new(&rt, 1 << 20)));
        for _ in 0..3 {
            stats.submit(Request::read(0, 4096)).await.unwrap();
        }
        assert!(stats.submit(Request::read(1 << 20, 4096)).await.is_err());
        let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
        stats.statistics(&mut statistics);
        let shown = |name: &str, value| {
            statistics.contains(&(
                "read".to_owned(),
                name.to_owned(),
                Statistic::Counter(value),
            ))
        };
        assert!(shown("requests", 4) && shown("errors", 1) && shown("bytes", 3 * 4096));
        assert!(
            statistics.iter().all(|(part, _, _)| part == "read"),
            "{statistics:?}"
        );
    });
}
