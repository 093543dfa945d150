//! Tests of cleaning: which content it leaves where it is, and which segments a commit frees.

use super::*;
use crate::layers::mirror::store::segments::{FromPeer, Live, Segments};

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

/// A disk seeks for each block that it reads itself. The blocks beside one that is newer on the
/// other side, or that the other side does not supply, are the same on both.
#[test]
fn only_what_another_side_lacks_is_left_of_a_run() {
    cleaned(async |store, live| {
        let segments = store.segments.as_ref().expect("it is logged");
        let all = numbers(store, &live);
        let [newer, unread] = [all[17], all[40]];
        let adjacent = all.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(adjacent > all.len() / 2, "most blocks are in runs");
        let peer = |range: Range<u64>, _| -> LocalFuture<'_, Option<FromPeer>> {
            let blocks = range.start / BLOCK_BYTES..range.end / BLOCK_BYTES;
            let bytes: Vec<u8> = blocks.clone().flat_map(|of| [byte_of(of); 4096]).collect();
            let data = Payload::from(store.rt.pool().copy_of(&bytes));
            let supplied = !blocks.contains(&unread);
            let differing = blocks
                .filter(|of| *of == newer)
                .map(|of| of..of + 1)
                .collect();
            Box::pin(async move { supplied.then_some(FromPeer { data, differing }) })
        };
        let (content, left) = segments.read_from(&peer, live).await;
        let mut expected = vec![newer, unread];
        expected.sort_unstable();
        assert_eq!(numbers(store, &left), expected);
        let supplied: Vec<Live> = content.iter().map(|(live, _)| *live).collect();
        let others: Vec<u64> = all
            .into_iter()
            .filter(|of| !expected.contains(of))
            .collect();
        assert_eq!(numbers(store, &supplied), others);
        for (live, data) in content {
            let block = segments.volume_offset(&live) / BLOCK_BYTES;
            assert_eq!(data.to_vec(), [byte_of(block); 4096], "block {block}");
        }
    });
}

/// Writes `entries` entries of one block each into the log of a new side, from `first` on, and
/// folds all of them.
async fn folded_side(rt: &Rt, (first, entries): (u64, u64)) -> (Rc<dyn Device>, StoreDevice) {
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, 64 << 20));
    let on = formatted_as(rt, &device, SideKind::Log).await;
    let (store, next) = opened_on(rt, &on).await;
    for block in first..first + entries {
        put(rt, &store, &next, block, &[byte_of(block)]).await;
    }
    store.flush(next.get()).await.expect("it is durable");
    assert_eq!(store.empty().await, Ok(true));
    store.end().await;
    (device, on)
}

/// A power cut can take back the entries of a segment of the log and leave the summary that was
/// written with the last of them. A later program then writes other entries to the same place.
#[test]
fn a_summary_of_entries_that_were_taken_back_is_not_believed() {
    const ENTRIES: u64 = 12;
    let rt = rt();
    rt.block_on(async {
        // The first side has the summary of a full segment, and the second one a part of it.
        let (older, on) = folded_side(&rt, (300, 40)).await;
        let (device, _) = folded_side(&rt, (0, ENTRIES)).await;
        let segments = on.layout.segments.expect("it is logged");
        let usable = segments.usable_blocks() * BLOCK_BYTES;
        // The log begins one in-flight window behind its start, in the second segment.
        let first = on.layout.log.0 + segments.segment_bytes;
        let read = Request::read(first + usable, segments.segment_bytes - usable);
        let summary = older.submit(read).await.expect("it reads").into_data();
        assert!(summary.to_vec().iter().any(|byte| *byte != 0));
        let write = Request::write(first + usable, summary, Flags::NONE);
        device.submit(write).await.expect("it writes");

        let on = StoreDevice {
            device: Rc::clone(&device),
            cleans_always: true,
            ..on
        };
        for _ in 0..2 {
            let (store, next) = opened_on(&rt, &on).await;
            // Cleaning takes the segments of the log that are released.
            for block in 0..200 {
                put(&rt, &store, &next, 400 + block % 50, &[7]).await;
                if block % 20 == 0 {
                    store.flush(next.get()).await.expect("it is durable");
                    assert_eq!(store.empty().await, Ok(true));
                }
            }
            rt.sleep(Duration::from_secs(10)).await;
            let expected: Vec<u8> = (0..ENTRIES).map(byte_of).collect();
            assert_eq!(get(&store, 0..ENTRIES).await, Ok(expected));
            store.end().await;
        }
    });
}
