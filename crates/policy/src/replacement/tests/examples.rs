//! Small examples of replacement policies, with results computed by hand. Pages are numbered 0, 1,
//! 2 ..., and an erase block has 4 pages.

use super::*;

fn driven(name: &str, capacity: usize) -> Driven {
    Driven::new(built(name, capacity, 64, &[]))
}

/// Returns the pages that are evicted when `page` is read.
fn left_by_reading(driven: &mut Driven, page: PageId) -> Vec<PageId> {
    let (_, groups) = driven.access(page, Access::Read);
    groups
        .iter()
        .flatten()
        .map(|leaving| leaving.page)
        .collect()
}

fn read_all(driven: &mut Driven, pages: &[PageId]) {
    for page in pages {
        driven.read(*page);
    }
}

#[test]
fn sieve_spares_a_used_page_where_it_stands() {
    // The queue is 2 1 0 (newest first), and page 0 has been used. To insert page 3, the hand
    // clears the used bit of page 0 and evicts page 1; page 0 stays the oldest page.
    let mut sieve = driven("sieve", 3);
    read_all(&mut sieve, &[0, 1, 2, 0]);
    assert_eq!(left_by_reading(&mut sieve, 3), [1]);
    // The hand continues at page 2, which is unused, and does not return to page 0.
    assert_eq!(left_by_reading(&mut sieve, 4), [2]);
}

#[test]
fn two_q_lets_in_what_comes_back_after_it_left() {
    // With 4 frames, the FIFO's share is 1 page, and 2 evicted pages are remembered. While frames
    // are free, the FIFO can exceed its share, so pages 0 to 3 are all in the FIFO. Page 4 evicts
    // page 0, which is then remembered.
    let mut two_q = driven("2q", 4);
    read_all(&mut two_q, &[0, 1, 2, 3]);
    assert_eq!(left_by_reading(&mut two_q, 4), [0]);
    // Page 0 is used again: page 1 is evicted from the FIFO, and page 0 enters the LRU list, so the
    // following scan does not evict page 0.
    assert_eq!(left_by_reading(&mut two_q, 0), [1]);
    read_all(&mut two_q, &[10, 11, 12, 13]);
    assert_eq!(two_q.read(0), Outcome::Hit);
}

#[test]
fn arc_keeps_a_page_used_twice_from_a_scan() {
    // Page 0 is in T2, the list of pages used more often. A scan of pages used once evicts only
    // pages of T1, the list of pages used once.
    let mut arc = driven("arc", 3);
    read_all(&mut arc, &[0, 0, 10, 11, 12, 13, 14, 15]);
    assert_eq!(arc.read(0), Outcome::Hit);
    let mut lru = driven("lru", 3);
    read_all(&mut lru, &[0, 0, 10, 11, 12, 13, 14, 15]);
    assert_eq!(lru.read(0), Outcome::Miss);
}

#[test]
fn lirs_keeps_a_loop_larger_than_the_cache() {
    // The accesses loop over 5 pages with 4 frames. LRU would always miss. LIRS keeps the 3 LIR
    // pages, so 3 of 5 accesses are hits from the second round on.
    let mut lirs = driven("lirs", 4);
    read_all(&mut lirs, &[0, 1, 2, 3, 4]);
    let outcomes: Vec<Outcome> = (0..5).map(|page| lirs.read(page)).collect();
    let hits = outcomes.iter().filter(|o| **o == Outcome::Hit).count();
    assert_eq!(hits, 3);
    assert_eq!(outcomes[..3], [Outcome::Hit; 3]);
}

#[test]
fn s3_fifo_drops_pages_used_once_first() {
    // With 10 frames, the small queue has 1 page and the main queue 9. While the cache fills, page
    // 0 enters the small queue and pages 1 to 9 enter the main queue. Page 10 evicts page 0, which
    // is unused in the small queue. Page 0 is remembered, so its next read inserts it into the main
    // queue and evicts page 10.
    let mut s3 = driven("s3-fifo", 10);
    read_all(&mut s3, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(left_by_reading(&mut s3, 10), [0]);
    assert_eq!(left_by_reading(&mut s3, 0), [10]);
}

#[test]
fn w_tinylfu_admits_by_frequency() {
    // The cache has 100 frames, 99 of them in the main area. When page 100 finds the cache full,
    // pages 0 to 98 move into the free main area, and each of them is counted a second time. Page 0
    // is then the oldest page of the probation segment. Page 99 was counted once, so it does not
    // replace page 0 and is evicted.
    let mut tiny = Driven::new(built("w-tinylfu", 100, 128, &[]));
    for page in 0..100 {
        tiny.read(page);
    }
    assert_eq!(left_by_reading(&mut tiny, 100), [99]);
    // Page 100 was also counted only once, so page 100 is the next page to be evicted. Page 99 has
    // then been counted three times, at two insertions and one comparison, so page 99 replaces
    // page 0.
    assert_eq!(left_by_reading(&mut tiny, 99), [100]);
    assert_eq!(left_by_reading(&mut tiny, 101), [0]);
    assert_eq!(tiny.read(99), Outcome::Hit);
}

#[test]
fn lru_2_drops_pages_used_once_before_those_used_twice() {
    // Page 0 is used at times 1 and 2, page 1 at time 3, page 2 at time 4. Pages 1 and 2 have no
    // second-to-last use; page 1 is the older of the two.
    let mut lru2 = driven("lru-k", 3);
    read_all(&mut lru2, &[0, 0, 1, 2]);
    assert_eq!(left_by_reading(&mut lru2, 3), [1]);
    assert_eq!(left_by_reading(&mut lru2, 4), [2]);
}

#[test]
fn lrfu_counts_uses_and_forgets_slowly() {
    // With the default lambda, three uses of page 0 outweigh one later use of page 1.
    let mut lrfu = driven("lrfu", 2);
    read_all(&mut lrfu, &[0, 0, 0, 1]);
    assert_eq!(left_by_reading(&mut lrfu, 2), [1]);
}

#[test]
fn clock_pro_keeps_hot_pages_through_a_scan() {
    // With 4 frames, pages 0 to 2 come first and are hot. They are used while a scan passes, so
    // they stay.
    let mut pro = driven("clock-pro", 4);
    read_all(&mut pro, &[0, 1, 2, 3, 0, 1, 2]);
    for page in 10..20 {
        read_all(&mut pro, &[page, 0, 1, 2]);
    }
    assert_eq!(pro.held, BTreeSet::from([0, 1, 2, 19]));
}

#[test]
fn the_optimum_drops_what_is_used_last() {
    // The accesses 0 1 2 0 1 use 2 frames. When page 2 is inserted, the next use of page 1 is later
    // than that of page 0, so page 1 is evicted.
    let future = [0, 1, 2, 0, 1];
    let mut optimum = Driven::new(built("belady", 2, 8, &future));
    read_all(&mut optimum, &future[..2]);
    assert_eq!(left_by_reading(&mut optimum, 2), [1]);
    assert_eq!(optimum.read(0), Outcome::Hit);
}

#[test]
fn cf_lru_drops_clean_pages_of_its_window_first() {
    // With 6 frames, the window has 1 page (33 % of 6, rounded down). The window contains only the
    // dirty page 0, so page 0 is evicted although younger pages are clean. With 12 frames, the
    // window has 3 pages and contains the clean page 1, so page 1 is evicted.
    let mut narrow = driven("cf-lru", 6);
    narrow.write(0);
    read_all(&mut narrow, &[1, 2, 3, 4, 5]);
    assert_eq!(left_by_reading(&mut narrow, 6), [0]);
    let mut wide = driven("cf-lru", 12);
    wide.write(0);
    read_all(&mut wide, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(left_by_reading(&mut wide, 12), [1]);
}

#[test]
fn lru_wsr_spares_a_dirty_page_once() {
    // Page 0 is dirty and is spared, so page 1 is evicted. When page 0 is the oldest page again, it
    // is cold and is evicted.
    let mut wsr = driven("lru-wsr", 3);
    wsr.write(0);
    read_all(&mut wsr, &[1, 2]);
    assert_eq!(left_by_reading(&mut wsr, 3), [1]);
    assert_eq!(left_by_reading(&mut wsr, 4), [2]);
    assert_eq!(left_by_reading(&mut wsr, 5), [0]);
}

#[test]
fn ref_goes_on_with_the_block_it_evicted_from() {
    // With 9 frames the window has 3 pages. The oldest pages 0, 4 and 1 are in the window. Block 0
    // has two of them and becomes the victim block; its oldest page is evicted first. After the
    // eviction of page 0, page 8 enters the window. Block 0 is still the victim block, so page 1 is
    // evicted before the older page 4.
    let mut policy = driven("ref", 9);
    read_all(&mut policy, &[0, 4, 1, 8, 12, 16, 20, 24, 28]);
    assert_eq!(left_by_reading(&mut policy, 32), [0]);
    assert_eq!(left_by_reading(&mut policy, 36), [1]);
    assert_eq!(left_by_reading(&mut policy, 40), [4]);
}

#[test]
fn fab_drops_the_block_with_most_pages() {
    // Block 0 has pages 0 and 1, block 1 only page 4, and block 2 two pages that were used later.
    let mut fab = driven("fab", 5);
    read_all(&mut fab, &[0, 4]);
    fab.write(1);
    read_all(&mut fab, &[8, 9]);
    let (_, groups) = fab.access(20, Access::Read);
    let mut group = groups[0].clone();
    group.sort_by_key(|leaving| leaving.page);
    let pages: Vec<(PageId, bool)> = group.iter().map(|l| (l.page, l.write)).collect();
    assert_eq!(pages, [(0, false), (1, true)]);
    assert_eq!(groups.len(), 1);
}

#[test]
fn clc_spares_the_recent_block_even_if_it_is_large() {
    // A tenth of the blocks, rounded up, is one block. So one block is hot and is not evicted. This
    // is block 2: it is the largest block and was used last. Of the cold blocks, block 0 is the
    // largest.
    let mut clc = driven("clc", 6);
    read_all(&mut clc, &[0, 1, 4, 8, 9, 10]);
    let mut left = left_by_reading(&mut clc, 9);
    assert_eq!(left, []);
    left = left_by_reading(&mut clc, 20);
    left.sort_unstable();
    assert_eq!(left, [0, 1]);
}

#[test]
fn bplru_gives_up_a_sequential_block_first_and_pads() {
    // Block 1 is written in sequence from its first to its last page, so it is evicted before the
    // older block 0.
    let mut bplru = driven("bplru", 6);
    for page in [0, 1, 4, 5, 6, 7] {
        bplru.write(page);
    }
    let (_, groups) = bplru.access(8, Access::Write);
    let mut pages: Vec<PageId> = groups[0].iter().map(|l| l.page).collect();
    pages.sort_unstable();
    assert_eq!(pages, [4, 5, 6, 7]);
    // Block 0 has two of its four pages and is padded. A block without dirty pages is not padded.
    let mut out = Evictions::new();
    let mut policy = built("bplru", 2, 64, &[]);
    policy.access(0, Access::Write, &mut out);
    policy.access(1, Access::Read, &mut out);
    policy.access(4, Access::Read, &mut out);
    assert!(out.groups().all(|group| group.padded));
    out.clear();
    policy.access(5, Access::Read, &mut out);
    policy.access(8, Access::Read, &mut out);
    assert!(out.groups().all(|group| !group.padded));
    assert_eq!(out.groups().count(), 1);
}

#[test]
fn abm_moves_a_written_page_and_delays_write_eviction() {
    // The example of figure 4 of the paper, with 4 frames, 2 of them for writes. Pages 0, 1 and 2
    // are written in one block. Page 4, of another block, is read and then written (rule A: it
    // moves to the write buffer). The write buffer exceeds its 2 pages, so the next read evicts
    // block 0. Its three pages are written as one group, two of them stay as clean pages (rule C),
    // and only the frame of the least recently used page is freed (rule B).
    let mut abm = driven("abm-lru-fab", 4);
    for page in [0, 1, 2] {
        abm.write(page);
    }
    abm.read(4);
    assert_eq!(abm.write(4), Outcome::Hit);
    assert_eq!(abm.policy.occupancy().write_held, Some(4));
    let (_, groups) = abm.access(8, Access::Read);
    assert_eq!(groups.len(), 1);
    let mut group = groups[0].clone();
    group.sort_by_key(|leaving| leaving.page);
    let told: Vec<_> = group.iter().map(|l| (l.page, l.write, l.stays)).collect();
    assert_eq!(told, [(0, true, false), (1, true, true), (2, true, true)]);
    // The two pages that stayed in the cache after the flush are the next victims, the older one
    // first. They are clean, so their eviction costs no write.
    let (_, groups) = abm.access(12, Access::Read);
    assert_eq!(
        groups,
        [[Leaving {
            page: 1,
            write: false,
            stays: false
        }]]
    );
}

#[test]
fn abm_borrows_free_frames_both_ways() {
    // Without writes, reads fill all 4 frames. Then each write takes one frame from the read side,
    // until the write side has its 2 pages.
    let mut abm = driven("abm-lru-clc-fixed50", 4);
    read_all(&mut abm, &[0, 1, 2, 3]);
    assert_eq!(abm.held.len(), 4);
    for page in [20, 24] {
        let (_, groups) = abm.access(page, Access::Write);
        assert!(groups.iter().flatten().all(|leaving| !leaving.write));
    }
    let (_, groups) = abm.access(28, Access::Write);
    assert!(
        groups.iter().flatten().all(|leaving| leaving.write),
        "its own turn now"
    );
}

#[test]
fn abm_remembers_and_moves_its_pointer() {
    // A read of a page that the read buffer has evicted moves the pointer by one page, from the
    // write buffer to the read buffer.
    let mut abm = driven("abm-lru-clc", 4);
    read_all(&mut abm, &[0, 1, 2, 3, 4]);
    assert_eq!(abm.policy.occupancy().write_target, Some(2.0));
    abm.read(0);
    assert_eq!(abm.policy.occupancy().write_target, Some(1.0));
    let mut fixed = driven("abm-lru-clc-fixed25", 4);
    read_all(&mut fixed, &[0, 1, 2, 3, 4, 0]);
    assert_eq!(fixed.policy.occupancy().write_target, Some(1.0));
}

#[test]
fn a_page_flushed_too_early_moves_only_the_pointer_that_weighs_costs() {
    // There are 4 frames, 2 of them for writes: the pointer, which divides reads from writes, is at
    // 2. Pages 0, 1 and 2 of one block are flushed together when page 8 is accessed. Page 0 is
    // evicted, and page 1 stays clean. If page 1 had stayed dirty until its next write, one flush
    // would have been saved. A flush costs 200 us and a read costs 25 us, so the policy that weighs
    // costs would move the pointer by 200 / 25 = 8 pages. There are only 4 frames, so it can move
    // by only 2.
    for (name, target) in [("abm-lru-fab", 2.0), ("abm-lru-fab-cost", 4.0)] {
        let mut abm = driven(name, 4);
        for page in [0, 1, 2, 4, 8] {
            abm.write(page);
        }
        assert_eq!(abm.dirty, BTreeSet::from([4, 8]));
        assert_eq!(abm.write(1), Outcome::Hit);
        assert_eq!(abm.policy.occupancy().write_target, Some(target), "{name}");
    }
}

#[test]
fn a_cold_page_takes_the_cold_ones_of_its_block_along() {
    // All 6 frames are for writes. Page 0 is used at time 1, page 1 at time 2, and page 2, of the
    // same block, at time 6, which is the last access before room is needed. A page is cold if its
    // last use was not later than a limit. There are 5 accesses since the use of page 0. A quarter
    // of 5, rounded down, is 1, and three times that is 3, so the limit is time 1 + 3 = 4. Page 1
    // is therefore cold and is evicted with page 0. Page 2 is warm and stays dirty.
    let mut policy = driven("abm-lru-cold-fixed100", 6);
    for page in [0, 1, 4, 8, 12, 2] {
        policy.write(page);
    }
    let (_, groups) = policy.access(16, Access::Write);
    let mut group = groups[0].clone();
    group.sort_by_key(|leaving| leaving.page);
    let told: Vec<_> = group.iter().map(|l| (l.page, l.write, l.stays)).collect();
    assert_eq!(told, [(0, true, false), (1, true, true)]);
    assert!(policy.policy.is_dirty(2));
}

#[test]
fn a_cluster_that_is_flushed_again_moves_the_pointer_that_counts_flushes() {
    // There are 4 frames, 2 of them for writes. Pages 0, 1 and 2 are flushed when page 8 is
    // accessed. Then page 3 of the same block is written. No page is flushed twice, but the block
    // is. A larger write buffer would have flushed the block only once.
    for (name, moves) in [("abm-lru-fab-cost", false), ("abm-lru-fab-marginal", true)] {
        let mut abm = driven(name, 4);
        for time_us in [200.0, 1000.0] {
            abm.policy.cost(DeviceCost::Flush { pages: 1, time_us });
        }
        for page in [0, 1, 2, 4, 8] {
            abm.write(page);
        }
        assert_eq!(abm.policy.occupancy().write_target, Some(2.0));
        abm.write(3);
        let target = abm.policy.occupancy().write_target;
        assert_eq!(target > Some(2.0), moves, "{name}: {target:?}");
    }
}

#[test]
fn a_block_is_written_whole_only_where_parts_were_seen_to_cost_more() {
    // Erase blocks have 4 pages. Padding half a block costs 2 page reads and 2 additional page
    // writes, together 450 us.
    for (parts_us, padded) in [(200.0, false), (600.0, false), (1000.0, true)] {
        let mut policy = built("abm-lru-clc+pad-fixed100", 3, 12, &[]);
        for time_us in [200.0, parts_us] {
            policy.cost(DeviceCost::Flush { pages: 1, time_us });
        }
        // There are 11 flushes of one page each. The first flush takes 200 us, the time of the page
        // alone. Each of the other ten has an additional fixed cost of 0, 400 or 800 us.
        for _ in 0..9 {
            let time_us = parts_us;
            policy.cost(DeviceCost::Flush { pages: 1, time_us });
        }
        let mut out = Evictions::new();
        for page in [0, 1, 4, 8] {
            policy.access(page, Access::Write, &mut out);
        }
        let groups: Vec<_> = out.groups().collect();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].pages.len(), 2, "both dirty pages of block 0");
        assert_eq!(groups[0].padded, padded, "{parts_us}");
    }
}

#[test]
fn bimetal_is_the_pair_that_suits_the_device() {
    for granularity in [Granularity::Page, Granularity::Cluster, Granularity::Block] {
        let build = Build {
            capacity: 16,
            pages_per_block: BLOCK,
            granularity,
            ..Build::default()
        };
        let named = |name: &str| {
            let spec: Spec = name.parse().expect("a known policy");
            spec.build(&build)
        };
        let (mut default, mut pair) = (named("bimetal"), named(granularity.default_pair()));
        let (mut first, mut second) = (Evictions::new(), Evictions::new());
        for page in 0..60 {
            let place = PageAddress {
                block: page / BLOCK,
                offset: page % BLOCK,
            };
            default.introduce(page, place);
            pair.introduce(page, place);
        }
        for step in 0..2000u32 {
            let access = [Access::Read, Access::Write][step as usize / 3 % 2];
            let page = step * step % 59;
            let outcome = default.access(page, access, &mut first);
            assert_eq!(outcome, pair.access(page, access, &mut second));
        }
        assert!(!first.is_empty() && first.groups().eq(second.groups()));
    }
}

#[test]
fn names_are_read_with_or_without_dashes_and_nonsense_is_refused() {
    for name in [
        "S3-FIFO",
        "s3fifo",
        "abm-s3fifo-page-cost",
        "abm-lirs-fab:8-fixed30",
        "abm-lru-clc+pad-marginal",
    ] {
        assert!(name.parse::<Spec>().is_ok(), "{name}");
    }
    let bad = [
        "",
        "lru2",
        "abm",
        "abm-lru",
        "abm-lru-clc-",
        "abm-lru-clc:0",
        "abm-lru-clc:4+pad",
        "abm-lru-cold+pad",
        "abm-lru-page+pad",
        "abm-lru-page:2",
        "abm-belady-clc",
        "abm-lru-clc-fixed101",
        "abm-lru-clc-cost-x",
        "abm-clc-clc",
    ];
    for name in bad {
        assert!(name.parse::<Spec>().is_err(), "{name}");
    }
}
