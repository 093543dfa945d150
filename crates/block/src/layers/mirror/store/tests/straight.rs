//! Tests of content that a side holds and may lose, from the write of the content until a flush has
//! covered it.

use futures_util::FutureExt;

use super::*;
use crate::layers::fault::{Fault, FaultPlan};

/// Returns, for each range, its first block and the block after its last one.
fn blocks(ranges: &RangeSet) -> Vec<(u64, u64)> {
    let of_blocks = |range: Range<u64>| (range.start / BLOCK_BYTES, range.end / BLOCK_BYTES);
    ranges.iter().map(of_blocks).collect()
}

/// Content that was written directly to its home location can be lost until the slow flush that
/// covers it has ended.
#[test]
fn what_went_straight_home_may_be_lost_until_its_flush_has_ended() {
    let rt = rt();
    let fault = Fault::new(&rt, memory(&rt), FaultPlan::default(), 1);
    let control = fault.control();
    let device: Rc<dyn Device> = Rc::new(fault);
    rt.block_on(async {
        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        store.begin_mixing(None);
        store.begin().await.expect("it begins");
        let range = 8 * BLOCK_BYTES..12 * BLOCK_BYTES;
        store
            .announce(vec![range.clone()])
            .await
            .expect("announced");
        let copy = async || {
            let kept = store.begin_straight(&range).expect("nothing is in its way");
            let data = Payload::from(rt.pool().copy_of(&[7; 4 * BLOCK_BYTES as usize]));
            store
                .write_straight(Vec::from([kept]), data)
                .await
                .expect("written");
        };
        copy().await;
        control.set_delay(Op::Flush, Duration::from_secs(1));
        let mut settling = Box::pin(store.settle());
        let early = rt
            .timeout(Duration::from_millis(500), settling.as_mut())
            .await;
        assert!(early.is_err(), "the flush is under way");
        assert_eq!(blocks(&store.take_not_durable()), [(8, 12)]);
        settling.await.expect("it ends");
        copy().await;
        assert_eq!(blocks(&store.take_not_durable()), [(8, 12)]);
        copy().await;
        store.settle().await.expect("durable");
        assert_eq!(blocks(&store.take_not_durable()), []);
        assert!(
            store.settle().now_or_never().is_some(),
            "nothing is left to do"
        );
        store.stop().await;
    });
}

/// A change that a rebuild writes through the log has the sequence number of an older change. It
/// can be lost although every other change below that number is durable.
#[test]
fn what_has_an_old_number_may_be_lost_as_well() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        put(&rt, &store, &next, 3, &[1]).await;
        store.flush(next.get()).await.expect("durable");
        assert_eq!(blocks(&store.take_not_durable()), []);
        next.set(next.get() - 1);
        put(&rt, &store, &next, 20, &[2]).await;
        assert!(store.complete_durable() >= next.get());
        assert_eq!(blocks(&store.take_not_durable()), [(20, 21)]);
        store.flush(next.get()).await.expect("durable");
        store.stop().await;
    });
}

/// In a range that the side lacks, changes in the log are older than the content that a rebuild
/// writes directly to the home location. Once the side is a member again, the next opening trusts
/// its log, so the log must have dropped these changes by then.
#[test]
fn what_the_log_held_before_a_rebuild_is_not_found_again_after_it() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        for block in 8..12 {
            put(&rt, &store, &next, block, &[1]).await;
        }
        put(&rt, &store, &next, 20, &[2]).await;
        store.flush(next.get()).await.expect("durable");
        store.stop().await;

        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        let lacking = 9 * BLOCK_BYTES..12 * BLOCK_BYTES;
        let mut lacks = RangeSet::new();
        lacks.insert(lacking.clone());
        store.forget_lacking(&lacks, &Superseded::default()).await;
        store.begin_mixing(Some(0));
        store.begin().await.expect("it begins");
        store.release(u64::MAX, false);
        bring(&rt, &store, lacking).await;
        store.end_straight();
        store.settle().await.expect("durable");
        store
            .drop_superseded()
            .await
            .expect("the log lets go of it");
        store.end_mixing();
        store.stop().await;

        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        assert_eq!(get(&store, 8..12).await, Ok(vec![1, 7, 7, 7]));
        assert_eq!(get(&store, 20..21).await, Ok(vec![2]));
        store.stop().await;
    });
}

/// Announces a range of three blocks, whose changes in the log were discarded. Then writes three
/// blocks, filled with the byte 7, directly to the home location of the range.
async fn bring(rt: &Rt, store: &Rc<Store>, range: Range<u64>) {
    let announced = store.announce(vec![range.clone()]);
    announced.await.expect("announced");
    let kept = store.begin_straight(&range);
    let kept = kept.expect("what is forgotten is not in its way");
    let data = Payload::from(rt.pool().copy_of(&[7; 3 * BLOCK_BYTES as usize]));
    store
        .write_straight(Vec::from([kept]), data)
        .await
        .expect("written");
}

/// A rebuild has written some ranges directly to their home location before it is interrupted, so
/// the side no longer lacks these ranges. The log still has older changes of these ranges, and is
/// read again when the side comes back. The older changes must be ignored, and must not cancel
/// changes that have entered the log since.
#[test]
fn what_the_log_held_before_a_rebuild_that_was_cut_short_does_not_count_again() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        for block in 8..12 {
            put(&rt, &store, &next, block, &[1]).await;
        }
        store.flush(next.get()).await.expect("durable");
        store.stop().await;

        let mut lacks = RangeSet::new();
        lacks.insert(9 * BLOCK_BYTES..12 * BLOCK_BYTES);
        let mut superseded = Superseded::default();
        for (change, expected) in [(5, [1, 7, 5, 7]), (6, [1, 7, 6, 7])] {
            let store = Store::open(&rt, &on(&device)).await.expect("it opens");
            let begun = store.begin_rebuilt(Some(0), &lacks, &superseded);
            begun.await.expect("it begins");
            for range in lacks.iter() {
                bring(&rt, &store, range).await;
            }
            store.settle().await.expect("durable");
            put(&rt, &store, &next, 10, &[change]).await;
            store.flush(0).await.expect("durable");
            assert_eq!(get(&store, 8..12).await, Ok(expected.to_vec()));
            store.end().await;
            // No range is lacking when the side comes back.
            lacks.clear();
            superseded = store.superseded();
        }

        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        let begun = store.begin_rebuilt(Some(0), &lacks, &superseded);
        begun.await.expect("it begins");
        assert_eq!(get(&store, 8..12).await, Ok(vec![1, 7, 6, 7]));
        store.release(u64::MAX, false);
        store
            .drop_superseded()
            .await
            .expect("the log lets go of it");
        store.end_mixing();
        store.stop().await;

        let store = Store::open(&rt, &on(&device)).await.expect("it opens");
        assert_eq!(get(&store, 8..12).await, Ok(vec![1, 7, 6, 7]));
        store.stop().await;
    });
}
