//! Admission: the single order of all changes. Every change gets the next sequence number, holds
//! the lock of its range until it is acknowledged, and is undecided until it is stored or has
//! failed.
//!
//! Two changes of the same block must never be in flight without a lock between them, and a
//! sequence number must never be used twice. The unacknowledged changes together must never exceed
//! a quarter of the smallest log. The exposure has the same bound. After a crash, a side may lack
//! all of these changes. If the log of the side could not hold the changes that it lacks, opening
//! the volume would have to discard content of the side, which T14 forbids.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore, WaitQueue};

use super::undecided::Undecided;
use crate::BLOCK_BYTES;
use crate::range_lock::RangeLock;

/// State of admission; see the module.
pub(super) struct Admission {
    /// Lock that admits one change at a time per range, so that every side sees overlapping changes
    /// in one order.
    pub(super) ranges: Rc<RangeLock>,
    /// Semaphore that serves writes one at a time, as the paper's operation queue does; `None`
    /// unless configured.
    pub(super) serial: Option<Rc<Semaphore>>,
    /// Admitted writes whose outcome (stored or failed) is not yet known.
    pub(super) undecided: Undecided,
    next_number: Cell<u64>,
    /// Signaled when a change was admitted.
    pub(super) admitted: Event,
    room: Rc<Room>,
}

/// Budget of bytes for unacknowledged changes.
struct Room {
    taken_bytes: Cell<u64>,
    /// Changes that wait for room in the budget, in order of arrival.
    waiting: WaitQueue,
}

/// Room that one change occupies in the budget; released when this guard is dropped.
pub(super) struct Taken {
    room: Rc<Room>,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let taken_bytes = &self.room.taken_bytes;
        taken_bytes.set(taken_bytes.get() - self.bytes);
        self.room.waiting.wake_first();
    }
}

impl Admission {
    /// Creates the state of the admission with `next_number` as the first sequence number. With
    /// `serial`, only one write is in flight at a time.
    pub(super) fn new(next_number: u64, serial: bool) -> Admission {
        Admission {
            ranges: RangeLock::new(),
            serial: serial.then(|| Semaphore::new(1)),
            undecided: Undecided::default(),
            next_number: Cell::new(next_number),
            admitted: Event::new(),
            room: Rc::new(Room {
                taken_bytes: Cell::new(0),
                waiting: WaitQueue::new(),
            }),
        }
    }

    /// Waits, in order of arrival, for room for a change with `data_bytes` of content. There is
    /// room when this change and all other unacknowledged changes, each with its header in the log,
    /// take at most `bytes_max`, or when there is no other unacknowledged change. Dropping the
    /// returned guard releases the room.
    pub(super) async fn take_room(&self, data_bytes: u64, bytes_max: impl Fn() -> u64) -> Taken {
        let (room, bytes) = (&self.room, data_bytes + BLOCK_BYTES);
        let take = || {
            let taken = room.taken_bytes.get();
            let fits = taken == 0 || taken + bytes <= bytes_max();
            fits.then(|| {
                room.taken_bytes.set(taken + bytes);
                Taken {
                    room: Rc::clone(room),
                    bytes,
                }
            })
        };
        let at_once = room.waiting.is_empty().then(take).flatten();
        match at_once {
            Some(taken) => taken,
            None => room.waiting.in_turn(take).await,
        }
    }

    /// Returns the sequence number that the next change will get; all lower numbers are in use.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.get()
    }

    /// Allocates the next sequence number for a change.
    pub(super) fn take_number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    /// Wakes the tasks that wait until a change is admitted.
    pub(super) fn tell(&self) {
        if self.admitted.waiting() > 0 {
            self.admitted.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use bimetal_rt::{Rt, VirtualOptions, yield_now};
    use futures_util::FutureExt;

    use super::*;

    const BOUND: u64 = 4 * BLOCK_BYTES;

    /// Starts a task that waits until a change of `blocks` blocks (header included) is admitted,
    /// and then puts the guard of the change in `admitted`. Removing this guard acknowledges the
    /// change.
    fn start(rt: &Rt, admission: &Rc<Admission>, blocks: u64, admitted: &Rc<RefCell<Vec<Taken>>>) {
        let (admission, admitted) = (Rc::clone(admission), Rc::clone(admitted));
        let task = rt.spawn(async move {
            let data_bytes = (blocks - 1) * BLOCK_BYTES;
            let taken = admission.take_room(data_bytes, || BOUND).await;
            admitted.borrow_mut().push(taken);
        });
        task.detach();
    }

    async fn settle() {
        for _ in 0..8 {
            yield_now().await;
        }
    }

    /// Starts changes of the given lengths (in blocks, header included) at the same time. Returns
    /// the lengths of the admitted changes, first at the start and then after each acknowledgement
    /// of the oldest admitted change.
    fn admitted_of(blocks: &[u64]) -> Vec<Vec<u64>> {
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(async {
            let (admission, admitted) = (Rc::new(Admission::new(1, false)), Rc::default());
            for &blocks in blocks {
                start(&rt, &admission, blocks, &admitted);
            }
            let mut seen = Vec::new();
            loop {
                settle().await;
                let blocks = |taken: &Taken| taken.bytes / BLOCK_BYTES;
                let lengths: Vec<u64> = admitted.borrow().iter().map(blocks).collect();
                if lengths.is_empty() {
                    return seen;
                }
                seen.push(lengths);
                let acknowledged = admitted.borrow_mut().remove(0);
                drop(acknowledged);
            }
        })
    }

    #[test]
    fn changes_have_room_up_to_the_bound_and_in_the_order_of_arrival() {
        // The fourth change would fit beside the first two changes, but the third change arrived
        // earlier and must be admitted first.
        let seen = admitted_of(&[2, 1, 3, 1]);
        let expected: [&[u64]; 4] = [&[2, 1], &[1, 3], &[3, 1], &[1]];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_change_that_is_longer_than_the_bound_is_alone() {
        assert_eq!(admitted_of(&[1, 9, 1]), [vec![1], vec![9], vec![1]]);
    }

    #[test]
    fn a_change_that_leaves_the_queue_keeps_nobody_waiting() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(async {
            let (admission, admitted) = (Rc::new(Admission::new(1, false)), Rc::default());
            let first = admission.take_room(2 * BLOCK_BYTES, || BOUND).await;
            let mut leaves = Box::pin(admission.take_room(3 * BLOCK_BYTES, || BOUND));
            assert!(leaves.as_mut().now_or_never().is_none());
            start(&rt, &admission, 1, &admitted);
            settle().await;
            assert!(admitted.borrow().is_empty());
            drop(leaves);
            settle().await;
            assert_eq!(admitted.borrow().len(), 1);
            drop(first);
        });
    }
}
