//! Tests of Flash, one for each rule. The write unit has 256 sectors, and a request usually has 8.

use super::*;

fn bench() -> Bench {
    Bench::new(Flash::new(TAGS, FlashParameters::default()))
}

fn sync_write(start_sector: u64, sectors: u32) -> Bio {
    Bio {
        sync: true,
        ..Bio::write(0, start_sector, sectors)
    }
}

#[test]
fn reads_go_first_and_in_order_of_arrival() {
    // The hold time of the writes has passed, so they can be dispatched. But all reads are
    // dispatched before the writes.
    let mut bench = bench();
    bench.writes(&[500, 100]);
    bench.pass_ms(2);
    bench.reads(&[9000, 300, 5000]);
    assert_eq!(bench.served(), [9000, 300, 5000, 500, 100]);
}

#[test]
fn a_batch_is_the_writes_of_one_unit_upwards() {
    // Units are 0..256, 256..512, 512..768. The oldest write is at 700, in the unit 512..768, so
    // that unit is written first, from its lowest sector; then the unit of the write at 300, then
    // that of the write at 10.
    let mut bench = bench();
    bench.writes(&[700, 300, 10, 600, 400, 520, 100]);
    bench.pass_ms(2);
    assert_eq!(bench.served(), [520, 600, 700, 300, 400, 10, 100]);
}

#[test]
fn a_write_is_kept_for_2_ms_so_that_its_unit_may_fill() {
    let mut bench = bench();
    bench.writes(&[300]);
    assert_eq!(bench.next(), None);
    assert_eq!(bench.queue.wake_at_ns(), Some(2 * MS_NS));
    bench.pass_ms(1);
    bench.writes(&[1000]);
    assert_eq!(bench.next(), None);
    bench.pass_ms(1);
    assert_eq!(bench.served(), [300]);
    assert_eq!(bench.queue.wake_at_ns(), Some(3 * MS_NS));
}

#[test]
fn a_full_unit_and_requests_with_a_waiter_are_issued_immediately() {
    // The bios 256..384 and 384..512 merge into one write of 256 sectors, which fills its unit. The
    // write at 2000 is sync. The write at 10 is neither sync nor in a full unit.
    let mut bench = bench();
    bench.writes(&[10]);
    bench.add(sync_write(2000, 8));
    bench.add(Bio::write(0, 384, 128));
    bench.add(Bio::write(0, 256, 128));
    let (tag, start) = bench.next().unwrap();
    assert_eq!((start, bench.queue.request(tag).bio.sectors), (256, 256));
    bench.complete(tag);
    assert_eq!(bench.served(), [2000]);
}

#[test]
fn a_unit_is_full_by_any_writes_of_it() {
    // Two writes of 100 sectors have 200 of the 256 sectors of a unit. Another 56 sectors, appended
    // to one of the writes, fill the unit.
    let mut bench = bench();
    bench.add(Bio::write(0, 0, 100));
    bench.add(Bio::write(0, 156, 100));
    assert_eq!(bench.next(), None);
    assert_eq!(bench.add(Bio::write(0, 100, 50)), Added::Back(0));
    assert_eq!(bench.next(), None);
    bench.add(Bio::write(0, 150, 6));
    assert_eq!(bench.served(), [0]);
}

#[test]
fn no_merge_crosses_the_border_of_a_unit() {
    let mut bench = bench();
    bench.writes(&[240]);
    assert_eq!(bench.add(Bio::write(0, 248, 8)), Added::Back(0));
    assert_eq!(bench.add(Bio::write(0, 256, 8)), Added::New);
    // A bio that itself crosses the boundary of a unit belongs to the unit in which it begins.
    bench.add(Bio::write(0, 504, 16));
    bench.pass_ms(2);
    assert_eq!(bench.served(), [240, 256, 504]);
    assert_eq!(bench.queue.counts().writes.issued, 3);
}

#[test]
fn what_is_waited_for_is_not_mixed_with_what_is_not() {
    let mut bench = bench();
    bench.writes(&[0]);
    assert_eq!(bench.add(sync_write(8, 8)), Added::New);
    assert_eq!(bench.add(sync_write(16, 8)), Added::Back(1));
}

#[test]
fn while_anybody_reads_the_device_has_about_one_unit_of_writes() {
    // A read is in flight. Unit 0 has writes of 200 and 48 sectors, and units 1 and 2 have one
    // write of 8 sectors each. The batch of unit 1 begins while 200 + 48 = 248 sectors of writes
    // are in flight. The batch of unit 2 does not begin while 248 + 8 = 256 sectors are in flight.
    // It begins when the write of 200 sectors has completed, which leaves 56 sectors in flight.
    let mut bench = bench();
    bench.reads(&[5000]);
    bench.next().unwrap();
    bench.add(Bio::write(0, 0, 200));
    bench.add(Bio::write(0, 204, 48));
    bench.writes(&[300, 600]);
    bench.pass_ms(2);
    let (first, start) = bench.next().unwrap();
    assert_eq!(start, 0);
    assert_eq!(bench.next().map(|n| n.1), Some(204));
    assert_eq!(bench.next().map(|n| n.1), Some(300));
    assert_eq!(bench.next(), None);
    bench.complete(first);
    assert_eq!(bench.next().map(|n| n.1), Some(600));
}

#[test]
fn when_nobody_reads_batches_follow_each_other() {
    let mut bench = bench();
    bench.reads(&[5000]);
    let (read, _) = bench.next().unwrap();
    bench.add(Bio::write(0, 0, 256));
    bench.add(Bio::write(0, 256, 256));
    assert_eq!(bench.next().map(|n| n.1), Some(0));
    assert_eq!(bench.next(), None);
    bench.complete(read);
    assert_eq!(bench.next().map(|n| n.1), Some(256));
}

#[test]
fn reads_cut_into_a_batch() {
    let mut bench = bench();
    bench.writes(&[0, 100, 200]);
    bench.pass_ms(2);
    assert_eq!(bench.next().map(|n| n.1), Some(0));
    bench.reads(&[5000]);
    assert_eq!(bench.next().map(|n| n.1), Some(5000));
    assert_eq!(bench.next().map(|n| n.1), Some(100));
}

#[test]
fn a_write_of_100_ms_goes_before_reads_with_its_unit() {
    let mut bench = bench();
    bench.writes(&[100]);
    bench.pass_ms(99);
    bench.writes(&[50]);
    bench.reads(&[5000, 6000]);
    assert_eq!(bench.next().map(|n| n.1), Some(5000));
    bench.pass_ms(1);
    // The batch begins at the lowest sector of its unit, and the read does not interrupt the batch.
    assert_eq!(bench.next().map(|n| n.1), Some(50));
    assert_eq!(bench.served(), [100, 6000]);
}

#[test]
fn sixteen_reads_go_between_two_such_batches() {
    let mut bench = bench();
    bench.writes(&[0, 1000, 2000]);
    bench.pass_ms(100);
    let reads: Vec<u64> = (0..40).map(|n| 10_000 + n * 100).collect();
    bench.reads(&reads);
    let expected = [
        &[0],
        &reads[..16],
        &[1000],
        &reads[16..32],
        &[2000],
        &reads[32..],
    ];
    assert_eq!(bench.served(), expected.concat());
}

#[test]
fn the_oldest_write_decides_which_unit_is_late() {
    // The write at 1000 is sync and arrived at 1 ms; the write at 0 is async and arrived at 0 ms.
    // At 101 ms both writes have expired.
    let mut bench = bench();
    bench.writes(&[0]);
    bench.pass_ms(1);
    bench.add(sync_write(1000, 8));
    bench.pass_ms(100);
    bench.reads(&[5000]);
    assert_eq!(bench.served(), [0, 5000, 1000]);
}

#[test]
fn a_write_that_absorbs_an_older_one_is_as_old() {
    // The write 100..108 arrived at 0 ms, and the write 84..92 at 1 ms. The bio 92..100 merges both
    // writes into one request. The hold time of this request has passed at 2 ms, so the request is
    // dispatched although its unit is not full.
    let mut bench = bench();
    bench.writes(&[100]);
    bench.pass_ms(1);
    bench.writes(&[84, 92]);
    assert_eq!(bench.queue.counts().writes.request_merges, 1);
    bench.pass_ms(1);
    assert_eq!(bench.served(), [84]);
}
