//! Tests of what a copy from one side alone is told.

use super::*;

/// A block of which no side had the content has no place on a logged side, and still is missing.
#[test]
fn a_block_that_no_side_had_is_lost_on_a_side_of_either_layout() {
    for kind in [SideKind::Home, SideKind::Log] {
        let rt = rt();
        let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 64 << 20));
        rt.block_on(async {
            let on = formatted_as(&rt, &device, kind).await;
            let (store, next) = opened_on(&rt, &on).await;
            put(&rt, &store, &next, 3, &[1, 2, 3]).await;
            let lost = 4 * BLOCK_BYTES..5 * BLOCK_BYTES;
            let append = Append::lost(lost.clone(), next.replace(next.get() + 1));
            store.append(append).wait().await.expect("it is stored");
            store.flush(next.get()).await.expect("it is durable");
            assert_eq!(store.empty().await, Ok(true));
            let found = store.lost_ranges().await.expect("it can be read");
            assert_eq!(found.iter().collect::<Vec<_>>(), [lost], "{kind:?}");
            // A newer change counts.
            put(&rt, &store, &next, 4, &[4]).await;
            let found = store.lost_ranges().await.expect("it can be read");
            assert!(found.is_empty(), "{kind:?}");
            store.stop().await;
        });
    }
}
