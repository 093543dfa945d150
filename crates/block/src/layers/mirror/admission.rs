//! Admission: the one order of all changes. Every change gets the next sequence number, holds the
//! lock of its range until it is acknowledged, and is undecided until it is stored.
//!
//! Two changes of one block must never be under way without a lock between them, and a number is
//! never given twice. Together the changes that are not acknowledged must never be longer than the
//! share of the smallest log that the exposure is also bounded by. After a crash a side may lack
//! all of them, and when its log cannot take what it lacks, an opening has to make the side less
//! than it was (T14).

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore, WaitQueue};

use super::undecided::Undecided;
use crate::BLOCK_BYTES;
use crate::range_lock::RangeLock;

/// See the module.
pub(super) struct Admission {
    /// One change at a time per range, so that every side sees overlapping ones in one order.
    pub(super) ranges: Rc<RangeLock>,
    /// The paper's operation queue served one by one, when asked for.
    pub(super) serial: Option<Rc<Semaphore>>,
    /// Admitted writes of which it is open whether they are stored.
    pub(super) undecided: Undecided,
    next_number: Cell<u64>,
    /// A change was admitted.
    pub(super) admitted: Event,
    room: Rc<Room>,
}

/// The room that is taken by changes that are not acknowledged.
struct Room {
    taken_bytes: Cell<u64>,
    /// Changes that wait until there is room for them, in the order of arrival.
    waiting: WaitQueue,
}

/// The room of one change, until it is dropped.
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
    /// Numbers begin with `next_number`. With `serial`, one change is under way at a time.
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

    /// Waits for room for a change with `data_bytes` of content, in the order of arrival. There is
    /// room when this change and all that are not acknowledged take at most `bytes_max`, each with
    /// its header in the log, or when this one is the only one. The room is given back when the
    /// returned guard is dropped.
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

    /// The number that the next change gets; all below it are taken.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number.get()
    }

    /// Takes a number for a change.
    pub(super) fn take_number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    /// Tells those who wait for a change that there is one.
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

    /// Starts a change of this many blocks, with its header, that is acknowledged when it is
    /// dropped from the list.
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

    /// Changes of these lengths in blocks, with a header each, come at once. Returns the lengths of
    /// those that are admitted at first, and after each acknowledgement of the oldest one.
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
        // The last one would fit beside the first two, and waits behind the third all the same.
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
