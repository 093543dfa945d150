//! Locks on byte ranges, which serialize changes of the same blocks and make a read-modify-write
//! atomic.
//!
//! A request for a range is admitted immediately, and queues after the earlier requests that it
//! overlaps. The request leaves when its guard is dropped. A request is granted the lock when all
//! overlapping earlier requests have left. A request never waits for a later request. So a request
//! that overlaps an earlier waiting request waits too, even if all bytes of its own range are
//! unlocked. A request that overlaps no other request never waits.
//!
//! # How the order is kept
//!
//! At each byte, the requests whose ranges include that byte form a queue. The map `last` gives the
//! last request of the queue of each byte. An entry of this map is called a piece: it covers a run
//! of bytes whose queues end with the same request, the owner of the piece. A new request becomes
//! the owner of all bytes of its range. Each piece that it replaces becomes an edge: a link from
//! the former owner to the new request. A request has the lock when no byte of its range has an
//! earlier request. When a request leaves, its edges lead to the next requests. The lock is granted
//! to those next requests that waited for no other request.
//!
//! A new request adds one piece to the map and splits at most two pieces, at the two ends of its
//! range. Each new edge removes one piece from the map. So any sequence of requests makes at most
//! three edges and three pieces per request, regardless of the number of waiting requests and of
//! the widths of their ranges. An operation on a request visits no request that does not overlap
//! it. A request that is dropped while it waits is removed from the queues of its bytes: its
//! successors are linked to its predecessors, at a cost proportional to the number of its own
//! edges.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::collections::Map;
use bimetal_rt::sync::WaitQueue;

use crate::extent_map::{Cut, ExtentMap};

/// Number of a request, in the order of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u64);

impl Cut for Number {
    fn cut(&self, _range: Range<u64>) -> Number {
        *self
    }
}

/// A request that has been admitted and has not yet left.
struct Admitted {
    range: Range<u64>,
    /// Number of bytes of the range that overlap an earlier request which has not left yet. The
    /// request has the lock when this number is 0.
    blocked_bytes: u64,
    /// Number of bytes of the range that have no later request.
    last_bytes: u64,
    /// For each part of the range, the last earlier request that overlapped the part when this
    /// request was admitted. That request might have left since then.
    before: ExtentMap<Number>,
    /// Parts of the range that have a later request. Each part is mapped to the direct successor of
    /// this request in that part.
    after: ExtentMap<Number>,
}

/// All admitted requests, and their order at each byte.
#[derive(Default)]
struct Order {
    admitted: Map<u64, Admitted>,
    last: ExtentMap<Number>,
    next_number: u64,
}

/// A lock on byte ranges; see the module.
#[derive(Default)]
pub struct RangeLock {
    order: RefCell<Order>,
    /// Waiting requests, ordered by their numbers.
    waiting: WaitQueue,
}

impl RangeLock {
    /// Creates a lock with no locked range.
    pub fn new() -> Rc<RangeLock> {
        Rc::new(RangeLock::default())
    }

    /// Locks a range, after waiting for overlapping requests that were admitted earlier. The
    /// request is admitted at the first poll of the future. An empty range locks nothing.
    ///
    /// A task that holds one lock must not request a second lock, because this can deadlock: a
    /// third request that overlaps both ranges waits for the first lock, and the second request
    /// waits behind the third request.
    pub async fn lock(self: &Rc<RangeLock>, range: Range<u64>) -> RangeGuard {
        // If this future is dropped, the guard is dropped with it, which removes the request from
        // the lock.
        let guard = self.admit(range);
        if !self.is_granted(guard.number) {
            let granted = || self.is_granted(guard.number);
            self.waiting.at(guard.number, granted).await;
        }
        guard
    }

    /// Locks a range if no part of it is locked or requested by a waiting request. Never waits.
    pub fn try_lock(self: &Rc<RangeLock>, range: Range<u64>) -> Option<RangeGuard> {
        self.is_free(&range).then(|| self.admit(range))
    }

    /// Returns true if no part of the range is locked or requested by a waiting request.
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        self.order.borrow().last.is_clear(range)
    }

    /// Returns the number of requests that hold the lock of their range or wait for it.
    pub fn len(&self) -> usize {
        self.order.borrow().admitted.len()
    }

    /// Returns true if no range is locked or requested by a waiting request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn admit(self: &Rc<RangeLock>, range: Range<u64>) -> RangeGuard {
        let number = self.order.borrow_mut().admit(&range);
        RangeGuard {
            lock: Rc::clone(self),
            range,
            number,
        }
    }

    fn is_granted(&self, number: u64) -> bool {
        let order = self.order.borrow();
        let admitted = order.admitted.get(&number);
        // A request with an empty range is not stored, and always has the lock.
        admitted.is_none_or(|admitted| admitted.blocked_bytes == 0)
    }
}

impl Order {
    /// Queues a new request for `range` after the earlier requests that the range overlaps. Returns
    /// the number of the new request. An empty range is not queued.
    fn admit(&mut self, range: &Range<u64>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        if range.is_empty() {
            return number;
        }
        let mut before = ExtentMap::new();
        for (part, earlier) in self.last.remove(range.clone()) {
            let request = self.of(earlier);
            request.last_bytes -= part.end - part.start;
            request.after.insert(part.clone(), Number(number));
            before.insert(part, earlier);
        }
        self.last.insert(range.clone(), Number(number));
        let admitted = Admitted {
            range: range.clone(),
            blocked_bytes: before.bytes(),
            last_bytes: range.end - range.start,
            before,
            after: ExtentMap::new(),
        };
        self.admitted.insert(number, admitted);
        number
    }

    fn of(&mut self, number: Number) -> &mut Admitted {
        let admitted = self.admitted.get_mut(&number.0);
        admitted.expect("a request that has a piece or an edge has not left")
    }

    /// Removes a request. Calls `grant` with the number of each request that is granted the lock as
    /// a result.
    fn leave(&mut self, number: u64, mut grant: impl FnMut(u64)) {
        let Some(left) = self.admitted.remove(&number) else {
            return;
        };
        let earlier = self.earlier_of(&left);
        for part in self.take_last(Number(number), &left) {
            for (inside, before) in clipped(&earlier, &part) {
                self.of(before).last_bytes += inside.end - inside.start;
                self.last.insert(inside, before);
            }
        }
        for (part, &later) in left.after.iter() {
            let joined_bytes = self.join(&earlier, &part, later);
            let request = self.of(later);
            request.blocked_bytes -= part.end - part.start - joined_bytes;
            if request.blocked_bytes == 0 {
                grant(later.0);
            }
        }
    }

    /// Unlinks a leaving request from its predecessors. Returns a map from parts of its range to
    /// these predecessors. The map is empty if the request had the lock.
    fn earlier_of(&mut self, left: &Admitted) -> ExtentMap<Number> {
        let mut earlier = ExtentMap::new();
        if left.blocked_bytes > 0 {
            for (part, &before) in left.before.iter() {
                if let Some(request) = self.admitted.get_mut(&before.0) {
                    request.after.remove(part.clone());
                    earlier.insert(part, before);
                }
            }
        }
        earlier
    }

    /// Removes from the map `last` (the last request of the queue for each byte range) the ranges
    /// whose last request is the leaving request `number`. Returns these ranges.
    fn take_last(&mut self, number: Number, left: &Admitted) -> Vec<Range<u64>> {
        let mut bytes = left.last_bytes;
        let mut parts = Vec::new();
        for (part, &of) in self.last.overlapping(&left.range) {
            if bytes == 0 {
                break;
            }
            if of == number {
                bytes -= part.end - part.start;
                parts.push(part);
            }
        }
        assert_eq!(bytes, 0, "the pieces of a request are in the map");
        for part in &parts {
            self.last.remove(part.clone());
        }
        parts
    }

    /// Links the request `later` to the requests in the map `earlier`, as their successor in
    /// `part`. Returns the number of bytes of `part` for which the map has a request.
    fn join(&mut self, earlier: &ExtentMap<Number>, part: &Range<u64>, later: Number) -> u64 {
        let mut joined_bytes = 0;
        for (inside, before) in clipped(earlier, part) {
            joined_bytes += inside.end - inside.start;
            self.of(before).after.insert(inside.clone(), later);
            self.of(later).before.insert(inside, before);
        }
        joined_bytes
    }
}

/// Returns the entries of a map, clipped to a range.
fn clipped(map: &ExtentMap<Number>, range: &Range<u64>) -> Vec<(Range<u64>, Number)> {
    let inside = map.overlapping(range).map(|(part, &number)| {
        let part = part.start.max(range.start)..part.end.min(range.end);
        (part, number)
    });
    inside.collect()
}

/// A locked range; unlocks when dropped.
pub struct RangeGuard {
    lock: Rc<RangeLock>,
    range: Range<u64>,
    number: u64,
}

impl RangeGuard {
    /// Returns the locked range.
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let waiting = &self.lock.waiting;
        let grant = |number| waiting.wake_at(number);
        self.lock.order.borrow_mut().leave(self.number, grant);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use bimetal_rt::sync::TaskGroup;
    use bimetal_rt::{Rng, Rt, VirtualOptions};

    use super::*;

    fn rt(seed: u64) -> Rt {
        Rt::virtual_time(VirtualOptions {
            seed,
            shuffle: true,
        })
    }

    /// The number that the test gives to a request, and the range of the request.
    type Listed = (u64, Range<u64>);

    fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
        a.start < b.end && b.start < a.end
    }

    /// Compares the lock with a list, for random ranges of all widths. The ranges are held for
    /// random times, and some requests are dropped while they wait. A request must have the lock if
    /// and only if no overlapping earlier request remains.
    #[test]
    fn a_request_waits_for_the_earlier_ones_that_it_overlaps_and_for_no_others() {
        let rt = rt(3);
        let lock = RangeLock::new();
        // All requests that have not left, in the order of admission.
        let list: Rc<RefCell<Vec<Listed>>> = Rc::default();
        let (waited, given_up) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut rng = Rng::new(9);
        let group = TaskGroup::new(&rt);
        for id in 0..3_000u64 {
            let start = rng.below(64);
            let width = 1 + if rng.chance(0.1) {
                rng.below(64)
            } else {
                rng.below(4)
            };
            let range = start..(start + width).min(64);
            let (arrival, hold) = (rng.below(30_000), rng.below(100));
            let patience = rng.chance(0.2).then(|| rng.below(100));
            let (lock, list, rt2) = (lock.clone(), list.clone(), rt.clone());
            let (waited, given_up) = (waited.clone(), given_up.clone());
            group.spawn(async move {
                rt2.sleep(Duration::from_nanos(arrival)).await;
                let conflicts = |list: &[Listed], range: &Range<u64>| {
                    let earlier = list.iter().take_while(|(other, _)| *other != id);
                    earlier.filter(|(_, other)| overlap(other, range)).count()
                };
                let ahead = conflicts(&list.borrow(), &range);
                assert_eq!(lock.is_free(&range), ahead == 0);
                list.borrow_mut().push((id, range.clone()));
                let leave = || list.borrow_mut().retain(|(other, _)| *other != id);
                let asked = lock.lock(range.clone());
                let guard = match patience {
                    Some(ns) => rt2.timeout(Duration::from_nanos(ns), asked).await,
                    None => Ok(asked.await),
                };
                let Ok(guard) = guard else {
                    assert!(ahead > 0, "what is free is had at once");
                    given_up.set(given_up.get() + 1);
                    return leave();
                };
                waited.set(waited.get() + usize::from(ahead > 0));
                assert_eq!(conflicts(&list.borrow(), &range), 0, "it is its turn");
                rt2.sleep(Duration::from_nanos(hold)).await;
                leave();
                drop(guard);
            });
        }
        rt.block_on(group.join());
        let order = lock.order.borrow();
        assert!(order.admitted.is_empty() && order.last.is_empty());
        assert!(
            waited.get() > 500 && given_up.get() > 100,
            "the test has contention"
        );
    }

    /// With many concurrent requests, the number of edges (links from a request to its successor)
    /// and the number of pieces (entries of the map `last`) are at most three times the number of
    /// requests.
    #[test]
    fn what_is_kept_grows_with_the_requests_and_not_with_their_overlaps() {
        let rt = rt(1);
        let lock = RangeLock::new();
        let mut rng = Rng::new(5);
        rt.block_on(async {
            let requests: u64 = 2_000;
            // All ranges contain the byte at offset 1 << 20. Their start and end offsets are
            // random.
            let guards: Vec<_> = (0..requests)
                .map(|_| lock.admit(rng.below(1 << 20)..(1 << 20) + 1 + rng.below(1 << 20)))
                .collect();
            let order = lock.order.borrow();
            let edges: usize = order.admitted.values().map(|a| a.after.len()).sum();
            assert!(edges as u64 <= 3 * requests, "{edges} edges");
            assert!(order.last.len() as u64 <= 3 * requests);
            drop(order);
            drop(guards);
            assert!(lock.is_empty());
        });
    }
}
