//! Tests of BFQ, rule by rule.

use super::*;

/// A sector far from the requests of every task in these tests.
const FAR: u64 = 100_000_000;

/// Returns parameters without raised weights, so that only budgets decide the order.
fn plain() -> BfqParameters {
    BfqParameters {
        low_latency: false,
        ..BfqParameters::default()
    }
}

fn bench(parameters: BfqParameters) -> Bench {
    Bench::new(Bfq::new(TAGS, parameters))
}

/// Adds `count` reads of a task with `sectors` sectors each, none of which is adjacent to another.
fn reads(bench: &mut Bench, task: Task, from: u64, count: u64, sectors: u32) {
    for at in 0..count {
        bench.add(Bio::read(task, from + at * 4096, sectors));
    }
}

/// Serves up to `count` requests, completing each immediately; returns the task of each request.
fn tasks_served(bench: &mut Bench, count: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    while tasks.len() < count {
        let Some((tag, _)) = bench.next() else { break };
        tasks.push(bench.queue.request(tag).bio.task);
        bench.complete(tag);
    }
    tasks
}

#[test]
fn a_queue_is_served_its_budget_and_then_another() {
    // The first budget is 1024 sectors, 2/3 of the maximum budget of 1536. A request has 512
    // sectors, so two requests of task 1 and then two of task 2 are served. Each budget was
    // exhausted, so the next one is four times as large, limited to the maximum budget: three
    // requests of each task.
    let parameters = BfqParameters {
        max_budget_sectors: 1536,
        slice_idle_ns: 0,
        ..plain()
    };
    let mut bench = bench(parameters);
    reads(&mut bench, 1, 0, 8, 512);
    reads(&mut bench, 2, FAR, 8, 512);
    let served = tasks_served(&mut bench, 10);
    assert_eq!(served, [1, 1, 2, 2, 1, 1, 1, 2, 2, 2]);
}

#[test]
fn sectors_are_shared_by_weight() {
    // Level 0 has 8 tenths of the total weight, and level 6 has 2 tenths. So of 15 requests of
    // equal length, 12 requests of level 0 and 3 requests of level 6 are served.
    let parameters = BfqParameters {
        max_budget_sectors: 768,
        slice_idle_ns: 0,
        ..plain()
    };
    let mut bench = bench(parameters);
    for at in 0..20 {
        for (task, level) in [(1, 0), (2, 6)] {
            let bio = Bio::read(task, u64::from(task) * FAR + at * 4096, 512);
            bench.add(Bio {
                priority: Priority::BestEffort(level),
                ..bio
            });
        }
    }
    let served = tasks_served(&mut bench, 15);
    assert_eq!(
        served.iter().filter(|task| **task == 1).count(),
        12,
        "{served:?}"
    );
}

#[test]
fn real_time_comes_before_best_effort_and_that_before_idle() {
    let mut bench = bench(plain());
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
fn the_idle_class_is_served_once_in_200_ms() {
    let mut bench = bench(BfqParameters {
        slice_idle_ns: 0,
        ..plain()
    });
    let idle = Bio {
        priority: Priority::Idle,
        ..Bio::read(9, FAR, 8)
    };
    bench.add(idle);
    // At 0 ms the idle class has not waited for long, so task 1 is served. At 201 ms the idle class
    // (task 9) is served once, although task 1 has requests.
    for (pass_ms, expected) in [(0, [1, 1]), (201, [9, 1])] {
        bench.pass_ms(pass_ms);
        for task in [1, 2] {
            bench.add(Bio::read(task, u64::from(task) * 10_000, 8));
        }
        let served = tasks_served(&mut bench, 2);
        assert_eq!(served[0], expected[0], "{pass_ms}: {served:?}");
    }
}

#[test]
fn a_queue_alone_keeps_the_device_for_8_ms_and_others_come_then() {
    // A single task reads sequentially, so keeping the device idle for it delays no other task.
    let mut bench = bench(plain());
    bench.add(Bio::read(1, 100, 8));
    let (tag, _) = bench.next().expect("a read");
    bench.complete(tag);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.queue.wake_at_ns(), None, "nobody waits");
    bench.pass_ms(7);
    bench.add(Bio::read(2, FAR, 8));
    // A second queue of equal weight has a request now. The device still stays idle for the first
    // queue until its 8 ms are over.
    assert_eq!(bench.next(), None);
    assert_eq!(bench.queue.wake_at_ns(), Some(8 * MS_NS));
    bench.pass_ms(1);
    assert_eq!(bench.next().map(|n| n.1), Some(FAR));
}

#[test]
fn a_request_in_the_pause_goes_on_with_the_budget() {
    let mut bench = bench(plain());
    bench.add(Bio::read(1, 100, 8));
    let (tag, _) = bench.next().expect("a read");
    bench.complete(tag);
    bench.pass_ms(5);
    bench.add(Bio::read(2, FAR, 8));
    bench.add(Bio::read(1, 108, 8));
    assert_eq!(bench.next().map(|n| n.1), Some(108));
}

#[test]
fn a_new_queue_has_thirty_times_its_weight() {
    // Task 1 has been busy for longer than the 10.5 s for which a new queue is raised. Task 2 is
    // new and preempts task 1. With 30 times the weight, all of its 20 requests are served before
    // the next request of task 1.
    let parameters = BfqParameters {
        slice_idle_ns: 0,
        ..BfqParameters::default()
    };
    for (low_latency, at_once) in [(true, true), (false, false)] {
        let mut bench = bench(BfqParameters {
            low_latency,
            ..parameters
        });
        reads(&mut bench, 1, 0, 2, 8);
        let (tag, _) = bench.next().expect("a read");
        bench.pass_ms(11_000);
        bench.complete(tag);
        reads(&mut bench, 1, 1_000_000, 20, 8);
        // A dispatch ends the raise.
        let (tag, _) = bench.next().expect("a read");
        bench.complete(tag);
        reads(&mut bench, 2, FAR, 10, 8);
        let served = tasks_served(&mut bench, 10);
        assert_eq!(served == [2; 10], at_once, "{served:?}");
    }
}

#[test]
fn a_raise_is_over_after_its_time() {
    // The device is a disk that has not been measured, so a raise lasts 14,000 * 7000 / 9333 ms =
    // 10.5 s.
    let mut bfq = Bfq::new(TAGS, BfqParameters::default());
    assert_eq!(bfq.weight_of_task(1), None);
    let mut requests = Requests::new(4);
    let mut list = DispatchList::new(4);
    for (tag, (at_ms, weight)) in (0..).zip([(0, 1200), (10_500, 1200), (10_501, 40)]) {
        requests.take(tag, Bio::read(1, 8 * u64::from(tag), 8));
        requests.start(tag, at_ms * MS_NS);
        bfq.add(tag, &requests, at_ms * MS_NS);
        assert!(bfq.dispatch(&requests, at_ms * MS_NS, &mut list));
        assert_eq!(bfq.weight_of_task(1), Some(weight), "{at_ms}");
    }
}

#[test]
fn a_player_has_three_thousand_times_its_weight() {
    // A request shows a media player if it arrives later than a limit after the service ended. The
    // limit is the longer of two times. A player consumes 7000 sectors per second, so 8 sectors
    // last for 1.1 ms. The pause of 8 ms and four ticks of the kernel's clock (16 ms) are 24 ms, so
    // this is the limit. After an earlier request, the queue keeps the raise of a new queue.
    for (comes_ms, weight) in [(24, 1200), (25, 120_000)] {
        let mut bfq = Bfq::new(TAGS, BfqParameters::default());
        let mut requests = Requests::new(4);
        let mut list = DispatchList::new(4);
        let mut ask = |bfq: &mut Bfq, tag: Tag, at_ns: u64| {
            requests.take(tag, Bio::read(1, 8 * u64::from(tag), 8));
            requests.start(tag, at_ns);
            bfq.add(tag, &requests, at_ns);
            let weight = bfq.weight_of_task(1);
            assert!(bfq.dispatch(&requests, at_ns, &mut list));
            bfq.completed(tag, &requests, at_ns);
            // The device is kept for the queue until then.
            assert!(!bfq.dispatch(&requests, at_ns + 20 * MS_NS, &mut list));
            weight
        };
        assert_eq!(ask(&mut bfq, 0, 0), Some(1200));
        // The weight of the queue is raised, so the scheduler pauses for 20 ms. The next request
        // arrives `comes_ms` milliseconds after the end of this pause.
        let at_ns = (20 + comes_ms) * MS_NS;
        assert_eq!(ask(&mut bfq, 1, at_ns), Some(weight), "{comes_ms}");
    }
}

#[test]
fn writes_that_nobody_waits_for_count_three_times() {
    // Both queues have the weight 40. The budget of the writes is the charge for the first write,
    // 1536 sectors. The budget of the reads is 1024 sectors. So the reads have the earlier finish
    // and are served first: two requests of 512 sectors. The next budget of the reads, 1536
    // sectors, starts at virtual time 1024/40 = 26. Virtual time is then 1024/80 = 13, so one write
    // is served. Virtual time is then 32, so three reads are served. The next write starts at
    // 1536/40 = 38 and the next read at 64, so the write is next.
    let parameters = BfqParameters {
        max_budget_sectors: 1536,
        slice_idle_ns: 0,
        ..plain()
    };
    let mut bench = bench(parameters);
    for at in 0..4 {
        bench.add(Bio::write(7, at * 4096, 512));
    }
    reads(&mut bench, 1, FAR, 8, 512);
    let served = tasks_served(&mut bench, 7);
    assert_eq!(served, [1, 1, 7, 1, 1, 1, 7]);
}

#[test]
fn a_budget_that_is_not_used_in_its_time_ends() {
    // The service of a queue times out after 124 ms. Task 1 has a budget of 10,922 sectors and
    // makes few requests. At 123 ms its service continues, at 124 ms it ends.
    for (pass_ms, expected) in [(123, 1), (124, 2)] {
        let mut bench = bench(BfqParameters {
            slice_idle_ns: 0,
            ..plain()
        });
        reads(&mut bench, 1, 0, 4, 8);
        let (first, _) = bench.next().expect("a read");
        reads(&mut bench, 2, FAR, 4, 8);
        bench.pass_ms(pass_ms);
        let (tag, _) = bench.next().expect("a read");
        assert_eq!(bench.queue.request(tag).bio.task, expected, "{pass_ms}");
        bench.complete(first);
    }
}

#[test]
fn metadata_and_the_expired_go_first() {
    let mut bench = bench(plain());
    bench.reads(&[5_000_000]);
    let (tag, _) = bench.next().expect("a read");
    bench.complete(tag);
    let meta = Bio {
        metadata: true,
        ..Bio::read(0, 9_000_000, 8)
    };
    bench.reads(&[5_000_100]);
    bench.add(meta);
    assert_eq!(bench.served(), [9_000_000, 5_000_100]);
    // In each service of a queue, expiry is checked once, when the second request is chosen. That
    // request is the oldest one if it has waited for at least 125 ms.
    for (age_ms, expected) in [
        (124, [300_100, 300_200, 100]),
        (125, [300_100, 100, 300_200]),
    ] {
        let mut bench = self::bench(plain());
        bench.reads(&[300_000]);
        let (tag, _) = bench.next().expect("a read");
        bench.complete(tag);
        bench.pass_ms(8);
        assert_eq!(bench.next(), None);
        bench.reads(&[100]);
        bench.reads(&[300_100, 300_200]);
        bench.pass_ms(age_ms);
        assert_eq!(bench.served(), expected, "{age_ms}");
    }
}
