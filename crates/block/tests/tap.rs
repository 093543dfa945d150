//! Tests of the tap, which is on every device of a stack, measures latencies and records requests.
//! They check which requests it records, which requests it drops, and when a recording ends.

use std::rc::Rc;
use std::time::Duration;

use crate::common::{open, starts, virtual_rt, write};
use bimetal_block::latency::Window;
use bimetal_block::tap::{InUse, LEASE, RECORDS_MAX, TapCounters};
use bimetal_block::{BorrowedWrite, Device, Flags, Op, Request, Statistic};
use bimetal_trace::{Op as TraceOp, Record};

const STACK: &str = "[device.a]\ntype = \"null\"\nsize = \"1MiB\"\n\
                     [device.b]\ntype = \"null\"\nsize = \"1MiB\"\n\
                     [device.top]\ntype = \"stripe\"\ndevices = [\"a\", \"b\"]\nunit = \"4KiB\"\n";

fn record(time_ns: u64, op: TraceOp, offset_bytes: u64, length_bytes: u64) -> Record {
    Record {
        time_ns,
        op,
        offset_bytes,
        length_bytes,
    }
}

#[test]
fn a_recording_has_what_was_sent_when_it_was_sent() {
    let rt = virtual_rt(1);
    rt.block_on(async {
        let (stack, top) = open(&rt, STACK).await;
        let tap = stack.tap("top").unwrap();
        top.submit(write(&rt, 0, 4096, 1)).await.unwrap();
        rt.sleep(Duration::from_millis(7)).await;
        let number = tap.start().unwrap();
        rt.sleep(Duration::from_micros(5)).await;
        top.submit(write(&rt, 4096, 8192, 1)).await.unwrap();
        rt.sleep(Duration::from_micros(5)).await;
        top.submit(Request::read(65_536, 4096)).await.unwrap();
        top.submit(Request::flush()).await.unwrap();
        let without = |op, offset| Request::without_data(op, offset, 4096, Flags::NONE);
        top.submit(without(Op::WriteZeroes, 0)).await.unwrap();
        top.submit(without(Op::Discard, 4096)).await.unwrap();
        let taken = tap.take(number, 3).unwrap();
        let expected = [
            record(5_000, TraceOp::Write, 4096, 8192),
            record(10_000, TraceOp::Read, 65_536, 4096),
            record(10_000, TraceOp::Write, 0, 4096),
        ];
        assert_eq!(taken.records, expected);
        let counts = TapCounters {
            noted: 4,
            dropped: 0,
            others: 1,
        };
        assert_eq!((taken.left, taken.counts, taken.on), (1, counts, true));

        assert!(tap.stop(number));
        top.submit(Request::read(0, 4096)).await.unwrap();
        let taken = tap.take(number, 100).unwrap();
        let last = record(10_000, TraceOp::Trim, 4096, 4096);
        assert_eq!((taken.records, taken.on), (vec![last], false));
        assert_eq!(tap.take(number, 100), None, "it went with its last record");
        stack.close().await.unwrap();
    });
}

#[test]
fn a_part_of_a_stack_sees_what_reaches_it() {
    let rt = virtual_rt(2);
    rt.block_on(async {
        let (stack, top) = open(&rt, STACK).await;
        let taps = ["a", "b"].map(|name| stack.tap(name).unwrap());
        let numbers = [taps[0].start().unwrap(), taps[1].start().unwrap()];
        // The write of 8 KiB is two chunks of 4 KiB: one on each member of the stripe, at offset 0.
        top.submit(write(&rt, 0, 8192, 1)).await.unwrap();
        for (tap, number) in taps.iter().zip(numbers) {
            let taken = tap.take(number, 10).unwrap();
            assert_eq!(taken.records, [record(0, TraceOp::Write, 0, 4096)]);
        }
        assert!(stack.tap("c").is_none());
        stack.close().await.unwrap();
    });
}

#[test]
fn what_finds_no_room_is_dropped_and_counted() {
    let rt = virtual_rt(3);
    rt.block_on(async {
        let (stack, top) = open(&rt, STACK).await;
        let tap = stack.tap("top").unwrap();
        let number = tap.start().unwrap();
        for _ in 0..RECORDS_MAX + 7 {
            top.submit(Request::read(0, 4096)).await.unwrap();
        }
        let taken = tap.take(number, 10).unwrap();
        assert_eq!((taken.records.len(), taken.left), (10, RECORDS_MAX - 10));
        assert_eq!(taken.counts.noted, RECORDS_MAX as u64);
        assert_eq!(taken.counts.dropped, 7);
        // The buffer of the tap has room for ten records again.
        for _ in 0..11 {
            top.submit(Request::read(4096, 4096)).await.unwrap();
        }
        let taken = tap.take(number, usize::MAX).unwrap();
        assert_eq!((taken.records.len(), taken.left), (RECORDS_MAX, 0));
        assert_eq!(taken.counts.dropped, 8);
        stack.close().await.unwrap();
    });
}

#[test]
fn one_recording_at_a_time_and_none_without_a_recorder() {
    let rt = virtual_rt(4);
    rt.block_on(async {
        let (stack, top) = open(&rt, STACK).await;
        let tap = stack.tap("top").unwrap();
        let first = tap.start().unwrap();
        assert_eq!(tap.start(), Err(InUse));
        rt.sleep(LEASE).await;
        top.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(tap.take(first, 10).unwrap().records.len(), 1);
        rt.sleep(LEASE + Duration::from_nanos(1)).await;
        assert_eq!(tap.take(first, 10), None, "nobody came for too long");
        let second = tap.start().unwrap();
        assert_ne!(second, first);
        assert!(!tap.stop(first), "a number that is over stops nothing");
        assert_eq!(tap.take(first, 10), None);
        rt.sleep(LEASE + Duration::from_nanos(1)).await;
        top.submit(Request::read(0, 4096)).await.unwrap();
        assert!(!tap.stop(second), "the request after the lease ended it");
        stack.close().await.unwrap();
    });
}

#[test]
fn a_request_longer_than_a_record_becomes_several() {
    let rt = virtual_rt(5);
    rt.block_on(async {
        let text = "[device.top]\ntype = \"null\"\nsize = \"16GiB\"\n";
        let (stack, top) = open(&rt, text).await;
        let tap = stack.tap("top").unwrap();
        let number = tap.start().unwrap();
        let length = (4 << 30) + 4096;
        let discard = Request::without_data(Op::Discard, 8192, length, Flags::NONE);
        top.submit(discard).await.unwrap();
        let expected = [
            record(0, TraceOp::Trim, 8192, 4 << 30),
            record(0, TraceOp::Trim, 8192 + (4 << 30), 4096),
        ];
        assert_eq!(tap.take(number, 10).unwrap().records, expected);
        stack.close().await.unwrap();
    });
}

/// A delay of 5 ms for reads and 20 ms for writes, over memory that answers at once.
#[test]
fn every_device_has_the_latencies_of_its_requests() {
    let rt = virtual_rt(6);
    rt.block_on(async {
        let text = "[device.data]\ntype = \"memory\"\nsize = \"1MiB\"\n\
                    [device.top]\ntype = \"delay\"\nbelow = \"data\"\nread = \"5ms\"\n\
                    write = \"20ms\"\n";
        let (stack, top) = open(&rt, text).await;
        for block in 0..100 {
            top.submit(write(&rt, block * 4096, 4096, 1)).await.unwrap();
            top.submit(Request::read(0, 8192)).await.unwrap();
        }
        let mut unanswered = top.submit(Request::read(0, 4096));
        assert!(starts(&mut unanswered).await);
        let latencies = |device: &Rc<dyn Device>, op: Op| {
            let mut seen: Vec<(String, String, Statistic)> = Vec::new();
            device.statistics(&mut seen);
            let mut found = seen.into_iter().filter(|(_, name, _)| name == op.name());
            match found.next() {
                Some((_, _, Statistic::Latency(latency))) => Some(*latency),
                other => {
                    assert_eq!(other, None);
                    None
                }
            }
        };
        let writes = latencies(&top, Op::Write).expect("there were writes");
        let all = writes.windows[Window::Start as usize];
        assert_eq!((all.requests, all.errors, all.bytes), (100, 0, 409_600));
        assert_eq!(all.max_ns, 20_000_000);
        assert!((20_000_000..=22_500_000).contains(&all.p50_ns), "{all:?}");
        assert_eq!(writes.in_flight, 0);
        let reads = latencies(&top, Op::Read).expect("there were reads");
        assert_eq!(reads.windows[Window::Start as usize].max_ns, 5_000_000);
        assert_eq!(reads.in_flight, 1, "the last one has no answer yet");
        drop(unanswered);
        let reads = latencies(&top, Op::Read).expect("there were reads");
        assert_eq!(reads.in_flight, 0, "nobody waits for it");
        assert_eq!(latencies(&top, Op::Flush), None, "there was none");

        let mut devices = stack.devices();
        let (_, data) = devices.find(|(name, _)| *name == "data").unwrap();
        let below = latencies(data, Op::Write).expect("the delay passes writes on");
        let all = below.windows[Window::Start as usize];
        assert_eq!((all.requests, all.max_ns), (100, 0));
        stack.close().await.unwrap();
    });
}

/// A recording must have every request, also those that a device answers at once.
#[test]
fn a_device_answers_at_once_through_the_tap_unless_it_is_recorded() {
    let rt = virtual_rt(7);
    rt.block_on(async {
        let text = "[device.top]\ntype = \"memory\"\nsize = \"1MiB\"\n";
        let (stack, top) = open(&rt, text).await;
        let write = |block: u64| BorrowedWrite {
            offset: block * 4096,
            bytes: &[7; 4096],
            flags: Flags::NONE,
        };
        assert_eq!(
            top.try_write(write(0)).map(|result| result.is_ok()),
            Some(true)
        );
        assert!(top.try_answer(Request::read(0, 4096)).is_ok());
        let tap = stack.tap("top").unwrap();
        let number = tap.start().unwrap();
        assert!(top.try_write(write(1)).is_none());
        assert!(top.try_answer(Request::read(0, 4096)).is_err());
        top.submit(Request::read(0, 4096)).await.unwrap();
        assert_eq!(tap.take(number, 10).unwrap().records.len(), 1);
        stack.close().await.unwrap();
    });
}
