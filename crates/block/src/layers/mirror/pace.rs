//! The pace of a scrub, which is background work that no client waits for. A scrub gives way to
//! clients, and keeps to a rate if one is configured. It must never starve: under constant load it
//! waits no longer than [`GIVE_WAY_MAX`] for each [`GIVE_WAY_BYTES`], however small its pieces are.
//! A rebuild is more urgent, so it has its own scheduler, [`super::share`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::Semaphore;
use bimetal_rt::{Instant, Rt};

use crate::token_bucket::TokenBucket;

/// Maximum time for which a piece of [`GIVE_WAY_BYTES`] waits for clients to become silent. A piece
/// is the part of the volume that a scrub reads in one step. A smaller piece waits proportionally
/// less.
pub(super) const GIVE_WAY_MAX: Duration = Duration::from_millis(100);
const GIVE_WAY_BYTES: u64 = 1 << 20;
/// Time after the end of the last client request from which clients are considered silent.
const SILENT_AFTER: Duration = Duration::from_millis(10);
/// Interval at which a piece that waits checks whether clients are silent (have made no request for
/// [`SILENT_AFTER`]).
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Burst size of the rate limit.
const BURST_BYTES: u64 = 1 << 20;

/// Counters of client requests, which show whether clients are busy or silent.
pub(super) struct Clients {
    rt: Rt,
    /// Time from which requests are counted.
    opened: Instant,
    in_flight: Cell<u32>,
    last: Cell<Option<Instant>>,
    /// Time at which the number of requests in flight last rose from zero. `busy` is the total
    /// length of the earlier periods with requests in flight.
    since: Cell<Instant>,
    busy: Cell<Duration>,
}

/// A client request in flight, counted until this guard is dropped.
pub(super) struct Client<'c>(&'c Clients);

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let clients = self.0;
        clients.in_flight.set(clients.in_flight.get() - 1);
        if clients.in_flight.get() == 0 {
            let now = clients.rt.now();
            let busy = clients.busy.get() + now.since(clients.since.get());
            clients.busy.set(busy);
        }
        clients.last.set(Some(clients.rt.now()));
    }
}

impl Clients {
    pub(super) fn new(rt: &Rt) -> Clients {
        Clients {
            rt: rt.clone(),
            opened: rt.now(),
            in_flight: Cell::new(0),
            last: Cell::new(None),
            since: Cell::new(rt.now()),
            busy: Cell::new(Duration::ZERO),
        }
    }

    /// Counts a client request as in flight until the returned guard is dropped.
    pub(super) fn enter(&self) -> Client<'_> {
        if self.in_flight.get() == 0 {
            self.since.set(self.rt.now());
        }
        self.in_flight.set(self.in_flight.get() + 1);
        Client(self)
    }

    /// Returns the total time during which at least one request was in flight.
    pub(super) fn busy(&self) -> Duration {
        let now = match self.in_flight.get() {
            0 => Duration::ZERO,
            _ => self.rt.now().since(self.since.get()),
        };
        self.busy.get() + now
    }

    /// Returns for how long no request has been in flight.
    pub(super) fn idle_time(&self) -> Duration {
        match self.in_flight.get() {
            0 => self.rt.now().since(self.last.get().unwrap_or(self.opened)),
            _ => Duration::ZERO,
        }
    }

    /// Returns true when clients are silent: no request is in flight, and none was within the last
    /// [`SILENT_AFTER`].
    fn are_silent(&self) -> bool {
        let recent = |at: Instant| self.rt.now().since(at) < SILENT_AFTER;
        self.in_flight.get() == 0 && !self.last.get().is_some_and(recent)
    }
}

/// The pace of one kind of background work.
pub(super) struct Pace {
    bucket: Option<RefCell<TokenBucket>>,
    /// Semaphore that lets only one piece wait at a time, so that pieces in parallel do not exceed
    /// the pace.
    turn: Rc<Semaphore>,
}

impl Pace {
    /// Creates a pace, limited to `bytes_per_s` if given.
    pub(super) fn new(bytes_per_s: Option<u64>) -> Pace {
        let bucket = bytes_per_s.map(|rate| TokenBucket::full(rate, BURST_BYTES));
        Pace {
            bucket: bucket.map(RefCell::new),
            turn: Semaphore::new(1),
        }
    }

    /// Waits until a piece of `bytes` may start.
    pub(super) async fn turn(&self, clients: &Clients, bytes: u64) {
        let _turn = self.turn.acquire(1).await;
        let rt = &clients.rt;
        if let Some(bucket) = &self.bucket {
            let ready_ns = bucket.borrow_mut().ready_ns(rt.now().as_ns(), bytes);
            rt.sleep_until(Instant::from_ns(ready_ns)).await;
            bucket.borrow_mut().take(rt.now().as_ns(), bytes);
        }
        let deadline = rt.now() + give_way_max(bytes);
        while !clients.are_silent() && rt.now() < deadline {
            rt.sleep(PROBE_INTERVAL.min(deadline.since(rt.now()))).await;
        }
    }
}

/// Returns the maximum time for which the work on a piece of `bytes` bytes waits for clients to be
/// silent. Clients are silent when no request is in flight, and none was within the last
/// [`SILENT_AFTER`].
fn give_way_max(bytes: u64) -> Duration {
    let share = bytes.min(GIVE_WAY_BYTES) as f64 / GIVE_WAY_BYTES as f64;
    GIVE_WAY_MAX.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use bimetal_rt::VirtualOptions;

    use super::*;

    fn rt() -> Rt {
        Rt::virtual_time(VirtualOptions::default())
    }

    #[test]
    fn a_rate_is_kept_to() {
        let rt = rt();
        let (pace, clients) = (Pace::new(Some(1 << 20)), Clients::new(&rt));
        rt.block_on(async {
            for _ in 0..5 {
                pace.turn(&clients, 1 << 20).await;
            }
            // The token bucket of the rate limit is full at the first piece, so that piece does not
            // wait. Each later piece waits one second.
            assert_eq!(rt.now().as_ns(), 4_000_000_000);
        });
    }

    #[test]
    fn it_gives_way_to_clients_but_not_for_ever() {
        let rt = rt();
        let (pace, clients) = (Pace::new(None), Clients::new(&rt));
        rt.block_on(async {
            pace.turn(&clients, 1 << 20).await;
            assert_eq!(rt.now(), Instant::ZERO, "nobody is there");
            let client = clients.enter();
            pace.turn(&clients, 1 << 20).await;
            assert_eq!(rt.now(), Instant::ZERO + GIVE_WAY_MAX);
            drop(client);
            pace.turn(&clients, 1 << 20).await;
            assert_eq!(rt.now(), Instant::ZERO + GIVE_WAY_MAX + SILENT_AFTER);
        });
    }

    /// With a client that always has a request in flight, a scrub of 16 MiB waits 1.6 s in total,
    /// both in 16 pieces and in 4,096 pieces.
    #[test]
    fn small_pieces_give_way_no_longer_than_large_ones() {
        for piece_bytes in [1 << 20, 64 << 10, 4096] {
            let rt = rt();
            let (pace, clients) = (Pace::new(None), Clients::new(&rt));
            rt.block_on(async {
                let _client = clients.enter();
                for _ in 0..(16 << 20) / piece_bytes {
                    pace.turn(&clients, piece_bytes).await;
                }
            });
            assert_eq!(rt.now(), Instant::ZERO + 16 * GIVE_WAY_MAX, "{piece_bytes}");
        }
    }
}
