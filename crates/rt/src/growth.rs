//! Lets the buffer pool of a runtime grow while it is used, and shrink when it is not.
//!
//! A thread of its own gives memory to the next pieces of the pool's region. So only this thread
//! waits when the kernel has to free memory first, perhaps by writing to the very device that the
//! runtime serves. The runtime goes on with what the pool has: until a piece is there, it is not
//! part of the pool, and the bounds on requests do not count on it.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::buf::{BufPool, map_piece, unmap_piece};
use crate::executor::{Rt, Task};
use crate::mailbox::{Messages, Receiver, Sender, mailbox};
use crate::real_time::block_signals;

/// Time after a refusal of memory in which no more is requested.
const RETRY: Duration = Duration::from_secs(1);
/// Interval at which a pool that has grown is checked. It shrinks when it was hardly used for that
/// long.
const IDLE: Duration = Duration::from_secs(30);
/// Stack of the thread in bytes. It makes system calls only, and reads a file of `/proc`.
const STACK_BYTES: usize = 128 << 10;

/// Work of the thread on the piece of a region at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Map(usize),
    Unmap(usize),
}

type Outcome = (Order, io::Result<()>);

/// The growth of a pool. The pool keeps its size when this is dropped.
pub struct Growth {
    task: Option<Task<()>>,
    orders: Arc<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    /// The thread must not outlive the region.
    _pool: BufPool,
}

impl Growth {
    /// Lets the pool of `rt` grow to its maximum. Memory is taken only while `may_grow` returns
    /// true; another thread calls it.
    ///
    /// # Errors
    /// If there is no descriptor or thread for it.
    pub fn start(rt: &Rt, may_grow: fn() -> bool) -> io::Result<Growth> {
        let (orders, taken) = mailbox()?;
        let (told, outcomes) = mailbox()?;
        let outcomes = outcomes.listen(rt)?;
        let orders = Arc::new(orders);
        let thread = Builder::new()
            .name("memory".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || carry_out(&taken, &told, may_grow))?;
        let task = rt.spawn(grow(rt.clone(), Arc::clone(&orders), outcomes));
        Ok(Growth {
            task: Some(task),
            orders,
            thread: Some(thread),
            _pool: rt.pool().clone(),
        })
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.task = None;
        self.orders.close();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            ended.is_none_or(|ended| ended.is_ok()),
            "the thread panicked"
        );
    }
}

/// The thread.
fn carry_out(orders: &Receiver<Order>, told: &Sender<Outcome>, may_grow: fn() -> bool) {
    block_signals();
    while let Some(taken) = orders.wait() {
        for order in taken {
            let outcome = match order {
                Order::Map(_) if !may_grow() => Err(io::ErrorKind::OutOfMemory.into()),
                Order::Map(address) => map_piece(address),
                Order::Unmap(address) => unmap_piece(address),
            };
            // Nobody waits for it when the runtime ends.
            let _ = told.send((order, outcome));
        }
    }
}

/// The task of the runtime.
async fn grow(rt: Rt, orders: Arc<Sender<Order>>, mut outcomes: Messages<Outcome>) {
    let pool = rt.pool().clone();
    loop {
        if pool.has_grown() {
            let wanted = rt.timeout(IDLE, pool.more_wanted()).await;
            if wanted.is_err() {
                for piece in pool.take_idle_pieces() {
                    register(&rt, piece, false);
                    let unmap = Order::Unmap(pool.piece_address(piece));
                    if carried_out(&orders, &mut outcomes, unmap).await.is_err() {
                        pool.add_piece(piece);
                    }
                }
                continue;
            }
        } else {
            pool.more_wanted().await;
        }
        for piece in pool.next_pieces() {
            let map = Order::Map(pool.piece_address(piece));
            if carried_out(&orders, &mut outcomes, map).await.is_err() {
                rt.sleep(RETRY).await;
                break;
            }
            register(&rt, piece, true);
            pool.add_piece(piece);
        }
    }
}

/// Registers a piece with the kernel, or ends its registration.
fn register(rt: &Rt, piece: usize, is_there: bool) {
    if let Some(real) = rt.real() {
        real.register_piece(piece, is_there);
    }
}

/// Has the thread carry out an order.
async fn carried_out(
    orders: &Sender<Order>,
    outcomes: &mut Messages<Outcome>,
    order: Order,
) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    orders.send(order).map_err(|_| gone())?;
    loop {
        let told = outcomes.next().await.ok_or_else(gone)?;
        if let Some((_, outcome)) = told.into_iter().find(|told| told.0 == order) {
            return outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::UringOptions;
    use crate::buf::BLOCK_BYTES_MAX;

    const PIECE: usize = BLOCK_BYTES_MAX;

    fn runtime() -> Rt {
        let options = UringOptions {
            pool_bytes: 5 * PIECE,
            pool_bytes_at_start: 2 * PIECE,
            ..UringOptions::default()
        };
        Rt::real_time(options).expect("a runtime")
    }

    #[test]
    fn a_pool_grows_when_it_is_used_up_to_its_bound() {
        let rt = runtime();
        let pool = rt.pool().clone();
        let growth = Growth::start(&rt, || true).expect("a thread");
        rt.block_on(async {
            assert_eq!(pool.present_bytes(), 2 * PIECE);
            // The doorbell of the growth has a page of the first piece. So the second and later
            // buffers wait for pieces that are not there yet.
            let mut held = Vec::new();
            for number in 0..4_u8 {
                let mut buf = pool.alloc(PIECE).await;
                buf.fill(number);
                held.push(buf);
            }
            assert_eq!(pool.present_bytes(), 5 * PIECE);
            assert!(pool.try_alloc(PIECE).is_none());
            assert_eq!(pool.heap_bytes_used(), 0);
            for (number, buf) in held.iter().enumerate() {
                assert!(buf.iter().all(|&byte| usize::from(byte) == number));
            }
            assert!(pool.take_idle_pieces().is_empty(), "it was all used");
            drop(held);
            assert!(pool.take_idle_pieces().is_empty(), "it was all used lately");
            assert_eq!(pool.take_idle_pieces(), [2, 3, 4]);
            assert_eq!(pool.present_bytes(), 2 * PIECE);
        });
        drop(growth);
        rt.end();
    }

    #[test]
    fn without_memory_a_pool_stays_as_it_is() {
        static ASKED: AtomicBool = AtomicBool::new(false);
        let rt = runtime();
        let pool = rt.pool().clone();
        let growth = Growth::start(&rt, || {
            ASKED.store(true, Ordering::Relaxed);
            false
        })
        .expect("a thread");
        rt.block_on(async {
            // The other piece has the page of the doorbell.
            let held = pool.alloc(PIECE).await;
            assert!(pool.try_alloc(PIECE).is_none());
            while !ASKED.load(Ordering::Relaxed) {
                crate::yield_now().await;
            }
            assert_eq!(pool.present_bytes(), 2 * PIECE);
            assert!(pool.try_alloc(PIECE).is_none());
            drop(held);
            assert!(pool.try_alloc(PIECE).is_some());
        });
        drop(growth);
        rt.end();
    }

    #[test]
    fn what_is_kept_is_a_share_of_what_is_there() {
        let rt = runtime();
        // Threads with the same options have nothing that makes their pools grow.
        let others = rt
            .uring_options()
            .map(|options| options.pool_bytes_at_start);
        assert_eq!(others, Some(usize::MAX));
        let pool = rt.pool();
        let all = 4 * PIECE as u64;
        assert_eq!(
            pool.deferred_share(all),
            all,
            "nobody said how much there is"
        );
        pool.set_deferred_bytes(4 * PIECE);
        // A third of the two pieces for all that is wanted, and a quarter of that for a quarter.
        let third = 2 * PIECE as u64 / 3;
        assert_eq!(pool.deferred_share(all), third);
        assert_eq!(pool.deferred_share(PIECE as u64), third / 4);
        pool.set_deferred_bytes(third as usize);
        assert_eq!(pool.deferred_share(third), third);
        // A pool that is all there has room for what is configured.
        let whole = Rt::real_time(UringOptions::default()).expect("a runtime");
        whole.pool().set_deferred_bytes(1 << 30);
        assert_eq!(whole.pool().deferred_share(1 << 30), 1 << 30);
    }
}
