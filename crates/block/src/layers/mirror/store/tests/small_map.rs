//! Tests of a logged side that keeps one page of its map and one of its checksums in memory, and of
//! pages that cannot be read.

use super::*;

/// Number of blocks of the volume: seven pages of the map, and as many of the checksums.
const BLOCKS: u64 = 6144;
/// Number of blocks that a page describes.
const PAGE_BLOCKS: u64 = 1008;

async fn small(rt: &Rt, device: &Rc<dyn Device>) -> StoreDevice {
    StoreDevice {
        volume_bytes: BLOCKS * BLOCK_BYTES,
        map_memory_bytes: 2 * BLOCK_BYTES,
        ..formatted_as(rt, device, SideKind::Log).await
    }
}

async fn assert_holds(store: &Store, model: &[u8]) {
    for start in (0..BLOCKS).step_by(32) {
        let found = get(store, start..start + 32).await.expect("it is intact");
        let expected = &model[start as usize..][..32];
        assert_eq!(found, expected, "the blocks from {start} on");
    }
}

/// Blocks are written at random over all pages, some of them again and again, so that places are
/// changed, superseded and moved by cleaning while their pages are not in memory.
#[test]
fn a_map_that_does_not_fit_the_memory_says_the_same() {
    let rt = rt();
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 64 << 20));
    rt.block_on(async {
        let on = StoreDevice {
            cleans_always: true,
            ..small(&rt, &device).await
        };
        let mut model = vec![0; BLOCKS as usize];
        let mut rng = Rng::new(7);
        for life in 1..=3 {
            let (store, next) = opened_on(&rt, &on).await;
            for _ in 0..800 {
                let count = rng.between(1, 8);
                let block = rng.below(BLOCKS - count);
                let byte = rng.between(1, 255) as u8;
                put(&rt, &store, &next, block, &vec![byte; count as usize]).await;
                model[block as usize..][..count as usize].fill(byte);
            }
            store.flush(next.get()).await.expect("it is durable");
            assert_eq!(store.empty().await, Ok(true));
            assert_holds(&store, &model).await;
            // A commit keeps the pages that it writes in memory.
            let no_commit = store.no_commit().await;
            // Beside the budget of one page, the first page stays in memory.
            assert_eq!(statistic(&store, "map_cached_pages"), 2);
            drop(no_commit);
            assert!(
                statistic(&store, "map_pages_read") > 7,
                "pages were read again"
            );
            assert!(statistic(&store, "segments_cleaned") > 0, "life {life}");
            // The segments that the life before has not filled to their end have no summary.
            let without = statistic(&store, "map_searches");
            assert!(without <= 4 * (life - 1), "{without} in life {life}");
            let segments = store.segments.as_ref().expect("it is logged");
            segments.assert_live_blocks_are_exact().await;
            store.stop().await;
            let again = Store::open(&rt, &on).await.expect("it opens");
            let segments = again.segments.as_ref().expect("it is logged");
            segments.assert_live_blocks_are_exact().await;
            assert_eq!(statistic(&again, "map_pages_damaged"), 0);
        }
        let (store, _) = opened_on(&rt, &on).await;
        assert_holds(&store, &model).await;
        store.stop().await;
    });
}

/// An opening reads the pages of the map that say where the checksums are, and no others. Until all
/// pages are counted, no segment is freed but those that are free in the record.
#[test]
fn an_opening_reads_few_pages_of_the_map_and_frees_nothing_before_it_has_all() {
    let rt = rt();
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 64 << 20));
    rt.block_on(async {
        let on = small(&rt, &device).await;
        let (store, next) = opened_on(&rt, &on).await;
        for _ in 0..3 {
            for block in (0..BLOCKS).step_by(32) {
                put(&rt, &store, &next, block, &[9; 32]).await;
            }
            store.flush(next.get()).await.expect("it is durable");
            assert_eq!(store.empty().await, Ok(true));
        }
        store.stop().await;
        let free = statistic(&store, "segments_free");
        let again = Store::open(&rt, &on).await.expect("it opens");
        assert_eq!(
            statistic(&again, "map_uncounted_pages"),
            6,
            "one of seven was read"
        );
        let segments = again.segments.as_ref().expect("it is logged");
        assert_eq!(segments.dead(), []);
        segments.begin(0).await.expect("memory does not fail");
        // The segments of the log that the record names are longer than the log by what is dropped.
        let begun = statistic(&again, "segments_free");
        assert!(begun <= free, "{begun} of {free}");
        again
            .count_map(&|_, _| ())
            .await
            .expect("memory does not fail");
        assert_eq!(statistic(&again, "map_uncounted_pages"), 0);
        segments.assert_live_blocks_are_exact().await;
    });
}

/// Writes all blocks, and damages the page of the map that describes the block 3000. Passes the
/// store, the next sequence number, and the offset and the content of the page.
fn with_damaged_page(test: impl AsyncFnOnce(&Rt, &Rc<Store>, &Cell<u64>, (u64, Payload))) {
    let rt = rt();
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 64 << 20));
    rt.block_on(async {
        let on = small(&rt, &device).await;
        let (store, next) = opened_on(&rt, &on).await;
        for block in (0..BLOCKS).step_by(32) {
            put(&rt, &store, &next, block, &[9; 32]).await;
        }
        store.flush(next.get()).await.expect("it is durable");
        assert_eq!(store.empty().await, Ok(true));
        // Another page is in memory now.
        get(&store, BLOCKS - 32..BLOCKS)
            .await
            .expect("it is intact");
        let segments = store.segments.as_ref().expect("it is logged");
        let page = (segments.first_volume_block() + 3000) / PAGE_BLOCKS;
        let at = segments.offset_of_page(page).expect("it was written");
        let read = device.submit(Request::read(at, BLOCK_BYTES)).await;
        let whole = read.expect("memory does not fail").into_data();
        write_page(&rt, &device, at, vec![0xA5; BLOCK_BYTES as usize]).await;
        test(&rt, &store, &next, (at, whole)).await;
        store.stop().await;
    });
}

async fn write_page(rt: &Rt, device: &Rc<dyn Device>, at: u64, bytes: Vec<u8>) {
    let data = rt.pool().copy_of(&bytes);
    let write = Request::write(at, data, Flags::NONE);
    device.submit(write).await.expect("memory does not fail");
}

/// A device may fail to read a page for a while.
#[test]
fn a_page_that_can_be_read_again_is_not_lost() {
    with_damaged_page(async |rt, store, next, (at, whole)| {
        for _ in 0..3 {
            assert_eq!(get(store, 3000..3001).await, Err(IoError::Corrupt));
        }
        // A commit that must write the page goes on without it.
        put(rt, store, next, 2990, &[7]).await;
        store.flush(next.get()).await.expect("it is durable");
        assert_eq!(store.empty().await, Ok(true));
        store.write_pages().await.expect("it is committed");
        assert_eq!(get(store, 2990..2991).await, Ok(vec![7]));
        let device = Rc::clone(&store.device);
        write_page(rt, &device, at, whole.to_vec()).await;
        assert_eq!(get(store, 3000..3001).await, Ok(vec![9]));
        assert_eq!(get(store, 2990..2991).await, Ok(vec![7]));
        // The reads have found single blocks corrupt, as they find those that cannot be read.
        assert_eq!(
            store.take_suspects(),
            vec![3000 * BLOCK_BYTES..3001 * BLOCK_BYTES]
        );
        assert_eq!(statistic(store, "map_pages_damaged"), 0);
    });
}

#[test]
fn a_page_that_stays_unreadable_is_lost_and_its_blocks_are_to_be_copied() {
    with_damaged_page(async |rt, store, next, _| {
        put(rt, store, next, 3001, &[7]).await;
        store.flush(next.get()).await.expect("it is durable");
        assert_eq!(store.empty().await, Ok(true));
        for _ in 0..16 {
            assert_eq!(get(store, 3000..3001).await, Err(IoError::Corrupt));
        }
        assert_eq!(statistic(store, "map_pages_damaged"), 1);
        let suspects = store.take_suspects();
        let inside = |block: u64| {
            let at = block * BLOCK_BYTES;
            suspects.iter().any(|range| range.contains(&at))
        };
        let lost = (0..BLOCKS).filter(|block| inside(*block)).count() as u64;
        assert_eq!(lost, PAGE_BLOCKS - 1, "all but the block that has changed");
        assert!(inside(3000) && !inside(3001));
        assert_eq!(get(store, 3001..3002).await, Ok(vec![7]));
        put(rt, store, next, 3000, &[8]).await;
        store.flush(next.get()).await.expect("it is durable");
        assert_eq!(store.empty().await, Ok(true));
        assert_eq!(get(store, 3000..3002).await, Ok(vec![8, 7]));
    });
}
