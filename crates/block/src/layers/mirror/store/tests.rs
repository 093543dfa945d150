//! Tests of the store of a side on a memory device. The store is stopped at various points, and its
//! log is then read again.

use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::{Rng, Rt, VirtualOptions};

use super::*;
use crate::device::{IoFuture, Statistic};
use crate::geometry::Geometry;
use crate::layers::mirror::superblock::{Asked, SideKind};
use crate::media::memory::MemoryDevice;
use crate::request::{Flags, Op, Origin};

mod cleaning;
mod discarding;
mod full;
mod late;
mod overtaking;
mod salvage;
mod small_map;
mod straight;
mod unwritten;

const SIDE: Uuid = *b"the side of test";
const DEVICE_BYTES: u64 = 32 << 20;
const VOLUME_BYTES: u64 = 4 << 20;

fn rt() -> Rt {
    Rt::virtual_time(VirtualOptions {
        seed: 1,
        shuffle: true,
    })
}

fn memory(rt: &Rt) -> Rc<dyn Device> {
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, DEVICE_BYTES));
    let layout = SideLayout::of_device(DEVICE_BYTES, Some(4 << 20)).expect("it is large enough");
    rt.block_on(initialise(rt, &device, SIDE, &layout, false))
        .expect("memory does not fail");
    device
}

fn on(device: &Rc<dyn Device>) -> StoreDevice {
    StoreDevice {
        device: Rc::clone(device),
        side: SIDE,
        layout: SideLayout::of_device(DEVICE_BYTES, Some(4 << 20)).expect("it is large enough"),
        digest: BlockDigest::Xxh3,
        volume_bytes: VOLUME_BYTES,
        unknown_blocks: 0,
        integrity: true,
        counts_below: Rc::new(|_| u64::MAX),
        checksum_cache_bytes: 1 << 20,
        map_memory_bytes: 1 << 20,
        watches_map: false,
        order_after: None,
        cleans_always: false,
        fills_newest_first: false,
    }
}

/// Formats a device as a side of a kind. Returns the parameters with which its store is opened.
async fn formatted_as(rt: &Rt, device: &Rc<dyn Device>, kind: SideKind) -> StoreDevice {
    let asked = Asked {
        kind,
        ..Asked::default()
    };
    let layout = SideLayout::of(device.geometry(), asked).expect("it is large enough");
    let made = initialise(rt, device, SIDE, &layout, false).await;
    made.expect("memory does not fail");
    StoreDevice {
        layout,
        ..on(device)
    }
}

/// Opens a store and registers a callback, by which the store learns that every change so far was
/// given to its side. Returns the store and the next sequence number.
async fn opened(rt: &Rt, device: &Rc<dyn Device>) -> (Rc<Store>, Rc<Cell<u64>>) {
    opened_on(rt, &on(device)).await
}

/// Opens a store as [`opened`] does, with other parameters.
async fn opened_on(rt: &Rt, on: &StoreDevice) -> (Rc<Store>, Rc<Cell<u64>>) {
    let store = Store::open(rt, on).await.expect("it opens");
    let next = Rc::new(Cell::new(store.found().next_number.max(1)));
    store.begin().await.expect("it begins");
    let given = Rc::clone(&next);
    store.monitor(
        1,
        Rc::new(move |limit| given.get().min(limit)),
        Rc::new(|| false),
    );
    store.release(u64::MAX, false);
    (store, next)
}

/// Appends consecutive blocks, each of which is filled with one of `bytes`.
async fn put(rt: &Rt, store: &Store, next: &Cell<u64>, block: u64, bytes: &[u8]) {
    let mut buf = rt.pool().alloc_now(bytes.len() * BLOCK_BYTES as usize);
    for (content, byte) in buf.chunks_mut(BLOCK_BYTES as usize).zip(bytes) {
        content.fill(*byte);
    }
    let payload = Payload::from(buf.freeze());
    let number = next.get();
    next.set(number + 1);
    let range = block * BLOCK_BYTES..(block + bytes.len() as u64) * BLOCK_BYTES;
    let append = Append::of(range, payload, number);
    store.append(append).wait().await.expect("it is stored");
}

/// Reads blocks and returns one byte of each.
async fn get(store: &Store, blocks: Range<u64>) -> Result<Vec<u8>, IoError> {
    let range = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
    let data = store.read(range, Origin::NONE).await?.into_data().to_vec();
    let whole = data.chunks(BLOCK_BYTES as usize);
    Ok(whole
        .map(|block| {
            assert!(
                block.iter().all(|b| b == &block[0]),
                "a block is of one write"
            );
            block[0]
        })
        .collect())
}

/// Returns a counter or a gauge of a store.
fn statistic(store: &Store, name: &str) -> u64 {
    let mut all: Vec<(String, String, Statistic)> = Vec::new();
    store.statistics("side", &mut all);
    let found = all.iter().find(|(_, of, _)| of == name);
    match found.expect("it is counted").2 {
        Statistic::Counter(count) => count,
        Statistic::Gauge(value) => value as u64,
        _ => unreachable!("{name} is a number"),
    }
}

/// The log of a disk gives way to a commit, but not while clients wait for this side only.
#[test]
fn a_log_that_is_awaited_gives_way_to_nothing() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        let is_awaited = Rc::new(Cell::new(false));
        let of_store = Rc::clone(&is_awaited);
        store.set_is_awaited(Rc::new(move || of_store.get()));
        store.log.gives_way.set(1);
        let mut first = std::pin::pin!(put(&rt, &store, &next, 0, &[1]));
        let waited = rt.timeout(Duration::from_secs(60), &mut first).await;
        assert!(waited.is_err(), "it gives way");
        is_awaited.set(true);
        first.await;
        put(&rt, &store, &next, 1, &[2]).await;
        assert_eq!(get(&store, 0..2).await, Ok(vec![1, 2]));
        store.stop().await;
    });
}

#[test]
fn what_was_stored_is_found_again() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        put(&rt, &store, &next, 3, &[1, 2, 3]).await;
        put(&rt, &store, &next, 4, &[9]).await;
        assert_eq!(get(&store, 2..7).await, Ok(vec![0, 1, 9, 3, 0]));
        store.stop().await;
        drop(store);

        let (store, _) = opened(&rt, &device).await;
        assert_eq!(store.found().complete_below, 3);
        assert_eq!(get(&store, 2..7).await, Ok(vec![0, 1, 9, 3, 0]));
        assert!(store.empty().await.expect("it goes home"));
        assert_eq!(store.logged_bytes(), 0);
        assert_eq!(get(&store, 2..7).await, Ok(vec![0, 1, 9, 3, 0]));
        // The content is at its home location now, so it can be read from the device without the
        // store.
        let home = on(&device).layout.data.0 + 4 * BLOCK_BYTES;
        let raw = device.submit(Request::read(home, BLOCK_BYTES)).await;
        assert_eq!(raw.expect("it reads").into_data().to_vec(), [9; 4096]);
        store.stop().await;
    });
}

/// Destaging an entry needs a checksum in memory for each of its blocks, so an entry covers at most
/// 65,536 blocks without data.
#[test]
fn a_long_discard_is_in_many_entries() {
    const COVERED_MAX: u64 = 256 << 20;
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        let range = 0..(4 << 30) + BLOCK_BYTES;
        let outcome = store.append(Append::zeroes(range.clone(), Space::Freed, next.replace(2)));
        put(&rt, &store, &next, 7, &[3]).await;
        outcome.wait().await.expect("it is stored");
        let covered = |entry: &super::index::Entry| {
            let bare = entry.records.iter();
            let bare = bare.filter(|(_, logged)| !matches!(logged.content, Content::Data { .. }));
            bare.map(|(range, _)| range.end - range.start).sum::<u64>()
        };
        {
            let index = store.log.index.borrow();
            let covered: Vec<u64> = index.entries().iter().map(covered).collect();
            assert_eq!(covered.iter().sum::<u64>(), range.end, "all of it is there");
            assert!(
                covered.iter().all(|bytes| *bytes <= COVERED_MAX),
                "{covered:?}"
            );
        }
        assert_eq!(store.complete(), 3, "both changes are complete");
        assert_eq!(get(&store, 6..9).await, Ok(vec![0, 3, 0]));
        store.stop().await;
    });
}

/// Performs random changes on a log that wraps around many times, with stops in between, and
/// compares the content with an array.
#[test]
fn it_agrees_with_an_array_however_often_the_log_goes_round() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let mut model = vec![0u8; (VOLUME_BYTES / BLOCK_BYTES) as usize];
        let mut rng = Rng::new(7);
        let (mut store, mut next) = opened(&rt, &device).await;
        for step in 0..4_200u64 {
            let start = rng.below(model.len() as u64 - 40);
            let len = 1 + rng.below(40);
            let bytes: Vec<u8> = (0..len).map(|_| 1 + rng.below(250) as u8).collect();
            put(&rt, &store, &next, start, &bytes).await;
            model[start as usize..(start + len) as usize].copy_from_slice(&bytes);
            let probe = rng.below(model.len() as u64 - 64);
            let expected = &model[probe as usize..probe as usize + 64];
            assert_eq!(
                get(&store, probe..probe + 64).await.as_deref(),
                Ok(expected)
            );
            if step % 500 == 499 {
                store.stop().await;
                (store, next) = opened(&rt, &device).await;
                assert_eq!(store.found().complete_below, step + 2, "nothing is missing");
                let all = get(&store, 0..model.len() as u64).await;
                assert_eq!(all.as_ref(), Ok(&model));
            }
        }
        let (_, log) = store.counts();
        let (_, log_bytes) = store.log_bytes();
        assert!(log.bytes > log_bytes, "it went round in its last run alone");
        store.stop().await;
    });
}

/// The log is read up to the first torn entry, whatever follows it.
#[test]
fn a_torn_entry_ends_the_log() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        put(&rt, &store, &next, 0, &[1]).await;
        put(&rt, &store, &next, 0, &[2]).await;
        let last = store.log.index.borrow().entries()[1].clone();
        store.stop().await;
        let torn = store.log.area.at(last.position) + 4096;
        let write = Request::write(torn, rt.pool().zeroed(4096), Flags::NONE);
        device.submit(write).await.expect("it is overwritten");

        let (store, _) = opened(&rt, &device).await;
        assert_eq!(store.found().complete_below, 2);
        assert!(!store.found().damaged);
        assert_eq!(get(&store, 0..1).await, Ok(vec![1]));
        store.stop().await;
    });
}

/// An entry that became corrupt is not mistaken for the end of the log if later entries state that
/// it was durable.
#[test]
fn a_hole_among_durable_entries_is_damage() {
    for header_too in [false, true] {
        let rt = rt();
        let device = memory(&rt);
        rt.block_on(async {
            let (store, next) = opened(&rt, &device).await;
            put(&rt, &store, &next, 0, &[1]).await;
            store.flush(2).await.expect("it flushes");
            put(&rt, &store, &next, 1, &[2]).await;
            let first = store.log.index.borrow().entries()[0].clone();
            store.stop().await;
            let at = store.log.area.at(first.position);
            let (at, len) = if header_too {
                (at, 8192)
            } else {
                (at + 4096, 4096)
            };
            let write = Request::write(at, rt.pool().zeroed(len), Flags::NONE);
            device.submit(write).await.expect("it is overwritten");

            let (store, _) = opened(&rt, &device).await;
            assert_eq!(store.found().damaged, header_too);
            assert_eq!(
                get(&store, 1..2).await,
                Ok(vec![2]),
                "what follows is there"
            );
            if !header_too {
                // It is known which change is missing: reads of its block report the corruption,
                // before and after the change was due to be destaged.
                assert_eq!(get(&store, 0..1).await, Err(IoError::Corrupt));
                assert!(store.empty().await.expect("it goes on"));
                assert_eq!(get(&store, 0..1).await, Err(IoError::Corrupt));
                assert_eq!(store.take_suspects(), vec![0..4096]);
            }
            store.stop().await;
        });
    }
}

/// The checkpoint states that the last entry of the log was durable, but no later entry states it.
/// If the last entry is lost, an opening must notice this, because the log may have dropped the
/// content that the last entry replaces.
#[test]
fn an_entry_that_was_durable_at_the_last_checkpoint_is_missed() {
    for header_too in [false, true] {
        let rt = rt();
        let device = memory(&rt);
        rt.block_on(async {
            let (store, next) = opened(&rt, &device).await;
            put(&rt, &store, &next, 0, &[1]).await;
            put(&rt, &store, &next, 1, &[2]).await;
            store.flush(3).await.expect("it flushes");
            let entries = store.log.index.borrow().entries().clone();
            let dropped = store.log.drop_before(entries[0].end).await;
            dropped.expect("memory does not fail");
            store.stop().await;
            let at = store.log.area.at(entries[1].position);
            let (at, len) = match header_too {
                true => (at, 8192),
                false => (at + 4096, 4096),
            };
            let write = Request::write(at, rt.pool().zeroed(len), Flags::NONE);
            device.submit(write).await.expect("it is overwritten");

            let store = Store::open(&rt, &on(&device)).await.expect("it opens");
            assert_eq!(store.found().damaged, header_too);
            if !header_too {
                assert_eq!(store.found().complete_below, 3);
                assert_eq!(get(&store, 1..2).await, Err(IoError::Corrupt));
            }
        });
    }
}

/// If a side is started alone, it must have no change above the number up to which its changes are
/// complete. So the store must never destage a change above that number, and must still be able to
/// discard such changes.
#[test]
fn what_is_not_complete_can_be_forgotten() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        put(&rt, &store, &next, 0, &[1]).await;
        let missing = next.get();
        next.set(missing + 1);
        let held = Rc::new(move |limit: u64| missing.min(limit));
        store.monitor(1, held, Rc::new(|| false));
        put(&rt, &store, &next, 0, &[3]).await;
        put(&rt, &store, &next, 1, &[4]).await;
        assert!(
            !store.empty().await.expect("it goes on"),
            "the rest must stay"
        );
        assert_eq!(get(&store, 0..2).await, Ok(vec![3, 4]));
        store.stop().await;

        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        assert_eq!(store.found().complete_below, missing);
        store.forget_from(missing);
        assert_eq!(get(&store, 0..2).await, Ok(vec![1, 0]));
    });
}

/// A device on which writes become slower and slower once `writes` is set. From then on, the first
/// write takes 1 ms and fails, and each further write takes 1 ms longer than the write before it.
struct FailsOnce {
    rt: Rt,
    below: Rc<dyn Device>,
    writes: Cell<Option<u64>>,
}

impl Device for FailsOnce {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let (Some(before), Op::Write) = (self.writes.get(), request.op) else {
            return self.below.submit(request);
        };
        self.writes.set(Some(before + 1));
        IoFuture::new(async move {
            self.rt.sleep(Duration::from_millis(before + 1)).await;
            match before {
                0 => Err(IoError::Medium),
                _ => self.below.submit(request).await,
            }
        })
    }
}

/// A change arrives after an entry has failed, while a later entry is still in flight. No further
/// change arrives that could wake the log.
#[test]
fn a_change_that_comes_while_a_run_dies_is_stored_in_the_next_one() {
    let rt = rt();
    let device = Rc::new(FailsOnce {
        rt: rt.clone(),
        below: memory(&rt),
        writes: Cell::new(None),
    });
    rt.block_on(async {
        let as_device = Rc::clone(&device) as Rc<dyn Device>;
        let (store, _) = opened(&rt, &as_device).await;
        device.writes.set(Some(0));
        let append = |number| store.append(Append::zeroes(0..BLOCK_BYTES, Space::Freed, number));
        let (first, second) = (append(1), append(2));
        rt.sleep(Duration::from_micros(1500)).await;
        let third = append(3);
        let third = rt.timeout(Duration::from_secs(1), third.wait()).await;
        assert_eq!(third, Ok(Ok(())));
        let failed = (first.wait().await, second.wait().await);
        assert_eq!(failed, (Err(IoError::Medium), Err(IoError::Medium)));
        store.stop().await;
    });
}

/// When another store is opened on the side, no task that still uses the old store, such as a stop
/// or a scrub, may write to the side.
#[test]
fn a_store_that_is_over_changes_nothing() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (old, next) = opened(&rt, &device).await;
        put(&rt, &old, &next, 0, &[1]).await;
        old.flush(0).await.expect("it is flushed");
        old.end().await;

        let (store, _) = opened(&rt, &device).await;
        assert!(store.empty().await.expect("it goes home"));
        // The checkpoint on the device is now that of the new store.
        assert_eq!(old.check_areas(0).await, Err(IoError::Closed));
        assert_eq!(old.empty().await, Err(IoError::Closed));
        let append = Append::zeroes(0..BLOCK_BYTES, Space::Freed, next.get());
        let outcome = old.append(append).wait().await;
        assert_eq!(outcome, Err(IoError::Closed));
        store.stop().await;
        drop(store);

        let (store, _) = opened(&rt, &device).await;
        assert_eq!(get(&store, 0..1).await, Ok(vec![1]));
        assert_eq!(store.logged_bytes(), 0, "nothing has come back");
        store.stop().await;
    });
}

/// Each opening of the side needs room in the log. If there is none, entries are destaged and
/// dropped, although other sides lag. No more entries are dropped than necessary: for each of them,
/// whole regions have to be copied to the other sides.
#[test]
fn a_side_begins_however_often_it_was_stopped() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        for block in 0..200 {
            put(&rt, &store, &next, block, &[block as u8]).await;
        }
        store.stop().await;
        drop(store);
        for start in 0..40 {
            let store = Store::open(&rt, &on(&device)).await.expect("it opens");
            let logged = store.logged_bytes();
            assert_eq!(store.begin().await, Ok(()), "start {start}");
            if store.logged_bytes() < logged {
                assert!(store.logged_bytes() > 0, "some of it is left");
                let all: Vec<u8> = (0..200).collect();
                assert_eq!(get(&store, 0..200).await, Ok(all));
                return store.stop().await;
            }
            store.stop().await;
        }
        unreachable!("the log has no room for so many runs");
    });
}

/// The second change is not valid and is discarded. The side then lacks the valid content of that
/// block, because it was never given this content. The rebuild that would give it to the side is
/// interrupted after the log has dropped the second change, so the side must still lack the block.
#[test]
fn what_a_discarded_change_had_replaced_is_lacked_until_the_side_is_a_member_again() {
    let rt = rt();
    let device = memory(&rt);
    let block = 5 * BLOCK_BYTES..6 * BLOCK_BYTES;
    let is_lacked = |lacks: Vec<Range<u64>>| {
        let within = |range: &Range<u64>| range.start <= block.start && block.end <= range.end;
        lacks.iter().any(within)
    };
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        put(&rt, &store, &next, 0, &[1]).await;
        put(&rt, &store, &next, 5, &[2]).await;
        store.flush(next.get()).await.expect("it is flushed");
        store.stop().await;
        let counts_below = Rc::new(|_| 2);
        let on_device = StoreDevice {
            counts_below,
            ..on(&device)
        };
        let store = Store::open(&rt, &on_device).await.expect("it opens");
        store.set_epoch(3);
        assert!(is_lacked(store.discard_from(2, 1)));
        store.begin_mixing(None);
        store.release(u64::MAX, true);
        store.begin().await.expect("it begins");
        assert!(store.empty().await.expect("it goes home"));
        store.stop().await;
        let reopened = || async { Store::open(&rt, &on(&device)).await.expect("it opens") };
        assert!(reopened().await.changes_from(0).is_empty());
        assert!(is_lacked(reopened().await.discard_from(2, 1)));
        // A member of epoch 3 has since been given everything.
        assert!(!is_lacked(reopened().await.discard_from(2, 3)));
    });
}

/// A change was destaged while the side was being rebuilt, and the power was cut before the
/// checksums were updated. Once the log has dropped the change, its block must not be treated as
/// never written; otherwise, a rebuild would leave the wrong content there.
#[test]
fn the_home_of_a_discarded_change_does_not_pass_for_never_written() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        put(&rt, &store, &next, 5, &[2]).await;
        store.flush(next.get()).await.expect("it is flushed");
        store.stop().await;
        let counts_below = Rc::new(|_| 1);
        let on_device = StoreDevice {
            counts_below,
            ..on(&device)
        };
        let store = Store::open(&rt, &on_device).await.expect("it opens");
        store.discard_from(1, 1);
        store.unsettle().await.expect("it is told");
        store.begin_mixing(None);
        store.release(u64::MAX, true);
        store.begin().await.expect("it begins");
        assert!(store.empty().await.expect("it is let go of"));
        store.stop().await;
        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        assert!(store.changes_from(0).is_empty());
        let blocks = |from: u64, to: u64| from * BLOCK_BYTES..to * BLOCK_BYTES;
        let unknown = store.unknown_in(&blocks(0, 8)).await;
        assert_eq!(unknown, Ok(vec![blocks(5, 6)]));
    });
}
