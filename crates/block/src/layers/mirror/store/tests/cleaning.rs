//! Tests of cleaning: which content it leaves where it is, and which segments a commit frees.

use super::*;
use crate::layers::mirror::store::segments::{Live, Segments};

/// Number of blocks that are written.
const BLOCKS: u64 = 512;

/// Runs a test on a logged side with `blocks` written blocks, half of which were written again.
/// None is in the log any more.
fn written(blocks: u64, test: impl AsyncFnOnce(&Rc<Store>, &Segments)) {
    let rt = rt();
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 64 << 20));
    rt.block_on(async {
        let on = formatted_as(&rt, &device, SideKind::Log).await;
        let (store, next) = opened_on(&rt, &on).await;
        // The second round leaves dead blocks behind, without which there is nothing to clean.
        for round in 0..2 {
            for block in (0..blocks).step_by(32) {
                let bytes: Vec<u8> = (0..32 >> round).map(|at| byte_of(block + at)).collect();
                put(&rt, &store, &next, block, &bytes).await;
            }
        }
        store.flush(next.get()).await.expect("it is durable");
        assert_eq!(store.empty().await, Ok(true));
        let segments = Rc::clone(store.segments.as_ref().expect("it is logged"));
        test(&store, &segments).await;
        store.stop().await;
    });
}

/// Runs a test on a logged side with written blocks. The test is given the store and the blocks
/// that cleaning would move now.
fn cleaned(test: impl AsyncFnOnce(&Rc<Store>, Vec<Live>)) {
    written(BLOCKS, async |store, segments| {
        let batch = segments.begin_batch(false);
        let mut batch = batch.expect("there is something to clean");
        let mut live = Vec::new();
        while !batch.is_over() {
            segments.read_next_victims(&mut batch).await.expect("read");
            live.extend(batch.take(u64::MAX));
        }
        assert!(live.len() > 64, "{} blocks", live.len());
        test(store, live).await;
    });
}

/// A batch has many segments, and a slow device needs seconds to empty them. The log may wait for
/// space until then.
#[test]
fn a_commit_frees_what_is_emptied_before_the_batch_is_over() {
    written(1024, async |store, segments| {
        let batch = segments.begin_batch(false);
        let mut batch = batch.expect("there is something to clean");
        let (mut emptied, mut moved) = (0, Vec::new());
        while !batch.is_over() {
            if batch.wants_more() {
                segments.read_next_victims(&mut batch).await.expect("read");
                continue;
            }
            let piece = batch.take(64);
            moved.extend(piece.iter().map(|live| segments.volume_offset(live)));
            let content = segments.read_own(&piece).await.expect("it reads");
            let done = segments.move_content(&mut batch, 64, content).await;
            done.expect("there is room");
            let dead = segments.dead().len();
            segments.release_emptied(&mut batch);
            if !batch.is_over() {
                emptied += segments.dead().len() - dead;
            }
            store.write_pages().await.expect("it commits");
            assert!(!segments.has_dead(), "a commit frees what is emptied");
        }
        segments.end_batch(batch);
        assert!(emptied > 0, "no segment was dead before the end");
        for offset in moved {
            let block = offset / BLOCK_BYTES;
            assert_eq!(get(store, block..block + 1).await, Ok(vec![byte_of(block)]));
        }
    });
}

fn byte_of(block: u64) -> u8 {
    (block % 255 + 1) as u8
}

/// Returns the numbers of blocks in the volume.
fn numbers(store: &Store, live: &[Live]) -> Vec<u64> {
    let segments = store.segments.as_ref().expect("it is logged");
    let number = |live| segments.volume_offset(live) / BLOCK_BYTES;
    let mut numbers: Vec<u64> = live.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

async fn left_to_move(store: &Store, live: &[Live]) -> Vec<u64> {
    let segments = store.segments.as_ref().expect("it is logged");
    let left = store.without_outdated(segments, live.to_vec()).await;
    numbers(store, &left.expect("memory does not fail"))
}

fn is_odd(range: &Range<u64>) -> bool {
    range.start / BLOCK_BYTES % 2 == 1
}

/// A change in the queue will replace the block. Until then, the block must be readable.
#[test]
fn what_the_queue_replaces_is_neither_moved_nor_given_up() {
    cleaned(async |store, live| {
        let all = numbers(store, &live);
        assert_eq!(left_to_move(store, &live).await, all);
        store.ask_for_outdated(Rc::new(|range| is_odd(range).then_some(Outdated::Queued)));
        let even: Vec<u64> = all.iter().copied().filter(|block| block % 2 == 0).collect();
        assert_eq!(left_to_move(store, &live).await, even);
        for block in all {
            let read = get(store, block..block + 1).await;
            assert_eq!(read, Ok(vec![byte_of(block)]));
        }
    });
}

/// Content that the side lacks is given up only where a rebuild has announced that it writes, since
/// only there the side is known to lack it after a crash.
#[test]
fn only_what_a_rebuild_has_announced_is_given_up() {
    cleaned(async |store, live| {
        let all = numbers(store, &live);
        store.ask_for_outdated(Rc::new(|range| {
            is_odd(range).then_some(Outdated::OutOfSync)
        }));
        left_to_move(store, &live).await;
        store.begin_mixing(Some(0));
        left_to_move(store, &live).await;
        let lost = store.lost_ranges().await.expect("it can be read");
        assert!(lost.is_empty(), "nothing was announced");

        let all_of_it = 0..VOLUME_BYTES;
        let announced = store.announce(vec![all_of_it]).await;
        announced.expect("memory does not fail");
        let (odd, even): (Vec<u64>, Vec<u64>) = all.iter().partition(|block| *block % 2 == 1);
        assert_eq!(left_to_move(store, &live).await, even);
        let lost = store.lost_ranges().await.expect("it can be read");
        let given_up = lost
            .iter()
            .flat_map(|r| r.start / BLOCK_BYTES..r.end / BLOCK_BYTES);
        assert_eq!(given_up.collect::<Vec<_>>(), odd);
        for block in even {
            let read = get(store, block..block + 1).await;
            assert_eq!(read, Ok(vec![byte_of(block)]));
        }
        // The rebuild writes the newest content.
        let block = odd[0];
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        let kept = store.begin_straight(&range).expect("nothing is in its way");
        let data = Payload::from(store.rt.pool().copy_of(&[7; BLOCK_BYTES as usize]));
        store
            .write_straight(Vec::from([kept]), data)
            .await
            .expect("written");
        assert_eq!(get(store, block..block + 1).await, Ok(vec![7]));
    });
}
