//! Tests of a log without free space, and of the changes that wait for space.

use super::*;
use crate::layers::fault::{Fault, FaultPlan};

/// Appends changes of 16 blocks at different places, until about `waiting` of them wait for space.
fn fill(rt: &Rt, store: &Store, next: &Cell<u64>, waiting: u64) -> Vec<Outcome> {
    const BYTES: u64 = 16 * BLOCK_BYTES;
    let (_, log_bytes) = store.log_bytes();
    let count = log_bytes / BYTES + waiting;
    let append = |at: u64| {
        let number = next.get();
        next.set(number + 1);
        let start = at * BYTES % VOLUME_BYTES;
        let payload = Payload::from(rt.pool().zeroed(BYTES as usize));
        store.append(Append::of(start..start + BYTES, payload, number))
    };
    (0..count).map(append).collect()
}

/// The side was not given change 1, so no later change is complete: nothing can be destaged, and
/// the log fills up. Then change 1 reaches the side without an entry in the log. The flush that now
/// frees space in the log must not wait for changes that wait for this space.
#[test]
fn a_flush_waits_for_no_change_that_waits_for_space() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        let given = Rc::new(Cell::new(1));
        let says = Rc::clone(&given);
        store.monitor(
            1,
            Rc::new(move |limit| says.get().min(limit)),
            Rc::new(|| false),
        );
        let outcomes = fill(&rt, &store, &next, 8);
        rt.sleep(Duration::from_secs(1)).await;
        assert!(store.is_full(), "nothing is complete, so nothing goes home");
        assert_eq!(store.complete(), 1);

        given.set(u64::MAX);
        let flushed = rt.timeout(Duration::from_secs(10), store.flush(2)).await;
        assert_eq!(flushed, Ok(Ok(())));
        let stored = rt
            .timeout(Duration::from_secs(10), all_stored(outcomes))
            .await;
        assert_eq!(stored, Ok(Ok(())));
        store.stop().await;
    });
}

/// The log is full and is not flushed. It notices that it is complete up to a higher sequence
/// number than its last entry states, and writes an entry that states the higher number.
#[test]
fn a_full_log_says_what_is_complete_since() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        let given = Rc::new(Cell::new(1));
        let says = Rc::clone(&given);
        store.monitor(
            1,
            Rc::new(move |limit| says.get().min(limit)),
            Rc::new(|| false),
        );
        let outcomes = fill(&rt, &store, &next, 8);
        rt.sleep(Duration::from_secs(1)).await;
        assert!(store.is_full(), "nothing is complete, so nothing goes home");

        given.set(u64::MAX);
        let stored = rt
            .timeout(Duration::from_secs(10), all_stored(outcomes))
            .await;
        assert_eq!(stored, Ok(Ok(())));
        store.stop().await;
    });
}

/// Space for changes that are appended but not in a log entry yet counts as used. While these
/// changes need more space than the log has, no other change may overtake them.
#[test]
fn nothing_overtakes_while_the_space_is_taken_by_what_waits_for_it() {
    let rt = rt();
    let device = memory(&rt);
    rt.block_on(async {
        let (store, next) = opened(&rt, &device).await;
        assert!(store.may_overtake(0, 0), "the log is empty");
        let outcomes = fill(&rt, &store, &next, 0);
        assert!(!store.may_overtake(0, 0), "more waits than it is long");
        all_stored(outcomes).await.expect("it goes home meanwhile");
        assert!(store.may_overtake(0, 0), "all of it is complete");
        store.stop().await;
    });
}

/// On a logged side, no chunk releases what its log withholds, and the room of each entry that is
/// dropped would be withheld in addition. A device that stalls in a commit must not make the log
/// withhold anything: after a round of the log, changes would wait forever.
#[test]
fn a_stall_in_a_commit_withholds_nothing_on_a_logged_side() {
    let rt = rt();
    let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 64 << 20));
    let fault = Fault::new(&rt, memory, FaultPlan::default(), 1);
    let control = fault.control();
    let device: Rc<dyn Device> = Rc::new(fault);
    rt.block_on(async {
        let on = formatted_as(&rt, &device, SideKind::Log).await;
        let (store, next) = opened_on(&rt, &on).await;
        put(&rt, &store, &next, 3, &[1]).await;
        store.flush(next.get()).await.expect("it is durable");
        control.set_delay(Op::Flush, Duration::from_secs(1));
        assert_eq!(store.empty().await, Ok(true));
        control.set_delay(Op::Flush, Duration::ZERO);
        let (open, free) = store.log.open_bytes();
        assert_eq!(open, free, "nothing is withheld");
        store.stop().await;
    });
}
