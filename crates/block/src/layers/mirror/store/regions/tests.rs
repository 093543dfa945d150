//! Tests of the dirty-region bitmap (map) against the format specification, and against an array in
//! memory.

use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Rng;
use bimetal_rt::sync::TaskGroup;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::super::checksums::fixture::{AREA, Rig, mixture, page_by_hand};
use super::*;
use crate::layers::mirror::superblock::areas::ENTRIES_BYTES;
use crate::request::Op;

const MIB: u64 = 1 << 20;
/// Length of the tested volume: the regions of two complete pages, 42 regions of a third page, and
/// a part of another region.
const VOLUME_BYTES: u64 = 1050 * MIB + 8192;
const REGIONS: u64 = 1051;
const SIDE: [u8; 16] = *b"\xA1\xB2\xC3\xD4-and-12-more";
const OTHER: [u8; 16] = *b"\xA1\xB2\xC3\xD4-and-12-less";

async fn load(rig: &Rig) -> Result<Regions, IoError> {
    Regions::load(
        &rig.rt,
        &rig.device,
        AREA,
        VOLUME_BYTES,
        WrittenIn::default(),
    )
    .await
}

/// Returns the out-of-sync ranges, each as its start and its end.
fn out_of_sync(map: &Regions, epoch: u64, volume_bytes: u64) -> Vec<[u64; 2]> {
    let ranges = map.out_of_sync_since(epoch, volume_bytes).into_iter();
    ranges.map(|range| [range.start, range.end]).collect()
}

/// Returns the entry of a region on the device, at its place according to the format specification.
fn entry_on_device(rig: &Rig, region: u64) -> u64 {
    let page = rig.page(region / 504);
    let (sector, entry) = (region % 504 / 63, region % 63);
    let at = (sector * 512 + entry * 8) as usize;
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

/// In page 1, the second region was last changed in epoch 0x0102, and the last region in epoch 3.
#[test]
fn a_page_is_as_the_format_page_draws_it() {
    let mut entries = [[0; 8]; 504];
    entries[1] = [2, 1, 0, 0, 0, 0, 0, 0];
    entries[503] = [3, 0, 0, 0, 0, 0, 0, 0];
    let page = page_by_hand(entries.as_flattened(), SIDE, 1);
    let (second, last) = (505 * MIB, 1007 * MIB);

    let rig = Rig::new(1);
    rig.rt.block_on(async {
        let map = load(&rig).await.unwrap();
        assert!(!map.dirty());
        assert!(map.mark(second + MIB - 1..second + MIB, 0x0102));
        assert!(map.mark(last..last + MIB, 3));
        assert!(map.dirty());
        map.write_back().await.unwrap();
        assert!(!map.dirty());
    });
    assert_eq!(rig.page(1), page);
    let empty = |page: u64| page_by_hand(&[], SIDE, page);
    assert_eq!((rig.page(0), rig.page(2)), (empty(0), empty(2)));

    let rig = Rig::new(2);
    rig.set_page(1, &page);
    let map = rig.rt.block_on(load(&rig)).unwrap();
    let both = [[second, second + MIB], [last, last + MIB]];
    assert_eq!(out_of_sync(&map, 2, VOLUME_BYTES), both);
    assert_eq!(out_of_sync(&map, 3, VOLUME_BYTES), both[..1]);
    assert_eq!(out_of_sync(&map, 0x0102, VOLUME_BYTES), both[..0]);
    assert_eq!(map.damaged(), []);
    assert!(!map.dirty());
}

/// A torn write leaves a page with any mixture of old and new sectors. The page is accepted,
/// because each of its entries is intact.
#[test]
fn a_page_of_old_and_new_sectors_is_believed() {
    let of_epoch = |epoch: u64| page_by_hand(&epoch.to_le_bytes().repeat(504), SIDE, 1);
    let (old, new) = (of_epoch(0x0102), of_epoch(0x0304));
    let rig = Rig::new(1);
    rig.set_page(1, &old);
    let map = rig.rt.block_on(load(&rig)).unwrap();
    assert!(map.mark(504 * MIB..1008 * MIB, 0x0304));
    rig.rt.block_on(map.write_back()).unwrap();
    assert_eq!(rig.page(1), new);
    for mask in 0..256 {
        rig.set_page(1, &mixture(&old, &new, mask));
        let map = rig.rt.block_on(load(&rig)).unwrap();
        assert_eq!(map.damaged(), []);
        let is_new = |region: u64| {
            let of_page_1 = (504..1008).contains(&region);
            of_page_1 && mask >> ((region - 504) / 63) & 1 == 1
        };
        let found = as_regions(&map.out_of_sync_since(0x0303, VOLUME_BYTES));
        assert!((0..REGIONS).map(is_new).eq(found), "mask {mask:08b}");
        let found = out_of_sync(&map, 0x0101, VOLUME_BYTES);
        assert_eq!(found, [[504 * MIB, 1008 * MIB]], "mask {mask:08b}");
    }
}

#[test]
fn marks_cover_what_they_touch_and_only_rise() {
    let rig = Rig::new(1);
    let map = rig.rt.block_on(load(&rig)).unwrap();
    assert!(!map.mark(4096..4096, 9), "an empty range is nothing");
    assert!(map.mark(MIB - 1..2 * MIB + 1, 5));
    assert!(!map.mark(MIB..2 * MIB, 4));
    assert!(!map.mark(0..3 * MIB, 5));
    assert!(map.mark(2 * MIB..4 * MIB, 6));
    assert_eq!(out_of_sync(&map, 4, VOLUME_BYTES), [[0, 4 * MIB]]);
    assert_eq!(out_of_sync(&map, 5, VOLUME_BYTES), [[2 * MIB, 4 * MIB]]);
    // The volume ends in the middle of a region.
    assert!(map.mark(VOLUME_BYTES - 1..VOLUME_BYTES, 7));
    let end = [1050 * MIB, VOLUME_BYTES];
    assert_eq!(out_of_sync(&map, 6, VOLUME_BYTES), [end]);
    let shorter = 3 * MIB - 4096;
    assert_eq!(out_of_sync(&map, 5, shorter), [[2 * MIB, shorter]]);
}

#[test]
fn a_damaged_page_counts_as_always_stale() {
    let page_1 = [504 * MIB, 1008 * MIB];
    for wrong in [
        page_by_hand(&[1], OTHER, 1),
        page_by_hand(&[1], SIDE, 0),
        vec![0xFF; 4096],
    ] {
        let rig = Rig::new(1);
        rig.set_page(1, &wrong);
        let map = rig.rt.block_on(load(&rig)).unwrap();
        assert_eq!(
            map.damaged().iter().map(|(p, _)| *p).collect::<Vec<_>>(),
            [1]
        );
        for epoch in [0, 1 << 40, u64::MAX] {
            assert_eq!(out_of_sync(&map, epoch, VOLUME_BYTES), [page_1]);
        }
        // The entries of the damaged page already have the highest value, so no mark changes them.
        // The write of the page must therefore be due without a mark.
        assert!(!map.mark(600 * MIB..601 * MIB, 8));
        assert!(map.dirty());
        rig.rt.block_on(map.write_back()).unwrap();
        let page = page_by_hand(&[0xFF; 4032], SIDE, 1);
        assert_eq!(rig.page(1), page);
        assert_eq!(rig.asked(Op::Write), [[1, 2]]);
        let again = rig.rt.block_on(load(&rig)).unwrap();
        assert!(again.damaged().is_empty() && !again.dirty());
        assert_eq!(out_of_sync(&again, 1 << 40, VOLUME_BYTES), [page_1]);
    }
}

#[test]
fn a_long_map_is_read_in_pieces_and_a_failing_one_not_at_all() {
    let rig = Rig::new(1);
    let volume_bytes = 600 * 504 * MIB;
    let all = WrittenIn::default();
    let map = Regions::load(&rig.rt, &rig.device, AREA, volume_bytes, all);
    let map = rig.rt.block_on(map).unwrap();
    assert_eq!(rig.asked(Op::Read), [[0, 256], [256, 512], [512, 600]]);
    assert!(map.mark(volume_bytes - 4096..volume_bytes, 1));
    assert!(map.mark(0..505 * MIB, 1));
    rig.rt.block_on(map.write_back()).unwrap();
    let mut asked = rig.asked(Op::Write);
    asked.sort_unstable();
    assert_eq!(asked, [[0, 2], [599, 600]]);
    rig.fault.fail_next(Op::Read, IoError::Medium);
    let failed = rig.rt.block_on(load(&rig));
    assert_eq!(failed.err(), Some(IoError::Medium));
}

/// A check reads only pages of the dirty-region bitmap that were ever written. A page that has
/// become corrupt since its write is written again.
#[test]
fn a_page_that_goes_bad_is_found_and_written_again() {
    let rig = Rig::new(1);
    let map = rig.rt.block_on(load(&rig)).unwrap();
    assert!(map.mark(600 * MIB..601 * MIB, 8));
    rig.rt.block_on(map.write_back()).unwrap();
    let whole = rig.page(1);
    let found = |read_bytes, wrong_pages| CheckedAreas {
        read_bytes,
        wrong_pages,
        next: None,
    };
    assert_eq!(rig.rt.block_on(map.check()), Ok(found(3 * 4096, 0)));
    rig.set_page(1, &[0; 4096]);
    assert_eq!(rig.rt.block_on(map.check()), Ok(found(3 * 4096, 1)));
    rig.rt.block_on(map.write_back()).unwrap();
    assert_eq!(rig.page(1), whole);
}

#[test]
fn a_mark_on_its_way_is_not_on_the_device() {
    let rig = Rig::new(1);
    rig.rt.block_on(async {
        let map = load(&rig).await.unwrap();
        assert!(map.mark(0..4096, 2));
        let other = async {
            rig.rt.sleep(Duration::from_micros(500)).await;
            assert!(map.dirty(), "it is in flight");
            assert!(!map.mark(0..4096, 2));
            map.write_back().await.unwrap();
            assert_eq!(entry_on_device(&rig, 0), 2);
        };
        let (first, ()) = futures_util::future::join(map.write_back(), other).await;
        first.unwrap();
        rig.fault.fail_next(Op::Write, IoError::Medium);
        assert!(map.mark(0..4096, 3));
        assert_eq!(map.write_back().await, Err(IoError::Medium));
        assert!(map.dirty(), "it has failed");
        map.write_back().await.unwrap();
        assert!(!map.dirty());
    });
    assert_eq!(entry_on_device(&rig, 0), 3);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        rng_seed: RngSeed::Fixed(32),
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn a_page_survives_and_any_flipped_bit_is_noticed(
        entries in vec(any::<u64>(), 1..=PAGE_REGIONS as usize),
        place in any::<u32>(),
        bits in vec(0..4096_usize * 8, 50),
    ) {
        let mut entry_bytes = vec![0; ENTRIES_BYTES];
        encode(&entries, &mut entry_bytes);
        let mut page = vec![0xEE; 4096];
        AREA.seal(u64::from(place), &entry_bytes, &mut page);
        prop_assert_eq!(&page, &page_by_hand(&entry_bytes, SIDE, u64::from(place)));
        let found = decode(&AREA.entries(u64::from(place), &page).unwrap());
        let (start, rest) = found.split_at(entries.len());
        prop_assert_eq!(start, entries);
        prop_assert!(rest.iter().all(|entry| *entry == 0));
        for bit in bits {
            page[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(AREA.entries(u64::from(place), &page).is_err());
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Returns, for each region of an array of entries, whether the region was marked after the epoch
/// `epoch`.
fn out_of_sync_regions(model: &[u64], epoch: u64) -> Vec<bool> {
    model.iter().map(|entry| *entry > epoch).collect()
}

fn as_regions(ranges: &[Range<u64>]) -> Vec<bool> {
    let mut regions = vec![false; REGIONS as usize];
    for (index, range) in ranges.iter().enumerate() {
        assert!(range.start % MIB == 0 && range.start < range.end);
        assert!(index == 0 || ranges[index - 1].end < range.start, "merged");
        assert!(range.end % MIB == 0 || range.end == VOLUME_BYTES);
        let inside = range.start / MIB..range.end.div_ceil(MIB);
        regions[inside.start as usize..inside.end as usize].fill(true);
    }
    regions
}

/// Marks a range in an array of entries, and returns true when an entry changed.
fn mark_model(model: &mut [u64], range: &Range<u64>, epoch: u64) -> bool {
    let mut news = false;
    for (region, entry) in (0..).zip(model) {
        let touched = range.start < (region + 1) * MIB && region * MIB < range.end;
        if touched && !range.is_empty() && *entry < epoch {
            (*entry, news) = (epoch, true);
        }
    }
    news
}

/// Several tasks set marks, and another task writes the pages back while the device fails some
/// requests. Marks only rise. So after a successful write-back, an entry on the device must not be
/// lower than the mark was before the write-back.
#[test]
fn it_agrees_with_an_array_through_failures_and_restarts() {
    for seed in 0..8 {
        let rig = Rc::new(Rig::failing(seed));
        let model = Rc::new(RefCell::new(vec![0u64; REGIONS as usize]));
        let (mut good, mut failed) = (0, 0);
        for run in 0..4 {
            let map = rig.rt.block_on(async {
                loop {
                    match load(&rig).await {
                        Ok(map) => break Rc::new(map),
                        Err(_) => failed += 1,
                    }
                }
            });
            let epoch = run * 10;
            let out_of_sync = map.out_of_sync_since(epoch, VOLUME_BYTES);
            assert_eq!(
                as_regions(&out_of_sync),
                out_of_sync_regions(&model.borrow(), epoch)
            );
            let group = TaskGroup::new(&rig.rt);
            for task in 0..4 {
                let (rig, map, model) = (rig.clone(), map.clone(), model.clone());
                group.spawn(async move {
                    let mut rng = Rng::new((seed * 4 + run) * 4 + task);
                    for _ in 0..50 {
                        let start = rng.below(VOLUME_BYTES);
                        let range = start..VOLUME_BYTES.min(start + rng.below(9 * MIB));
                        let epoch = rng.between(run * 10, run * 10 + 20);
                        let news = mark_model(&mut model.borrow_mut(), &range, epoch);
                        assert_eq!(map.mark(range, epoch), news);
                        let epoch = rng.below(50);
                        let out_of_sync = map.out_of_sync_since(epoch, VOLUME_BYTES);
                        assert_eq!(
                            as_regions(&out_of_sync),
                            out_of_sync_regions(&model.borrow(), epoch)
                        );
                        rig.rt.sleep(Duration::from_micros(rng.below(1000))).await;
                    }
                });
            }
            rig.rt.block_on(async {
                while !group.is_empty() || map.dirty() {
                    let before = model.borrow().clone();
                    match map.write_back().await {
                        Ok(()) => {
                            good += 1;
                            for (region, before) in (0..).zip(before) {
                                assert!(entry_on_device(&rig, region) >= before, "{region}");
                            }
                        }
                        Err(_) => failed += 1,
                    }
                    rig.rt.sleep(Duration::from_micros(300)).await;
                }
            });
        }
        assert!(good > 10 && failed > 10);
    }
}
