//! Tests of CFQ, rule by rule.

use super::*;

/// A sector far from the requests of every task in these tests.
const FAR: u64 = 100_000_000;

fn cfq() -> Bench {
    Bench::new(Cfq::new(TAGS, CfqParameters::default()))
}

#[test]
fn a_sync_queue_keeps_the_device_for_8_ms() {
    // The request of task 2, at a distant sector, waits. The read of task 1 completes at 0 ms, and
    // the device is then kept idle for task 1 until 8 ms.
    let mut bench = cfq();
    bench.add(Bio::read(1, 100, 8));
    let (tag, _) = bench.next().unwrap();
    bench.add(Bio::read(2, FAR, 8));
    // No other request is issued while the queue of task 1 has a request in flight.
    assert_eq!(bench.next(), None);
    bench.complete(tag);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.queue.wake_at_ns(), Some(8 * MS_NS));
    bench.pass_ms(7);
    bench.add(Bio::read(1, 108, 8));
    let (tag, start) = bench.next().unwrap();
    assert_eq!(start, 108);
    bench.complete(tag);
    bench.pass_ms(7);
    assert_eq!(bench.next(), None);
    bench.pass_ms(1);
    assert_eq!(bench.next().map(|n| n.1), Some(FAR));
}

#[test]
fn a_slice_of_100_ms_runs_from_the_first_completion() {
    let mut bench = cfq();
    for at in 0..5 {
        bench.add(Bio::read(1, at * 100, 8));
    }
    // The first round dispatches a quantum of 4 requests. Task 2 waits, so task 1 must not dispatch
    // more requests while 4 of its requests are in flight.
    let first: Vec<Tag> = (0..4).map(|_| bench.next().unwrap().0).collect();
    bench.add(Bio::read(2, FAR, 8));
    assert_eq!(bench.next(), None);
    bench.pass_ms(50);
    bench.complete(first[0]);
    // The slice ends at 150 ms. At 149 ms task 1 still has the device. At 150 ms task 1 loses it,
    // although requests of task 1 are in flight. During the slice, the device would be kept idle
    // for these requests.
    bench.pass_ms(99);
    assert_eq!(bench.next().map(|n| n.1), Some(400));
    bench.complete(first[1]);
    bench.pass_ms(1);
    assert_eq!(bench.next().map(|n| n.1), Some(FAR));
}

#[test]
fn a_sync_request_takes_the_device_from_async_ones() {
    let mut bench = cfq();
    bench.writes(&[1000, 2000, 3000, 4000, 5000, 6000]);
    let writes: Vec<u64> = (0..4).map(|_| bench.next().unwrap().1).collect();
    assert_eq!(writes, [1000, 2000, 3000, 4000]);
    bench.add(Bio::read(1, FAR, 8));
    assert_eq!(bench.next().map(|n| n.1), Some(FAR));
    // No async request is dispatched while the sync request is in flight.
    assert_eq!(bench.next(), None);
}

#[test]
fn real_time_comes_before_best_effort_and_that_before_idle() {
    let mut bench = cfq();
    let classes = [
        (1, Priority::Idle),
        (2, Priority::NORMAL),
        (3, Priority::RealTime(7)),
    ];
    for (task, priority) in classes {
        let bio = Bio::read(task, u64::from(task) * FAR, 8);
        bench.add(Bio { priority, ..bio });
    }
    // Each task has exited, so the device waits for none of them.
    (1..4).for_each(|task| bench.queue.task_exited(task));
    assert_eq!(bench.served(), [3 * FAR, 2 * FAR, FAR]);
}

#[test]
fn metadata_takes_the_device() {
    for (metadata, taken) in [(true, true), (false, false)] {
        let mut bench = cfq();
        bench.add(Bio::read(1, 100, 8));
        bench.next().unwrap();
        let bio = Bio::read(2, FAR, 8);
        bench.add(Bio { metadata, ..bio });
        assert_eq!(bench.next().is_some(), taken);
    }
}

#[test]
fn metadata_is_in_the_first_round_of_its_queue() {
    // A round has 4 requests: the request for metadata, and the 3 nearest. The dispatch list then
    // sorts them by sector.
    let mut bench = cfq();
    bench.reads(&[200, 300, 400, 500]);
    let bio = Bio::read(0, FAR, 8);
    bench.add(Bio {
        metadata: true,
        ..bio
    });
    assert_eq!(bench.served(), [200, 300, 400, FAR, 500]);
}

#[test]
fn a_request_of_125_ms_goes_first_in_a_slice() {
    // A round has a single request, so the dispatch list has nothing to sort. The slice that began
    // at 0 ms is over. The new slice checks the age of the oldest request, which is at sector 100,
    // far behind the head at sector 5,000,008.
    for (age_ms, expected) in [
        (124, [5_000_100, 5_000_200, 100]),
        (125, [100, 5_000_100, 5_000_200]),
    ] {
        let parameters = CfqParameters {
            quantum: 1,
            ..CfqParameters::default()
        };
        let mut bench = Bench::new(Cfq::new(TAGS, parameters));
        bench.reads(&[5_000_000]);
        let (tag, _) = bench.next().unwrap();
        bench.complete(tag);
        bench.reads(&[100]);
        bench.pass_ms(age_ms);
        bench.reads(&[5_000_100, 5_000_200]);
        assert_eq!(bench.served(), expected, "{age_ms}");
    }
}

#[test]
fn an_async_slice_has_requests_by_its_level() {
    // While other queues wait, the queue of level 7 is limited to 2 * (2 + 2 * 0) = 4 requests in a
    // slice, and the queue of level 0 to 2 * (2 + 2 * 7) = 32. The queue of level 7 is served first
    // because its requests arrive first. Its next slice comes after that of level 0, since level 0
    // has the longer slice.
    let mut bench = cfq();
    for (level, from) in [(7, 1000), (0, FAR)] {
        for at in 0..6 {
            let bio = Bio::write(1, from + at * 100, 8);
            let priority = Priority::BestEffort(level);
            bench.add(Bio { priority, ..bio });
        }
    }
    let mut expected: Vec<u64> = vec![1000, 1100, 1200, 1300];
    expected.extend((0..6).map(|at| FAR + at * 100));
    expected.extend([1400, 1500]);
    assert_eq!(bench.served(), expected);
}

#[test]
fn bios_join_requests_of_their_own_queue_only() {
    let mut bench = cfq();
    bench.add(Bio::read(1, 100, 8));
    assert_eq!(bench.add(Bio::read(2, 108, 8)), Added::New);
    assert_eq!(bench.add(Bio::read(1, 92, 8)), Added::Front(0));
    // Async writes of one level share a queue, regardless of the task.
    bench.add(Bio::write(1, 500, 8));
    assert_eq!(bench.add(Bio::write(2, 508, 8)), Added::Back(3));
    let bio = Bio::write(1, 516, 8);
    assert_eq!(bench.add(Bio { sync: true, ..bio }), Added::New);
}
