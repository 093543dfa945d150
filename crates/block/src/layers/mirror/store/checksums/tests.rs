//! Tests of the checksum area against the format specification, and against an array in memory.

mod model;

use std::time::Duration;

use bimetal_rt::Payload;
use futures_util::future::join;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::fixture::{AREA, POLYNOMIAL, Rig, crc_by_bit, mixture, page_by_hand, sector_by_hand};
use super::*;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::store::digests::Digests;
use crate::layers::mirror::superblock::areas::ENTRIES_BYTES;
use crate::request::Op;

use Expected::{Digest, NeverWritten, Unknown};

/// Number of blocks in the tests: those of three complete pages, and 40 blocks of a fourth page.
const BLOCKS: u64 = 3 * 1008 + 40;
const SIDE: [u8; 16] = *b"\xA1\xB2\xC3\xD4-and-12-more";

fn checksums(rig: &Rig, blocks: u64, cached_pages_max: usize) -> Checksums {
    Checksums::new(&rig.rt, &rig.device, AREA, blocks, cached_pages_max)
}

fn statistic(checksums: &Checksums, name: &str) -> u64 {
    let mut statistics: Vec<(String, String, Statistic)> = Vec::new();
    checksums.statistics("fast", &mut statistics);
    let found = statistics
        .iter()
        .find(|(part, n, _)| part == "fast" && n == name);
    match found.unwrap_or_else(|| panic!("no figure {name} in {statistics:?}")) {
        (_, _, Statistic::Counter(value)) => *value,
        (_, _, Statistic::Gauge(value)) => *value as u64,
        (_, _, other) => panic!("{name} is {other:?}"),
    }
}

/// Returns the entry of a block on the device, at its place according to the format specification.
fn entry_on_device(rig: &Rig, block: u64) -> u32 {
    let page = rig.page(block / 1008);
    let (sector, entry) = (block % 1008 / 126, block % 126);
    let at = (sector * 512 + entry * 4) as usize;
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

/// In page 2, the first block has a known CRC, the second block is unknown, and the third and
/// fourth blocks have the CRCs 0 and 1, which are stored as 0xFFFFFFFF and 0xFFFFFFFE. The other
/// blocks were never written.
#[test]
fn a_page_is_as_the_format_page_draws_it() {
    let entries = [
        [0x44, 0x33, 0x22, 0x11],
        [0x01, 0x00, 0x00, 0x00],
        [0xFF, 0xFF, 0xFF, 0xFF],
        [0xFE, 0xFF, 0xFF, 0xFF],
    ];
    let page = page_by_hand(entries.as_flattened(), SIDE, 2);
    let first = 2 * 1008;

    let rig = Rig::new(1);
    let written = checksums(&rig, BLOCKS, 8);
    let values = [Digest(0x1122_3344), Unknown, Digest(0), Digest(1)];
    rig.rt.block_on(written.update(first, &values)).unwrap();
    rig.rt.block_on(written.write_back()).unwrap();
    assert_eq!(rig.page(2), page);
    let empty = |page: u64| page_by_hand(&[], SIDE, page);
    assert_eq!((rig.page(1), rig.page(3)), (empty(1), empty(3)));

    let rig = Rig::new(2);
    rig.set_page(2, &page);
    let read = checksums(&rig, BLOCKS, 8);
    let expected = rig.rt.block_on(read.expected(first - 1..first + 5));
    let all = [
        NeverWritten,
        Digest(0x1122_3344),
        Unknown,
        Digest(0xFFFF_FFFF),
        Digest(0xFFFF_FFFE),
        NeverWritten,
    ];
    assert_eq!(expected.unwrap(), all);
}

#[test]
fn a_page_that_is_not_believed_is_damaged() {
    let rig = Rig::new(1);
    let right = page_by_hand(&[7, 7, 7, 7], SIDE, 1);
    let mut flipped = right.clone();
    flipped[512] ^= 1;
    let elsewhere = page_by_hand(&[7, 7, 7, 7], SIDE, 2);
    for (bytes, error) in [
        (right, None),
        (flipped, Some(PageError::Checksum(1))),
        (elsewhere, Some(PageError::Checksum(0))),
    ] {
        rig.set_page(1, &bytes);
        let read = checksums(&rig, BLOCKS, 8);
        let result = rig.rt.block_on(read.expected(1008..1009));
        let wanted = match error {
            None => Ok(vec![Digest(0x0707_0707)]),
            Some(_) => Err(IoError::Corrupt),
        };
        assert_eq!(result, wanted);
        let damaged: Vec<_> = error.map(|why| (1, why)).into_iter().collect();
        assert_eq!(read.damaged(), damaged);
    }
}

/// A torn write leaves any mixture of old and new sectors. Each entry in such a page is intact, so
/// the page is accepted.
#[test]
fn a_page_of_old_and_new_sectors_is_believed() {
    let values = |start: u32| (0..1008).map(move |entry| start + entry);
    let by_hand = |start| {
        let entries: Vec<u8> = values(start).flat_map(u32::to_le_bytes).collect();
        page_by_hand(&entries, SIDE, 1)
    };
    let (old, new) = (by_hand(10_000), by_hand(20_000));
    let rig = Rig::new(1);
    rig.set_page(1, &old);
    let sums = checksums(&rig, BLOCKS, 8);
    let rewritten: Vec<Expected> = values(20_000).map(Digest).collect();
    rig.rt.block_on(sums.update(1008, &rewritten)).unwrap();
    rig.rt.block_on(sums.write_back()).unwrap();
    assert_eq!(rig.page(1), new);
    for mask in 0..256 {
        rig.set_page(1, &mixture(&old, &new, mask));
        let sums = checksums(&rig, BLOCKS, 8);
        let found = rig.rt.block_on(sums.expected(1008..2016)).unwrap();
        for (entry, found) in (0..).zip(found) {
            let is_new = mask >> (entry / 126) & 1 == 1;
            let start = if is_new { 20_000 } else { 10_000 };
            assert_eq!(found, Digest(start + entry), "mask {mask:08b}");
        }
        assert_eq!(sums.damaged(), []);
    }
}

/// Returns two pages to corrupt: a page as formatting leaves it, and a full page.
fn pages_to_spoil() -> [Vec<u8>; 2] {
    let counted: Vec<u8> = (0..4032).map(|at| (at % 251) as u8).collect();
    [page_by_hand(&[], SIDE, 1), page_by_hand(&counted, SIDE, 1)]
}

#[test]
fn every_flipped_bit_of_a_page_is_noticed() {
    for page in pages_to_spoil() {
        assert!(AREA.entries(1, &page).is_ok());
        for bit in 0..4096 * 8 {
            let mut flipped = page.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let sector = (bit / 8 / 512) as u32;
            let refused = Err(PageError::Checksum(sector));
            assert_eq!(AREA.entries(1, &flipped), refused, "bit {bit}");
        }
    }
}

#[test]
fn two_sectors_that_changed_places_are_noticed() {
    for page in pages_to_spoil() {
        for first in 0..8 {
            for second in first + 1..8 {
                let mut sectors: Vec<&[u8]> = page.chunks(512).collect();
                sectors.swap(first, second);
                let refused = Err(PageError::Checksum(first as u32));
                assert_eq!(AREA.entries(1, &sectors.concat()), refused);
            }
        }
    }
}

/// Foreign sectors are detected even if only one sector of the right page is replaced.
#[test]
fn sectors_of_another_side_or_page_are_noticed() {
    for byte in 0..16 {
        let mut other = SIDE;
        other[byte] ^= 1;
        refuses_sectors_of(&page_by_hand(&[7, 7, 7, 7], other, 1));
    }
    for page in [0, 2, 9, 257, 0x0100_0001, 1 << 32 | 1, 1 << 56 | 1] {
        refuses_sectors_of(&page_by_hand(&[7, 7, 7, 7], SIDE, page));
    }
    refuses_sectors_of(&[0; 4096]);
    refuses_sectors_of(&[0xFF; 4096]);
}

fn refuses_sectors_of(strange: &[u8]) {
    let right = page_by_hand(&[7, 7, 7, 7], SIDE, 1);
    assert!(AREA.entries(1, &right).is_ok());
    assert_eq!(AREA.entries(1, strange), Err(PageError::Checksum(0)));
    for sector in 0..8 {
        let mixed = mixture(&right, strange, 1 << sector);
        let refused = Err(PageError::Checksum(sector));
        assert_eq!(AREA.entries(1, &mixed), refused);
    }
}

#[test]
fn a_page_of_another_length_is_refused() {
    let page = page_by_hand(&[], SIDE, 1);
    let short = AREA.entries(1, &page[..4095]);
    assert_eq!(short, Err(PageError::Length(4095)));
    let long = AREA.entries(1, &[page, vec![0]].concat());
    assert_eq!(long, Err(PageError::Length(4097)));
}

/// Reserved bytes, in which a later minor version may store values, are ignored.
#[test]
fn reserved_bytes_may_hold_anything_that_is_sealed() {
    let sector = |number| sector_by_hand([3; 504], [1, 2, 3, 4], SIDE, 1, number);
    let page: Vec<u8> = (0..8).flat_map(sector).collect();
    assert_eq!(AREA.entries(1, &page), Ok(vec![3; 4032]));
}

/// Returns a block with the given CRC. Its last four bytes are computed by running the register of
/// the CRC backwards.
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

/// Returns a payload of `bytes` in slices that end at the given places.
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
    let digests = [0, 1, 2, 0xFFFF_FFFF, 0x1234_5678, 3, 4, 5];
    let blocks: Vec<Vec<u8>> = digests.iter().map(|crc| block_with_crc(*crc)).collect();
    let payload = scattered(&rig, &blocks.concat(), &[1, 4096, 5000, 5001, 30_000]);
    let mut expected: Vec<Expected> = digests.iter().map(|crc| Digest(*crc)).collect();
    assert!(verify(BlockDigest::Crc32c, &payload, 50, &expected).is_empty());
    // The digests 0 and 1 stand for other states in the area, so they are stored and read back as
    // 0xFFFF_FFFF and 0xFFFF_FFFE.
    expected[0] = Digest(0xFFFF_FFFF);
    expected[1] = Digest(0xFFFF_FFFE);
    assert!(verify(BlockDigest::Crc32c, &payload, 50, &expected).is_empty());
    expected[1] = Digest(2);
    expected[2] = Digest(3);
    expected[3] = Unknown;
    expected[4] = Digest(0x1234_5679);
    expected[5] = NeverWritten;
    expected[7] = Digest(6);
    assert_eq!(
        verify(BlockDigest::Crc32c, &payload, 50, &expected),
        [51..53, 54..55, 57..58]
    );
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
        let mut entry_bytes = vec![0xEE; ENTRIES_BYTES];
        encode(&entries, &mut entry_bytes);
        let mut page = vec![0xEE; 4096];
        AREA.seal(u64::from(place), &entry_bytes, &mut page);
        prop_assert_eq!(&page, &page_by_hand(&entry_bytes, SIDE, u64::from(place)));
        let found = AREA.entries(u64::from(place), &page).map(|bytes| decode(&bytes));
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
        let digests = Digests::of(BlockDigest::Crc32c, &scattered(&rig, &bytes, &cuts));
        for (block, crc) in bytes.chunks(4096).zip(digests.values()) {
            prop_assert_eq!(*crc, crc_by_bit(block));
        }
    }
}

#[test]
fn neighbouring_pages_are_one_read_also_for_many_readers() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, 600 * 1008, 600);
    rig.rt.block_on(async {
        let readers = (0..5).map(|_| sums.expected(1007..3 * 1008 + 1));
        for result in futures_util::future::join_all(readers).await {
            assert_eq!(result.unwrap().len(), 2018);
        }
    });
    assert_eq!(rig.asked(Op::Read), [[0, 4]]);
    // The missing pages up to the next page in memory are read together: 4 to 9, then 11 to 299.
    // One read has at most 1 MiB (256 pages).
    rig.rt
        .block_on(sums.expected(10 * 1008..11 * 1008))
        .unwrap();
    rig.rt.block_on(sums.expected(0..300 * 1008)).unwrap();
    assert_eq!(
        rig.asked(Op::Read),
        [[10, 11], [4, 10], [11, 267], [267, 300]]
    );
    assert_eq!(statistic(&sums, "checksum_loads"), 5);
    assert_eq!(statistic(&sums, "checksum_cached_pages"), 300);
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
        let block = page * 1008;
        rig.rt.block_on(sums.expected(block..block + 1)).unwrap();
        assert!(statistic(&sums, "checksum_cached_pages") <= 2);
    };
    // Page 2 evicts page 0, after the hand of the clock has passed each page once. Then page 3
    // evicts page 2, since only page 1 was used again.
    [0, 1, 2, 1, 3].into_iter().for_each(ask);
    assert_eq!(rig.asked(Op::Read), [[0, 1], [1, 2], [2, 3], [3, 4]]);
    ask(1);
    assert_eq!(rig.asked(Op::Read), [[0; 2]; 0]);
    ask(2);
    assert_eq!(rig.asked(Op::Read), [[2, 3]]);
}

#[test]
fn pages_that_have_changed_stay_beyond_the_bound_until_they_are_written_and_verified() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, 600 * 1008, 2);
    // Change the even pages from 0 to 38, and a run of 300 pages.
    let single = (0..20).map(|i| 2 * i);
    for page in single.chain(100..400) {
        rig.rt
            .block_on(sums.update(page * 1008, &[Unknown]))
            .unwrap();
    }
    assert_eq!(sums.unwritten_pages(), 320);
    assert_eq!(statistic(&sums, "checksum_cached_pages"), 320);
    rig.asked(Op::Read);
    rig.rt.block_on(sums.write_back()).unwrap();
    let mut runs: Vec<[u64; 2]> = (0..20).map(|i| [2 * i, 2 * i + 1]).collect();
    runs.extend([[100, 356], [356, 400]]);
    let mut asked = rig.asked(Op::Write);
    asked.sort_unstable();
    assert_eq!(asked, runs);
    assert!((2..=8).contains(&rig.writes_peak()), "several, not all");
    assert_eq!(sums.unwritten_pages(), 0);
    assert_eq!(statistic(&sums, "checksum_cached_pages"), 320);
    let before = rig.rt.now();
    assert_eq!(rig.rt.block_on(sums.verify()), Ok(true));
    // Each of the 22 reads takes a millisecond, and 8 are in flight together.
    assert_eq!(rig.rt.now().since(before), Duration::from_millis(3));
    assert_eq!(statistic(&sums, "checksum_cached_pages"), 2);
    assert_eq!(statistic(&sums, "checksum_write_backs"), 22);
    rig.rt.block_on(sums.write_back()).unwrap();
    assert_eq!(rig.asked(Op::Write), [[0; 2]; 0]);
}

#[test]
fn a_page_that_changes_while_it_is_written_is_written_again() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 8);
    rig.rt.block_on(async {
        sums.update(5, &[Digest(77)]).await.unwrap();
        let change = async {
            rig.rt.sleep(Duration::from_micros(500)).await;
            sums.update(6, &[Digest(88)]).await.unwrap();
        };
        // The second call also covers the writes that the first call has in flight, so it must wait
        // for the first call.
        let second = async {
            rig.rt.sleep(Duration::from_micros(200)).await;
            let before = sums.unwritten_pages();
            sums.write_back().await.unwrap();
            before
        };
        let (first, (before, ())) = join(sums.write_back(), join(second, change)).await;
        assert_eq!((first, before), (Ok(()), 1));
        // The second call began its writes after the change, so it has also written the change.
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
    for block in [0, 2 * 1008] {
        rig.rt.block_on(sums.update(block, &[Digest(9)])).unwrap();
    }
    rig.fault.fail_next(Op::Write, IoError::NoSpace);
    assert_eq!(rig.rt.block_on(sums.write_back()), Err(IoError::NoSpace));
    assert_eq!(sums.unwritten_pages(), 1);
    rig.rt.block_on(sums.write_back()).unwrap();
    assert_eq!(sums.unwritten_pages(), 0);
    assert_eq!(
        (entry_on_device(&rig, 0), entry_on_device(&rig, 2016)),
        (9, 9)
    );
    assert_eq!(rig.rt.block_on(sums.verify()), Ok(true));

    rig.fault.fail_next(Op::Read, IoError::Medium);
    let result = rig.rt.block_on(sums.update(0, &[Digest(10)]));
    assert_eq!(result, Err(IoError::Medium));
    assert_eq!(sums.unwritten_pages(), 0);
}

#[test]
fn a_damaged_page_says_so_until_it_is_reset() {
    let rig = Rig::new(1);
    let good = page_by_hand(&[5, 0, 0, 0], SIDE, 0);
    let mut bad = page_by_hand(&[6, 0, 0, 0], SIDE, 1);
    bad[4000] ^= 0x10;
    rig.set_page(0, &good);
    rig.set_page(1, &bad);
    let sums = checksums(&rig, BLOCKS, 8);
    let ask = |blocks| rig.rt.block_on(sums.expected(blocks));
    assert_eq!(ask(1007..1009), Err(IoError::Corrupt));
    assert_eq!(ask(1008..1009), Err(IoError::Corrupt));
    let update = rig.rt.block_on(sums.update(1009, &[Digest(8)]));
    assert_eq!(update, Err(IoError::Corrupt));
    assert_eq!(sums.damaged(), [(1, PageError::Checksum(7))]);
    assert_eq!(statistic(&sums, "checksum_damaged_pages"), 1);
    assert_eq!(ask(0..2), Ok(vec![Digest(5), NeverWritten]));

    // While a task reads the page, a reset waits; otherwise the content read could replace the
    // reset entries.
    rig.set_page(1, &page_by_hand(&[6, 0, 0, 0], SIDE, 1));
    rig.rt.block_on(async {
        join(sums.expected(1008..1009), sums.reset_page(1))
            .await
            .0
            .unwrap();
        sums.update(1009, &[Digest(8)]).await.unwrap();
        sums.write_back().await.unwrap();
    });
    assert_eq!(sums.damaged(), []);
    let mut entries = [[1, 0, 0, 0]; 1008];
    entries[1] = [8, 0, 0, 0];
    let page = page_by_hand(entries.as_flattened(), SIDE, 1);
    assert_eq!(rig.page(1), page);
}

#[test]
fn a_write_that_is_given_up_is_still_due() {
    let rig = Rig::new(1);
    let sums = checksums(&rig, BLOCKS, 8);
    rig.rt.block_on(async {
        sums.update(0, &[Digest(5)]).await.unwrap();
        let short = Duration::from_micros(500);
        assert!(rig.rt.timeout(short, sums.write_back()).await.is_err());
        assert_eq!(sums.unwritten_pages(), 1);
    });
    assert_eq!(entry_on_device(&rig, 0), 0, "the device had not taken it");
}

/// A write that the device has acknowledged and lost leaves the old page, which is valid and
/// sealed. All sealed versions of a page have the same CRC, so only a comparison of the entries
/// reveals the loss.
#[test]
fn a_page_that_is_older_than_it_should_be_is_written_again() {
    let rig = Rig::new(11);
    let checksums = checksums(&rig, BLOCKS, 16);
    rig.rt.block_on(async {
        checksums.update(5, &[Digest(0x1111)]).await.unwrap();
        checksums.write_back().await.unwrap();
        assert_eq!(checksums.verify().await, Ok(true));
        let older = rig.page(0);
        checksums.update(5, &[Digest(0x2222)]).await.unwrap();
        checksums.write_back().await.unwrap();
        assert_eq!(entry_on_device(&rig, 5), 0x2222);
        rig.set_page(0, &older);
        assert_eq!(checksums.verify().await, Ok(false));
        checksums.write_back().await.unwrap();
        assert_eq!(checksums.verify().await, Ok(true));
        assert_eq!(entry_on_device(&rig, 5), 0x2222);
    });
}
