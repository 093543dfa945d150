//! Tests of merging, plugging, splitting and counting, which do not depend on the scheduler.

use super::*;

fn noop() -> Bench {
    Bench::new(Noop::new(TAGS))
}

#[test]
fn noop_is_first_come_first_served() {
    let mut bench = noop();
    bench.reads(&[900, 100, 500]);
    bench.writes(&[300]);
    assert_eq!(bench.served(), [900, 100, 500, 300]);
}

#[test]
fn bios_join_behind_and_in_front_and_come_back_in_order_of_sector() {
    let mut bench = Bench::new(Deadline::new(TAGS, DeadlineParameters::default()));
    assert_eq!(bench.add(Bio::read(0, 100, 8)), Added::New);
    assert_eq!(bench.add(Bio::read(0, 108, 8)), Added::Back(0));
    assert_eq!(bench.add(Bio::read(0, 92, 8)), Added::Front(0));
    // A write is not merged with reads, and bios with a gap of one sector between them are not
    // merged.
    assert_eq!(bench.add(Bio::write(0, 116, 8)), Added::New);
    assert_eq!(bench.add(Bio::read(0, 117, 8)), Added::New);
    assert_eq!(bench.next(), Some((0, 92)));
    assert_eq!(bench.queue.request(0).bio.sectors, 24);
    assert_eq!(bench.complete(0), [2, 0, 1]);
    let reads = bench.queue.counts().reads;
    assert_eq!(
        (reads.bios, reads.back_merges, reads.front_merges),
        (4, 1, 1)
    );
    assert_eq!((reads.issued, reads.completed, reads.queued()), (1, 1, 1));
}

#[test]
fn a_bio_that_fills_the_gap_makes_two_requests_one() {
    let mut bench = Bench::new(Deadline::new(TAGS, DeadlineParameters::default()));
    bench.reads(&[100, 116, 300]);
    // Requests at 100..108 and 116..124 wait, and the new bio fills the gap between them.
    assert_eq!(bench.add(Bio::read(0, 108, 8)), Added::Back(0));
    let reads = bench.queue.counts().reads;
    assert_eq!((reads.back_merges, reads.request_merges), (1, 1));
    assert_eq!(bench.next(), Some((0, 100)));
    assert_eq!(bench.queue.request(0).bio.sectors, 24);
    assert_eq!(bench.complete(0), [0, 3, 1]);
    // 4 bios - 2 merges = 2 requests.
    assert_eq!(bench.served(), [300]);
    assert_eq!(bench.queue.counts().reads.issued, 2);
}

#[test]
fn noop_joins_requests_only_with_their_neighbours_in_time() {
    // After the bio at 108 is appended, the request at 100 is merged with its neighbour in the
    // FIFO, 116.
    let mut bench = noop();
    bench.reads(&[100, 116, 108]);
    assert_eq!(bench.queue.counts().reads.request_merges, 1);
    // Noop merges a request only with its neighbours in the FIFO. In the FIFO, the request at 300
    // is between the requests at 100 and at 116, so 100..116 and 116..124 are not merged.
    let mut bench = noop();
    bench.reads(&[100, 300, 116, 108]);
    assert_eq!(bench.queue.counts().reads.request_merges, 0);
    assert_eq!(bench.served(), [100, 300, 116]);
}

#[test]
fn a_merge_that_would_be_too_large_closes_the_request() {
    let mut bench = noop();
    bench.add(Bio::write(0, 0, 1020));
    // 1020 + 8 > 1024 sectors.
    assert_eq!(bench.add(Bio::write(0, 1020, 8)), Added::New);
    // A bio of 4 sectors would fit, but no further merge with the first request is attempted.
    assert_eq!(bench.add(Bio::write(0, 1020, 4)), Added::New);
}

#[test]
fn nothing_joins_a_request_that_the_device_has() {
    let mut bench = noop();
    bench.reads(&[100]);
    assert_eq!(bench.next(), Some((0, 100)));
    assert_eq!(bench.add(Bio::read(0, 108, 8)), Added::New);
}

#[test]
fn the_rest_of_a_split_bio_counts_as_a_split() {
    let mut bench = noop();
    let mut rest = Some(Bio::write(0, 50, 2500));
    let mut sectors = Vec::new();
    while let Some(bio) = rest {
        let (head, behind) = bio.split(1024);
        sectors.push((head.start_sector, head.sectors));
        bench.add(head);
        rest = behind;
    }
    assert_eq!(sectors, [(50, 1024), (1074, 1024), (2098, 452)]);
    assert_eq!(bench.served().len(), 3);
    let writes = bench.queue.counts().writes;
    // issued = bios - merges + splits: 3 = 1 - 0 + 2.
    assert_eq!((writes.bios, writes.splits, writes.issued), (1, 2, 3));
}

fn plugged() -> Bench {
    Bench::with(Noop::new(TAGS), QueueParameters::default())
}

#[test]
fn a_plug_goes_after_3_ms() {
    let mut bench = plugged();
    bench.pass_ms(5);
    bench.writes(&[100]);
    assert_eq!(bench.queue.wake_at_ns(), Some(8 * MS_NS));
    bench.pass_ms(2);
    bench.writes(&[300]);
    assert_eq!(bench.served(), [0u64; 0]);
    bench.pass_ms(1);
    assert_eq!(bench.served(), [100, 300]);
    assert_eq!(bench.queue.wake_at_ns(), None);
}

#[test]
fn a_plug_goes_with_4_requests_but_not_with_4_bios() {
    let mut bench = plugged();
    bench.writes(&[100, 108, 116, 124, 300, 500]);
    assert_eq!(bench.served(), [0u64; 0]);
    bench.writes(&[700]);
    assert_eq!(bench.served(), [100, 300, 500, 700]);
}

#[test]
fn a_plug_is_released_for_a_waiter() {
    let mut bench = plugged();
    bench.writes(&[100, 300]);
    bench.reads(&[500]);
    assert_eq!(bench.served(), [100, 300, 500]);
    bench.writes(&[700]);
    assert_eq!(bench.served(), [0u64; 0]);
    bench.queue.unplug();
    assert_eq!(bench.served(), [700]);
}

#[test]
fn the_sorted_list_is_one_sweep_that_wraps_and_does_not_pass_the_other_direction() {
    let mut requests = Requests::new(TAGS);
    let mut list = DispatchList::new(TAGS);
    let mut put = |list: &mut DispatchList, tag: Tag, bio: Bio| {
        requests.take(tag, bio);
        requests.start(tag, 0);
        list.push_sorted(tag, &requests);
        requests.clone()
    };
    // After the following request the head is at 408.
    let requests_now = put(&mut list, 0, Bio::read(0, 400, 8));
    assert_eq!(list.pop(&requests_now), Some(0));
    put(&mut list, 1, Bio::read(0, 100, 8));
    put(&mut list, 2, Bio::read(0, 900, 8));
    put(&mut list, 3, Bio::read(0, 500, 8));
    put(&mut list, 4, Bio::write(0, 600, 8));
    // In the sweep, the read at 700 would come before the read at 900. But the write at 600 is
    // already at the end of the list, and a request never passes a request of the other direction.
    let requests_now = put(&mut list, 5, Bio::read(0, 700, 8));
    let order: Vec<Tag> = std::iter::from_fn(|| list.pop(&requests_now)).collect();
    assert_eq!(order, [3, 2, 1, 4, 5]);
}
