//! How a rebuild shares the sides with clients, which must both get on: a volume that is degraded
//! for long may be lost, and one that serves nobody meanwhile is as good as lost.
//!
//! A rebuild works in bursts of [`BURST`]. After each one it rests for as long as clients had
//! something in flight during the burst, so clients have at least half of the time to themselves
//! and keep at least half of their rate; where they want little, the rebuild hardly rests. The
//! operator sets a floor and a ceiling in bytes a second. A rebuild must never stay below its floor
//! for the sake of clients, and never exceed its ceiling for longer than what it has in flight at
//! once takes.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::{Event, Semaphore};
use bimetal_rt::{Instant, Rt};

use super::pace::Clients;

/// A rebuild begins nothing new in a burst that is as old as this, if clients want something too.
const BURST: Duration = Duration::from_millis(100);
/// A rebuild that has fallen behind its floor catches up with at most this much of the past.
const LATE_MAX: Duration = Duration::from_secs(1);
const NS_PER_S: u64 = 1_000_000_000;
/// A piece counts as this much at least: that is what it costs a disk.
pub(super) const COST_BYTES_MIN: u64 = 64 << 10;

/// How fast rebuilds are, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildRates {
    /// At least this, whatever clients want and as far as the devices can; 0 for nothing.
    pub floor_bytes_per_s: u64,
    /// At most this; `None` for no limit.
    pub ceiling_bytes_per_s: Option<u64>,
}

impl RebuildRates {
    /// What is wrong with the rates, if anything.
    ///
    /// # Errors
    /// One line.
    pub fn check(&self) -> Result<(), String> {
        match self.ceiling_bytes_per_s {
            Some(0) => Err("the ceiling of a rebuild must be more than 0".to_owned()),
            Some(ceiling) if ceiling < self.floor_bytes_per_s => {
                Err("the ceiling of a rebuild is below its floor".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// How long some bytes take at a rate, which is not 0.
fn time_of(bytes: u64, bytes_per_s: u64) -> Duration {
    let ns = u128::from(bytes) * u128::from(NS_PER_S) / u128::from(bytes_per_s);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// A burst of work: from the beginning of its first piece to the end of its last.
#[derive(Clone, Copy)]
struct Burst {
    began: Instant,
    /// For how long clients had something in flight before it.
    busy_before: Duration,
}

/// The share of the rebuilds of one volume. See the module.
pub(super) struct Share {
    rt: Rt,
    rates: Cell<RebuildRates>,
    /// Pieces that are being copied, and the burst that they are of.
    working: Cell<u32>,
    burst: Cell<Burst>,
    /// When a burst may begin, as far as clients go.
    rested_at: Cell<Instant>,
    /// When the next piece must begin for the floor to be kept, and may begin for the ceiling.
    floor_at: Cell<Instant>,
    ceiling_at: Cell<Instant>,
    /// Bytes by which rebuilds are ahead of their floor, less what was undone of it, and when that
    /// was reckoned.
    ahead_bytes: Cell<f64>,
    ahead_at: Cell<Instant>,
    /// The rates were set, or a piece has ended.
    changed: Event,
    changes: Cell<u64>,
    /// Pieces begin in order.
    turn: Rc<Semaphore>,
}

/// A piece that is being copied, until it is dropped.
pub(super) struct Piece<'s> {
    share: &'s Share,
    clients: &'s Clients,
    began: Instant,
    bytes: u64,
}

impl Share {
    pub(super) fn new(rt: &Rt, rates: RebuildRates) -> Share {
        let now = rt.now();
        Share {
            rt: rt.clone(),
            rates: Cell::new(rates),
            working: Cell::new(0),
            burst: Cell::new(Burst {
                began: now,
                busy_before: Duration::ZERO,
            }),
            rested_at: Cell::new(now),
            floor_at: Cell::new(now),
            ceiling_at: Cell::new(now),
            ahead_bytes: Cell::new(0.0),
            ahead_at: Cell::new(now),
            changed: Event::new(),
            changes: Cell::new(0),
            turn: Semaphore::new(1),
        }
    }

    /// The rates that hold now.
    pub(super) fn rates(&self) -> RebuildRates {
        self.rates.get()
    }

    /// Sets the rates; what waits for its turn goes by them at once.
    pub(super) fn set_rates(&self, rates: RebuildRates) {
        self.reckon();
        self.rates.set(rates);
        // What has passed at other rates counts no more.
        self.floor_at.set(self.rt.now());
        self.ceiling_at.set(self.rt.now());
        self.note_change();
    }

    fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
        self.changed.notify();
    }

    /// A rebuild begins, and is as far as its floor demands.
    pub(super) fn begin_rebuild(&self) {
        self.reckon();
        self.ahead_bytes.set(self.ahead_bytes.get().max(0.0));
    }

    /// A rebuild has brought this much.
    pub(super) fn brought(&self, bytes: u64) {
        self.reckon();
        self.ahead_bytes.set(self.ahead_bytes.get() + bytes as f64);
    }

    /// What a rebuild has brought must be brought again.
    pub(super) fn fell_back(&self, bytes: u64) {
        self.reckon();
        self.ahead_bytes.set(self.ahead_bytes.get() - bytes as f64);
    }

    /// True when rebuilds have brought more than their floor demands, without what was undone.
    pub(super) fn is_ahead(&self) -> bool {
        self.reckon();
        self.rates.get().floor_bytes_per_s == 0 || self.ahead_bytes.get() > 0.0
    }

    /// Takes off what the floor has demanded since the last time. What is behind it stays behind by
    /// no more than it demands in [`LATE_MAX`].
    fn reckon(&self) {
        let (now, floor) = (self.rt.now(), self.rates.get().floor_bytes_per_s as f64);
        let passed = now.since(self.ahead_at.replace(now)).as_secs_f64();
        let behind_max = floor * LATE_MAX.as_secs_f64();
        let ahead = self.ahead_bytes.get() - floor * passed;
        self.ahead_bytes.set(ahead.max(-behind_max));
    }

    /// Waits until a piece of this size may begin.
    pub(super) async fn turn<'s>(&'s self, clients: &'s Clients, bytes: u64) -> Piece<'s> {
        let _turn = self.turn.acquire(1).await;
        loop {
            let now = self.rt.now();
            let begins_at = self.begins_at(now, clients);
            if begins_at <= now {
                break;
            }
            let seen = self.changes.get();
            let changed = self.changed.until(|| self.changes.get() != seen);
            // Whatever comes first is looked at above.
            let wait = begins_at.since(now).min(LATE_MAX);
            let _ = self.rt.timeout(wait, changed).await;
        }
        self.begin(clients, bytes)
    }

    /// When the next piece begins, as it looks now.
    fn begins_at(&self, now: Instant, clients: &Clients) -> Instant {
        let burst = self.burst.get();
        let with_clients = if self.working.get() == 0 {
            self.rested_at.get()
        } else if clients.busy() == burst.busy_before || now < burst.began + BURST {
            now
        } else {
            // When this burst has ended it is known.
            Instant::MAX
        };
        let floor = self.rates.get().floor_bytes_per_s;
        let begins_at = match floor {
            0 => with_clients,
            _ => with_clients.min(self.floor_at.get()),
        };
        begins_at.max(self.ceiling_at.get())
    }

    fn begin<'s>(&'s self, clients: &'s Clients, bytes: u64) -> Piece<'s> {
        let (now, rates) = (self.rt.now(), self.rates.get());
        let burst = self.burst.get();
        // Where nobody is in the way, a burst has no end.
        if self.working.get() == 0 || clients.busy() == burst.busy_before {
            self.burst.set(Burst {
                began: now,
                busy_before: clients.busy(),
            });
        }
        self.working.set(self.working.get() + 1);
        // One that is ahead of the floor has nothing to its credit; one that is behind catches up.
        let late_from = Instant::from_ns(now.as_ns().saturating_sub(LATE_MAX.as_nanos() as u64));
        let from = self.floor_at.get().max(late_from).min(now);
        if rates.floor_bytes_per_s > 0 {
            self.floor_at
                .set(from + time_of(bytes, rates.floor_bytes_per_s));
        }
        if let Some(ceiling) = rates.ceiling_bytes_per_s {
            let from = self.ceiling_at.get().max(now);
            self.ceiling_at.set(from + time_of(bytes, ceiling));
        }
        Piece {
            share: self,
            clients,
            began: now,
            bytes,
        }
    }

    fn end(&self, clients: &Clients) {
        let working = self.working.get() - 1;
        self.working.set(working);
        if working == 0 {
            let (now, burst) = (self.rt.now(), self.burst.get());
            let busy = clients.busy() - burst.busy_before;
            self.rested_at.set(now + busy.min(now.since(burst.began)));
        }
        self.note_change();
    }
}

impl Piece<'_> {
    /// Only this much has come of the piece: the rest was nothing that had to be copied.
    pub(super) fn took(&self, bytes: u64) {
        let (share, rates) = (self.share, self.share.rates.get());
        let less = self.bytes.saturating_sub(bytes);
        let earlier = |at: Instant, rate| {
            let back = at
                .as_ns()
                .saturating_sub(time_of(less, rate).as_nanos() as u64);
            at.min(self.began).max(Instant::from_ns(back))
        };
        if rates.floor_bytes_per_s > 0 {
            let floor_at = share.floor_at.get();
            share
                .floor_at
                .set(earlier(floor_at, rates.floor_bytes_per_s));
        }
        if let Some(ceiling) = rates.ceiling_bytes_per_s {
            share
                .ceiling_at
                .set(earlier(share.ceiling_at.get(), ceiling));
        }
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        self.share.end(self.clients);
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::VirtualOptions;

    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    /// Copies pieces of 1 MiB for a while, each of which takes 5 ms; returns how many.
    async fn copied(rt: &Rt, share: &Share, clients: &Clients, time: Duration) -> u64 {
        let (began, mut pieces) = (rt.now(), 0);
        while rt.now().since(began) < time {
            let _piece = share.turn(clients, MIB).await;
            rt.sleep(5 * MS).await;
            pieces += 1;
        }
        pieces
    }

    /// The pieces that are copied in 10 s, with a client that always has something in flight or
    /// with none.
    fn pieces_in_10_s(floor: u64, ceiling: Option<u64>, with_client: bool) -> u64 {
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(async {
            let rates = RebuildRates {
                floor_bytes_per_s: floor,
                ceiling_bytes_per_s: ceiling,
            };
            let (share, clients) = (Share::new(&rt, rates), Clients::new(&rt));
            let client = with_client.then(|| clients.enter());
            let pieces = copied(&rt, &share, &clients, Duration::from_secs(10)).await;
            drop(client);
            pieces
        })
    }

    #[test]
    fn it_rests_for_as_long_as_clients_were_busy() {
        // 200 pieces of 5 ms pass in a second.
        assert_eq!(pieces_in_10_s(0, None, false), 2000);
        let beside = pieces_in_10_s(0, None, true);
        assert!((950..=1050).contains(&beside), "half of them: {beside}");
    }

    #[test]
    fn the_floor_is_kept_beside_clients_and_the_ceiling_without_them() {
        let floor = pieces_in_10_s(150 * MIB, None, true);
        assert!((1500..=2000).contains(&floor), "{floor}");
        let ceiling = pieces_in_10_s(10 * MIB, Some(50 * MIB), false);
        assert!((495..=505).contains(&ceiling), "{ceiling}");
        // More than the devices can.
        assert_eq!(pieces_in_10_s(1000 * MIB, None, true), 2000);
    }

    #[test]
    fn what_was_nothing_costs_nothing() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(async {
            let rates = RebuildRates {
                floor_bytes_per_s: 0,
                ceiling_bytes_per_s: Some(MIB),
            };
            let (share, clients) = (Share::new(&rt, rates), Clients::new(&rt));
            for _ in 0..1000 {
                share.turn(&clients, MIB).await.took(0);
            }
            assert_eq!(rt.now(), Instant::ZERO);
        });
    }
}
