//! Tests of Anticipatory, rule by rule.

use super::*;

/// A sector that is far from sector 0 and its neighbours. It does not count as close to them, and
/// they do not count as close to it.
const FAR: u64 = 100_000_000;

fn anticipatory() -> Bench {
    Bench::new(Anticipatory::new(TAGS, AnticipatoryParameters::default()))
}

/// Creates a scheduler that never keeps the disk idle to wait for a request.
fn without_waiting() -> Bench {
    let parameters = AnticipatoryParameters {
        antic_expire_ns: 0,
        ..AnticipatoryParameters::default()
    };
    Bench::new(Anticipatory::new(TAGS, parameters))
}

/// Returns a bench in which a read of task 1 at sector 100 is at the device, and a read of task 2
/// at a distant sector waits. Also returns the tag of the first read.
fn one_reads_and_another_is_far() -> (Bench, Tag) {
    let mut bench = anticipatory();
    bench.add(Bio::read(1, 100, 8));
    let (tag, _) = bench.next().unwrap();
    bench.add(Bio::read(2, FAR, 8));
    (bench, tag)
}

#[test]
fn the_next_read_of_the_same_task_ends_the_wait() {
    let (mut bench, tag) = one_reads_and_another_is_far();
    assert_eq!(bench.next(), None);
    // The timer starts when the read completes, at 5 ms.
    assert_eq!(bench.queue.wake_at_ns(), None);
    bench.pass_ms(5);
    bench.complete(tag);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.queue.wake_at_ns(), Some(11 * MS_NS));
    bench.pass_ms(2);
    bench.add(Bio::read(1, 108, 8));
    assert_eq!(bench.next().map(|n| n.1), Some(108));
    // The disk waits again for the task's next request.
    assert_eq!(bench.next(), None);
}

#[test]
fn a_task_that_does_not_go_on_costs_6_ms() {
    let (mut bench, tag) = one_reads_and_another_is_far();
    assert_eq!(bench.next(), None);
    bench.complete(tag);
    bench.pass_ms(5);
    assert_eq!(bench.next(), None);
    bench.pass_ms(1);
    assert_eq!(bench.next().map(|n| n.1), Some(FAR));
}

#[test]
fn a_close_read_of_another_task_is_not_held_back() {
    // The head is at sector 108. A request is close if it is at most 8192 sectors ahead of the
    // head, or at most 4096 sectors behind the head.
    for (start, close) in [(8300, true), (8301, false)] {
        let mut bench = anticipatory();
        bench.add(Bio::read(1, 100, 8));
        bench.next().unwrap();
        bench.add(Bio::read(2, start, 8));
        assert_eq!(bench.next().is_some(), close, "{start}");
    }
    for (start, close) in [(5912, true), (5911, false)] {
        let mut bench = anticipatory();
        bench.add(Bio::read(1, 10_000, 8));
        bench.next().unwrap();
        bench.add(Bio::read(2, start, 8));
        assert_eq!(bench.next().is_some(), close, "{start}");
    }
}

#[test]
fn what_is_close_doubles_with_each_millisecond() {
    // At 2 ms after the completion of the read, a request is close if it is at most 4 * 8192
    // sectors ahead of sector 108.
    for (start, close) in [(32_876, true), (32_877, false)] {
        let (mut bench, tag) = one_reads_and_another_is_far();
        bench.complete(tag);
        assert_eq!(bench.next(), None);
        bench.pass_ms(2);
        bench.add(Bio::read(3, start, 8));
        assert_eq!(bench.next().is_some(), close, "{start}");
    }
}

#[test]
fn a_read_that_has_expired_is_not_held_back() {
    for (age_ms, served) in [(125, false), (126, true)] {
        let (mut bench, _) = one_reads_and_another_is_far();
        bench.pass_ms(age_ms);
        assert_eq!(bench.next().is_some(), served, "{age_ms}");
    }
}

#[test]
fn a_task_that_thinks_longer_than_the_wait_is_not_waited_for() {
    // The first read gives no think time. The second read shows that task 1 thinks for 10 ms, which
    // is longer than the 6 ms for which the disk would wait.
    let mut bench = anticipatory();
    bench.add(Bio::read(1, 100, 8));
    assert_eq!(bench.served(), [100]);
    bench.pass_ms(10);
    bench.add(Bio::read(1, 108, 8));
    assert_eq!(bench.next().map(|n| n.1), Some(108));
    bench.add(Bio::read(2, FAR, 8));
    assert_eq!(bench.next().map(|n| n.1), Some(FAR));
}

#[test]
fn where_nobody_follows_tasks_that_are_gone_there_is_no_wait() {
    // The scheduler estimates, in units of 1/256, how often no other task requests a nearby sector
    // after a task has exited. Each wait in vain changes the estimate s to (7s + 256) / 8: 32, 60,
    // 84, 105, 123, 139. Before the seventh exited task, s exceeds one half (128), so the disk does
    // not wait for that task.
    let mut bench = anticipatory();
    for round in 0..7u32 {
        let (gone, other) = (2 * round, 2 * round + 1);
        bench.add(Bio::read(gone, u64::from(gone) * FAR, 8));
        let (tag, _) = bench.next().unwrap();
        bench.queue.task_exited(gone);
        bench.add(Bio::read(other, u64::from(other) * FAR, 8));
        bench.complete(tag);
        assert_eq!(bench.next().is_none(), round < 6, "{round}");
        bench.pass_ms(6);
        // After the disk has waited in vain for the exited task, it serves the waiting request.
        // That request completes long before the next round adds a request.
        bench.served();
        bench.pass_ms(6);
    }
}

#[test]
fn the_head_goes_back_a_short_way_at_twice_the_cost() {
    // A backward seek costs twice its distance. With the head at 1,000,008, 60 sectors back cost
    // 120 and 100 sectors ahead cost 100, so the request ahead is served next. With the head at
    // 1,000,116, 168 sectors back cost 336 and 984 sectors ahead cost 984, so the request behind
    // the head is served next. The third request is served last.
    let mut bench = without_waiting();
    bench.reads(&[1_000_000]);
    bench.next().unwrap();
    bench.reads(&[999_948, 1_000_108, 1_001_100]);
    assert_eq!(bench.served(), [1_000_108, 999_948, 1_001_100]);
}

#[test]
fn writes_have_a_batch_when_that_of_the_reads_is_over_and_done() {
    let mut bench = without_waiting();
    bench.reads(&[100, 1000, 2000, 3000]);
    let (first, _) = bench.next().unwrap();
    bench.writes(&[50_000]);
    // While only reads waited, each read that was dispatched moved the end of the batch to 500 ms
    // after its dispatch. Here that is 500 ms, so the batch is over at 501 ms.
    bench.pass_ms(500);
    let (second, start) = bench.next().unwrap();
    assert_eq!(start, 1000);
    bench.complete(first);
    bench.pass_ms(1);
    // The write waits until the read at the device has completed.
    assert_eq!(bench.next(), None);
    bench.complete(second);
    assert_eq!(bench.next().map(|n| n.1), Some(50_000));
}

#[test]
fn a_batch_of_writes_has_12_and_twice_as_many_when_they_were_fast() {
    let mut bench = without_waiting();
    let writes: Vec<u64> = (0..40).map(|n| 10_000 + n * 100).collect();
    bench.writes(&writes);
    // The first batch of writes begins while no read waits. One of its 12 writes has completed.
    let (tag, start) = bench.next().unwrap();
    assert_eq!(start, 10_000);
    bench.complete(tag);
    bench.reads(&[100, 300]);
    let expected: Vec<u64> = writes[1..12].to_vec();
    let served: Vec<u64> = (0..11).map(|_| serve(&mut bench)).collect();
    assert_eq!(served, expected);
    // A batch of reads follows. The duration of the batch of writes is measured until the first of
    // these reads completes: it is 0 ms, less than a third of 125 ms. So the quota of writes
    // doubles.
    assert_eq!(serve(&mut bench), 100);
    bench.pass_ms(501);
    let served: Vec<u64> = (0..24).map(|_| serve(&mut bench)).collect();
    assert_eq!(served, writes[12..36]);
    assert_eq!(serve(&mut bench), 300);
}

/// Serves one request and returns its start sector.
fn serve(bench: &mut Bench) -> u64 {
    let (tag, start) = bench.next().unwrap();
    bench.complete(tag);
    start
}

#[test]
fn the_request_that_has_expired_goes_first_in_its_batch() {
    // Some reads are ahead of the head. One expired read is far behind the head, so the sweep would
    // reach this read last.
    let mut bench = without_waiting();
    bench.reads(&[5_000_000]);
    serve(&mut bench);
    bench.reads(&[100]);
    bench.pass_ms(126);
    bench.reads(&[5_000_100, 5_000_200]);
    assert_eq!(bench.served(), [100, 5_000_100, 5_000_200]);
}
