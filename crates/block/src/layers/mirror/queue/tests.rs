//! Tests, with hand-built cases, of the consistent point of a side with a log: the sequence number
//! below which the side has been given every write.

use super::*;
use crate::request::Origin;

const UNIT: u64 = 4096;

/// Admits a write of one unit that is acknowledged immediately.
fn write(queue: &mut SideQueue, seq: u64, unit: u64) {
    write_in_groups(queue, seq, unit, u64::MAX);
}

/// Admits a write as `write` does, with groups of at most `group_bytes_max` bytes.
fn write_in_groups(queue: &mut SideQueue, seq: u64, unit: u64, group_bytes_max: u64) {
    write_units(queue, seq, unit..unit + 1, group_bytes_max);
}

/// Admits a write of several units as `write_in_groups` does.
fn write_units(queue: &mut SideQueue, seq: u64, units: Range<u64>, group_bytes_max: u64) {
    let range = units.start * UNIT..units.end * UNIT;
    let sides = vec![Progress::Left(range.end - range.start)];
    let ticket = Ticket::new(seq, range, Instant::ZERO, sides, vec![true]);
    ticket.acknowledged.set(Some(Instant::ZERO));
    let change = Change {
        op: Op::WriteZeroes,
        flags: Flags::NONE,
        origin: Origin::NONE,
        payload: Payload::empty(),
        digests: None,
    };
    queue.push(change, &ticket, 0, false, group_bytes_max);
}

/// Takes the next write in elevator order from the queue. Returns its sequence number and its
/// batch.
fn give(queue: &mut SideQueue) -> (u64, Batch) {
    let batch = queue.take_batch(UNIT, false).expect("something waits");
    (batch.parts[0].1.ticket.seq, batch)
}

/// Write 1 is alone in the first group. Write 4 overlaps write 3 and replaces it. Write 4 is given
/// to the side before writes 2 and 5. Point 5 is then consistent once write 2 is given as well, but
/// point 4 is not, because the side lacks the content of write 3.
#[test]
fn what_came_early_takes_what_it_replaced_out_of_the_moment() {
    let mut queue = SideQueue::new(false, true);
    for (seq, unit) in [(1, 9), (2, 7), (3, 1), (4, 1), (5, 8)] {
        write(&mut queue, seq, unit);
    }
    assert_eq!(queue.given_below(6), 1);
    let (seq, first) = give(&mut queue);
    assert_eq!(seq, 1);
    assert_eq!(queue.given_below(6), 2, "2 and all after it wait");
    queue.stored(&first, 0, Instant::ZERO);
    queue.head = 0;
    let (seq, early) = give(&mut queue);
    assert_eq!(seq, 4, "in the order of the addresses");
    assert_eq!(queue.given_below(6), 2);
    let (seq, second) = give(&mut queue);
    assert_eq!(seq, 2);
    // The side was given every write below 5, except write 3, which write 4 has replaced. So point
    // 5 is consistent, because write 4 is below it. Point 4 is not, because the side lacks the
    // content of write 3. Point 3 is consistent.
    assert_eq!(queue.given_below(6), 5);
    assert_eq!(queue.given_below(4), 3, "4 is not meant, so 3 is lacking");
    queue.stored(&early, 0, Instant::ZERO);
    queue.stored(&second, 0, Instant::ZERO);
    assert_eq!(queue.given_below(6), 5);
    let (seq, last) = give(&mut queue);
    assert_eq!(seq, 5);
    assert_eq!(queue.given_below(6), 6);
    queue.stored(&last, 0, Instant::ZERO);
    assert_eq!(queue.given_below(6), 6);
    assert!(queue.ahead.is_empty(), "it concerns no moment to come");
}

/// Write 4 replaces write 2, and write 6 replaces write 3. Writes 4 and 6 are stored before write
/// 5. A consistent point N needs the content of every write below N. So points above 5 lack write
/// 5, points 4 and 5 lack write 3, and point 3 lacks write 2: the last consistent point is 2. The
/// record of write 4 must be kept, although write 4 is older than every outstanding write.
#[test]
fn what_came_early_leads_back_to_what_came_early_before() {
    let mut queue = SideQueue::new(false, true);
    for (seq, unit) in [(1, 9), (2, 1), (3, 2), (4, 1), (5, 3), (6, 2)] {
        write(&mut queue, seq, unit);
    }
    for expected in [1, 4, 6] {
        let (seq, batch) = give(&mut queue);
        assert_eq!(seq, expected, "in the order of the addresses");
        queue.stored(&batch, 0, Instant::ZERO);
        queue.head = if seq == 1 { 0 } else { queue.head };
    }
    assert_eq!(queue.given_below(7), 2);
    let (seq, last) = give(&mut queue);
    assert_eq!(seq, 5);
    assert_eq!(queue.given_below(7), 7);
    queue.stored(&last, 0, Instant::ZERO);
    assert!(queue.ahead.is_empty(), "it concerns no moment to come");
}

/// A write of one unit takes two units in the log, because of its header, so a group of six units
/// has room for three writes. Write 5 must not replace write 2: the four writes from 2 to 5 would
/// then have to be in the log together, but a group has no room for four writes.
#[test]
fn a_group_is_not_longer_than_the_log_has_room_for() {
    let mut queue = SideQueue::new(false, true);
    for (seq, unit) in [(1, 9), (2, 1), (3, 2), (4, 3), (5, 1), (6, 2), (7, 2)] {
        write_in_groups(&mut queue, seq, unit, 6 * UNIT);
    }
    // Write 7 replaces write 6, because both are in the same group.
    for (expected, given_below) in [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (7, 8)] {
        let batch = queue.take_in_order(false).expect("something waits");
        assert_eq!(batch.parts[0].1.ticket.seq, expected);
        assert_eq!(queue.given_below(8), given_below, "with {expected}");
        queue.stored(&batch, 0, Instant::ZERO);
    }
    assert!(!queue.has_waiting() && queue.waiting_parts() == 0);
}

/// Write 5 replaces write 2 while write 1 is alone in the first group. If write 5 was given to the
/// side after writes 3 and 4, the content that is acknowledged since write 2 would be exposed for
/// longer than theirs.
#[test]
fn a_write_takes_the_turn_of_what_it_has_replaced() {
    let mut queue = SideQueue::new(false, true);
    for (seq, unit) in [(1, 9), (2, 1), (3, 2), (4, 3), (5, 1)] {
        write(&mut queue, seq, unit);
    }
    for (expected, oldest) in [(1, Some(2)), (5, Some(3)), (3, Some(4)), (4, None)] {
        let batch = queue.take_in_order(false).expect("something waits");
        assert_eq!(batch.parts[0].1.ticket.seq, expected);
        queue.stored(&batch, 0, Instant::ZERO);
        assert_eq!(queue.oldest_seq(), oldest, "after {expected}");
    }
}

/// Write 3 replaces the middle of write 2. The first part of write 2 fails while its last part
/// waits. Both have the same turn.
#[test]
fn a_part_that_fails_does_not_take_the_turn_of_the_rest() {
    let mut queue = SideQueue::new(false, true);
    write(&mut queue, 1, 9);
    write_units(&mut queue, 2, 0..3, u64::MAX);
    write(&mut queue, 3, 1);
    let next = |queue: &mut SideQueue| queue.take_in_order(false).expect("something waits");
    let first = next(&mut queue);
    queue.stored(&first, 0, Instant::ZERO);
    let failed = next(&mut queue);
    assert_eq!(failed.range, 0..UNIT);
    queue.failed(failed, 0, Instant::ZERO);
    for expected in [0, 2, 1] {
        let batch = next(&mut queue);
        assert_eq!(batch.range, expected * UNIT..(expected + 1) * UNIT);
        queue.stored(&batch, 0, Instant::ZERO);
    }
    assert_eq!(queue.oldest_seq(), None);
}

/// Write 4 has replaced write 2, and has its turn. All writes in flight fail, but not in the order
/// in which they were given to the side. They must be sent again in that order.
#[test]
fn what_has_failed_is_given_again_in_the_order_of_admission() {
    let mut queue = SideQueue::new(false, true);
    for (seq, unit) in [(1, 9), (2, 1), (3, 2), (4, 1), (5, 3)] {
        write(&mut queue, seq, unit);
    }
    let mut flying = Vec::new();
    while let Some(batch) = queue.take_in_order(false) {
        flying.push(batch);
    }
    let numbers = |batches: &[Batch]| -> Vec<u64> {
        let of = |batch: &Batch| batch.parts[0].1.ticket.seq;
        batches.iter().map(of).collect()
    };
    assert_eq!(numbers(&flying), [1, 4, 3, 5], "4 has replaced 2");
    write(&mut queue, 6, 2);
    for at in [1, 0, 1, 0] {
        queue.failed(flying.remove(at), 0, Instant::ZERO);
    }
    assert_eq!(queue.given_below(7), 1);
    let mut again = Vec::new();
    while let Some(batch) = queue.take_in_order(false) {
        again.push(batch);
    }
    assert_eq!(numbers(&again), [1, 4, 3, 5], "6 waits for 3");
    again
        .into_iter()
        .for_each(|batch| queue.stored(&batch, 0, Instant::ZERO));
    let last = queue.take_in_order(false).expect("6 waits");
    assert_eq!(last.parts[0].1.ticket.seq, 6);
    assert_eq!(queue.given_below(7), 7);
}
