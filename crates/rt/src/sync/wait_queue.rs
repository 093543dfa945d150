//! A queue of tasks that compete for a resource. Tasks must wait for a resource only in such a
//! queue, and the queue must be used for nothing else.
//!
//! Each waiting task has a number. Tasks with the same number are in order of arrival. A wake-up is
//! sent only to tasks that might be able to continue: to the first task in the queue, or to the
//! tasks with or up to a certain number. The other tasks are not woken, because they would only
//! find that another task has already taken the resource. The cost of a wake-up therefore does not
//! depend on the number of tasks that stay asleep. Tasks that wait in
//! [`in_turn`](WaitQueue::in_turn) never overtake each other.
//!
//! The queue must never decide by itself that a condition holds: conditions are in the caller's
//! state, and the code that changes that state wakes the tasks that the change concerns.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

/// A queue of tasks that wait for a resource, ordered by number and then by arrival.
#[derive(Default)]
pub struct WaitQueue {
    /// The wakers of the waiting tasks, by number and arrival.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    arrivals: Cell<u64>,
}

impl WaitQueue {
    /// Creates a queue without waiting tasks.
    pub fn new() -> WaitQueue {
        WaitQueue::default()
    }

    /// Waits in order of arrival until `condition` returns a value. Only the first task in the
    /// queue checks its condition, when it arrives and after every
    /// [`wake_first`](Self::wake_first). A task that arrives while others wait joins the end of the
    /// queue, even if its condition holds.
    ///
    /// When a task leaves the queue, because it has a value or because its future was dropped, the
    /// next task is woken.
    pub async fn in_turn<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        let mut place = Waiter {
            queue: self,
            number: 0,
            arrival: None,
            wakes_next: true,
        };
        std::future::poll_fn(|context| {
            if place.is_first()
                && let Some(value) = condition()
            {
                return Poll::Ready(value);
            }
            place.wait(context)
        })
        .await
    }

    /// Waits in the queue with the number `number` until `condition` holds. Checks the condition
    /// immediately, and again after every wake-up of the tasks with this number.
    pub async fn at(&self, number: u64, mut condition: impl FnMut() -> bool) {
        let mut place = Waiter {
            queue: self,
            number,
            arrival: None,
            wakes_next: false,
        };
        std::future::poll_fn(|context| {
            if condition() {
                return Poll::Ready(());
            }
            place.wait(context)
        })
        .await;
    }

    /// Wakes the first task in the queue.
    pub fn wake_first(&self) {
        // A waker only pushes its task onto the ready queue, so it is safe to call a waker while
        // `waiting` is borrowed.
        if let Some((_, waker)) = self.waiting.borrow().first_key_value() {
            waker.wake_by_ref();
        }
    }

    /// Wakes the tasks that wait under `number`.
    pub fn wake_at(&self, number: u64) {
        let waiting = self.waiting.borrow();
        for (_, waker) in waiting.range((number, 0)..=(number, u64::MAX)) {
            waker.wake_by_ref();
        }
    }

    /// Wakes the tasks that wait under `number` or a lower one.
    pub fn wake_through(&self, number: u64) {
        for (_, waker) in self.waiting.borrow().range(..=(number, u64::MAX)) {
            waker.wake_by_ref();
        }
    }

    /// Returns the number of waiting tasks.
    pub fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Returns true when no task waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

/// Entry of one waiting task. Dropping it removes the task from the queue.
struct Waiter<'q> {
    queue: &'q WaitQueue,
    number: u64,
    /// `None` until the task has waited once.
    arrival: Option<u64>,
    wakes_next: bool,
}

impl Waiter<'_> {
    fn is_first(&self) -> bool {
        let waiting = self.queue.waiting.borrow();
        let first = waiting.first_key_value();
        first.is_none_or(|(key, _)| Some(key.1) == self.arrival)
    }

    fn wait<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        let arrival = *self.arrival.get_or_insert_with(|| {
            let arrival = self.queue.arrivals.get();
            self.queue.arrivals.set(arrival + 1);
            arrival
        });
        let mut waiting = self.queue.waiting.borrow_mut();
        let waker = waiting
            .entry((self.number, arrival))
            .or_insert_with(|| context.waker().clone());
        waker.clone_from(context.waker());
        Poll::Pending
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(arrival) = self.arrival else { return };
        let mut waiting = self.queue.waiting.borrow_mut();
        waiting.remove(&(self.number, arrival));
        drop(waiting);
        // This task leaves the queue. Perhaps it is the only task that was woken for a change, so
        // wake the next task, which checks its condition instead.
        if self.wakes_next {
            self.queue.wake_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::sync::TaskGroup;
    use crate::{Rng, Rt, VirtualOptions};

    fn shuffled(seed: u64) -> Rt {
        Rt::virtual_time(VirtualOptions {
            seed,
            shuffle: true,
        })
    }

    /// Tests that tasks get a resource in order of arrival. The tasks need random amounts of the
    /// resource, which is released unit by unit, and some tasks stop waiting before they get any.
    #[test]
    fn tasks_go_in_order_of_arrival_whatever_they_want() {
        let rt = shuffled(7);
        let queue = Rc::new(WaitQueue::new());
        let free = Rc::new(Cell::new(0u64));
        let went = Rc::new(RefCell::new(Vec::new()));
        let mut rng = Rng::new(3);
        let group = TaskGroup::new(&rt);
        let mut wanted = 0;
        for number in 0..200u64 {
            let (count, leaves) = (1 + rng.below(5), rng.chance(0.2));
            wanted += if leaves { 0 } else { count };
            let (rt2, queue, free, went) = (rt.clone(), queue.clone(), free.clone(), went.clone());
            group.spawn(async move {
                rt2.sleep(Duration::from_nanos(number + 1)).await;
                let take = || (free.get() >= count).then(|| free.set(free.get() - count));
                if leaves {
                    // No unit is free while tasks arrive.
                    let gone = rt2.timeout(Duration::from_nanos(1), queue.in_turn(take));
                    assert!(gone.await.is_err());
                    return;
                }
                queue.in_turn(take).await;
                went.borrow_mut().push(number);
            });
        }
        rt.block_on(async {
            rt.sleep(Duration::from_micros(1)).await;
            for _ in 0..wanted {
                free.set(free.get() + 1);
                queue.wake_first();
                rt.sleep(Duration::from_nanos(1)).await;
            }
            group.join().await;
        });
        assert!(went.borrow().is_sorted() && went.borrow().len() > 100);
        assert!(queue.is_empty() && free.get() == 0);
    }

    /// Tests that each woken task checks its condition once, and that tasks that are not woken
    /// check nothing, however many tasks wait.
    #[test]
    fn a_wake_up_reaches_those_whom_it_names() {
        let rt = shuffled(1);
        let queue = Rc::new(WaitQueue::new());
        let (probes, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0u64)));
        let group = TaskGroup::new(&rt);
        for number in 0..100 {
            let (queue, probes, done) = (queue.clone(), probes.clone(), done.clone());
            group.spawn(async move {
                let condition = || {
                    probes.set(probes.get() + 1);
                    done.get() > number
                };
                queue.at(number, condition).await;
            });
        }
        rt.block_on(async {
            rt.sleep(Duration::from_nanos(1)).await;
            assert_eq!((probes.get(), queue.len()), (100, 100));
            done.set(1);
            queue.wake_at(0);
            rt.sleep(Duration::from_nanos(1)).await;
            assert_eq!((probes.get(), queue.len()), (101, 99));
            done.set(10);
            queue.wake_through(9);
            rt.sleep(Duration::from_nanos(1)).await;
            assert_eq!((probes.get(), queue.len()), (110, 90));
            done.set(100);
            queue.wake_through(u64::MAX);
            group.join().await;
        });
        assert_eq!(probes.get(), 200);
    }
}
