//! Tests of Kyber, rule by rule.

use super::*;

const READ: Direction = Direction::Read;
const WRITE: Direction = Direction::Write;
const US: u64 = 1000;

fn bench() -> Bench {
    Bench::new(Kyber::new(TAGS, KyberParameters::default()))
}

#[test]
fn domains_take_turns_by_batches_in_order_of_arrival() {
    // A batch has up to 16 reads or 8 writes. A domain without requests loses its turn.
    let mut bench = bench();
    let reads: Vec<u64> = (0..20).rev().map(|n| n * 100).collect();
    let writes: Vec<u64> = (90..100).rev().map(|n| n * 100).collect();
    bench.writes(&writes);
    bench.reads(&reads);
    let expected = [&reads[..16], &writes[..8], &reads[16..], &writes[8..]];
    assert_eq!(bench.served(), expected.concat());
}

#[test]
fn a_domain_alone_goes_on() {
    let mut bench = bench();
    let writes: Vec<u64> = (0..20).rev().map(|n| n * 100).collect();
    bench.writes(&writes);
    assert_eq!(bench.served(), writes);
}

/// A Kyber scheduler without a request queue, so that tests can read its tokens.
struct Bed {
    kyber: Kyber,
    requests: Requests,
    list: DispatchList,
}

impl Bed {
    fn new() -> Bed {
        Bed {
            kyber: Kyber::new(512, KyberParameters::default()),
            requests: Requests::new(512),
            list: DispatchList::new(512),
        }
    }

    /// Adds requests with tags from 0 on.
    fn add(&mut self, direction: Direction, count: Tag, at_us: u64) {
        for tag in 0..count {
            let bio = Bio {
                direction,
                ..Bio::read(0, u64::from(tag) * 100, 8)
            };
            self.requests.take(tag, bio);
            self.requests.start(tag, at_us * US);
            self.kyber.add(tag, &self.requests, at_us * US);
        }
    }

    /// Dispatches requests and returns their number.
    fn dispatch(&mut self, at_us: u64) -> usize {
        while self
            .kyber
            .dispatch(&self.requests, at_us * US, &mut self.list)
        {}
        let mut count = 0;
        while self.list.pop(&self.requests).is_some() {
            count += 1;
        }
        count
    }

    fn complete(&mut self, tag: Tag, at_us: u64) {
        self.kyber.completed(tag, &self.requests, at_us * US);
        self.requests.free(tag, &mut Vec::new());
    }

    /// Runs `count` requests that arrive, are dispatched and complete at the three given times.
    fn round(&mut self, direction: Direction, count: Tag, times_us: [u64; 3]) {
        self.add(direction, count, times_us[0]);
        assert_eq!(self.dispatch(times_us[1]), count as usize);
        (0..count).for_each(|tag| self.complete(tag, times_us[2]));
    }

    /// Runs 500 requests in `rounds` consecutive rounds from `from_us` on. Each request is
    /// dispatched when it arrives and completes `latency_us` later.
    fn five_hundred(&mut self, direction: Direction, rounds: u32, from_us: u64, latency_us: u64) {
        for round in 0..u64::from(rounds) {
            let at_us = from_us + round * latency_us;
            self.round(direction, 500 / rounds, [at_us, at_us, at_us + latency_us]);
        }
    }

    /// Returns the numbers of tokens of reads and of writes at the given time.
    fn tokens(&mut self, at_us: u64) -> (u64, u64) {
        assert_eq!(self.dispatch(at_us), 0, "nothing waits");
        (self.kyber.tokens(READ), self.kyber.tokens(WRITE))
    }
}

#[test]
fn congestion_takes_tokens_from_who_is_better_than_its_target() {
    // Reads take 3 ms with a target of 2 ms, which is the 6th quarter (bucket 5). Writes take 3 ms
    // with a target of 10 ms, the 2nd quarter (bucket 1), so they keep 2/4 of their 128 tokens.
    // Reads would get 6/4 of 256 tokens, which exceeds the maximum. The first completion is at 3
    // ms, so the adjustment is at 103 ms.
    let mut bed = Bed::new();
    bed.five_hundred(READ, 2, 0, 3000);
    bed.five_hundred(WRITE, 4, 6000, 3000);
    assert_eq!(bed.tokens(102_999), (256, 128));
    assert_eq!(bed.tokens(103_000), (256, 64));
    // A write takes 1 ms on the device, so there is no congestion. Before that it waits for 12 ms,
    // so its total latency of 13 ms is in the 6th quarter of the target: writes get 6/4 of 64
    // tokens. Ten rounds of 50 writes start at 200 ms; the first completes at 213 ms. At 313 ms
    // there are 8 * 50 samples, which is too few. At 417 ms, 100 ms after the next completion at
    // 317 ms, all 500 samples exist.
    for round in 0..10 {
        let at_us = 200_000 + round * 13_000;
        bed.round(WRITE, 50, [at_us, at_us + 12_000, at_us + 13_000]);
    }
    assert_eq!(bed.tokens(416_999), (256, 64));
    assert_eq!(bed.tokens(417_000), (256, 96));
}

#[test]
fn what_was_seen_before_counts_in_one_congestion() {
    // Reads of 1.2 ms are in the 3rd quarter (bucket 2) of their target. The device is not
    // congested, so no number of tokens changes.
    let mut bed = Bed::new();
    bed.five_hundred(READ, 2, 0, 1200);
    assert_eq!(bed.tokens(101_200), (256, 128));
    // Writes of 12 ms are in the 5th quarter (bucket 4) of their target, so the device is
    // congested. There are no new samples of reads, but the previous ones reduce the reads' tokens
    // to 3/4. Writes would get 5/4 of 128 tokens, which exceeds the maximum.
    bed.five_hundred(WRITE, 4, 200_000, 12_000);
    assert_eq!(bed.tokens(312_000), (192, 128));
    // This adjustment has used up the previous percentile of the reads. At the next adjustment the
    // reads have no percentile, so they keep their tokens.
    bed.five_hundred(WRITE, 4, 400_000, 12_000);
    assert_eq!(bed.tokens(512_000), (192, 128));
}

#[test]
fn fewer_than_500_samples_wait_for_a_second() {
    // Reads of 1 ms are in the 2nd quarter (bucket 1) of their target. The device is not congested,
    // so this percentile of the reads is kept for a later adjustment. Ten late writes complete at
    // 212 ms. They are too few samples for the adjustment at 312 ms. The next write completes at
    // 1312 ms. At the adjustment at 1412 ms, the wait for samples has ended, so few samples
    // suffice.
    let mut bed = Bed::new();
    bed.five_hundred(READ, 2, 0, 1000);
    bed.round(WRITE, 10, [200_000, 200_000, 212_000]);
    assert_eq!(bed.tokens(312_000), (256, 128));
    bed.round(WRITE, 1, [1_300_000, 1_300_000, 1_312_000]);
    assert_eq!(bed.tokens(1_411_999), (256, 128));
    assert_eq!(bed.tokens(1_412_000), (128, 128));
}

#[test]
fn one_late_request_of_ten_is_congestion_and_less_is_not() {
    // The 90th percentile of 500 samples is the 450th sample. If 450 samples are in time and 50 are
    // late, this sample is in time. If only 449 are in time, it is late, and the device is
    // congested. The latency of the reads is in the 1st quarter (bucket 0) of their target, so
    // under congestion the reads keep 1/4 of their tokens.
    for (late, tokens) in [(50, 256), (51, 64)] {
        let mut bed = Bed::new();
        bed.five_hundred(READ, 2, 0, 400);
        for round in 0..4 {
            bed.round(WRITE, 100, [1000 + round, 1000 + round, 1000 + round]);
        }
        bed.round(WRITE, 100 - late, [2000; 3]);
        bed.round(WRITE, late, [3000, 3000, 15_000]);
        assert_eq!(bed.tokens(100_400).0, tokens, "{late} late");
    }
}

#[test]
fn no_more_are_under_way_than_there_are_tokens() {
    // Reads start with 256 tokens. The device is congested at two adjustments, and both times the
    // latency of the reads is in the first quarter of their target. Each time reads keep 1/4 of
    // their tokens, so 256 / 4 / 4 = 16 tokens are left.
    let mut bed = Bed::new();
    for (from_us, rounds) in [(0, 2), (200_000, 10)] {
        bed.five_hundred(READ, rounds, from_us, 400);
        bed.five_hundred(WRITE, 4, from_us + 10_000, 12_000);
        bed.tokens(from_us + 100_400);
    }
    bed.add(READ, 20, 400_000);
    assert_eq!(bed.dispatch(400_000), 16);
    bed.complete(3, 401_000);
    assert_eq!(bed.dispatch(401_000), 1);
    assert_eq!(bed.kyber.waiting(), 3);
}

#[test]
fn the_device_is_not_blamed_for_what_waits_here() {
    // Writes wait for 15 ms and then take 1 ms: their total latency exceeds the target, but the
    // latency of the device does not. Reads, in the 1st quarter of their target, keep their tokens.
    let mut bed = Bed::new();
    bed.five_hundred(READ, 2, 0, 400);
    for round in 0..4 {
        let at_us = 1000 + round * 16_000;
        bed.round(WRITE, 125, [at_us, at_us + 15_000, at_us + 16_000]);
    }
    assert_eq!(bed.tokens(100_400), (256, 128));
}
