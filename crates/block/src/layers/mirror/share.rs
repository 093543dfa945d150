//! Scheduler that divides the time of the sides between rebuilds and clients. Both must make
//! progress: a volume that stays degraded for long may be lost, and a volume that serves no client
//! in the meantime is of no use.
//!
//! A rebuild works in bursts of [`BURST`]. After each burst, the rebuild rests for as long as
//! clients had requests in flight during that burst. So clients have at least half of the time to
//! themselves and keep at least half of their rate; when clients request little, the rebuild hardly
//! rests. The operator sets a minimum rate (the floor) and a maximum rate (the ceiling), in bytes a
//! second. The load of clients must not slow a rebuild below its floor. A rebuild is allowed to
//! exceed its ceiling only until the pieces that are in flight are complete.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::{Event, Semaphore};
use bimetal_rt::{Instant, Rt};

use super::pace::Clients;

/// Age up to which a burst (a group of pieces that rebuilds copy without a rest) accepts further
/// pieces while clients have requests. Without requests of clients, the age is not limited.
const BURST: Duration = Duration::from_millis(100);
/// Maximum lag of a rebuild behind the minimum rebuild rate (the floor), as a time. A rebuild makes
/// up for a lag of at most this time; a longer lag is cut to it.
const LATE_MAX: Duration = Duration::from_secs(1);
const NS_PER_S: u64 = 1_000_000_000;
/// Minimum number of bytes charged for a piece, the unit that a rebuild copies in one step. It
/// accounts for a seek on a disk.
pub(super) const COST_BYTES_MIN: u64 = 64 << 10;

/// Rates of rebuilds, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildRates {
    /// Minimum rate, kept under any load if the devices are fast enough; 0 for none.
    pub floor_bytes_per_s: u64,
    /// Maximum rate; `None` for no limit.
    pub ceiling_bytes_per_s: Option<u64>,
}

impl RebuildRates {
    /// Checks the rates.
    ///
    /// # Errors
    /// One line that says which rate is invalid.
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

/// Returns the time that `bytes` take at `bytes_per_s`, which must not be 0.
fn time_of(bytes: u64, bytes_per_s: u64) -> Duration {
    let ns = u128::from(bytes) * u128::from(NS_PER_S) / u128::from(bytes_per_s);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// A burst: a group of pieces that rebuilds copy without a rest, from the start of the first piece
/// to the end of the last piece.
#[derive(Clone, Copy)]
struct Burst {
    began: Instant,
    /// Total time during which clients had requests in flight, from the creation of [`Clients`] to
    /// the start of the burst.
    busy_before: Duration,
}

/// Scheduler of the rebuilds of one volume; see the module.
pub(super) struct Share {
    rt: Rt,
    rates: Cell<RebuildRates>,
    /// Number of pieces of rebuilds that are being copied. All of them belong to the current burst,
    /// `burst`.
    working: Cell<u32>,
    burst: Cell<Burst>,
    /// Time at which the pause of the rebuild after the last burst of copies ends. The next burst
    /// starts no earlier, unless the minimum rebuild rate demands it (`floor_at`).
    rested_at: Cell<Instant>,
    /// Latest time at which the next piece must start to keep the minimum rebuild rate (the floor).
    /// `ceiling_at` is the earliest time at which the maximum rebuild rate (the ceiling) allows the
    /// next piece to start.
    floor_at: Cell<Instant>,
    ceiling_at: Cell<Instant>,
    /// Number of bytes by which rebuilds are ahead of the minimum rebuild rate, computed at the
    /// time `ahead_at`; negative if they are behind. Bytes that must be copied again are
    /// subtracted.
    ahead_bytes: Cell<f64>,
    ahead_at: Cell<Instant>,
    /// Signaled when the rates were set or a piece has ended.
    changed: Event,
    changes: Cell<u64>,
    /// Semaphore that makes the pieces of rebuilds start in the order in which they were requested.
    turn: Rc<Semaphore>,
}

/// A piece of a rebuild that is being copied, registered until this guard is dropped.
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

    /// Returns the current rates.
    pub(super) fn rates(&self) -> RebuildRates {
        self.rates.get()
    }

    /// Sets the rates. They also apply immediately to pieces that wait for their turn.
    pub(super) fn set_rates(&self, rates: RebuildRates) {
        self.compute();
        self.rates.set(rates);
        // The times computed from the previous rates are no longer valid.
        self.floor_at.set(self.rt.now());
        self.ceiling_at.set(self.rt.now());
        self.note_change();
    }

    fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
        self.changed.notify();
    }

    /// Starts the accounting of a rebuild. A lag of earlier rebuilds behind the minimum rebuild
    /// rate is dropped, so that the new rebuild starts without a lag.
    pub(super) fn begin_rebuild(&self) {
        self.compute();
        self.ahead_bytes.set(self.ahead_bytes.get().max(0.0));
    }

    /// Adds bytes that a rebuild has copied.
    pub(super) fn brought(&self, bytes: u64) {
        self.compute();
        self.ahead_bytes.set(self.ahead_bytes.get() + bytes as f64);
    }

    /// Subtracts bytes that a rebuild must copy again.
    pub(super) fn fell_back(&self, bytes: u64) {
        self.compute();
        self.ahead_bytes.set(self.ahead_bytes.get() - bytes as f64);
    }

    /// Returns true when rebuilds have copied more bytes than the minimum rebuild rate requires.
    /// Bytes that must be copied again are not included. If the minimum rate is 0, the result is
    /// always true.
    pub(super) fn is_ahead(&self) -> bool {
        self.compute();
        self.rates.get().floor_bytes_per_s == 0 || self.ahead_bytes.get() > 0.0
    }

    /// Updates `ahead_bytes`, the number of bytes by which rebuilds are ahead of the minimum
    /// rebuild rate (negative if they lag): subtracts the bytes that this rate requires in the time
    /// since the last call. The lag never exceeds the bytes that the rate requires in [`LATE_MAX`].
    fn compute(&self) {
        let (now, floor) = (self.rt.now(), self.rates.get().floor_bytes_per_s as f64);
        let passed = now.since(self.ahead_at.replace(now)).as_secs_f64();
        let behind_max = floor * LATE_MAX.as_secs_f64();
        let ahead = self.ahead_bytes.get() - floor * passed;
        self.ahead_bytes.set(ahead.max(-behind_max));
    }

    /// Waits until a piece of `bytes` is allowed to start, and registers it as being copied.
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
            // The loop handles a timeout and a change in the same way.
            let wait = begins_at.since(now).min(LATE_MAX);
            let _ = self.rt.timeout(wait, changed).await;
        }
        self.begin(clients, bytes)
    }

    /// Returns the time at which the next piece is allowed to start, as far as this is known at the
    /// time `now`.
    fn begins_at(&self, now: Instant, clients: &Clients) -> Instant {
        let burst = self.burst.get();
        let with_clients = if self.working.get() == 0 {
            self.rested_at.get()
        } else if clients.busy() == burst.busy_before || now < burst.began + BURST {
            now
        } else {
            // The time becomes known only when this burst has ended.
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
        // A new burst begins if no piece was being copied, or if clients have had no request since
        // the burst began. So while clients are idle, every piece begins a new burst, and no burst
        // reaches its end.
        if self.working.get() == 0 || clients.busy() == burst.busy_before {
            self.burst.set(Burst {
                began: now,
                busy_before: clients.busy(),
            });
        }
        self.working.set(self.working.get() + 1);
        // A rebuild that is ahead of the minimum rebuild rate gets no credit for it. A rebuild that
        // is behind the minimum rate makes up for at most `LATE_MAX`.
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
    /// Reduces the charged cost of the piece to `bytes`, because the rest of the piece needed no
    /// copy.
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

    /// Copies pieces of 1 MiB, each of which takes 5 ms, for `time`. Returns the number of pieces.
    async fn copied(rt: &Rt, share: &Share, clients: &Clients, time: Duration) -> u64 {
        let (began, mut pieces) = (rt.now(), 0);
        while rt.now().since(began) < time {
            let _piece = share.turn(clients, MIB).await;
            rt.sleep(5 * MS).await;
            pieces += 1;
        }
        pieces
    }

    /// Returns the number of pieces copied in 10 s; `with_client` adds a client that always has a
    /// request in flight.
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
        // At 5 ms each, 200 pieces are copied in a second.
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
        // The minimum rebuild rate is higher here than the rate that the devices can reach.
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
