//! Synchronization of the tasks of one runtime: wait queues, counted permits, bounded queues, task
//! groups, and events. All these types are single-threaded, and their futures can safely be dropped
//! at any point.
//!
//! Tasks that compete for a resource wait in a [`WaitQueue`], first come, first served. An
//! [`Event`] wakes all tasks that wait for it. Use an event only for a condition for which few
//! tasks wait, and which no task can make false before all woken tasks have checked it.

mod wait_queue;

pub use wait_queue::WaitQueue;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::executor::{Rt, Task};

/// Entry of one task that waits for an event. Dropping it removes the task's waker from the event.
struct Waiter<'a> {
    wakers: &'a RefCell<Slab<Waker>>,
    key: Option<usize>,
}

impl Waiter<'_> {
    fn wait(&mut self, context: &Context<'_>) {
        let mut wakers = self.wakers.borrow_mut();
        match self.key.and_then(|key| wakers.get_mut(key)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.key = Some(wakers.insert(context.waker().clone())),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.wakers.borrow_mut().try_remove(key);
        }
    }
}

/// A signal that wakes the waiting tasks, so that they check their conditions again. The event has
/// no state of its own: the conditions are in the caller's state. A task checks its condition
/// before it waits, so it misses no wake-up.
#[derive(Default)]
pub struct Event {
    wakers: RefCell<Slab<Waker>>,
}

impl Event {
    /// Creates an event without waiting tasks.
    pub fn new() -> Event {
        Event::default()
    }

    /// Makes every waiting task check its condition again.
    pub fn notify(&self) {
        // A waker only pushes its task onto the ready queue, so it is safe to call a waker while
        // `wakers` is borrowed.
        for (_, waker) in &*self.wakers.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Waits until `condition` holds. Checks it immediately and after every
    /// [`notify`](Self::notify).
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        self.until_some(|| condition().then_some(())).await;
    }

    /// Waits until `condition` returns a value.
    pub async fn until_some<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        let mut place = Waiter {
            wakers: &self.wakers,
            key: None,
        };
        std::future::poll_fn(|context| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                place.wait(context);
                Poll::Pending
            }
        })
        .await
    }

    /// Returns the number of waiting tasks.
    pub fn waiting(&self) -> usize {
        self.wakers.borrow().len()
    }
}

/// A number of permits, which are granted to waiting tasks in order of arrival. Small requests
/// therefore never starve a large request that arrived before them.
pub struct Semaphore {
    free: Cell<u64>,
    capacity: Cell<u64>,
    waiting: WaitQueue,
}

impl Semaphore {
    /// Creates a semaphore with `capacity` permits, all free.
    pub fn new(capacity: u64) -> Rc<Semaphore> {
        Rc::new(Semaphore {
            free: Cell::new(capacity),
            capacity: Cell::new(capacity),
            waiting: WaitQueue::new(),
        })
    }

    /// Returns the number of free permits.
    pub fn free(&self) -> u64 {
        self.free.get()
    }

    /// Waits until `count` permits are free, and takes them.
    ///
    /// # Panics
    /// If `count` exceeds the capacity.
    pub async fn acquire(self: &Rc<Semaphore>, count: u64) -> Permit {
        assert!(
            count <= self.capacity(),
            "{count} permits of {} can never be had",
            self.capacity()
        );
        self.waiting.in_turn(|| self.take(count)).await
    }

    /// Takes `count` permits if they are free and no task waits.
    pub fn try_acquire(self: &Rc<Semaphore>, count: u64) -> Option<Permit> {
        self.waiting.is_empty().then(|| self.take(count)).flatten()
    }

    fn take(self: &Rc<Semaphore>, count: u64) -> Option<Permit> {
        let left = self.free.get().checked_sub(count)?;
        self.free.set(left);
        Some(Permit {
            semaphore: Rc::clone(self),
            count,
        })
    }

    /// Returns the number of permits that there are, free or not.
    pub fn capacity(&self) -> u64 {
        self.capacity.get()
    }

    /// Adds permits.
    pub fn add(&self, count: u64) {
        self.capacity.set(self.capacity.get() + count);
        self.free.set(self.free.get() + count);
        self.waiting.wake_first();
    }

    /// Takes away up to `count` of the free permits, if no task waits for permits.
    pub fn remove(&self, count: u64) {
        if self.waiting.is_empty() {
            let count = count.min(self.free.get());
            self.capacity.set(self.capacity.get() - count);
            self.free.set(self.free.get() - count);
        }
    }

    /// Returns the number of tasks that wait for permits.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Permits of a [`Semaphore`] that are held until this is dropped.
pub struct Permit {
    semaphore: Rc<Semaphore>,
    count: u64,
}

impl Permit {
    /// Returns the number of permits held.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Splits off `count` of the permits into a `Permit` of their own, which releases them when it
    /// is dropped.
    ///
    /// # Panics
    /// If fewer than `count` permits are held.
    pub fn split(&mut self, count: u64) -> Permit {
        let left = self.count.checked_sub(count);
        self.count = left.expect("permits are split among those that are held");
        Permit {
            semaphore: Rc::clone(&self.semaphore),
            count,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let semaphore = &self.semaphore;
        semaphore.free.set(semaphore.free.get() + self.count);
        assert!(
            semaphore.free.get() <= semaphore.capacity(),
            "a permit returned twice"
        );
        semaphore.waiting.wake_first();
    }
}

struct QueueState<T> {
    items: RefCell<VecDeque<T>>,
    depth_max: usize,
    closed: Cell<bool>,
    /// Queues of the tasks that wait. `pushing`: tasks that wait until they can push an item.
    /// `popping`: tasks that wait until they can pop an item.
    pushing: WaitQueue,
    popping: WaitQueue,
}

/// A bounded queue between tasks. A clone is another handle to the same queue.
pub struct Queue<T>(Rc<QueueState<T>>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Queue<T> {
        Queue(Rc::clone(&self.0))
    }
}

impl<T> Queue<T> {
    /// Creates an empty queue of at most `depth_max` items.
    pub fn new(depth_max: usize) -> Queue<T> {
        assert!(depth_max > 0, "a queue holds at least one item");
        Queue(Rc::new(QueueState {
            items: RefCell::new(VecDeque::new()),
            depth_max,
            closed: Cell::new(false),
            pushing: WaitQueue::new(),
            popping: WaitQueue::new(),
        }))
    }

    /// Appends an item, and waits while the queue is full.
    ///
    /// # Errors
    /// Returns the item when the queue is closed.
    pub async fn push(&self, item: T) -> Result<(), T> {
        let state = &self.0;
        let mut item = Some(item);
        let pushed = state.pushing.in_turn(|| {
            let is_full = state.items.borrow().len() >= state.depth_max;
            if is_full && !state.closed.get() {
                return None;
            }
            let item = item.take().expect("it is pushed once");
            Some(self.put(item))
        });
        pushed.await
    }

    /// Appends an item if there is room and no task waits to push.
    ///
    /// # Errors
    /// Returns the item when the queue is full or closed, or a task waits to push.
    pub fn try_push(&self, item: T) -> Result<(), T> {
        match self.0.pushing.is_empty() {
            true => self.put(item),
            false => Err(item),
        }
    }

    fn put(&self, item: T) -> Result<(), T> {
        let state = &self.0;
        if state.closed.get() || state.items.borrow().len() >= state.depth_max {
            return Err(item);
        }
        state.items.borrow_mut().push_back(item);
        state.popping.wake_first();
        Ok(())
    }

    /// Takes the oldest item, and waits for one if there is none; returns `None` when the queue is
    /// closed and empty.
    pub async fn pop(&self) -> Option<T> {
        let state = &self.0;
        let popped = state.popping.in_turn(|| match self.take() {
            Some(item) => Some(Some(item)),
            None => state.closed.get().then_some(None),
        });
        popped.await
    }

    /// Takes the oldest item if there is one and no task waits to pop.
    pub fn try_pop(&self) -> Option<T> {
        self.0.popping.is_empty().then(|| self.take()).flatten()
    }

    fn take(&self) -> Option<T> {
        let item = self.0.items.borrow_mut().pop_front();
        if item.is_some() {
            self.0.pushing.wake_first();
        }
        item
    }

    /// Closes the queue: no more items can be pushed. The items in the queue can still be taken.
    pub fn close(&self) {
        self.0.closed.set(true);
        // Waking the first task of each wait queue is enough: when the woken task leaves its wait
        // queue, the next task of that queue is woken. All waiting tasks therefore notice that the
        // queue is closed.
        self.0.pushing.wake_first();
        self.0.popping.wake_first();
    }

    /// Returns the number of items in the queue.
    pub fn len(&self) -> usize {
        self.0.items.borrow().len()
    }

    /// Returns true when the queue has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A value that one task sets once and other tasks wait for. The waker of the first waiting task is
/// stored without an allocation, since usually only one task waits.
pub struct OnceValue<T: Clone> {
    state: RefCell<OnceState<T>>,
}

enum OnceState<T> {
    Unset(Option<Waker>, Vec<Waker>),
    Set(T),
}

impl<T: Clone> Default for OnceValue<T> {
    fn default() -> Self {
        OnceValue {
            state: RefCell::new(OnceState::Unset(None, Vec::new())),
        }
    }
}

impl<T: Clone> OnceValue<T> {
    /// Sets the value. If it was already set, keeps the first value and returns false.
    pub fn set(&self, value: T) -> bool {
        let mut state = self.state.borrow_mut();
        let OnceState::Unset(first, others) = &mut *state else {
            return false;
        };
        let (first, others) = (first.take(), std::mem::take(others));
        *state = OnceState::Set(value);
        drop(state);
        first.into_iter().chain(others).for_each(Waker::wake);
        true
    }

    /// Returns the value, if it is set.
    pub fn get(&self) -> Option<T> {
        match &*self.state.borrow() {
            OnceState::Set(value) => Some(value.clone()),
            OnceState::Unset(..) => None,
        }
    }

    /// Waits for the value.
    pub async fn wait(&self) -> T {
        std::future::poll_fn(|context| match &mut *self.state.borrow_mut() {
            OnceState::Set(value) => Poll::Ready(value.clone()),
            OnceState::Unset(first, others) => {
                let mine = context.waker();
                match first {
                    None => *first = Some(mine.clone()),
                    Some(first) if first.will_wake(mine) => {}
                    Some(_) if others.iter().any(|other| other.will_wake(mine)) => {}
                    Some(_) => others.push(mine.clone()),
                }
                Poll::Pending
            }
        })
        .await
    }
}

/// Group of tasks that end together: the owner of the group can wait for all of them, or cancel all
/// of them.
#[derive(Clone)]
pub struct TaskGroup {
    rt: Rt,
    state: Rc<GroupState>,
}

#[derive(Default)]
struct GroupState {
    tasks: RefCell<Slab<Option<Task<()>>>>,
    changed: Event,
}

impl TaskGroup {
    /// Creates a group without tasks.
    pub fn new(rt: &Rt) -> TaskGroup {
        TaskGroup {
            rt: rt.clone(),
            state: Rc::new(GroupState::default()),
        }
    }

    /// Starts a task in the group.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let key = self.state.tasks.borrow_mut().insert(None);
        let state = Rc::downgrade(&self.state);
        let task = self.rt.spawn(async move {
            future.await;
            if let Some(state) = state.upgrade() {
                // The task has completed, so detach its handle: dropping the handle would cancel
                // the task.
                if let Some(Some(task)) = state.tasks.borrow_mut().try_remove(key) {
                    task.detach();
                }
                state.changed.notify();
            }
        });
        if let Some(place) = self.state.tasks.borrow_mut().get_mut(key) {
            *place = Some(task);
        }
    }

    /// Returns the number of tasks that have not ended.
    pub fn len(&self) -> usize {
        self.state.tasks.borrow().len()
    }

    /// Returns true when every task has ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until every task has ended by itself.
    pub async fn join(&self) {
        self.state
            .changed
            .until(|| self.state.tasks.borrow().is_empty())
            .await;
    }

    /// Waits until at most `count` tasks run.
    pub async fn at_most(&self, count: usize) {
        self.state
            .changed
            .until(|| self.state.tasks.borrow().len() <= count)
            .await;
    }

    /// Cancels every task and waits until all of them have been dropped.
    pub async fn cancel(&self) {
        let tasks: Vec<_> = self.state.tasks.borrow_mut().drain().flatten().collect();
        for task in tasks {
            task.cancel().await;
        }
        self.state.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::{VirtualOptions, yield_now};

    fn virtual_rt() -> Rt {
        Rt::virtual_time(VirtualOptions {
            seed: 1,
            shuffle: false,
        })
    }

    #[test]
    fn permits_go_out_in_order_of_arrival() {
        let rt = virtual_rt();
        let semaphore = Semaphore::new(3);
        let log = Rc::new(RefCell::new(Vec::new()));
        let group = TaskGroup::new(&rt);
        // The large request arrives second. The small requests that arrive after it must not
        // overtake it.
        for (name, count, hold_ms) in [("a", 2, 10), ("large", 3, 10), ("b", 1, 1), ("c", 1, 1)] {
            let (semaphore, log, rt2) = (Rc::clone(&semaphore), Rc::clone(&log), rt.clone());
            group.spawn(async move {
                let permit = semaphore.acquire(count).await;
                log.borrow_mut().push(name);
                rt2.sleep(Duration::from_millis(hold_ms)).await;
                drop(permit);
            });
        }
        rt.block_on(group.join());
        assert_eq!(*log.borrow(), ["a", "large", "b", "c"]);
        assert_eq!(semaphore.free(), 3);
    }

    #[test]
    fn a_waiter_that_leaves_does_not_block_the_next() {
        let rt = virtual_rt();
        let semaphore = Semaphore::new(2);
        rt.block_on(async {
            let held = semaphore.acquire(1).await;
            assert!(
                rt.timeout(Duration::from_secs(1), semaphore.acquire(2))
                    .await
                    .is_err()
            );
            let second = rt
                .timeout(Duration::from_secs(1), semaphore.acquire(1))
                .await;
            assert!(second.is_ok());
            drop(held);
        });
        assert_eq!(semaphore.free(), 2);
    }

    #[test]
    fn permits_that_are_added_wake_and_free_ones_are_removed() {
        let rt = virtual_rt();
        let semaphore = Semaphore::new(2);
        rt.block_on(async {
            let held = semaphore.acquire(2).await;
            let more = {
                let semaphore = Rc::clone(&semaphore);
                rt.spawn(async move { semaphore.acquire(1).await })
            };
            yield_now().await;
            // While a task waits, it gets what is free.
            semaphore.remove(1);
            semaphore.add(3);
            let more = more.await;
            assert_eq!((semaphore.capacity(), semaphore.free()), (5, 2));
            semaphore.remove(9);
            assert_eq!((semaphore.capacity(), semaphore.free()), (3, 0));
            drop((held, more));
        });
        assert_eq!((semaphore.capacity(), semaphore.free()), (3, 3));
    }

    #[test]
    fn permits_that_were_split_return_on_their_own() {
        let rt = virtual_rt();
        let semaphore = Semaphore::new(5);
        let mut held = rt.block_on(semaphore.acquire(5));
        let part = held.split(2);
        assert_eq!((held.count(), part.count()), (3, 2));
        drop(part);
        assert_eq!((semaphore.free(), semaphore.waiting()), (2, 0));
        let mut waiting = Box::pin(semaphore.acquire(5));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(semaphore.waiting(), 1);
        drop(waiting);
        drop(held);
        assert_eq!((semaphore.free(), semaphore.waiting()), (5, 0));
    }

    #[test]
    fn a_queue_pushes_back_and_ends() {
        let rt = virtual_rt();
        let queue = Queue::new(2);
        let producer = {
            let queue = queue.clone();
            rt.spawn(async move {
                for item in 0..10 {
                    assert!(queue.push(item).await.is_ok());
                    assert!(queue.len() <= 2);
                }
                queue.close();
                queue.push(99).await
            })
        };
        let got = rt.block_on(async {
            let mut got = Vec::new();
            while let Some(item) = queue.pop().await {
                got.push(item);
            }
            got
        });
        assert_eq!(got, (0..10).collect::<Vec<_>>());
        assert_eq!(rt.block_on(producer), Err(99));
    }

    /// Tests a task that is the first in the queue and is woken because a permit is free. If this
    /// task is dropped before it takes the permit, the next task must be woken.
    #[test]
    fn a_waiter_that_leaves_passes_on_what_it_was_told() {
        use std::future::poll_fn;
        let rt = virtual_rt();
        let semaphore = Semaphore::new(1);
        rt.block_on(async {
            let held = semaphore.acquire(1).await;
            let mut first = Box::pin(semaphore.acquire(1));
            let waits = poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending()));
            assert!(waits.await);
            let group = TaskGroup::new(&rt);
            let second = Rc::clone(&semaphore);
            group.spawn(async move { drop(second.acquire(1).await) });
            crate::yield_now().await;
            drop(held);
            drop(first);
            let passed = rt.timeout(Duration::from_secs(1), group.join()).await;
            assert!(passed.is_ok(), "nobody holds the permit");
        });
    }

    #[test]
    fn a_group_joins_and_cancels() {
        let rt = virtual_rt();
        let group = TaskGroup::new(&rt);
        for ms in [5, 500] {
            let rt2 = rt.clone();
            group.spawn(async move { rt2.sleep(Duration::from_millis(ms)).await });
        }
        rt.block_on(group.at_most(1));
        assert_eq!(rt.now().as_ns(), 5_000_000);
        rt.block_on(group.cancel());
        assert!(group.is_empty());
        assert_eq!((rt.live_tasks(), rt.live_timers()), (0, 0));
    }
}
