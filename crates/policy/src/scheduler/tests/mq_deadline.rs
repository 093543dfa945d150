//! Tests of mq-deadline where it differs from Deadline.

use super::*;

fn mq_deadline() -> Bench {
    Bench::new(MqDeadline::new(TAGS, MqDeadlineParameters::default()))
}

fn of(priority: Priority, start_sector: u64) -> Bio {
    Bio {
        priority,
        ..Bio::read(0, start_sector, 8)
    }
}

#[test]
fn a_seek_does_not_end_a_batch() {
    // A batch can have 16 requests, so its size does not end a batch here. The first batch ascends
    // from the oldest read, 300, to the highest read, 500. The second batch starts again from the
    // oldest waiting read, which is then 100. A write waits, so these two batches are counted in
    // `starved`, and the third batch is that of the write.
    let mut bench = mq_deadline();
    bench.reads(&[300, 500, 100, 400, 200]);
    bench.writes(&[1000]);
    assert_eq!(bench.served(), [300, 400, 500, 100, 200, 1000]);
}

#[test]
fn a_batch_has_16_requests() {
    // There are 20 reads, ascending from 0, and one write. A batch of 16 reads and a batch of 4
    // reads are dispatched before the write.
    let mut bench = mq_deadline();
    bench.writes(&[9000]);
    let reads: Vec<u64> = (0..20).map(|n| n * 100).collect();
    bench.reads(&reads);
    let mut expected = reads.clone();
    expected.push(9000);
    assert_eq!(bench.served(), expected);
    // With 40 reads, the write is dispatched after two full batches of 16 reads.
    let mut bench = mq_deadline();
    bench.writes(&[9000]);
    bench.reads(&(0..40).map(|n| n * 100).collect::<Vec<u64>>());
    assert_eq!(bench.served().iter().position(|s| *s == 9000), Some(32));
}

#[test]
fn a_lower_class_waits_for_what_the_device_has_of_a_higher_one() {
    let mut bench = mq_deadline();
    bench.add(of(Priority::Idle, 100));
    bench.add(of(Priority::NORMAL, 200));
    bench.add(of(Priority::RealTime(0), 300));
    let (real_time, start) = bench.next().unwrap();
    assert_eq!(start, 300);
    assert_eq!(bench.next(), None);
    bench.complete(real_time);
    assert_eq!(bench.served(), [200, 100]);
}

#[test]
fn what_waits_longer_than_prio_aging_expire_goes_first() {
    let mut bench = mq_deadline();
    bench.add(of(Priority::Idle, 100));
    bench.add(of(Priority::Idle, 600));
    bench.pass_ms(9_999);
    bench.add(of(Priority::RealTime(0), 300));
    bench.add(of(Priority::RealTime(0), 400));
    assert_eq!(bench.next().map(|n| n.1), Some(300));
    // At 10 s both requests of the idle class have aged. They are dispatched before the request at
    // 400, and do not wait for the request at 300, which is still at the device.
    bench.pass_ms(1);
    assert_eq!(bench.served(), [100, 600, 400]);
}

#[test]
fn a_request_is_due_at_the_time_of_its_expiry() {
    // A batch has a single request, so the age of the oldest request is checked at every dispatch.
    let deadline = DeadlineParameters {
        fifo_batch: 1,
        ..DeadlineParameters::default()
    };
    let parameters = MqDeadlineParameters {
        deadline,
        ..MqDeadlineParameters::default()
    };
    let mut bench = Bench::new(MqDeadline::new(TAGS, parameters));
    bench.reads(&[500, 100]);
    bench.pass_ms(400);
    bench.reads(&[600]);
    assert_eq!(bench.next().map(|n| n.1), Some(500));
    // 100 is exactly 500 ms old.
    bench.pass_ms(100);
    assert_eq!(bench.served(), [100, 600]);
}

#[test]
fn bios_of_other_classes_are_not_put_in_front() {
    let mut bench = mq_deadline();
    bench.reads(&[100, 500, 700]);
    assert_eq!(bench.add(of(Priority::Idle, 492)), Added::New);
    assert_eq!(bench.add(of(Priority::NORMAL, 492)), Added::Front(1));
}
