//! Accounting of the resources that the requests of clients hold. A request holds its resources
//! from a time before its data is received or read, until its reply has been sent.
//!
//! Two bounds apply to every request: the number of requests and bytes that one connection may have
//! in flight, and the memory that the server has for the data of all connections. An [`Admission`]
//! holds the amounts of its requests and returns them when it is dropped, regardless of the outcome
//! of the requests. No code may count these amounts in another way.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use bimetal_rt::BufPool;
use bimetal_rt::buf::Resized;
use bimetal_rt::sync::{Permit, Semaphore};

/// Size of the blocks in which devices read. A request that begins or ends inside a block needs
/// memory for the whole block.
const BLOCK_BYTES: u64 = bimetal_block::BLOCK_BYTES;

/// Maximum memory, in bytes, of a request that is treated as small. A server with little memory
/// uses a lower maximum.
const SMALL_BYTES_MAX: u64 = 256 << 10;
/// The memory divided by this number is the part that is reserved for small requests: a quarter.
const SMALL_SHARE: u64 = 4;

/// Memory of a server for the data of requests, in bytes. Requests get memory in order of arrival,
/// so a large request is not starved by small requests that arrive later. A part of the memory is
/// reserved for small requests, and a small request uses this part if it gets no other memory. So
/// small requests do not have to wait for a client that requests large reads and then does not
/// receive the replies.
pub(crate) struct DataMemory {
    bytes: Rc<Semaphore>,
    for_small: Rc<Semaphore>,
    small_bytes_max: Cell<u64>,
    /// The pool of the buffers, and the part of it that is not for requests in flight, when there
    /// is enough of it.
    pool: BufPool,
    deferred_bytes: u64,
    capacity_max: u64,
}

impl Resized for DataMemory {
    fn resized(&self, _present_bytes: usize) {
        self.fit();
    }
}

impl DataMemory {
    /// Creates a data memory of `capacity` bytes. If `capacity` is 0, requests with data are
    /// admitted one at a time. As long as `pool` is not all there, the capacity is two thirds of
    /// what is there without `deferred_bytes`, which are for buffers that are kept after their
    /// requests were answered; but at least a third. The rest is for what devices allocate.
    pub(crate) fn new(capacity: u64, pool: &BufPool, deferred_bytes: u64) -> Rc<DataMemory> {
        let memory = Rc::new(DataMemory {
            bytes: Semaphore::new(0),
            for_small: Semaphore::new(0),
            small_bytes_max: Cell::new(0),
            pool: pool.clone(),
            deferred_bytes,
            capacity_max: capacity.max(1),
        });
        memory.fit();
        let resized: Weak<DataMemory> = Rc::downgrade(&memory);
        pool.when_resized(resized);
        memory
    }

    /// Sets the capacity to what the pool has now. What requests hold is taken away when the pool
    /// has shrunk again.
    fn fit(&self) {
        let capacity = self.capacity_within(self.pool.present_bytes() as u64);
        let for_small = capacity / SMALL_SHARE;
        for (semaphore, wanted) in [
            (&self.bytes, capacity - for_small),
            (&self.for_small, for_small),
        ] {
            match wanted.checked_sub(semaphore.capacity()) {
                Some(more) => semaphore.add(more),
                None => semaphore.remove(semaphore.capacity() - wanted),
            }
        }
        // A small request uses at most a quarter of the part of the memory that is reserved for
        // small requests, so several small requests fit in this part together. If the part is too
        // small for this, no request is treated as small.
        let small_bytes_max = SMALL_BYTES_MAX.min(self.for_small.capacity() / 4);
        self.small_bytes_max.set(small_bytes_max);
    }

    fn capacity_within(&self, present_bytes: u64) -> u64 {
        if present_bytes >= self.pool.region_bytes() as u64 {
            return self.capacity_max;
        }
        let in_flight = (present_bytes * 2 / 3).saturating_sub(self.deferred_bytes);
        in_flight.max(present_bytes / 3).min(self.capacity_max)
    }

    /// Waits until `bytes` bytes are free, and reserves them. One request can reserve at most the
    /// memory outside the part for small requests. A request that needs more reserves all memory
    /// outside this part, and the rest of its data is allocated beyond the capacity.
    async fn reserve(&self, bytes: u64) -> Option<Permit> {
        let is_small = bytes <= self.small_bytes_max.get();
        let bytes = bytes.min(self.bytes.capacity());
        if bytes == 0 {
            return None;
        }
        if let Some(permit) = self.bytes.try_acquire(bytes) {
            return Some(permit);
        }
        self.pool.want_more();
        match is_small {
            true => Some(self.for_small.acquire(bytes).await),
            false => Some(self.bytes.acquire(bytes).await),
        }
    }

    /// Returns whether a request waits for memory that other requests hold.
    pub(crate) fn is_short(&self) -> bool {
        self.bytes.waiting() > 0 || self.for_small.waiting() > 0
    }

    /// Returns the number of bytes that requests hold.
    pub(crate) fn held_bytes(&self) -> u64 {
        let held = |semaphore: &Semaphore| semaphore.capacity() - semaphore.free();
        held(&self.bytes) + held(&self.for_small)
    }
}

/// Returns the number of bytes of memory that `data_bytes` bytes of data at `offset` need: the
/// blocks that contain the data, rounded up to the sizes of pool buffers.
fn memory_bytes(offset: u64, data_bytes: u64) -> u64 {
    if data_bytes == 0 {
        return 0;
    }
    let into_block = offset % BLOCK_BYTES;
    let blocks_bytes = (into_block + data_bytes).next_multiple_of(BLOCK_BYTES);
    BufPool::footprint_bytes(blocks_bytes)
}

/// Amounts of the bounded resources that one or more requests use: requests, data bytes and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    requests: u32,
    /// Data bytes in either direction.
    data_bytes: u64,
    /// Memory for that data.
    memory_bytes: u64,
}

impl Weight {
    /// Returns the weight of one request with `data_bytes` bytes of data at `offset`; `data_bytes`
    /// is 0 for a request without data.
    pub(crate) fn of_request(offset: u64, data_bytes: u64) -> Weight {
        Weight {
            requests: 1,
            data_bytes,
            memory_bytes: memory_bytes(offset, data_bytes),
        }
    }

    /// Returns the combined weight of several requests.
    pub(crate) fn of_all(weights: impl Iterator<Item = Weight>) -> Weight {
        let none = Weight {
            requests: 0,
            data_bytes: 0,
            memory_bytes: 0,
        };
        weights.fold(none, |sum, weight| Weight {
            requests: sum.requests + weight.requests,
            data_bytes: sum.data_bytes + weight.data_bytes,
            memory_bytes: sum.memory_bytes + weight.memory_bytes,
        })
    }
}

/// Bounds on the requests and data bytes that one connection may have in flight.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// Wakes the single task that waits for a condition. The task evaluates the condition itself, from
/// state outside the signal.
#[derive(Default)]
pub(crate) struct Signal(RefCell<Option<Waker>>);

impl Signal {
    pub(crate) fn notify(&self) {
        if let Some(waker) = self.0.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(crate) async fn until(&self, mut condition: impl FnMut() -> bool) {
        std::future::poll_fn(|context| {
            if condition() {
                return Poll::Ready(());
            }
            *self.0.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Counts of the requests and data bytes that one connection has in flight.
pub(crate) struct Account {
    bounds: Bounds,
    requests: Cell<u32>,
    bytes: Cell<u64>,
    changed: Signal,
    memory: Rc<DataMemory>,
}

impl Account {
    pub(crate) fn new(bounds: Bounds, memory: &Rc<DataMemory>) -> Rc<Account> {
        Rc::new(Account {
            bounds,
            requests: Cell::new(0),
            bytes: Cell::new(0),
            changed: Signal::default(),
            memory: Rc::clone(memory),
        })
    }

    /// Adds the requests to the requests in flight of the connection, and reserves memory for their
    /// data. Waits until the requests fit the bounds and until the memory is free.
    ///
    /// # Panics
    /// If the requests by themselves exceed the bounds. This does not happen, because the
    /// protocol codecs and the greeting bound the requests of a client.
    pub(crate) async fn admit(self: &Rc<Account>, weight: Weight) -> Admission {
        let (requests, bytes) = (weight.requests, weight.data_bytes);
        let bounds = self.bounds;
        assert!(
            requests <= bounds.requests && bytes <= bounds.bytes,
            "valid requests fit the bounds"
        );
        let fits = || {
            let requests_fit = self.requests.get() + requests <= bounds.requests;
            requests_fit && self.bytes.get() + bytes <= bounds.bytes
        };
        self.changed.until(fits).await;
        self.requests.set(self.requests.get() + requests);
        self.bytes.set(self.bytes.get() + bytes);
        let mut admission = Admission {
            account: Rc::clone(self),
            requests,
            bytes,
            memory: None,
        };
        admission.memory = self.memory.reserve(weight.memory_bytes).await;
        admission
    }

    /// Waits until the connection has no request in flight.
    pub(crate) async fn until_settled(&self) {
        self.changed.until(|| self.requests.get() == 0).await;
    }
}

/// Requests that are counted in an account. Dropping the admission removes the requests from the
/// account and releases their memory.
#[must_use = "dropping an admission takes the requests out of the account"]
pub(crate) struct Admission {
    account: Rc<Account>,
    requests: u32,
    bytes: u64,
    memory: Option<Permit>,
}

impl Admission {
    /// Splits off the admission of one request with this weight, so that the request can be
    /// released separately.
    ///
    /// # Panics
    /// If no admitted request can have this weight.
    pub(crate) fn take_one(&mut self, weight: Weight) -> Admission {
        let fits = weight.requests == 1 && self.requests >= 1 && self.bytes >= weight.data_bytes;
        assert!(fits, "the request is one of those that were admitted");
        self.requests -= 1;
        self.bytes -= weight.data_bytes;
        // Together, the requests can need more memory than one permit can reserve. The permit then
        // holds less memory than the sum of their weights, so at most its remaining memory is split
        // off.
        let memory = self.memory.as_mut().map(|permit| {
            let count = weight.memory_bytes.min(permit.count());
            permit.split(count)
        });
        Admission {
            account: Rc::clone(&self.account),
            requests: 1,
            bytes: weight.data_bytes,
            memory,
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let account = &self.account;
        account.requests.set(account.requests.get() - self.requests);
        account.bytes.set(account.bytes.get() - self.bytes);
        account.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::growth::Growth;
    use bimetal_rt::{Rt, UringOptions, VirtualOptions};
    use futures_util::FutureExt;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        requests: 4,
        bytes: 64 << 20,
    };

    fn memory() -> (Rt, Rc<DataMemory>) {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let memory = DataMemory::new(64 << 20, rt.pool(), 0);
        (rt, memory)
    }

    #[test]
    fn memory_is_what_whole_blocks_take() {
        for (offset, data_bytes, bytes) in [
            (0, 0, 0),
            (512, 0, 0),
            (0, 1, 4096),
            (4095, 2, 8192),
            (0, 12 << 10, 16 << 10),
            (512, 4 << 20, (4 << 20) + 4096),
            (0, 32 << 20, 32 << 20),
        ] {
            assert_eq!(memory_bytes(offset, data_bytes), bytes);
        }
    }

    /// A pool of 64 MiB begins with 16 MiB, of which 4 MiB are for what is kept. Two thirds of 16
    /// MiB without 4 MiB are 6.67 MiB, of which a quarter is for small requests. So a request for 4
    /// MiB does not fit beside one for 2 MiB, until the pool has grown.
    #[test]
    fn memory_follows_the_pool() {
        const MIB: u64 = 1 << 20;
        let rt = Rt::real_time(UringOptions {
            pool_bytes: 64 << 20,
            pool_bytes_at_start: 16 << 20,
            ..UringOptions::default()
        });
        let rt = rt.expect("a runtime");
        let memory = DataMemory::new(48 * MIB, rt.pool(), 4 * MIB);
        assert_eq!(memory.bytes.capacity(), 5 * MIB);
        // What is kept leaves at least a third for requests, three quarters of it for large ones.
        let least = DataMemory::new(48 * MIB, rt.pool(), 60 * MIB);
        assert_eq!(least.bytes.capacity(), 4 * MIB);
        let accounts = [0, 1].map(|_| Account::new(BOUNDS, &memory));
        let growth = Growth::start(&rt, || true).expect("a thread");
        rt.block_on(async {
            let first = accounts[0].admit(Weight::of_request(0, 2 * MIB)).await;
            let present = rt.pool().present_bytes() as u64;
            assert_eq!(present, 16 * MIB, "more was not wanted yet");
            let second = accounts[1].admit(Weight::of_request(0, 4 * MIB)).await;
            assert_eq!(memory.held_bytes(), 6 * MIB);
            drop((first, second));
        });
        assert!(rt.pool().present_bytes() as u64 > 16 * MIB);
        drop(growth);
        rt.end();
    }

    #[test]
    fn connections_wait_for_memory_in_their_order() {
        let (rt, memory) = memory();
        let accounts = [0, 1, 2].map(|_| Account::new(BOUNDS, &memory));
        let large = Weight::of_request(0, 32 << 20);
        let medium = Weight::of_request(0, 16 << 20);
        rt.block_on(async {
            let first = accounts[0].admit(large).await;
            let second = accounts[0].admit(medium).await;
            // A quarter is reserved for small requests.
            assert_eq!(memory.held_bytes(), 48 << 20);
            let mut third = Box::pin(accounts[1].admit(large));
            let mut fourth = Box::pin(accounts[2].admit(medium));
            assert!(third.as_mut().now_or_never().is_none());
            assert!(fourth.as_mut().now_or_never().is_none() && memory.is_short());
            drop(second);
            // The fourth would fit, but does not overtake the third.
            assert!(fourth.as_mut().now_or_never().is_none());
            drop(first);
            let third = third.await;
            let fourth = fourth.await;
            assert_eq!(memory.held_bytes(), 48 << 20);
            drop((third, fourth));
        });
        assert_eq!(memory.held_bytes(), 0);
        assert!(accounts.iter().all(|account| account.requests.get() == 0));
    }

    #[test]
    fn small_requests_do_not_wait_for_large_ones_and_take_nothing_from_them() {
        let (rt, memory) = memory();
        let accounts = [0, 1, 2, 3].map(|_| Account::new(BOUNDS, &memory));
        let small = Weight::of_request(0, SMALL_BYTES_MAX);
        rt.block_on(async {
            let all = accounts[0].admit(Weight::of_request(0, 48 << 20)).await;
            let mut large = Box::pin(accounts[1].admit(Weight::of_request(0, 32 << 20)));
            assert!(large.as_mut().now_or_never().is_none());
            let of_small = accounts[2].admit(small).await;
            // The following requests use up the part of the memory that is reserved for small
            // requests. After that, a further small request waits.
            let many = Account::new(
                Bounds {
                    requests: 64,
                    ..BOUNDS
                },
                &memory,
            );
            let mut held = Vec::new();
            for _ in 0..63 {
                held.push(many.admit(small).await);
            }
            assert_eq!(memory.held_bytes(), 64 << 20);
            let mut one_more = Box::pin(accounts[3].admit(small));
            assert!(one_more.as_mut().now_or_never().is_none());
            drop(of_small);
            let one_more = one_more.await;
            drop(all);
            drop((large.await, one_more, held));
        });
        assert_eq!(memory.held_bytes(), 0);
    }

    #[test]
    fn a_request_that_is_given_up_while_it_waits_counts_no_more() {
        let (rt, memory) = memory();
        let accounts = [0, 1].map(|_| Account::new(BOUNDS, &memory));
        let weight = Weight::of_request(0, 64 << 20);
        rt.block_on(async {
            let held = accounts[0].admit(weight).await;
            let mut waiting = Box::pin(accounts[1].admit(weight));
            assert!(waiting.as_mut().now_or_never().is_none());
            assert_eq!(accounts[1].bytes.get(), 64 << 20);
            drop(waiting);
            assert_eq!(
                (accounts[1].bytes.get(), accounts[1].requests.get()),
                (0, 0)
            );
            assert!(!memory.is_short());
            drop(held);
        });
        assert_eq!(memory.held_bytes(), 0);
    }

    #[test]
    fn requests_of_one_admission_are_settled_one_by_one() {
        let (rt, memory) = memory();
        let account = Account::new(BOUNDS, &memory);
        // Each request takes 22 MiB of memory for its 21 MiB of data, because its memory is rounded
        // up to the sizes of buffers. Together the requests need more than the 48 MiB that are not
        // reserved for small requests.
        let weights = [Weight::of_request(1, 21 << 20); 3];
        let mut all = rt.block_on(account.admit(Weight::of_all(weights.into_iter())));
        assert_eq!(memory.held_bytes(), 48 << 20);
        let ones = weights.map(|weight| all.take_one(weight));
        drop(all);
        assert_eq!((account.requests.get(), account.bytes.get()), (3, 63 << 20));
        for (one, left) in ones.into_iter().zip([2, 1, 0]) {
            drop(one);
            assert_eq!(account.requests.get(), left);
        }
        assert_eq!((account.bytes.get(), memory.held_bytes()), (0, 0));
    }
}
