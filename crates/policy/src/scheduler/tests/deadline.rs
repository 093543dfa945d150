//! Tests of Deadline, rule by rule.

use super::*;

fn deadline(parameters: DeadlineParameters) -> Bench {
    Bench::new(Deadline::new(TAGS, parameters))
}

#[test]
fn a_seek_ends_the_batch_but_the_sweep_goes_on() {
    // No request has expired. The first batch starts at the oldest request, 500. The next request
    // of the sweep, 600, is not contiguous, so the batch ends and the scheduler chooses a
    // direction. It chooses reads again, and the new batch continues the sweep with 600. No request
    // follows 600, so the oldest request, 300, starts another ascending sweep: 300, 400.
    let mut bench = deadline(DeadlineParameters::default());
    bench.reads(&[500, 300, 600, 400]);
    assert_eq!(bench.served(), [500, 600, 300, 400]);
}

#[test]
fn writes_wait_for_two_batches_of_reads() {
    // Every request is a batch of its own, because none is contiguous to the previous one. Two
    // batches of reads (`starved` is 0, then 1) are followed by a write, since `starved` has
    // reached 2. The write resets `starved`, and the pattern repeats.
    let mut bench = deadline(DeadlineParameters::default());
    bench.reads(&[100, 200, 300, 400, 500]);
    bench.writes(&[1000, 2000, 3000]);
    assert_eq!(bench.served(), [100, 200, 1000, 300, 400, 2000, 500, 3000]);
}

#[test]
fn a_contiguous_run_is_one_batch_of_at_most_fifo_batch() {
    // The requests are adjacent but cannot be merged, because each has the maximum length. A batch
    // has at most 2 requests. The first batch has the reads 0 and 1024. The second batch, again of
    // reads (`starved` is 1), continues the sweep: 2048, 3072. A batch of 2 writes follows, then
    // the last read, and then the last write.
    let mut bench = deadline(DeadlineParameters {
        fifo_batch: 2,
        ..DeadlineParameters::default()
    });
    for at in 0..5 {
        bench.add(Bio::read(0, at * 1024, 1024));
    }
    for at in 0..3 {
        bench.add(Bio::write(0, 100_000 + at * 1024, 1024));
    }
    assert_eq!(
        bench.served(),
        [0, 1024, 2048, 3072, 100_000, 101_024, 4096, 102_048]
    );
}

#[test]
fn an_expired_request_starts_the_next_batch() {
    let mut bench = deadline(DeadlineParameters::default());
    bench.reads(&[500]);
    bench.pass_ms(1);
    bench.reads(&[100]);
    bench.pass_ms(400);
    bench.reads(&[600, 700]);
    assert_eq!(bench.next().map(|n| n.1), Some(500));
    // At 501 ms the read that arrived at 1 ms is exactly 500 ms old and has not expired, so the
    // sweep continues.
    bench.pass_ms(100);
    assert_eq!(bench.next().map(|n| n.1), Some(600));
    // One millisecond later the oldest read has expired, and is dispatched before the read at 700.
    bench.pass_ms(1);
    assert_eq!(bench.served(), [100, 700]);
}

#[test]
fn an_expired_write_still_waits_for_its_turn() {
    // Expiry matters only among requests of the same direction. Two batches of reads come first,
    // however old the write is.
    let mut bench = deadline(DeadlineParameters::default());
    bench.writes(&[1000]);
    bench.pass_ms(6000);
    bench.reads(&[100, 200, 300]);
    assert_eq!(bench.served(), [100, 200, 1000, 300]);
}

#[test]
fn a_request_that_absorbs_an_older_one_is_as_old() {
    // The surviving request is 100..124. It was added at 300 ms, after the request at sector 600.
    // It absorbs the request 116..124, which was added at 0 ms, and takes over its FIFO position.
    // So the surviving request starts the first batch. Without this rule, the request at sector 600
    // would be the oldest and would start the batch.
    let mut bench = deadline(DeadlineParameters::default());
    bench.reads(&[116]);
    bench.pass_ms(300);
    bench.reads(&[600, 100, 700]);
    bench.reads(&[108]);
    assert_eq!(bench.queue.counts().reads.request_merges, 1);
    assert_eq!(bench.served(), [100, 600, 700]);
}

#[test]
fn without_front_merges_a_bio_in_front_is_a_request() {
    let mut bench = deadline(DeadlineParameters {
        front_merges: false,
        ..DeadlineParameters::default()
    });
    bench.reads(&[100, 500]);
    // The read at 508 is appended to the request at 500, which is then the first merge candidate.
    // The read at 92 is not merged with the request at 100, because that request is not the first
    // merge candidate.
    assert_eq!(bench.add(Bio::read(0, 508, 8)), Added::Back(1));
    assert_eq!(bench.add(Bio::read(0, 92, 8)), Added::New);
}
