//! The checksum area against the format page, and against an array in memory.

mod model;

use std::time::Duration;

use bimetal_rt::Payload;
use futures_util::future::join;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::fixture::{AREA, POLYNOMIAL, Rig, crc_by_bit, page_by_hand};
use super::pages::ENTRIES_BYTES;
use super::*;
use crate::layers::mirror::store::content::Crcs;
use crate::request::Op;

use Expected::{Crc, NeverWritten, Unknown};

/// Blocks of the tests: three whole pages, and 40 blocks of a fourth.
const BLOCKS: u64 = 3 * 1020 + 40;
const SIDE: [u8; 4] = [0xA1, 0xB2, 0xC3, 0xD4];

fn checksums(rig: &Rig, blocks: u64, cached_pages_max: usize) -> Checksums {
    Checksums::new(&rig.rt, &rig.device, AREA, blocks, cached_pages_max)
}

fn figure(checksums: &Checksums, name: &str) -> u64 {
    let mut figures: Vec<(String, String, Figure)> = Vec::new();
    checksums.figures("fast", &mut figures);
    let found = figures
        .iter()
        .find(|(part, n, _)| part == "fast" && n == name);
    match found.unwrap_or_else(|| panic!("no figure {name} in {figures:?}")) {
        (_, _, Figure::Counter(value)) => *value,
        (_, _, Figure::Gauge(value)) => *value as u64,
        (_, _, Figure::State(state)) => panic!("{name} is the state {state}"),
    }
}

/// The entry of a block on the device, found as the format page says.
fn entry_on_device(rig: &Rig, block: u64) -> u32 {
    let page = rig.page(block / 1020);
    let at = (block % 1020) as usize * 4;
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

/// Page 2: of its first four blocks the CRC is known, nothing is known, the CRC was 0 and was 1.
/// The rest was never written.
#[test]
fn a_page_is_as_the_format_page_draws_it() {
    let entries = [
        [0x44, 0x33, 0x22, 0x11],
        [0x01, 0x00, 0x00, 0x00],
        [0xFF, 0xFF, 0xFF, 0xFF],
        [0xFE, 0xFF, 0xFF, 0xFF],
    ];
    let page = page_by_hand(entries.as_flattened(), SIDE, [2, 0, 0, 0]);
    let first = 2 * 1020;

    let rig = Rig::new(1);
    let written = checksums(&rig, BLOCKS, 8);
    let values = [Crc(0x1122_3344), Unknown, Crc(0), Crc(1)];
    rig.rt.block_on(written.update(first, &values)).unwrap();
    rig.rt.block_on(written.write_back()).unwrap();
    assert_eq!(rig.page(2), page);
    let empty = |page: u8| page_by_hand(&[], SIDE, [page, 0, 0, 0]);
    assert_eq!((rig.page(1), rig.page(3)), (empty(1), empty(3)));

    let rig = Rig::new(2);
    rig.set_page(2, &page);
    let read = checksums(&rig, BLOCKS, 8);
    let expected = rig.rt.block_on(read.expected(first - 1..first + 5));
    let all = [
        NeverWritten,
        Crc(0x1122_3344),
        Unknown,
        Crc(0xFFFF_FFFF),
        Crc(0xFFFF_FFFE),
        NeverWritten,
    ];
    assert_eq!(expected.unwrap(), all);
}

#[test]
fn a_page_of_another_side_or_place_is_damaged() {
    let rig = Rig::new(1);
    let right = page_by_hand(&[7, 7, 7, 7], SIDE, [1, 0, 0, 0]);
    let mut flipped = right.clone();
    flipped[1] ^= 1;
    for (bytes, error) in [
        (right, None),
        (flipped, Some(PageError::Checksum)),
        (
            page_by_hand(&[7, 7, 7, 7], *b"else", [1, 0, 0, 0]),
            Some(PageError::Side),
        ),
        (
            page_by_hand(&[7, 7, 7, 7], SIDE, [2, 0, 0, 0]),
            Some(PageError::Place(2)),
        ),
        (
            page_by_hand(&[7, 7, 7, 7], SIDE, [1, 0, 0, 1]),
            Some(PageError::Place(0x0100_0001)),
        ),
    ] {
        rig.set_page(1, &bytes);
        let read = checksums(&rig, BLOCKS, 8);
        let result = rig.rt.block_on(read.expected(1020..1021));
        let wanted = match error {
            None => Ok(vec![Crc(0x0707_0707)]),
            Some(_) => Err(IoError::Corrupt),
        };
        assert_eq!(result, wanted);
        let damaged: Vec<_> = error.map(|why| (1, why)).into_iter().collect();
        assert_eq!(read.damaged(), damaged);
    }
    assert_eq!(
        AREA.entries(1, &[0; 4095]),
        Err(PageError::Length(4095)),
        "a page is whole"
    );
}

#[test]
fn every_flipped_bit_of_a_page_is_noticed() {
    let zeroes = AREA.entries(1, &[0; 4096]);
    assert_eq!(zeroes, Err(PageError::Checksum), "zeroes are no page");
    let blank = page_by_hand(&[], SIDE, [1, 0, 0, 0]);
    let written = page_by_hand(&[0x5A; 4080], SIDE, [1, 0, 0, 0]);
    for page in [blank, written] {
        assert!(AREA.entries(1, &page).is_ok());
        for bit in 0..4096 * 8 {
            let mut flipped = page.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(AREA.entries(1, &flipped).is_err(), "bit {bit}");
        }
    }
}

/// A block with this CRC: its last four bytes are reckoned by running the register backwards.
fn block_with_crc(crc: u32) -> Vec<u8> {
    let mut block = vec![0x61; 4092];
    let before = !crc_by_bit(&block);
    let mut register = !crc;
    for _ in 0..32 {
        let carry = register >> 31;
        register = ((register ^ (carry * POLYNOMIAL)) << 1) | carry;
    }
    block.extend((register ^ before).to_le_bytes());
    assert_eq!(crc_by_bit(&block), crc);
    block
}

/// A payload in slices that end at the given places.
fn scattered(rig: &Rig, bytes: &[u8], cuts: &[usize]) -> Payload {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let mut payload = Payload::empty();
    for ends in cuts.windows(2) {
        payload.push(rig.rt.pool().copy_of(&bytes[ends[0]..ends[1]]));
    }
    payload
}

#[test]
fn blocks_that_differ_are_found_and_no_others() {
    let rig = Rig::new(1);
    let crcs = [0, 1, 2, 0xFFFF_FFFF, 0x1234_5678, 3, 4, 5];
    let blocks: Vec<Vec<u8>> = crcs.iter().map(|crc| block_with_crc(*crc)).collect();
    let payload = scattered(&rig, &blocks.concat(), &[1, 4096, 5000, 5001, 30_000]);
    let mut expected: Vec<Expected> = crcs.iter().map(|crc| Crc(*crc)).collect();
    assert!(verify(&payload, 50, &expected).is_empty());
    // As they come back from the area.
    expected[0] = Crc(0xFFFF_FFFF);
    expected[1] = Crc(0xFFFF_FFFE);
    assert!(verify(&payload, 50, &expected).is_empty());
    expected[1] = Crc(2);
    expected[2] = Crc(3);
    expected[3] = Unknown;
    expected[4] = Crc(0x1234_5679);
    expected[5] = NeverWritten;
    expected[7] = Crc(6);
    assert_eq!(verify(&payload, 50, &expected), [51..53, 54..55, 57..58]);
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(31),
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn a_page_survives_and_any_flipped_bit_is_noticed(
        entries in vec(any::<u32>(), PAGE_BLOCKS as usize),
        place in any::<u32>(),
        bits in vec(0..4096_usize * 8, 50),
    ) {
        let mut page = vec![0xEE; 4096];
        encode(&entries, &mut page[..ENTRIES_BYTES]);
        AREA.seal(u64::from(place), &mut page);
        prop_assert_eq!(&page[4088..4092], &[0; 4]);
        let found = AREA.entries(u64::from(place), &page).map(decode);
        prop_assert_eq!(found, Ok(entries.into()));
        for bit in bits {
            page[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(AREA.entries(u64::from(place), &page).is_err());
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_scattered_payload_is_as_a_whole_one(
        bytes in vec(any::<u8>(), 3 * 4096),
        cuts in vec(any::<usize>(), 0..6),
    ) {
        let rig = Rig::new(1);
        let crcs = Crcs::of(&scattered(&rig, &bytes, &cuts));
        for (block, crc) in bytes.chunks(4096).zip(crcs.values()) {
            prop_assert_eq!(*crc, crc_by_bit(block));
        }
    }
}

#[test]
fn neighbouring_pages_are_one_read_also_for_many_readers() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, 600 * 1020, 600);
    rig.rt.block_on(async {
        let readers = (0..5).map(|_| sums.expected(1019..3 * 1020 + 1));
        for result in futures_util::future::join_all(readers).await {
            assert_eq!(result.unwrap().len(), 2042);
        }
    });
    assert_eq!(rig.asked(Op::Read), [[0, 4]]);
    // The gap is read up to what is there, and not more than 1 MiB at once.
    rig.rt
        .block_on(sums.expected(10 * 1020..11 * 1020))
        .unwrap();
    rig.rt.block_on(sums.expected(0..300 * 1020)).unwrap();
    assert_eq!(
        rig.asked(Op::Read),
        [[10, 11], [4, 10], [11, 267], [267, 300]]
    );
    assert_eq!(figure(&sums, "checksum_loads"), 5);
    assert_eq!(figure(&sums, "checksum_cached_pages"), 300);
}

#[test]
fn a_reader_that_leaves_does_not_stop_the_others() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 8);
    rig.rt.block_on(async {
        let leaves = rig
            .rt
            .timeout(Duration::from_micros(500), sums.expected(0..1));
        let (left, stayed) = join(leaves, sums.expected(0..1)).await;
        assert!(left.is_err());
        assert_eq!(stayed, Ok(vec![NeverWritten]));
    });
    assert_eq!(rig.asked(Op::Read).len(), 2);
}

#[test]
fn the_cache_keeps_what_is_used() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 2);
    let ask = |page: u64| {
        let block = page * 1020;
        rig.rt.block_on(sums.expected(block..block + 1)).unwrap();
        assert!(figure(&sums, "checksum_cached_pages") <= 2);
    };
    // The hand has gone round once when 2 comes, and has taken 0; it finds 1 used again, not 2.
    [0, 1, 2, 1, 3].into_iter().for_each(ask);
    assert_eq!(rig.asked(Op::Read), [[0, 1], [1, 2], [2, 3], [3, 4]]);
    ask(1);
    assert_eq!(rig.asked(Op::Read), [[0; 2]; 0]);
    ask(2);
    assert_eq!(rig.asked(Op::Read), [[2, 3]]);
}

#[test]
fn pages_that_have_changed_stay_beyond_the_bound_until_they_are_written() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, 600 * 1020, 2);
    // Every second page, 0 to 38, and a run of 300.
    let single = (0..20).map(|i| 2 * i);
    for page in single.chain(100..400) {
        rig.rt
            .block_on(sums.update(page * 1020, &[Unknown]))
            .unwrap();
    }
    assert_eq!(sums.unwritten_pages(), 320);
    assert_eq!(figure(&sums, "checksum_cached_pages"), 320);
    rig.asked(Op::Read);
    rig.rt.block_on(sums.write_back()).unwrap();
    let mut runs: Vec<[u64; 2]> = (0..20).map(|i| [2 * i, 2 * i + 1]).collect();
    runs.extend([[100, 356], [356, 400]]);
    let mut asked = rig.asked(Op::Write);
    asked.sort_unstable();
    assert_eq!(asked, runs);
    assert!((2..=8).contains(&rig.writes_peak()), "several, not all");
    assert_eq!(sums.unwritten_pages(), 0);
    assert_eq!(figure(&sums, "checksum_cached_pages"), 2);
    assert_eq!(figure(&sums, "checksum_write_backs"), 22);
    rig.rt.block_on(sums.write_back()).unwrap();
    assert_eq!(rig.asked(Op::Write), [[0; 2]; 0]);
}

#[test]
fn a_page_that_changes_while_it_is_written_is_written_again() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 8);
    rig.rt.block_on(async {
        sums.update(5, &[Crc(77)]).await.unwrap();
        let change = async {
            rig.rt.sleep(Duration::from_micros(500)).await;
            sums.update(6, &[Crc(88)]).await.unwrap();
        };
        // The second one has to wait for the first: it answers for what that has in flight.
        let second = async {
            rig.rt.sleep(Duration::from_micros(200)).await;
            let before = sums.unwritten_pages();
            sums.write_back().await.unwrap();
            before
        };
        let (first, (before, ())) = join(sums.write_back(), join(second, change)).await;
        assert_eq!((first, before), (Ok(()), 1));
        // It began after the change and so has written that too.
        assert_eq!(sums.unwritten_pages(), 0);
    });
    assert_eq!(rig.asked(Op::Write), [[0, 1], [0, 1]]);
    assert_eq!(
        (entry_on_device(&rig, 5), entry_on_device(&rig, 6)),
        (77, 88)
    );
}

#[test]
fn what_could_not_be_written_is_written_the_next_time() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 0);
    for block in [0, 2 * 1020] {
        rig.rt.block_on(sums.update(block, &[Crc(9)])).unwrap();
    }
    rig.fault.fail_next(Op::Write, IoError::NoSpace);
    assert_eq!(rig.rt.block_on(sums.write_back()), Err(IoError::NoSpace));
    assert_eq!(sums.unwritten_pages(), 1);
    rig.rt.block_on(sums.write_back()).unwrap();
    assert_eq!(sums.unwritten_pages(), 0);
    assert_eq!(
        (entry_on_device(&rig, 0), entry_on_device(&rig, 2040)),
        (9, 9)
    );

    rig.fault.fail_next(Op::Read, IoError::Medium);
    let result = rig.rt.block_on(sums.update(0, &[Crc(10)]));
    assert_eq!(result, Err(IoError::Medium));
    assert_eq!(sums.unwritten_pages(), 0);
}

#[test]
fn a_damaged_page_says_so_until_it_is_reset() {
    let rig = Rig::new(1);
    let good = page_by_hand(&[5, 0, 0, 0], SIDE, [0, 0, 0, 0]);
    let mut bad = page_by_hand(&[6, 0, 0, 0], SIDE, [1, 0, 0, 0]);
    bad[4000] ^= 0x10;
    rig.set_page(0, &good);
    rig.set_page(1, &bad);
    let sums = checksums(&rig, BLOCKS, 8);
    let ask = |blocks| rig.rt.block_on(sums.expected(blocks));
    assert_eq!(ask(1019..1021), Err(IoError::Corrupt));
    assert_eq!(ask(1020..1021), Err(IoError::Corrupt));
    let update = rig.rt.block_on(sums.update(1021, &[Crc(8)]));
    assert_eq!(update, Err(IoError::Corrupt));
    assert_eq!(sums.damaged(), [(1, PageError::Checksum)]);
    assert_eq!(figure(&sums, "checksum_damaged_pages"), 1);
    assert_eq!(ask(0..2), Ok(vec![Crc(5), NeverWritten]));

    // While somebody reads it, a reset waits: it is not what the read brings that counts.
    rig.set_page(1, &page_by_hand(&[6, 0, 0, 0], SIDE, [1, 0, 0, 0]));
    rig.rt.block_on(async {
        join(sums.expected(1020..1021), sums.reset_page(1))
            .await
            .0
            .unwrap();
        sums.update(1021, &[Crc(8)]).await.unwrap();
        sums.write_back().await.unwrap();
    });
    assert_eq!(sums.damaged(), []);
    let mut entries = [[1, 0, 0, 0]; 1020];
    entries[1] = [8, 0, 0, 0];
    let page = page_by_hand(entries.as_flattened(), SIDE, [1, 0, 0, 0]);
    assert_eq!(rig.page(1), page);
}

#[test]
fn a_write_that_is_given_up_is_still_due() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 8);
    rig.rt.block_on(async {
        sums.update(0, &[Crc(5)]).await.unwrap();
        let short = Duration::from_micros(500);
        assert!(rig.rt.timeout(short, sums.write_back()).await.is_err());
        assert_eq!(sums.unwritten_pages(), 1);
    });
    assert_eq!(entry_on_device(&rig, 0), 0, "the device had not taken it");
}
