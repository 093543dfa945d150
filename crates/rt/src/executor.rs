//! The executor: a queue of ready tasks, the timers, and a driver in which the thread sleeps while
//! no task is ready.
//!
//! One *turn* runs the ready tasks (and the tasks that they wake) up to a maximum number of tasks
//! and of [steps](crate::turn), enters the driver once and then fires the due timers. The
//! operations that a turn starts are therefore submitted as one batch, without a timer to collect
//! them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use slab::Slab;

use crate::awake::{SLEEP_MAX, Stalls};
use crate::buf::BufPool;
use crate::notices::Notices;
use crate::real_time::{self, Driven, RealTime, UringOptions};
use crate::rng::Rng;
use crate::time::Instant;
use crate::timers::{TimerKey, Timers};
use crate::turn::{self, LongestTurn};
use crate::virtual_time::{VirtualClock, VirtualOptions};

/// Maximum number of tasks polled before the driver is entered again, so that tasks that keep
/// waking each other never starve completions.
const TASKS_PER_TURN_MAX: usize = 512;

/// Handle to the runtime of this thread. Cloning is cheap; the runtime is dropped with the last
/// clone.
#[derive(Clone)]
pub struct Rt(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    ready: Arc<ReadyQueue>,
    timers: RefCell<Timers>,
    world: World,
    pool: BufPool,
    seed: u64,
    rng: RefCell<Rng>,
    shuffle: bool,
    /// Table of the tasks that have not ended. The entry of a task has a waker as soon as the task
    /// has been polled once.
    live_tasks: RefCell<Slab<Option<Waker>>>,
    /// True during [`Rt::end`]: each task then drops its future instead of polling it.
    ending: Cell<bool>,
    /// Start of the current turn, or of the last one.
    turn_began: Cell<Instant>,
    longest_turn: Cell<LongestTurn>,
    /// Periods in which the thread did not poll its driver although it should have.
    pub(crate) stalls: Stalls,
    notices: Notices,
}

/// Source of time and of completions: real time with a driver, or virtual time.
enum World {
    Real(Rc<RealTime>),
    Virtual(VirtualClock),
}

/// Queue of ready tasks. The compiler requires a lock, since wakers are `Send` by type. The lock is
/// never contended: a waker of this runtime is only used on the runtime's own thread, which `push`
/// checks.
struct ReadyQueue {
    /// The [number](this_thread) of the thread.
    owner: usize,
    tasks: Mutex<VecDeque<async_task::Runnable>>,
}

/// Returns a number that identifies the current thread among all running threads: the address of a
/// thread-local variable. `std::thread::current().id()` would serve as well, but it increments and
/// decrements the reference count of the thread handle, and this function is called at every
/// wake-up.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl ReadyQueue {
    fn push(&self, task: async_task::Runnable) {
        assert!(
            this_thread() == self.owner,
            "a waker crossed threads; crossing between shards is a mailbox's work"
        );
        self.lock().push_back(task);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<async_task::Runnable>> {
        // No task runs while this lock is held, so a panic of a task leaves the queue intact, and
        // poisoning can be ignored.
        self.tasks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

struct MainWaker {
    woken: AtomicBool,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
    }
}

impl Rt {
    /// Creates a runtime in real time.
    ///
    /// # Errors
    /// If the kernel refuses the memory of the buffer pool, or a resource that the chosen driver
    /// needs. If the driver cannot be used, the message names the limit or rule that prevents its
    /// use.
    pub fn real_time(options: UringOptions) -> io::Result<Rt> {
        let pool = BufPool::growing(options.pool_bytes, options.pool_bytes_at_start)?;
        let (seed, notices) = (options.seed, options.notices.clone());
        let real = Rc::new(RealTime::new(&options, &pool)?);
        let world = World::Real(real);
        Ok(Rt::with_world(world, pool, seed, false, notices))
    }

    /// Creates a runtime in virtual time. Its buffer pool has no region: buffers come from the
    /// heap, and no result depends on their addresses.
    pub fn virtual_time(options: VirtualOptions) -> Rt {
        let world = World::Virtual(VirtualClock::default());
        Rt::with_world(
            world,
            BufPool::unregistered(),
            options.seed,
            options.shuffle,
            Notices::default(),
        )
    }

    fn with_world(world: World, pool: BufPool, seed: u64, shuffle: bool, notices: Notices) -> Rt {
        Rt(Rc::new(Inner {
            ready: Arc::new(ReadyQueue {
                owner: this_thread(),
                tasks: Mutex::new(VecDeque::with_capacity(256)),
            }),
            timers: RefCell::new(Timers::default()),
            world,
            pool,
            seed,
            rng: RefCell::new(Rng::labelled(seed, "executor")),
            shuffle,
            live_tasks: RefCell::new(Slab::new()),
            ending: Cell::new(false),
            turn_began: Cell::new(Instant::ZERO),
            longest_turn: Cell::default(),
            stalls: Stalls::default(),
            notices,
        }))
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        match &self.0.world {
            World::Real(real) => real.now(),
            World::Virtual(clock) => clock.now(),
        }
    }

    /// Returns the time at which the current turn began, or the last one, without reading the
    /// clock. The present time is later by at most the [length of a turn](crate::turn).
    pub fn turn_began(&self) -> Instant {
        self.0.turn_began.get()
    }

    /// Returns true in virtual time.
    pub fn is_virtual(&self) -> bool {
        matches!(self.0.world, World::Virtual(_))
    }

    /// Returns the buffer pool of this runtime.
    pub fn pool(&self) -> &BufPool {
        &self.0.pool
    }

    /// Returns the collection of notices for the operator.
    pub fn notices(&self) -> &Notices {
        &self.0.notices
    }

    /// Returns the seed of this runtime.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Returns a random number generator derived from the runtime's seed and `label`, which names
    /// its consumer.
    pub fn rng(&self, label: &str) -> Rng {
        Rng::labelled(self.0.seed, label)
    }

    /// Returns sixteen unique bytes: from the operating system in real time, from the seed in
    /// virtual time. They have the version and variant bits of a random UUID (RFC 9562, version 4).
    ///
    /// # Errors
    /// If the operating system provides no random bytes.
    pub fn random_uuid(&self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        match &self.0.world {
            World::Real(_) => real_time::random_bytes(&mut bytes)?,
            World::Virtual(_) => self.0.rng.borrow_mut().fill(&mut bytes),
        }
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(bytes)
    }

    /// Returns 16 bytes that identify the current boot of the machine. In virtual time they are
    /// derived from the seed.
    ///
    /// # Errors
    /// If the operating system does not provide the identifier.
    pub fn boot_id(&self) -> io::Result<[u8; 16]> {
        match &self.0.world {
            World::Real(_) => real_time::boot_id(),
            World::Virtual(_) => {
                let mut bytes = [0; 16];
                self.rng("boot id").fill(&mut bytes);
                Ok(bytes)
            }
        }
    }

    /// Returns the time of day in seconds since 1970. Use it only for labels that people read.
    /// Virtual time starts at the beginning of 2020.
    pub fn unix_seconds(&self) -> u64 {
        const VIRTUAL_START_S: u64 = 1_577_836_800;
        match &self.0.world {
            World::Real(_) => real_time::unix_seconds(),
            World::Virtual(clock) => VIRTUAL_START_S + clock.now().as_ns() / 1_000_000_000,
        }
    }

    /// Returns the options of the runtime; `None` in virtual time.
    pub fn uring_options(&self) -> Option<&UringOptions> {
        self.real().map(|real| real.options())
    }

    /// Returns the driver in use, and the reasons why `io_uring` or a part of it cannot be used, if
    /// there are any; `None` in virtual time.
    pub fn driven(&self) -> Option<&Driven> {
        self.real().map(|real| real.driven())
    }

    /// Returns the driver and operations of the runtime; `None` in virtual time.
    pub(crate) fn real(&self) -> Option<&Rc<RealTime>> {
        match &self.0.world {
            World::Real(real) => Some(real),
            World::Virtual(_) => None,
        }
    }

    /// Starts a task. Dropping the returned [`Task`] cancels it at its next suspension point;
    /// [`Task::detach`] lets it continue without a handle.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        let (runnable, task) = self.new_task(future);
        runnable.schedule();
        task
    }

    /// Starts a task and polls it once before returning, so a task that never waits completes
    /// without passing through the queue of ready tasks. The caller must hold no borrow that the
    /// future could need.
    pub fn spawn_eager<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        let (runnable, task) = self.new_task(future);
        runnable.run();
        task
    }

    fn new_task<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> (async_task::Runnable, Task<T>) {
        let ready = Arc::clone(&self.0.ready);
        let live = LiveTask::new(&self.0);
        let watched = async move {
            let mut future = std::pin::pin!(Some(future));
            std::future::poll_fn(|context| {
                if live.must_end(context.waker()) {
                    future.set(None);
                    return Poll::Ready(None);
                }
                let running = future.as_mut().as_pin_mut();
                running
                    .expect("a task that has ended is not polled")
                    .poll(context)
                    .map(Some)
            })
            .await
        };
        let (runnable, task) =
            async_task::spawn_local(watched, move |runnable| ready.push(runnable));
        (runnable, Task(task))
    }

    /// Ends every task at the point where it is suspended, as a crash of the program would, and
    /// drops the state of the task. A future that awaits an ended task never completes. This is for
    /// experiments and tests that do not close their stacks of devices.
    pub fn end(&self) {
        self.0.ending.set(true);
        let live: Vec<Waker> = self
            .0
            .live_tasks
            .borrow()
            .iter()
            .filter_map(|(_, waker)| waker.clone())
            .collect();
        live.iter().for_each(Waker::wake_by_ref);
        while let Some(task) = self.next_ready() {
            task.run();
        }
        self.0.ending.set(false);
    }

    /// Returns the number of tasks that have neither finished nor been cancelled.
    pub fn live_tasks(&self) -> usize {
        self.0.live_tasks.borrow().len()
    }

    /// Returns the longest duration and the largest number of steps of a turn since the runtime was
    /// created, or since [`Rt::forget_longest_turn`]. The current turn is not included. During a
    /// turn no completion is handled.
    pub fn longest_turn(&self) -> LongestTurn {
        self.0.longest_turn.get()
    }

    /// Resets the measurement of the [longest turn](Rt::longest_turn).
    pub fn forget_longest_turn(&self) {
        self.begin_turn();
        self.0.longest_turn.set(LongestTurn::default());
    }

    /// Returns the number of timers that are set.
    pub fn live_timers(&self) -> usize {
        self.0.timers.borrow().len()
    }

    /// Returns the number of operations whose results have not been taken, including orphans
    /// (operations of dropped futures).
    pub fn operations_in_flight(&self) -> usize {
        self.real().map_or(0, |real| real.in_flight())
    }

    /// Waits until `deadline`.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep {
            rt: self.clone(),
            deadline,
            key: None,
        }
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits for `future`, for at most `duration`. A timeout undoes nothing: operations that the
    /// future started can continue as orphans (see the crate's ownership contract). A write that
    /// timed out might therefore still take effect.
    ///
    /// # Errors
    /// [`Elapsed`] when `duration` has passed before `future` completes.
    pub async fn timeout<F: Future>(
        &self,
        duration: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let sleep = std::pin::pin!(self.sleep(duration));
        let future = std::pin::pin!(future);
        match futures_util::future::select(future, sleep).await {
            futures_util::future::Either::Left((output, _)) => Ok(output),
            futures_util::future::Either::Right(((), _)) => Err(Elapsed),
        }
    }

    /// Advances virtual time by `duration` while this thread does nothing, as if the process had
    /// been stopped for that time. This is for tests of the behaviour after a stop of the process.
    ///
    /// # Panics
    /// In real time.
    pub fn stall(&self, duration: Duration) {
        let World::Virtual(clock) = &self.0.world else {
            panic!("a stall can be made in virtual time only");
        };
        clock.stall(duration);
    }

    /// Runs `future` and every task until `future` is done.
    ///
    /// # Panics
    /// In virtual time, when every task waits and no timer is set.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let main = Arc::new(MainWaker {
            woken: AtomicBool::new(true),
        });
        let waker = Waker::from(Arc::clone(&main));
        let mut context = Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        loop {
            self.begin_turn();
            if main.woken.swap(false, Ordering::Relaxed)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                self.end_turn();
                return output;
            }
            self.run_ready_tasks();
            let now = self.end_turn();
            let idle = !main.woken.load(Ordering::Relaxed) && self.0.ready.lock().is_empty();
            self.park(idle, now);
        }
    }

    /// Waits until the kernel has completed every operation, including orphans.
    pub fn drain(&self) {
        if let World::Real(real) = &self.0.world {
            real.drain();
        }
    }

    fn run_ready_tasks(&self) {
        for _ in 0..TASKS_PER_TURN_MAX {
            let Some(task) = self.next_ready() else {
                return;
            };
            task.run();
            turn::count_steps(1);
            if turn::is_used_up() {
                return;
            }
        }
    }

    /// Begins to measure a turn.
    fn begin_turn(&self) {
        turn::begin();
        let now = self.now();
        self.0.turn_began.set(now);
        self.0.stalls.probe(now);
    }

    /// Ends the measurement of a turn; returns the current time.
    fn end_turn(&self) -> Instant {
        let mut longest = self.0.longest_turn.get();
        let now = self.now();
        self.0.stalls.probe(now);
        let time_ns = now.ns_since(self.0.turn_began.get());
        longest.time_ns = longest.time_ns.max(time_ns);
        longest.steps = longest.steps.max(turn::steps());
        self.0.longest_turn.set(longest);
        now
    }

    fn next_ready(&self) -> Option<async_task::Runnable> {
        let mut tasks = self.0.ready.lock();
        if self.0.shuffle && tasks.len() > 1 {
            let pick = self.0.rng.borrow_mut().below(tasks.len() as u64) as usize;
            return tasks.swap_remove_back(pick);
        }
        tasks.pop_front()
    }

    /// Enters the driver at `now`: waits when `idle`, otherwise only polls for completions.
    fn park(&self, idle: bool, now: Instant) {
        let next_timer = self.0.timers.borrow_mut().next();
        match &self.0.world {
            World::Real(real) => {
                let wake_at = next_timer.map(|at| at.clamp(now, now + SLEEP_MAX));
                if idle {
                    self.0.stalls.sleep_until(wake_at.unwrap_or(Instant::MAX));
                }
                real.turn(idle, wake_at);
            }
            World::Virtual(clock) if idle => {
                clock.park(next_timer, self.live_tasks());
                self.0.stalls.sleep_until(clock.now());
            }
            World::Virtual(_) => return,
        }
        if next_timer.is_some() {
            self.fire_due_timers();
        }
    }

    fn fire_due_timers(&self) {
        let now = self.now();
        loop {
            let due = self.0.timers.borrow_mut().take_due(now);
            let Some(waker) = due else { return };
            waker.wake();
        }
    }
}

/// Entry of a task in the table of live tasks, from its start to its end. The entry holds a weak
/// handle to the runtime, since a task must not keep alive the runtime that owns it.
struct LiveTask {
    inner: std::rc::Weak<Inner>,
    key: usize,
    is_known: Cell<bool>,
}

impl LiveTask {
    fn new(inner: &Rc<Inner>) -> LiveTask {
        let key = inner.live_tasks.borrow_mut().insert(None);
        LiveTask {
            inner: Rc::downgrade(inner),
            key,
            is_known: Cell::new(false),
        }
    }

    /// Returns true if the task must end instead of being polled. The first call stores the waker
    /// in the table of live tasks. One stored waker is enough, since the waker of a task never
    /// changes.
    fn must_end(&self, waker: &Waker) -> bool {
        let Some(inner) = self.inner.upgrade() else {
            return true;
        };
        if !self.is_known.replace(true) {
            inner.live_tasks.borrow_mut()[self.key] = Some(waker.clone());
        }
        inner.ending.get()
    }
}

impl Drop for LiveTask {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            let waker = inner.live_tasks.borrow_mut().remove(self.key);
            // The borrow of the table ends before the waker is dropped. The waker might be the last
            // handle to a task, and the destructors of that task can spawn other tasks, which need
            // the table.
            drop(waker);
        }
    }
}

/// A running task. Await it for its output; drop it to cancel it.
#[must_use = "dropping a task cancels it; detach it to let it run"]
pub struct Task<T>(async_task::Task<Option<T>>);

impl<T> Task<T> {
    /// Lets the task continue without a handle.
    pub fn detach(self) {
        self.0.detach();
    }

    /// Cancels the task and waits until its state has been dropped.
    pub async fn cancel(self) -> Option<T> {
        self.0.cancel().await.flatten()
    }

    /// Returns true when the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Ready(Some(output)) => Poll::Ready(output),
            // `Ready(None)`: `Rt::end` has ended the awaited task. It also ends the waiting task,
            // so this future does not complete.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Error of [`Rt::timeout`]: the time was up before the future completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Waits for an instant; see [`Rt::sleep_until`].
pub struct Sleep {
    rt: Rt,
    deadline: Instant,
    key: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.deadline {
            return Poll::Ready(());
        }
        let inner = Rc::clone(&self.rt.0);
        let mut timers = inner.timers.borrow_mut();
        let kept = self
            .key
            .is_some_and(|key| timers.update(key, context.waker()));
        if !kept {
            self.key = Some(timers.set(self.deadline, context.waker().clone()));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.rt.0.timers.borrow_mut().cancel(key);
        }
    }
}

/// Lets every other ready task run first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn virtual_rt() -> Rt {
        Rt::virtual_time(VirtualOptions {
            seed: 1,
            shuffle: false,
        })
    }

    #[test]
    fn virtual_time_jumps_to_the_next_timer() {
        let rt = virtual_rt();
        let log = Rc::new(RefCell::new(Vec::new()));
        for (name, ms) in [("late", 3_000_000), ("early", 5), ("middle", 70)] {
            let (log, handle) = (Rc::clone(&log), rt.clone());
            rt.spawn(async move {
                handle.sleep(Duration::from_millis(ms)).await;
                log.borrow_mut().push((name, handle.now().as_ns()));
            })
            .detach();
        }
        rt.block_on(rt.sleep(Duration::from_secs(3_600)));
        let expected = [
            ("early", 5_000_000),
            ("middle", 70_000_000),
            ("late", 3_000_000_000_000),
        ];
        assert_eq!(*log.borrow(), expected);
        assert_eq!((rt.live_tasks(), rt.live_timers()), (0, 0));
    }

    #[test]
    fn timeout_gives_up_and_leaves_no_timer() {
        let rt = virtual_rt();
        let outcome = rt.block_on(rt.timeout(Duration::from_secs(1), std::future::pending::<()>()));
        assert_eq!(outcome, Err(Elapsed));
        assert_eq!(
            rt.block_on(rt.timeout(Duration::from_secs(1), async { 5 })),
            Ok(5)
        );
        assert_eq!(rt.live_timers(), 0);
    }

    #[test]
    fn a_dropped_task_is_cancelled_and_lets_go() {
        let rt = virtual_rt();
        let held = Rc::new(());
        let task = {
            let (held, rt2) = (Rc::clone(&held), rt.clone());
            rt.spawn(async move {
                rt2.sleep(Duration::from_secs(10)).await;
                drop(held);
            })
        };
        rt.block_on(async {
            rt.sleep(Duration::from_secs(1)).await;
            task.cancel().await
        });
        assert_eq!(Rc::strong_count(&held), 1);
        assert_eq!((rt.live_tasks(), rt.live_timers()), (0, 0));
    }

    #[test]
    fn ending_lets_go_of_everything() {
        let rt = virtual_rt();
        let held = Rc::new(());
        for _ in 0..3 {
            let (held, rt2) = (Rc::clone(&held), rt.clone());
            // A cycle: the task holds the runtime, and waits for ever.
            rt.spawn(async move {
                std::future::pending::<()>().await;
                drop((held, rt2));
            })
            .detach();
        }
        rt.block_on(rt.sleep(Duration::from_secs(1)));
        let inner = Rc::downgrade(&rt.0);
        rt.end();
        assert_eq!(
            (Rc::strong_count(&held), rt.live_tasks(), rt.live_timers()),
            (1, 0, 0)
        );
        drop(rt);
        assert!(
            inner.upgrade().is_none(),
            "the runtime is gone with its last handle"
        );
    }

    #[test]
    fn a_turn_ends_when_its_steps_are_used_up() {
        let rt = virtual_rt();
        let walked = Rc::new(Cell::new(0));
        // Starts two tasks, each of which needs the steps of 100 turns. Each task gives way
        // whenever it has used a tenth of the steps of a turn.
        let piece = turn::TURN_STEPS_MAX / 10;
        for _ in 0..2 {
            let walked = Rc::clone(&walked);
            rt.spawn(async move {
                for _ in 0..1000 {
                    turn::give_way().await;
                    turn::count_steps(piece);
                    walked.set(walked.get() + 1);
                }
            })
            .detach();
        }
        rt.block_on(rt.sleep(Duration::from_secs(1)));
        assert_eq!(walked.get(), 2000, "both have ended");
        let longest = rt.longest_turn().steps;
        // A turn can exceed the maximum number of steps by the steps that one task counts before it
        // gives way (`piece`), and by one step for each task that the turn polls.
        let most = turn::TURN_STEPS_MAX + piece + TASKS_PER_TURN_MAX as u64;
        assert!(
            (turn::TURN_STEPS_MAX..=most).contains(&longest),
            "{longest}"
        );
    }

    #[test]
    fn a_walk_that_does_not_give_way_is_one_long_turn() {
        let rt = virtual_rt();
        rt.spawn(async { turn::count_steps(1_000_000) }).detach();
        rt.block_on(rt.sleep(Duration::from_secs(1)));
        assert!(rt.longest_turn().steps >= 1_000_000);
    }

    #[test]
    #[should_panic(expected = "they would hang")]
    fn virtual_time_reports_a_hang() {
        virtual_rt().block_on(std::future::pending::<()>());
    }

    #[test]
    fn the_shuffled_order_depends_on_the_seed_alone() {
        let order = |seed| {
            let rt = Rt::virtual_time(VirtualOptions {
                seed,
                shuffle: true,
            });
            let log = Rc::new(RefCell::new(Vec::new()));
            for task in 0..20 {
                let log = Rc::clone(&log);
                rt.spawn(async move {
                    for step in 0..3 {
                        yield_now().await;
                        log.borrow_mut().push((task, step));
                    }
                })
                .detach();
            }
            rt.block_on(rt.sleep(Duration::from_secs(1)));
            Rc::try_unwrap(log).unwrap().into_inner()
        };
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
    }
}
